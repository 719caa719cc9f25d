"""Jobs whose entries lie in ``programs.py`` beside this file."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from migrate.compiler import CompileResult, compile_program
from migrate.compiler.driver import worker_environment
from migrate.config import Job, job_from_mapping

HERE = Path(__file__).parent
TINY = {
    "layers": 2,
    "d_model": 64,
    "heads": 4,
    "head_dim": 40,
    "d_ff": 96,
    "vocab": 256,
    "batch": 4,
    "sequence": 32,
}


def make_job(
    entry: str = "migrate.demo.model:decode_step",
    *,
    topology: str = "v5e:2x4",
    mesh: dict[str, int] | None = None,
    arguments: dict[str, Any] | None = None,
    timeout_seconds: float = 300,
    base: Path = HERE,
    **target: Any,
) -> Job:
    """A job for the tiny decoder, or for the function ``entry`` of ``programs.py`` if it names no module."""
    local = ":" not in entry and entry.isidentifier()
    return job_from_mapping(
        {
            "source": {"path": "unused"},
            "program": {
                "entry": f"programs:{entry}" if local else entry,
                "arguments": arguments if arguments is not None else ({} if local else TINY),
            },
            "target": {"topology": topology, "mesh": mesh or {"data": 2, "model": 4}, **target},
            "output": "unused",
            # these tests are about compiling: none is to be spared
            "compile": {"timeout_seconds": timeout_seconds, "cache": False},
        },
        base=base,
    )


@pytest.fixture(name="make_job", scope="session")
def make_job_fixture() -> Callable[..., Job]:
    return make_job


@pytest.fixture(scope="session")
def decoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CompileResult]:
    """The tiny decoder compiled for a TPU slice under both layout policies, and for eight CPU devices."""
    root = tmp_path_factory.mktemp("decoders")
    return {
        "auto": compile_program(make_job(), root / "auto"),
        "default": compile_program(make_job(layout="default"), root / "default"),
        "cpu": compile_program(make_job(topology="cpu:8"), root / "cpu"),
    }


@pytest.fixture(scope="session")
def run_script() -> Callable[..., Any]:
    """Run a script of this directory on eight CPU devices; gives the JSON that it prints."""

    def run(script: str, *arguments: str) -> Any:
        done = subprocess.run(
            [sys.executable, str(HERE / script), *arguments],
            env=worker_environment("cpu:8"),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run
