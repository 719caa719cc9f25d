"""Published models from PyPI packages, each in an environment of its own: compiled for two chips, one exported whole.

The environments are made once with uv and take some minutes and gigabytes: ``REEXPORT_TEST_DOWNLOADS`` names the
directory that keeps them. What is not there (it, an interpreter, an index) skips the test and says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest

import migrate

ENTRIES = Path(__file__).parent / "entries"
_NEEDED = ("jax[tpu]", "pydantic", "pyyaml", "flatbuffers")
"""What a compile needs of the interpreter that ``target.python`` names, and the scripts here besides the model."""
pytestmark = pytest.mark.slow


def _interpreter(version: str) -> Path:
    """A Python of that version: this one, one in PATH, or one of pyenv's."""
    if sys.version.startswith(f"{version}."):
        return Path(sys.executable)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    candidates = [shutil.which(f"python{version}"), *map(str, pyenv.glob(f"{version}.*/bin/python"))]
    for candidate in filter(None, candidates):
        done = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=False)
        if done.returncode == 0 and f" {version}." in done.stdout:
            return Path(candidate)
    pytest.skip(f"there is no Python {version} here")


def _environment(root: Path, python: str, *packages: str) -> Path:
    """The interpreter of an environment with ``packages`` and a jax for TPUs; kept for the next run if it is whole."""
    folder = root / "-".join(("environment", packages[0], python))
    interpreter, done = folder / "bin/python", folder / "done"
    if not done.exists():
        base = _interpreter(python)
        made = subprocess.run([base, "-m", "venv", "--clear", folder], capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"no environment for {packages[0]} can be made: {made.stderr[-500:]}")
        commands = [
            [interpreter, "-m", "pip", "install", "--quiet", "uv"],
            [folder / "bin/uv", "pip", "install", "--quiet", "--python", interpreter, *_NEEDED, *packages],
        ]
        for command in commands:
            made = subprocess.run(command, capture_output=True, text=True, check=False)
            if made.returncode:
                pytest.skip(f"{packages[0]} cannot be installed: {made.stderr[-500:]}")
        done.touch()
    return interpreter


@pytest.fixture(scope="session")
def environments() -> Path:
    kept = os.environ.get("REEXPORT_TEST_DOWNLOADS")
    if kept is None:
        pytest.skip("REEXPORT_TEST_DOWNLOADS names no directory for environments of 5 GB")
    return Path(kept).absolute()


@pytest.fixture(scope="session")
def gemma(environments: Path) -> Path:
    # Beam wants an older protobuf than this package: the two cannot share an environment
    return _environment(environments, "3.12", "gemma", "protobuf>=7.36.1")


@pytest.fixture(scope="session")
def tunix(environments: Path) -> Path:
    return _environment(environments, "3.11", "google-tunix")


def _write(interpreter: Path, script: str, *arguments: object) -> None:
    """Run a model's script, which writes a checkpoint, in its environment."""
    environment = {**os.environ, "PYTHONPATH": str(ENTRIES.parents[2]), "JAX_PLATFORMS": "cpu"}
    command = [interpreter, ENTRIES / script, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def _job(interpreter: Path, program: dict[str, Any], target: dict[str, Any], root: Path, **more: Any) -> dict[str, Any]:
    return {
        "source": {"path": str(root / "checkpoint")},
        "program": program,
        "target": {**target, "python": str(interpreter)},
        "output": str(root / "out"),
        "python_path": [str(ENTRIES)],
        **more,
    }


def _orders(signature: migrate.Signature) -> dict[str, tuple[int, ...]]:
    return {parameter.name: parameter.major_to_minor for parameter in signature.weights}


def _equal_to_source(export: migrate.Export, checkpoint: Path, names: list[str]) -> None:
    """The arrays that Orbax restores from the export are those that it restores from the source."""
    with ocp.PyTreeCheckpointer() as checkpointer:
        after, before = (
            checkpointer.restore(path) for path in (export.parameters_uri.removeprefix("file://"), checkpoint)
        )
    for name in names:
        one, other = after, before
        for key in name.split("/"):
            one, other = one[key], other[key]
        np.testing.assert_array_equal(np.asarray(one).view(np.uint16), np.asarray(other).view(np.uint16))


GEMMA = {"entry": "gemma3:decode_step", "name": "decode"}


def test_gemma_for_two_chips_and_exported_whole(gemma: Path, tmp_path: Path) -> None:
    _write(gemma, "gemma3.py", tmp_path / "checkpoint")
    target = {"topology": "v5e:2x2", "mesh": {"data": 2, "model": 2}}
    result = migrate.run(_job(gemma, GEMMA, target, tmp_path))
    signature = result.export.signature()
    orders = _orders(signature)
    assert len(orders) == 200
    assert orders["layer_0/attn/kv_einsum/w"] != (0, 1, 2, 3)
    assert sum(parameter.nbytes for parameter in signature.weights) > 500 << 20
    names = ["layer_0/attn/kv_einsum/w", "layer_17/mlp/gating_einsum", "final_norm/scale", "embedder/input_embedding"]
    _equal_to_source(result.export, tmp_path / "checkpoint", names)

    other = _job(gemma, GEMMA, {**target, "topology": "v6e:2x2"}, tmp_path)
    on_v6e = migrate.compile_program(other, tmp_path / "v6e").signature
    assert set(_orders(on_v6e)) == set(orders)
    difference = migrate.compare_signatures(signature, on_v6e)
    assert {change.field for change in difference.fingerprint} >= {"topology"}


def test_an_nnx_model_for_two_chips_and_exported(tunix: Path, tmp_path: Path) -> None:
    """Its arguments are an NNX state, whose nodes only Flax knows; four layers of Qwen3 0.6B."""
    _write(tunix, "qwen3.py", tmp_path / "checkpoint", 4)
    program = {"entry": "qwen3:decode_step", "arguments": {"layers": 4}}
    target = {"topology": "v5e:2x2", "mesh": {"fsdp": 2, "tp": 2}}
    result = migrate.run(_job(tunix, program, target, tmp_path))
    orders = _orders(result.export.signature())
    assert orders["layers/0/attn/q_proj/w/value"] == (1, 0, 2)
    _equal_to_source(result.export, tmp_path / "checkpoint", ["layers/0/attn/q_proj/w/value", "final_norm/w/value"])

    # by what the export saved: neither Flax nor the model
    saved = {"exported": result.export.uri}
    job = {**_job(tunix, saved, target, tmp_path), "target": {**target, "topology": "v6e:2x2"}}
    on_v6e = migrate.compile_program(job, tmp_path / "v6e").signature
    assert list(_orders(on_v6e)) == list(orders)
