"""An export of several programs, as a server holds it: one reads prompts, one generates, over one set of weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import migrate
from migrate.errors import EnvironmentMismatchError, NotAnExportError, OutputConflictError

from .conftest import SIZES, decoder_job, reexport, write_job

LENGTH, SEQUENCE, BATCH = 6, 16, 4


def programs_job(checkpoint: Path, output: Path) -> dict[str, Any]:
    """The primary program demands an order of one weight that the other would not choose."""
    job = decoder_job(checkpoint, output, "cpu:8")
    decode = job.pop("program")
    prefill = {
        "name": "prefill",
        "entry": "migrate.demo.model:prefill_step",
        "arguments": {**decode["arguments"], "length": LENGTH},
    }
    rule = {"parameters": "attention/w[qk]", "layout": {"major_to_minor": [2, 0, 1, 3]}}
    return {**job, "programs": [prefill, {**decode, "primary": True, "layouts": [rule]}]}


@pytest.fixture(scope="module")
def job(decoder_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return programs_job(decoder_checkpoint, tmp_path_factory.mktemp("programs") / "out")


@pytest.fixture(scope="module")
def export(job: dict[str, Any]) -> migrate.Export:
    return migrate.run(job).export


@pytest.fixture(scope="module")
def decode(export: migrate.Export) -> migrate.LoadedProgram:
    return migrate.load(export.uri)


@pytest.fixture(scope="module")
def prefill(export: migrate.Export, decode: migrate.LoadedProgram) -> migrate.LoadedProgram:
    return migrate.load(export.uri, "prefill", params=decode.params)


def empty_cache(loaded: migrate.LoadedProgram) -> dict[str, Any]:
    return {p.name: np.zeros(p.shape, np.dtype(p.dtype)) for p in loaded.signature.parameters if p.argument == "cache"}


def test_the_primary_program_comes_first_and_all_files_are_checked(export: migrate.Export) -> None:
    assert [program.name for program in export.manifest.programs] == ["decode", "prefill"]
    assert export.program().name == "decode"
    assert [len(program.files) for program in export.manifest.programs] == [3, 3]
    assert migrate.verify_export(export).files >= 6
    with pytest.raises(NotAnExportError, match="no program 'train'"):
        export.program("train")


def test_programs_share_the_arrays_of_one_process(
    decode: migrate.LoadedProgram, prefill: migrate.LoadedProgram
) -> None:
    pairs = list(zip(jax.tree.leaves(decode.params), jax.tree.leaves(prefill.params), strict=True))
    assert len(pairs) == 12
    assert all(one is other for one, other in pairs)
    assert prefill.params["attention"]["wq"].format.layout.major_to_minor == (2, 0, 1, 3)


def test_what_one_program_reads_the_other_goes_on_with(
    decode: migrate.LoadedProgram, prefill: migrate.LoadedProgram
) -> None:
    tokens = np.random.default_rng(0).integers(0, SIZES["vocab"], (BATCH, LENGTH), dtype=np.int32)
    logits, cache = prefill(prefill.params, empty_cache(prefill), tokens)

    # the same prompt, token by token
    slow_cache = empty_cache(decode)
    for position in range(LENGTH):
        slow, slow_cache = decode(decode.params, slow_cache, tokens[:, position], np.int32(position))
    np.testing.assert_allclose(np.asarray(logits), np.asarray(slow), rtol=0.05, atol=0.05)
    for name in ("keys", "values"):
        np.testing.assert_allclose(
            np.asarray(cache[name], np.float32), np.asarray(slow_cache[name], np.float32), rtol=0.05, atol=0.05
        )

    following = np.asarray(slow.argmax(-1), np.int32)
    fast_next, _ = decode(decode.params, cache, following, np.int32(LENGTH))
    slow_next, _ = decode(decode.params, slow_cache, following, np.int32(LENGTH))
    np.testing.assert_allclose(np.asarray(fast_next), np.asarray(slow_next), rtol=0.05, atol=0.05)


def test_a_program_loaded_alone_or_compiled_here_gives_the_same(
    export: migrate.Export, decode: migrate.LoadedProgram, prefill: migrate.LoadedProgram
) -> None:
    alone = migrate.load(export.uri, "prefill")
    compiled_here = migrate.load(export.uri, "prefill", params=decode.params, executable="recompile")
    assert compiled_here.params["head"]["kernel"] is decode.params["head"]["kernel"]
    tokens = np.arange(BATCH * LENGTH, dtype=np.int32).reshape(BATCH, LENGTH)
    for loaded in (alone, compiled_here):
        expected, found = (one(one.params, empty_cache(one), tokens)[0] for one in (prefill, loaded))
        np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda array: jax.device_put(array, jax.devices()[0]), "SingleDeviceSharding"),
        (lambda array: array.astype(np.float32), "float32"),
        (np.asarray, "ndarray"),
        (jax.jit(lambda x: x + 0), "major_to_minor=(0, 1, 2, 3)"),
    ],
)
def test_arrays_that_lie_otherwise_are_not_shared(
    export: migrate.Export, decode: migrate.LoadedProgram, change: Any, found: str
) -> None:
    given = {"attention": {"wq": change(decode.params["attention"]["wq"])}}
    with pytest.raises(EnvironmentMismatchError, match="does not lie as the program expects") as raised:
        migrate.load(export.uri, "prefill", params=given)
    assert raised.value.where == "params: attention/wq"
    assert found in str(raised.value)


def test_running_again_writes_nothing_and_one_program_less_is_another_export(
    job: dict[str, Any], export: migrate.Export
) -> None:
    assert migrate.run(job).already_committed
    fewer = {**job, "programs": job["programs"][1:]}
    with pytest.raises(OutputConflictError, match="programs decode, prefill \\(now decode\\)"):
        raise_with_text(fewer)
    one = migrate.run(fewer, supersede=True)
    assert one.export.manifest.export != export.manifest.export
    assert one.export.manifest.parameter_set == export.manifest.parameter_set
    assert one.bytes_written == 0
    assert migrate.run(job, supersede=True).already_committed


def raise_with_text(job: dict[str, Any]) -> None:
    """Run a job; its error carries all it says, for ``match``."""
    try:
        migrate.run(job)
    except OutputConflictError as error:
        raise OutputConflictError(str(error)) from error


def test_the_plan_shows_conflicts_and_what_they_cost(job: dict[str, Any], tmp_path: Path) -> None:
    path = write_job(job, tmp_path)
    text = reexport("plan", path).stdout
    assert "prefill would have these otherwise" in text
    assert "decode (primary)" in text
    programs = json.loads(reexport("plan", path, "--json").stdout)["programs"]
    assert [(program["name"], program["primary"]) for program in programs] == [("decode", True), ("prefill", False)]
    conflicts = {conflict["parameter"]: conflict for conflict in programs[1]["conflicts"]}
    assert set(conflicts) == {"params/attention/wq", "params/attention/wk"}
    assert conflicts["params/attention/wq"]["layout"] == "{3,1,0,2}"
    assert conflicts["params/attention/wq"]["wanted"] == "{3,2,1,0}"
    assert programs[1]["free_memory"]["argument_bytes"] == programs[1]["default_device_bytes"]
    assert programs[0]["conflicts"] == []


@pytest.mark.parametrize("program", [None, "decode", "prefill"])
def test_check_compares_a_program_with_the_same_one_of_its_job(
    job: dict[str, Any], export: migrate.Export, program: str | None, tmp_path: Path
) -> None:
    found = migrate.check_export(export.uri, program, job=write_job(job, tmp_path))
    assert (found.program, found.verdict) == (program or "decode", "loads")


SUBSETS = """
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
import migrate

def program(mesh, function, names):
    def struct(shape, dtype, *axes):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*axes)))
    all = {"embed": {"table": struct((512, 64), jnp.bfloat16, "model")},
           "head": {"kernel": struct((64, 512), jnp.bfloat16, None, "model")}}
    return migrate.Program(function, ({name: all[name] for name in names}, struct((8,), jnp.int32)))

def embed(mesh):
    return program(mesh, lambda params, tokens: params["embed"]["table"][tokens], ["embed"])

def score(mesh):
    def score(params, tokens):
        return params["embed"]["table"][tokens] @ params["head"]["kernel"]
    return program(mesh, score, ["embed", "head"])
"""


def test_the_export_holds_the_union_and_a_program_loads_its_own(decoder_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "subsets.py").write_text(SUBSETS)
    job = decoder_job(decoder_checkpoint, tmp_path / "out", "cpu:8")
    del job["program"]
    job |= {
        "programs": [{"name": name, "entry": f"subsets:{name}"} for name in ("embed", "score")],
        "python_path": [str(tmp_path)],
        "mapping": [{"drop": "(attention|mlp|final_norm)/.*"}],
    }
    export = migrate.run(job).export
    assert [array.name for array in export.parameter_set().arrays] == ["embed/table", "head/kernel"]
    embed = migrate.load(export.uri)
    assert list(embed.params) == ["embed"]
    score = migrate.load(export.uri, "score", params=embed.params)
    assert score.params["embed"]["table"] is embed.params["embed"]["table"]
    tokens = np.arange(8, dtype=np.int32)
    vectors = np.asarray(embed(embed.params, tokens), np.float32)
    kernel = np.asarray(score.params["head"]["kernel"], np.float32)
    np.testing.assert_allclose(
        np.asarray(score(score.params, tokens), np.float32), vectors @ kernel, rtol=0.02, atol=0.02
    )
