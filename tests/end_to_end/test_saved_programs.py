"""Re-exports from what an export saved, without the model's code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import migrate
from migrate import errors
from migrate.config import job_from_mapping

from .conftest import decoder_job, small_job

Exports = Callable[[str, str], migrate.Export]


def saved(job: dict[str, Any], exported: str, **program: Any) -> dict[str, Any]:
    return {**job, "program": {"exported": exported, "name": "decode", **program}}


def facts(signature: migrate.Signature) -> list[Any]:
    return [(p.number, p.argument, p.path, p.shape, p.dtype, p.is_weight, p.donated) for p in signature.parameters]


def test_for_another_topology(exports: Exports, decoder_checkpoint: Path, tmp_path: Path) -> None:
    """From code for v5e, from that export for v6e: as many devices, another chip."""
    original = exports("decoder", "v5e:2x4")
    job = decoder_job(decoder_checkpoint, tmp_path / "out", "v6e:2x4")
    again = migrate.run(saved(job, original.uri)).export
    signature = again.signature("decode")
    assert facts(signature) == facts(original.signature("decode"))
    assert signature.fingerprint.topology == "v6e:2x4"
    assert [p.argument for p in signature.parameters if p.donated] == ["cache", "cache"]
    # and by its code, to compare the layouts: what is compiled is the same program
    from_code = migrate.compile_program(job, tmp_path / "code").signature
    assert [str(p.shard) for p in signature.parameters] == [str(p.shard) for p in from_code.parameters]


def test_the_loaded_program_computes_the_same(exports: Exports, decoder_checkpoint: Path, tmp_path: Path) -> None:
    original = exports("decoder", "cpu:8")
    job = decoder_job(decoder_checkpoint, tmp_path / "out", "cpu:8")
    job["target"]["layout"] = "default"  # else the identity would be all that differs
    results = []
    for export in (original, migrate.run(saved(job, original.paths.output)).export):
        call, params = migrate.load(export.uri)
        cache = {name: np.zeros((2, 4, 16, 4, 40), "bfloat16") for name in ("keys", "values")}
        logits, _ = call(params, cache, np.asarray([3, 5, 7, 11], np.int32), np.int32(0))
        results.append(np.asarray(logits))
    np.testing.assert_array_equal(*results)


def test_a_bare_artifact(exports: Exports, decoder_checkpoint: Path, tmp_path: Path) -> None:
    """The file alone: which argument is which is the job's to say."""
    artifact = next(Path(exports("decoder", "v5e:2x4").uri).rglob("program.jax_export"))
    job = saved(decoder_job(decoder_checkpoint, tmp_path / "out"), str(artifact), parameters=0, donated=[1])
    signature = migrate.compile_program(job, tmp_path / "compiled").signature
    original = exports("decoder", "v5e:2x4").signature("decode")
    numbers = {"params": "arg0", "cache": "arg1", "tokens": "arg2", "position": "arg3"}
    assert [p.argument for p in signature.parameters] == [numbers[p.argument] for p in original.parameters]
    assert [str(p.shard) for p in signature.parameters] == [str(p.shard) for p in original.parameters]
    assert [p.partition for p in signature.parameters] == [p.partition for p in original.parameters]


FAULTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "another number of devices": ("v5e:2x2", {"data": 2, "model": 2}, "8 tpu devices"),
    "another platform": ("cpu:8", {"data": 2, "model": 4}, "8 tpu devices"),
    "other axes": ("v5e:2x4", {"x": 2, "y": 4}, "data, model"),
}


@pytest.mark.parametrize(("topology", "mesh", "words"), FAULTS.values(), ids=FAULTS)
def test_targets_that_do_not_fit(
    topology: str, mesh: dict[str, int], words: str, exports: Exports, decoder_checkpoint: Path, tmp_path: Path
) -> None:
    job = decoder_job(decoder_checkpoint, tmp_path / "out", topology)
    job["target"]["mesh"] = mesh
    with pytest.raises(errors.ProgramError) as caught:
        migrate.compile_program(saved(job, exports("decoder", "v5e:2x4").uri), tmp_path / "compiled")
    assert words in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"no artifact"])
def test_no_artifact(content: bytes | None, old_checkpoint: Path, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "file").write_bytes(content)
    job = saved(small_job(old_checkpoint, tmp_path / "out", "cpu:8"), str(tmp_path / "file"))
    with pytest.raises(errors.ProgramError) as caught:
        migrate.compile_program(job, tmp_path / "compiled")
    assert str(caught.value.where).startswith("program.exported")


@pytest.mark.parametrize("program", [{}, {"entry": "a:b", "exported": "c"}])
def test_one_origin(program: dict[str, Any], old_checkpoint: Path, tmp_path: Path) -> None:
    job = {**small_job(old_checkpoint, tmp_path / "out"), "program": program}
    with pytest.raises(errors.ConfigError, match="one of the keys entry, exported"):
        job_from_mapping(job)
