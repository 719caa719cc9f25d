"""Jobs that the end-to-end tests share: real checkpoints, real compiles, real exports, each made once a session."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import migrate
from migrate.demo.checkpoint import write_checkpoint
from migrate.preparation import Silent

SIZES = {"layers": 2, "d_model": 64, "heads": 4, "head_dim": 40, "d_ff": 160, "vocab": 512}
"""A decoder of 0.4 MB; head_dim 40 is the case of the E0102 message."""


@pytest.fixture(scope="session")
def old_checkpoint(repository: Path) -> Path:
    """Orbax 0.2.7 of 2023, as it lies in the repository."""
    return repository / "tests/data/orbax_0.2.7"


@pytest.fixture(scope="session")
def decoder_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder's training state by the installed Orbax, sharded over eight devices."""
    return write_checkpoint(tmp_path_factory.mktemp("decoder") / "checkpoint", **SIZES).parent


def small_job(checkpoint: Path, output: Path, topology: str = "v5e:2x4") -> dict[str, Any]:
    return {
        "source": {"path": str(checkpoint), "select": "params"},
        "program": {"entry": "migrate.demo.tiny:next_token_step"},
        "target": {"topology": topology, "mesh": {"data": 2, "model": 4}},
        "output": str(output),
    }


def decoder_job(checkpoint: Path, output: Path, topology: str = "v5e:2x4") -> dict[str, Any]:
    job = small_job(checkpoint, output, topology)
    arguments = {"batch": 4, "sequence": 16, **SIZES}
    return {**job, "program": {"entry": "migrate.demo.model:decode_step", "arguments": arguments, "name": "decode"}}


@pytest.fixture
def job(old_checkpoint: Path, tmp_path: Path) -> dict[str, Any]:
    """A small job for eight v5e chips."""
    return small_job(old_checkpoint, tmp_path / "out")


@pytest.fixture(scope="session")
def exports(
    old_checkpoint: Path, decoder_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], migrate.Export]:
    """(``small`` or ``decoder``, topology) -> a committed export; made at the first call."""
    made: dict[tuple[str, str], migrate.Export] = {}

    def export(model: str, topology: str) -> migrate.Export:
        if (model, topology) not in made:
            output = tmp_path_factory.mktemp("export")
            job = (
                small_job(old_checkpoint, output, topology)
                if model == "small"
                else decoder_job(decoder_checkpoint, output, topology)
            )
            made[model, topology] = migrate.run(job).export
        return made[model, topology]

    return export


def write_job(job: dict[str, Any], directory: Path) -> Path:
    path = directory / "job.yaml"
    path.write_text(yaml.safe_dump(job, sort_keys=False))
    return path


def reexport(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    command = [sys.executable, "-m", "migrate.cli", *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if name not in {"XLA_FLAGS", "JAX_PLATFORMS"}}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, **options)


def tree_digest(directory: Path) -> str:
    """Changes when any file below ``directory`` is added, removed, rewritten or touched."""
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        digest.update(f"{path.relative_to(directory)} {path.stat().st_mtime_ns}".encode())
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


class Stages(Silent):
    """A reporter that remembers the stages."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def stage(self, stage: str, subject: str) -> None:
        """Remembered."""
        self.seen.append(stage)
