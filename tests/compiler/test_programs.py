"""Several programs over one set of parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from migrate import costs
from migrate.config import Job, job_from_mapping
from migrate.errors import ConfigError, ProgramError
from migrate.preparation import compile_programs, union_of_weights
from migrate.sides import open_side
from migrate.signature import Signature

from .conftest import HERE, TINY

GATHERS = {"name": "gathers", "entry": "programs:gathers"}
SLICES = {"name": "slices", "entry": "programs:slices"}
DECODE = {"name": "decode", "entry": "migrate.demo.model:decode_step", "arguments": TINY}
PREFILL = {"name": "prefill", "entry": "migrate.demo.model:prefill_step", "arguments": {**TINY, "length": 16}}


def job_of(*programs: dict[str, Any], topology: str = "v5e:1x1", mesh: dict[str, int] | None = None) -> Job:
    return job_from_mapping(
        {
            "source": {"path": "unused"},
            "programs": list(programs),
            "target": {"topology": topology, "mesh": mesh or {"data": 1}},
            "output": "unused",
        },
        base=HERE,
    )


def signatures(job: Job, directory: Path) -> dict[str, Signature]:
    return {name: result.signature for name, result in compile_programs(job, directory).items()}


@pytest.fixture(scope="module")
def conflict(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Signature]:
    """A program that reads rows, and another that would have both tables the other way round and takes a third."""
    secondary = {**SLICES, "arguments": {"more": True}}
    return signatures(job_of(GATHERS, secondary), tmp_path_factory.mktemp("conflict"))


def test_the_others_take_the_layouts_of_the_primary(conflict: dict[str, Signature]) -> None:
    primary, secondary = conflict["gathers"], conflict["slices"]
    own = {p.name: p.layout for p in secondary.weights}
    assert own.pop("more")
    assert own == {p.name: p.layout for p in primary.weights}
    assert {p.chosen_by for p in primary.parameters} == {"auto"}
    assert {p.name: p.chosen_by for p in secondary.weights} == {"codes": "primary", "more": "auto", "table": "primary"}


def test_a_conflict_and_its_cost_are_known(conflict: dict[str, Signature]) -> None:
    secondary = conflict["slices"]
    found = {p.name: p for p in costs.conflicts(secondary)}
    assert set(found) == {"codes", "table"}
    for parameter in found.values():
        assert parameter.wanted is not None
        assert parameter.wanted.major_to_minor == parameter.major_to_minor[::-1]
        assert parameter.wanted_device_bytes == parameter.default_device_bytes
    assert secondary.free_memory is not None
    extra = secondary.memory.argument_bytes - secondary.free_memory.argument_bytes
    assert extra == sum(p.device_bytes - p.wanted_device_bytes for p in found.values()) > 0
    assert "; 2 prescribed (" in secondary.fingerprint.layout_policy
    assert costs.conflicts(conflict["gathers"]) == ()


def test_the_export_holds_the_union(conflict: dict[str, Signature]) -> None:
    union = union_of_weights(conflict.values())
    assert [p.name for p in union] == ["codes", "table", "more"]
    assert union[:2] == conflict["gathers"].weights


def test_which_one_is_primary_is_said_by_the_job() -> None:
    first, said = job_of(GATHERS, SLICES), job_of(GATHERS, {**SLICES, "primary": True})
    assert [first.program.name, *(p.name for p in first.secondary_programs)] == ["gathers", "slices"]
    assert [said.program.name, *(p.name for p in said.secondary_programs)] == ["slices", "gathers"]


@pytest.mark.parametrize("topology", ["tpu7x:2x2x1", "cpu:8"])
def test_programs_that_agree_are_compiled_once(tmp_path: Path, topology: str) -> None:
    found = signatures(job_of(DECODE, PREFILL, topology=topology, mesh={"data": 2, "model": 4}), tmp_path)
    decode, prefill = found["decode"], found["prefill"]
    assert {p.path: p.layout for p in decode.weights} == {p.path: p.layout for p in prefill.weights}
    assert (prefill.free_memory, prefill.fingerprint.layout_policy) == (None, "auto")


@pytest.mark.parametrize(
    ("primary", "secondary", "words"),
    [
        (GATHERS, {**SLICES, "arguments": {"rows": 2048}}, ["shape", "[4096, 64]", "[2048, 64]", "table", "slices"]),
        (GATHERS, {**SLICES, "arguments": {"axes": ["data"]}}, ["sharding", "(-, -)", "(data, -)", "codes"]),
        (GATHERS, {"name": "halves", "entry": "programs:halves"}, ["dtype", "float32", "bfloat16", "table"]),
        (GATHERS, {"name": "nested", "entry": "programs:nested"}, ["group", "table/rows", "nested"]),
    ],
)
def test_programs_must_agree_on_what_they_share(
    tmp_path: Path, primary: dict[str, Any], secondary: dict[str, Any], words: list[str]
) -> None:
    job = job_of(primary, secondary, topology="cpu:1")
    with pytest.raises(ProgramError) as raised:
        union_of_weights(signatures(job, tmp_path).values())
    assert all(word in str(raised.value) for word in words), raised.value


def test_a_rule_of_the_target_must_be_for_some_program(tmp_path: Path) -> None:
    job = job_of(GATHERS, {**SLICES, "arguments": {"more": True}}, topology="cpu:1")
    rules = [{"parameters": name, "layout": "default"} for name in ("more", "none")]
    target = type(job.target).model_validate({**job.target.model_dump(), "layouts": rules})
    with pytest.raises(ConfigError, match="matches no array") as raised:
        compile_programs(job.model_copy(update={"target": target}), tmp_path)
    assert raised.value.where == "target.layouts[1].parameters"


def test_a_side_can_be_a_secondary_program(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        f"source: {{path: unused}}\noutput: unused\npython_path: ['{HERE}']\n"
        "programs: [{name: gathers, entry: 'programs:gathers'}, {name: slices, entry: 'programs:slices'}]\n"
        "target: {topology: 'cpu:1', mesh: {data: 1}}\n"
    )
    assert open_side(file).signature.program == "gathers"
    assert open_side(file, program="slices").signature.program == "slices"
    with pytest.raises(ConfigError, match="no program 'other'") as raised:
        open_side(file, program="other")
    assert "gathers, slices" in str(raised.value)
