"""Who decides a layout: the compiler, the platform, the job, a bound, or another signature."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from migrate.compiler import CompileResult, compile_program
from migrate.config import Job
from migrate.errors import ConfigError
from migrate.manifest import SIGNATURE_FILE
from migrate.signature import ParameterSpec

ONE_CHIP = {"topology": "v5e:1x1", "mesh": {"data": 1}}
ROWS, COLUMNS = (0, 1), (1, 0)

Jobs = Callable[..., Job]


def by_name(result: CompileResult) -> dict[str, ParameterSpec]:
    return {parameter.name: parameter for parameter in result.signature.weights}


@pytest.fixture(scope="module")
def free(make_job: Jobs, tmp_path_factory: pytest.TempPathFactory) -> CompileResult:
    """What the compiler chooses for two tables of which it reads rows; its signature lies beside it."""
    result = compile_program(make_job("gathers", **ONE_CHIP), tmp_path_factory.mktemp("gathers"))
    (result.executable.parent / SIGNATURE_FILE).write_text(result.signature.to_json())
    return result


def test_the_compilers_choice_can_cost_memory_and_the_signature_says_so(free: CompileResult) -> None:
    signature, tables = free.signature, by_name(free)
    assert {table.major_to_minor for table in tables.values()} == {ROWS}
    assert [(t.device_bytes, t.default_device_bytes) for t in tables.values()] == [
        (4096 * 128 * 4, 8 * 4096 * 4),  # codes: 6 elements of a row padded to 128, or to 8
        (4096 * 128 * 4, 64 * 4096 * 4),
    ]
    assert signature.device_bytes == signature.memory.argument_bytes > 3 * (signature.default_device_bytes or 0) > 0
    assert (signature.free_memory, signature.fingerprint.layout_policy) == (None, "auto")


def test_default_bytes_are_those_of_the_default_policy(make_job: Jobs, free: CompileResult, tmp_path: Path) -> None:
    default = compile_program(make_job("gathers", layout="default", **ONE_CHIP), tmp_path).signature
    assert default.device_bytes == default.default_device_bytes == free.signature.default_device_bytes


def test_default_bytes_of_a_decoder_are_those_of_the_default_policy(decoders: dict[str, CompileResult]) -> None:
    auto, default = decoders["auto"].signature, decoders["default"].signature
    assert [p.default_device_bytes for p in auto.parameters] == [p.device_bytes for p in default.parameters]
    assert auto.default_device_bytes == default.memory.argument_bytes


@pytest.mark.parametrize(("max_padding", "refused"), [(1.5, ["codes", "table"]), (2, ["codes"])])
def test_a_bound_refuses_what_is_padded_above_it(
    make_job: Jobs, free: CompileResult, tmp_path: Path, max_padding: float, refused: list[str]
) -> None:
    job = make_job("gathers", layout="auto-bounded", max_padding=max_padding, **ONE_CHIP)
    bounded = compile_program(job, tmp_path)
    tables = by_name(bounded)
    assert [name for name, table in tables.items() if table.chosen_by == "bound"] == refused
    for name in refused:
        assert tables[name].device_bytes == tables[name].default_device_bytes
        assert tables[name].wanted == by_name(free)[name].layout
        assert tables[name].wanted_device_bytes == by_name(free)[name].device_bytes
    assert bounded.signature.free_memory == free.signature.memory
    assert bounded.signature.memory.argument_bytes == bounded.signature.device_bytes < free.signature.device_bytes
    assert bounded.signature.fingerprint.layout_policy.startswith(f"auto-bounded {max_padding:g}; {len(refused)} ")


def test_a_bound_accepts_padding_that_the_default_layout_has_too(make_job: Jobs, tmp_path: Path) -> None:
    # s32[16] fills a tile of 512 bytes in any layout
    job = make_job("slices", layout="auto-bounded", max_padding=1, **ONE_CHIP)
    signature = compile_program(job, tmp_path).signature
    assert {parameter.chosen_by for parameter in signature.parameters} == {"auto"}
    assert signature.free_memory is None


def test_rules_decide_by_parameter_and_the_first_that_matches_counts(
    make_job: Jobs, free: CompileResult, tmp_path: Path
) -> None:
    layouts = [
        {"parameters": "table", "layout": {"major_to_minor": [1, 0]}},
        {"parameters": "params/codes", "layout": {"pinned": str(free.executable.parent)}},
        {"parameters": ".*", "layout": "default"},
    ]
    result = compile_program(make_job("slices", layouts=layouts, **ONE_CHIP), tmp_path)
    tables = by_name(result)
    assert tables["table"].major_to_minor == COLUMNS
    assert tables["codes"].layout == by_name(free)["codes"].layout
    assert {name: table.chosen_by for name, table in tables.items()} == {"table": "pinned", "codes": "pinned"}
    assert [p.chosen_by for p in result.signature.parameters if not p.is_weight] == ["default"]
    policy = result.signature.fingerprint.layout_policy
    assert policy.startswith("auto; table: (1,0), params/codes: pinned, .*: default; 2 prescribed (")


def test_a_program_has_policies_of_its_own(make_job: Jobs, tmp_path: Path) -> None:
    job = make_job("gathers", layouts=[{"parameters": "table", "layout": "auto"}], **ONE_CHIP)
    own = {"layout": "default", "layouts": [{"parameters": "codes", "layout": {"major_to_minor": [0, 1]}}]}
    program = type(job.program).model_validate({**job.program.model_dump(), **own})
    tables = by_name(compile_program(job.only(program), tmp_path))
    assert {name: table.chosen_by for name, table in tables.items()} == {"table": "auto", "codes": "pinned"}
    assert tables["codes"].major_to_minor == ROWS


@pytest.mark.parametrize(
    ("entry", "arguments", "layouts", "words"),
    [
        ("slices", {}, [{"parameters": "tabel", "layout": "default"}], ["matches no array", "params/table"]),
        ("slices", {}, [{"parameters": "table", "layout": {"major_to_minor": [0]}}], ["2 dimensions", "params/table"]),
        ("slices", {}, [{"parameters": "table", "layout": {"pinned": "PLACE/none"}}], ["no signature", "/none"]),
        ("slices", {"more": True}, [{"parameters": ".*", "layout": {"pinned": "PLACE"}}], ["lacks", "params/more"]),
        (
            "slices",
            {"rows": 2048},
            [{"parameters": "table", "layout": {"pinned": "PLACE"}}],
            ["another shape", "float32[2048, 64]", "float32[4096, 64]"],
        ),
    ],
)
def test_a_policy_that_cannot_be_followed_is_an_error(
    make_job: Jobs,
    free: CompileResult,
    tmp_path: Path,
    entry: str,
    arguments: dict[str, Any],
    layouts: list[dict[str, Any]],
    words: list[str],
) -> None:
    place = str(free.executable.parent)
    for rule in layouts:
        if isinstance(rule["layout"], dict) and "pinned" in rule["layout"]:
            rule["layout"]["pinned"] = rule["layout"]["pinned"].replace("PLACE", place)
    job = make_job(entry, arguments=arguments, **ONE_CHIP)
    program = type(job.program).model_validate({**job.program.model_dump(), "layouts": layouts})
    with pytest.raises(ConfigError) as raised:
        compile_program(job.only(program), tmp_path)
    assert all(word in str(raised.value) for word in words), raised.value
