"""What a report says, without a browser: real exports, plans and differences, and signatures made to deceive."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import migrate
from migrate.difference import compare_signatures
from migrate.preparation import as_job, compile_directory, prepare
from migrate.report.html import contents
from migrate.report.html.memory import MOST_GROUPS, most_wasted, sizes, split_groups
from migrate.report.html.page import render

from .conftest import reexport, small_job
from .signatures import HOSTILE, many, odd, parameter, signature


class Elements(HTMLParser):
    """Tags, attributes and text as a browser's parser finds them."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data
        elif self.cdata_elem is None:
            self.text += data


def data_of(page: bytes) -> dict[str, Any]:
    return json.loads(Elements(page).scripts[0])  # type: ignore[no-any-return]


def test_an_export(export: migrate.Export) -> None:
    page = render(contents.of_export(export))
    text = Elements(page).text
    assert f"Export {export.manifest.export}" in text
    assert "10 arrays" in text
    assert "verified when it was written" in text
    assert "to read it all" in text
    for stage in ("open", "compile", "plan", "rewrite"):
        assert stage in export.manifest.timings
    assert re.search(r"written and read back in [\d.]+ s: [\d.]+ \w+/s", text)
    data = data_of(page)
    names = [row[0] for row in data["rows"]]
    assert "params/dense/kernel" in names
    assert len(names) == len(export.signature().parameters)
    assert render(contents.of_export(export)) == page  # equal input, equal bytes


def test_an_export_beside_its_source(export: migrate.Export, checkpoint: Path) -> None:
    document = contents.of_export(export, source=migrate.open_checkpoint(checkpoint))
    data = json.loads(json.dumps(document.data))
    [row] = [row for row in data["rows"] if row[0] == "params/dense/kernel"]
    old, new = (data["grids"][number] for number in row[6:8])
    assert (old["shape"], old["chunk"], old["order"]) == ([8, 12], [8, 3], None)
    assert new["chunk"] == [8, 3]
    assert new["order"] is not None


def test_what_a_full_check_found(export: migrate.Export) -> None:
    good = Elements(render(contents.of_export(export, checked=migrate.verify_export(export)))).text
    assert "intact" in good
    error = migrate.errors.VerificationError("1 of 4 chunks of <w> differ", found="<b>")
    bad = Elements(render(contents.of_export(export, checked=error))).text
    assert "DAMAGED" in bad
    assert "1 of 4 chunks of <w> differ" in bad


def test_a_plan(checkpoint: Path, tmp_path: Path) -> None:
    with compile_directory() as directory:
        document = contents.of_plan(prepare(as_job(small_job(checkpoint, tmp_path / "out")), directory))
    assert document.headline.startswith("Would write 10 arrays, 1.6 KiB: each of 8 devices of v5e:2x4 holds ")
    assert {stage.name for stage in document.stages} == {"open", "compile", "plan"}
    assert dict(document.facts)["target"] == "v5e:2x4, mesh data 2 x model 4, auto layouts"
    assert not (tmp_path / "out").exists()
    assert any("outside select" in note for note in document.notes)


def test_a_difference() -> None:
    same = parameter("same")
    before = signature([same, parameter("turned"), parameter("gone")])
    after = signature(
        [same, parameter("turned", major_to_minor=(0, 2, 1)), parameter("new", argument="cache")], libtpu="0.0.52"
    )
    document = contents.of_difference(compare_signatures(before, after), ("A.json", "B.json"))
    assert document.headline.startswith("Rewrite 1 array")
    assert "3 of 4 parameters" in document.headline
    differing = [row.name for row in document.fingerprints if row.differs]
    assert differing == ["libtpu"]
    texts = document.data["texts"]
    changed = {row[0]: row[8] if row[8] is None else texts[row[8]] for row in document.data["rows"]}
    assert changed == {
        "params/same": None,
        "params/turned": "dimension order",
        "params/gone": "removed",
        "cache/new": "added",
    }
    # 320 rows of 40 padded to 128 against 40 rows of 320 padded to 384
    assert {name: (a, b) for name, a, b in document.sums}["all parameters"] == (
        before.device_bytes,
        after.device_bytes,
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_only_text(name: str) -> None:
    hostile = signature([parameter(name, argument=name), parameter("w")], topology=name, flags=((name, name),))
    clean = signature([parameter("v"), parameter("w")])
    found, expected = (
        Elements(render(contents.of_signature(one, label))) for one, label in ((hostile, name), (clean, "x"))
    )
    # not one element, attribute or script more than a page with harmless names has
    tags = [[tag for tag, _ in page.tags if tag != "svg" and tag != "rect"] for page in (found, expected)]
    assert sorted(set(tags[0])) == sorted(set(tags[1]))
    assert [tag for tag, _ in found.tags].count("script") == 2
    assert found.scripts[1] == expected.scripts[1]
    assert not any(key.startswith("on") for _, attributes in found.tags for key in attributes)
    shown = json.loads(found.scripts[0])["rows"][0][0]
    assert shown.isprintable()
    if name.isprintable():
        assert shown == f"{name}/{name}"


def test_the_policy_allows_our_script_and_nothing_else() -> None:
    page = Elements(render(contents.of_signature(signature([parameter("w")]), "x")))
    [policy] = [a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not [a for tag, a in page.tags if "src" in a or "style" in a or (tag == "link")]


def test_odd_layouts_are_described() -> None:
    document = contents.of_signature(signature(odd()), "odd")
    assert len(document.data["specs"]) == len(odd())
    assert render(document)


def test_a_program_without_parameters() -> None:
    assert "0 parameters" in Elements(render(contents.of_signature(signature([]), "none"))).text


def test_equal_layouts_are_told_once() -> None:
    page = render(contents.of_signature(many(2000), "many"))
    data = data_of(page)
    assert len(data["rows"]) == 2000
    assert len(data["specs"]) < 200


@given(st.lists(st.lists(st.sampled_from(["a", "b", "layer_1", "layer_2", "0", "17"]), max_size=4), max_size=40))
def test_groups_lose_no_byte(paths: list[list[str]]) -> None:
    parameters = [parameter(*path) for path in paths]
    groups = split_groups(parameters)
    assert sum(group.nbytes for group in groups) == sum(p.device_bytes for p in parameters)
    assert sum(group.padding_bytes for group in groups) == sum(p.device_bytes - p.unpadded_bytes for p in parameters)
    assert sum(group.count for group in groups) == len(parameters)
    assert len(groups) <= MOST_GROUPS
    assert [group.nbytes for group in groups] == sorted((group.nbytes for group in groups), reverse=True)


def test_layers_are_one_group_and_one_waste() -> None:
    parameters = [parameter("layers", str(n), kind) for n in range(30) for kind in ("wq", "wk")] + [parameter("embed7")]
    assert {group.name for group in split_groups(parameters)} == {
        "params/layers/*/wq",
        "params/layers/*/wk",
        "params/embed7",  # a number that tells nothing apart is shown as it is
    }
    worst = most_wasted(parameters)[0]
    assert (worst.count, worst.layout) == (30, "bf16[16,320,40]{2,1,0:T(8,128)(2,1)}")
    assert worst.why == "tile (8,128): dimension 2 is padded from 40 to 128"
    assert worst.padding_bytes == 30 * 16 * 320 * (128 - 40) * 2


@pytest.mark.parametrize("case", odd(), ids=lambda p: p.name)
def test_sizes_are_those_of_the_signature(case: Any) -> None:
    assert sizes(case) == (case.device_bytes, case.unpadded_bytes)


def test_the_command(export: migrate.Export, tmp_path: Path) -> None:
    output = export.paths.output
    page = tmp_path / "deep" / "report.html"
    done = reexport("report", output, "-o", page, "--verify")
    assert done.returncode == 0, done.stderr
    text = Elements(page.read_bytes()).text
    assert "read back and intact" in text
    assert data_of(page.read_bytes())["grids"]  # the old chunks, too: the source still lies there

    (tmp_path / "other.json").write_text(signature([parameter("w")]).to_json())
    assert reexport("report", output, tmp_path / "other.json", "-o", page).returncode == 0
    assert data_of(page.read_bytes())["kind"] == "difference"


def test_a_damaged_export_is_reported_and_the_exit_code_says_so(
    export: migrate.Export,
    tmp_path: Path,
) -> None:
    output = tmp_path / "copy"
    shutil.copytree(export.paths.output, output)
    executable = next(output.rglob("executable.bin"))
    executable.write_bytes(executable.read_bytes()[:-1] + b"x")
    done = reexport("report", output, "-o", tmp_path / "r.html", "--verify")
    assert done.returncode == 3
    assert "is not the one that was committed" in done.stderr
    assert "DAMAGED" in Elements((tmp_path / "r.html").read_bytes()).text


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nowhere"], 2, "neither an export nor a signature nor a job lies here"),
        (["nowhere", "--verify"], 1, "no committed export lies here"),
        (["a", "b", "--verify"], 2, "--verify reads one export"),
        (["a", "--b", "x=1"], 2, "give B, too"),
        (["a", "--target", "x=1"], 2, "A is no job"),
    ],
)
def test_wrong_input(arguments: list[str], code: int, words: str, tmp_path: Path) -> None:
    done = reexport("report", *arguments, "-o", "r.html", cwd=tmp_path)
    assert done.returncode == code
    assert words in done.stderr
    assert not (tmp_path / "r.html").exists()


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(signature([parameter("w")]).to_json())
    (tmp_path / "file").touch()
    done = reexport("report", "s.json", "-o", "file/r.html", cwd=tmp_path)
    assert done.returncode == 1
    assert "the report cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
