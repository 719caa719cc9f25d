"""Fleet files: what the pairs' jobs are, and how wrong files are named."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from migrate.errors import ConfigError, ExitCode
from migrate.fleet import load_fleet

FLEET = """
output: out
defaults:
  source: {select: params}
  target: {libtpu: 0.0.37, flags: {xla_a: 1}}
  rewrite: {max_item_bytes: 1MiB}
targets:
  v5e:
    topology: v5e:2x4
    mesh: {model: 8}
  cpu:
    topology: cpu:8
    mesh: {model: 8}
    flags: {xla_b: 2}
models:
  small:
    source: {path: checkpoint}
    program: {entry: "m:f"}
    overrides:
      cpu: {rewrite: {max_item_bytes: 2MiB}, target: {layout: default}}
  large:
    source: {latest_under: gs://bucket/steps}
    program: {exported: a.bin}
    targets: [v5e]
    retention: {keep: 1, grace: 2h}
    smoke: null
retention: {keep: 5}
smoke: {command: [true], timeout_seconds: 5m}
notifications: {webhook: "https://example.org/hook"}
"""


def write(directory: Path, text: str) -> Path:
    path = directory / "fleet.yaml"
    path.write_text(textwrap.dedent(text).replace("[true]", '["true"]'))
    return path


def test_what_the_pairs_are(tmp_path: Path) -> None:
    fleet = load_fleet(write(tmp_path, FLEET))
    assert [cell.name for cell in fleet.cells] == ["small/v5e", "small/cpu", "large/v5e"]
    v5e, cpu, large = fleet.cells
    assert v5e.job.output == str(tmp_path / "out/small/v5e")
    assert v5e.job.source.path == str(tmp_path / "checkpoint")
    assert (v5e.job.source.select, large.job.source.select) == ("params", "params")
    assert v5e.job.target.flags == {"xla_a": 1}
    assert cpu.job.target.flags == {"xla_a": 1, "xla_b": 2}
    assert (cpu.job.target.layout, v5e.job.target.layout) == ("default", "auto")
    assert (v5e.job.rewrite.max_item_bytes, cpu.job.rewrite.max_item_bytes) == (1 << 20, 2 << 20)
    assert (large.job.source.path, large.job.source.step) == ("gs://bucket/steps", None)
    assert large.job.program.exported == str(tmp_path / "a.bin")
    assert (v5e.retention.keep, large.retention.keep, large.retention.grace) == (5, 1, 7200)
    assert v5e.smoke is not None
    assert (v5e.smoke.timeout_seconds, large.smoke) == (300, None)


def test_selection(tmp_path: Path) -> None:
    fleet = load_fleet(write(tmp_path, FLEET))
    assert [cell.name for cell in fleet.select(["small"], ["cpu"])] == ["small/cpu"]
    assert len(fleet.select()) == 3
    for wrong in ((["smal"], []), ([], ["tpu"]), (["large"], ["cpu"])):
        with pytest.raises(ConfigError):
            fleet.select(*wrong)


WRONG = [
    # replaced, by what, key that is named, what is said
    ("output: out", "", "output", "is missing"),
    ("retention: {keep: 5}", "retension: {}", "retension", "did you mean retention"),
    ("{keep: 5}", "{keep: 0}", "retention.keep", "greater than or equal to 1"),
    ("{keep: 5}", "{grace: soon}", "retention.grace", "span of time"),
    ("{keep: 1, grace: 2h}", "{kep: 1}", "models.large.retention.kep", "did you mean keep"),
    ('program: {entry: "m:f"}', 'program: {entri: "m:f"}', "models.small.program.entri", "did you mean entry"),
    ("    program: {exported: a.bin}\n", "", "models.large.program", "is missing"),
    ("topology: v5e:2x4", "topolgy: v5e:2x4", "targets.v5e.topolgy", "did you mean topology"),
    ("    mesh: {model: 8}\n  cpu", "  cpu", "targets.v5e.mesh", "is missing"),
    ("    mesh: {model: 8}\n  cpu", "    mesh: {model: 0}\n  cpu", "targets.v5e.mesh.model", "greater than"),
    ("{libtpu: 0.0.37,", "{libtpu: new,", "defaults.target.libtpu", "match pattern"),
    ("{layout: default}", "{layot: default}", "models.small.overrides.cpu.target.layot", "did you mean layout"),
    ("      cpu: {rewrite", "      gpu: {rewrite", "models.small.overrides.gpu", "none of the targets v5e, cpu"),
    ("targets: [v5e]", "targets: [tpu]", "models.large.targets", "none of the targets v5e, cpu"),
    ("source: {path: checkpoint}", "source: {}", "models.small.source.path", "is missing"),
    (
        "{latest_under: gs://",
        "{step: 1, latest_under: gs://",
        "models.large.source.latest_under",
        "leave path and step",
    ),
    ("source: {path: checkpoint}", "output: x", "models.small.output", "has no place here"),
    ("  small:", "  a/b:", "models.a/b", "becomes part of a path"),
    ("[true]", "[]", "smoke", "should have a command"),
    ("smoke: null", "smoke: {comand: x}", "models.large.smoke.comand", "did you mean command"),
    ("https://example.org/hook", "ftp://user:secret@host", "notifications.webhook", "match pattern"),
    ("{webhook: ", "{webhook_env: A, webhook: ", "notifications", "one of the keys webhook, webhook_env"),
]


@pytest.mark.parametrize(("old", "new", "key", "words"), WRONG)
def test_wrong_files(old: str, new: str, key: str, words: str, tmp_path: Path) -> None:
    assert old in FLEET
    path = write(tmp_path, FLEET.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        load_fleet(path)
    error = caught.value
    assert error.exit_code is ExitCode.USAGE
    assert words in str(error)
    assert "secret" not in str(error)
    found = re.search(rf"{re.escape(str(path))}(?:, line (\d+))?: {re.escape(key)}(,|$)", error.where or "")
    assert found, error.where
    if "is missing" not in str(error):
        assert key.rpartition(".")[2].partition("[")[0] in path.read_text().splitlines()[int(found.group(1)) - 1]


def test_several_wrong_keys_are_all_named(tmp_path: Path) -> None:
    text = FLEET.replace("topology: v5e", "topolgy: v5e").replace('{entry: "m:f"}', "{entri: m}")
    with pytest.raises(ConfigError) as caught:
        load_fleet(write(tmp_path, text))
    for part in ("targets.v5e.topolgy", "models.small.program.entri", "(line 9)", "(line 18)"):
        assert part in str(caught.value)


def test_what_is_no_fleet(tmp_path: Path) -> None:
    for text in ("", "[1]", "a: b: c"):
        with pytest.raises(ConfigError, match=r"fleet\.yaml"):
            load_fleet(write(tmp_path, text))
    with pytest.raises(ConfigError, match="there is no fleet file"):
        load_fleet(tmp_path / "nothing.yaml")


def test_the_example_can_be_used(repository: Path) -> None:
    assert load_fleet(repository / "configs/fleet.yaml").cells[0].name == "tiny/wide"


def test_on_is_a_key(tmp_path: Path) -> None:
    """YAML 1.1, which PyYAML reads, takes ``on`` for a truth value."""
    path = write(tmp_path, FLEET.replace("{webhook:", "{on: [failure], webhook:"))
    assert load_fleet(path).notifications.on == ("failure",)
