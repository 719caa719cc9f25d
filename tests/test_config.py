"""Job files: what is read, and how a wrong one is named."""

from __future__ import annotations

import copy
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from migrate.config import job_from_mapping, load_job, parse_bytes
from migrate.errors import ConfigError, ExitCode
from migrate.layout_rules import CopiedLayout
from migrate.rules import DropRule, RenameRule

MINIMAL = {
    "source": {"path": "checkpoint"},
    "program": {"entry": "model:step"},
    "target": {"topology": "v5e:2x2", "mesh": {"data": 1, "model": 4}},
    "output": "out",
}

BYTES = [
    (0, 0),
    (67108864, 67108864),
    ("64MiB", 64 << 20),
    ("64 mib", 64 << 20),  # people type it as they like
    ("64MB", 64_000_000),  # decimal units are not binary ones
    ("1.5KiB", 1536),
    ("0.1GB", 100_000_000),  # exact, not 100000000.00000001
    ("9007199254740993", 9007199254740993),  # beyond what a float holds
    (" 7 B ", 7),
    (1.5e9, 1_500_000_000),  # YAML reads this notation as a float
]


@pytest.mark.parametrize(("value", "expected"), BYTES)
def test_parse_bytes(value: object, expected: int) -> None:
    assert parse_bytes(value) == expected


NO_BYTES = [
    "",
    "MiB",
    "64 XiB",
    "-1",
    "1e400",  # would be infinite
    "1 2",
    True,  # an int in Python, never a size
    None,
    [1],
]


@pytest.mark.parametrize("value", NO_BYTES)
def test_no_number_of_bytes(value: object) -> None:
    with pytest.raises(ValueError, match="expected a number of bytes"):
        parse_bytes(value)


def test_huge_numbers_of_bytes_do_not_overflow() -> None:
    assert parse_bytes("9" * 400) == int("9" * 400)


def changed(path: str, value: Any) -> dict[str, Any]:
    """The minimal job with one key set, or taken away where ``value`` is None."""
    job = copy.deepcopy(MINIMAL)
    *parents, last = path.split(".")
    section: Any = job
    for parent in parents:
        section = section.setdefault(parent, {})
    if value is None:
        del section[last]
    else:
        section[last] = value
    return job


WRONG = [
    # path, value, key in the message
    ("surprise", 1, "surprise"),
    ("source.pth", "x", "source.pth"),
    ("target.mesh.data", 0, "target.mesh.data"),  # a mesh axis without devices
    ("target.mesh.data", "many", "target.mesh.data"),
    ("target.layout", "pinned", "target.layout"),
    ("rewrite.max_item_bytes", "64 XiB", "rewrite.max_item_bytes"),
    ("rewrite.max_item_bytes", 0, "rewrite.max_item_bytes"),  # nothing fits into no bytes
    ("rewrite.max_chunk_bytes", True, "rewrite.max_chunk_bytes"),
    ("rewrite.workers", 0, "rewrite.workers"),
    ("rewrite.compression", "gzip", "rewrite.compression"),
    ("compile.timeout_seconds", 0, "compile.timeout_seconds"),
    ("program.name", "../up", "program.name"),  # becomes part of a path
    ("program.name", "", "program.name"),
    ("source.step", "latest", "source.step"),
    ("source.missing_chunks", "ignore", "source.missing_chunks"),
    ("python_path", "lib", "python_path"),  # a text is not a list of texts
    ("mapping", [{"drop": "a", "to": "b"}], "mapping[0].to"),
    ("mapping", [{"rename": "a"}], "mapping[0].to"),
    ("mapping", [{"drop": "a"}, {"delete": "b"}], "mapping[1]"),
    ("mapping", ["a"], "mapping[0]"),
    ("source.path", "", "source.path"),
    ("output", "", "output"),  # would be the job file's own folder
    ("source", None, "source"),
    ("source.path", None, "source.path"),
    ("target.topology", None, "target.topology"),
    ("output", None, "output"),
    ("myRule", 1, "myRule"),  # no part of a key is lost from its name
]


@pytest.mark.parametrize(("path", "value", "key"), WRONG)
def test_wrong_keys_are_named_with_the_file(path: str, value: Any, key: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(changed(path, value)))
    with pytest.raises(ConfigError) as caught:
        load_job(file)
    found = re.fullmatch(rf"{re.escape(str(file))}(?:, line (\d+))?: {re.escape(key)}", caught.value.where or "")
    assert found, caught.value.where
    if value is not None and "[" not in key:
        assert key.rpartition(".")[2] in file.read_text().splitlines()[int(found.group(1)) - 1]
    assert key in caught.value.what
    assert caught.value.exit_code is ExitCode.USAGE


def test_unknown_key_suggests_the_known_one() -> None:
    with pytest.raises(ConfigError, match="did you mean path"):
        job_from_mapping(changed("source.pth", "x"))


def test_every_wrong_key_is_named_at_once() -> None:
    job = {**changed("source.pth", "x"), "surprise": 1}
    with pytest.raises(ConfigError, match="2 keys") as caught:
        job_from_mapping(job, where="job.yaml")
    assert "source.pth" in caught.value.where
    assert "surprise" in caught.value.where


RULES = [
    ({"drop": "("}, "unterminated"),  # no regular expression
    ({"rename": "a(b)", "to": r"\2"}, "group"),  # no second group
    ({"rename": "a(?P<x>b)", "to": r"\g<y>"}, "group"),
    ({"rename": "a", "to": "\\"}, "escape"),
]


@pytest.mark.parametrize(("rule", "problem"), RULES)
def test_unusable_rules_are_named(rule: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        job_from_mapping({**MINIMAL, "mapping": [{"drop": "fine"}, rule]}, where="job.yaml")
    assert caught.value.where == "job.yaml: mapping[1]"
    assert problem in caught.value.what


GOOD_RULES = [
    {"rename": r"(\w+)/(\w+)", "to": r"\2/\1"},
    {"rename": "(?i)Params/(.*)", "to": r"\1"},  # flags are allowed only at the very beginning
    {"rename": "(a)|(b)", "to": r"x\1\2"},  # groups that may not take part
    {"rename": "(?x) a # comment", "to": "b"},
]


@pytest.mark.parametrize("rule", GOOD_RULES)
def test_usable_rules(rule: dict[str, str]) -> None:
    assert job_from_mapping({**MINIMAL, "mapping": [rule]}).mapping == (RenameRule(**rule),)


def test_relative_paths_start_at_the_job_file(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    file = folder / "job.yaml"
    file.write_text(
        textwrap.dedent("""
            source: {path: ../checkpoints/run}
            program: {entry: "model:step"}
            target: {topology: "cpu:8", mesh: {data: 8}}
            output: out
            python_path: [lib, /opt/models]
        """)
    )
    job = load_job(file)
    assert job.source.path == str(tmp_path / "checkpoints/run")
    assert job.output == str(folder / "out")
    # the job file's own folder comes first
    assert job.python_path == (str(folder), str(folder / "lib"), "/opt/models")


PATHS = [
    ("/abs/x/", "/abs/x"),
    ("~/x", str(Path.home() / "x")),
    ("s3://bucket/x/", "s3://bucket/x"),
    ("gs://bucket/x", "gs://bucket/x"),
    ("file:///abs/x", "/abs/x"),
    ("x/../y", str(Path.cwd() / "y")),
    (".", str(Path.cwd())),
    ("~no-such-user/x", str(Path.cwd() / "~no-such-user/x")),  # a name like any other
]


@pytest.mark.parametrize(("given", "expected"), PATHS)
def test_paths_of_a_job(given: str, expected: str) -> None:
    job = job_from_mapping({**changed("source.path", given), "output": given})
    assert (job.source.path, job.output) == (expected, expected)


def test_defaults_and_immutability() -> None:
    job = job_from_mapping({**MINIMAL, "mapping": [{"drop": "opt/.*"}], "rewrite": {"max_item_bytes": "1MiB"}})
    assert job.mapping == (DropRule(drop="opt/.*"),)
    assert (job.rewrite.max_item_bytes, job.rewrite.compression) == (1 << 20, "none")
    assert list(job.target.mesh) == ["data", "model"]  # the order of the axes is part of the mesh
    with pytest.raises(ValueError, match="frozen"):
        job.output = "elsewhere"


NOT_JOBS = {
    "list": ("[1, 2]", "not a job"),
    "empty": ("", "not a job"),
    "text": ("source", "not a job"),
    "broken": ("source: [", "not YAML"),
    # never constructs Python objects
    "object": ("!!python/object/apply:os.system [ls]", "not YAML"),
}


@pytest.mark.parametrize(("text", "message"), NOT_JOBS.values(), ids=NOT_JOBS)
def test_files_that_are_no_job(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_job(file)
    assert str(file) in str(caught.value)


def test_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path, message in [
        ("missing", "there is no job file"),
        (".", "is a directory, not a job file"),
        ("binary", "cannot be read"),
    ]:
        with pytest.raises(ConfigError, match=message):
            load_job(tmp_path / path)


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    """YAML lets the last one win, so that a job would quietly write elsewhere than its reader thinks."""
    file = tmp_path / "job.yaml"
    file.write_text("output: first\noutput: second\n")
    with pytest.raises(ConfigError, match="not YAML") as caught:
        load_job(file)
    assert "key 'output' is given twice" in str(caught.value.found)


STEP = {"entry": "model:step"}
PROGRAMS = [
    # keys in place of program, words of the message
    ({}, ["program: is missing"]),
    ({"program": STEP, "programs": [STEP]}, ["one of the keys program, programs"]),
    ({"programs": []}, ["at least one program"]),
    ({"programs": [STEP, STEP]}, ["names of their own", "main"]),
    ({"programs": [{**STEP, "primary": True}, {**STEP, "name": "b", "primary": True}]}, ["one primary program"]),
    ({"programs": [STEP, {"entr": "model:step", "name": "b"}]}, ["programs[1].entr", "did you mean entry"]),
    ({"program": {**STEP, "layout": "fast"}}, ["program.layout", "auto-bounded", "{pinned: PATH"]),
    ({"program": {**STEP, "layout": {"major_to_minor": [0]}}}, ["program.layout"]),  # arrays differ in rank
    ({"program": {**STEP, "layouts": [{"parameters": "(", "layout": "auto"}]}}, ["layouts[0].parameters"]),
    (
        {"program": {**STEP, "layouts": [{"parameters": "a", "layout": {"major_to_minor": [0, 2]}}]}},
        ["layouts[0].layout", "every dimension"],
    ),
    ({"program": {**STEP, "exported": "a"}}, ["program: should have one of the keys entry, exported\n"]),
    (
        {"mapping": [{"cast": "a", "dtype": "s8"}]},
        ["mapping[0]: XLA has no element type for dtype 's8'; did you mean int8?\n"],
    ),
    ({"program": {**STEP, "layouts": [{"parameter": "a", "layout": "auto"}]}}, ["did you mean parameters"]),
]


@pytest.mark.parametrize(("keys", "words"), PROGRAMS)
def test_wrong_programs_and_policies_are_named(keys: dict[str, Any], words: list[str]) -> None:
    job = {key: value for key, value in MINIMAL.items() if key != "program"} | keys
    with pytest.raises(ConfigError) as caught:
        job_from_mapping(job)
    assert all(word in str(caught.value) for word in words), caught.value


def test_paths_of_pinned_layouts_start_at_the_job_file(tmp_path: Path) -> None:
    pinned = {"layout": {"pinned": "../exports/a"}, "layouts": [{"parameters": "a", "layout": {"pinned": "b"}}]}
    job = job_from_mapping(
        {**MINIMAL, "program": {**STEP, **pinned}, "target": {**MINIMAL["target"], **pinned}}, base=tmp_path
    )
    for section in (job.program, job.target):
        assert section.layout == CopiedLayout(pinned=str(tmp_path.parent / "exports/a"))
        assert section.layouts[0].layout == CopiedLayout(pinned=str(tmp_path / "b"))
    assert job_from_mapping(yaml.safe_load(yaml.safe_dump(job.model_dump(mode="json")))).target == job.target
