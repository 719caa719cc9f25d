"""A run that is ended from outside: nothing half-visible, and the same command goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import migrate

from .conftest import decoder_job, reexport, tree_digest, write_job


@pytest.fixture
def long_job(decoder_checkpoint: Path, tmp_path: Path) -> dict[str, Any]:
    """Many small items, so that a run can be met in its middle."""
    job = decoder_job(decoder_checkpoint, tmp_path / "out")
    return {**job, "rewrite": {"max_item_bytes": 1024, "workers": 2}}


# a shell that runs the tests in the background has them, and what they start, ignore Ctrl-C
COMMAND = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from migrate.cli import main
main()
"""


def start_and_signal(job: Path, output: Path, number: signal.Signals, *, receipts: int) -> subprocess.Popen[str]:
    """Start the job and send the signal once that many receipts lie on storage."""
    command = [sys.executable, "-c", COMMAND, "run", str(job)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if len(list(output.glob("runs/*/receipts/*.json"))) >= receipts:
            os.kill(process.pid, number)
            break
        time.sleep(0.005)
    return process


def committed(output: Path) -> list[Path]:
    return [*output.rglob("COMMIT.json"), *output.rglob("LATEST"), *output.rglob("parameters.json")]


def test_ctrl_c_exits_130_and_the_same_command_goes_on(long_job: dict[str, Any], tmp_path: Path) -> None:
    job, output = write_job(long_job, tmp_path), tmp_path / "out"
    process = start_and_signal(job, output, signal.SIGINT, receipts=3)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "interrupted: nothing was committed" in stderr
    assert "Traceback" not in stderr
    assert committed(output) == []
    with pytest.raises(migrate.errors.NotAnExportError):
        migrate.open_export(str(output))

    resumed = reexport("run", job)
    assert resumed.returncode == 0, resumed.stderr
    assert "of an earlier run already verified" in resumed.stderr
    assert reexport("verify", output).returncode == 0


@pytest.mark.parametrize("receipts", [1, 40])
def test_kill_9_and_resume(receipts: int, long_job: dict[str, Any], tmp_path: Path, decoder_checkpoint: Path) -> None:
    before = tree_digest(decoder_checkpoint)
    job, output = write_job(long_job, tmp_path), tmp_path / "out"
    process = start_and_signal(job, output, signal.SIGKILL, receipts=receipts)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, stderr
    assert committed(output) == []

    result = migrate.run(str(job))
    assert 0 < result.items_done <= len(result.plan.items) - receipts  # only those without a receipt
    assert reexport("verify", output).returncode == 0
    assert tree_digest(decoder_checkpoint) == before

    # the same arrays as a run that nothing disturbed, and no leftovers of the killed one
    undisturbed = migrate.run({**long_job, "output": str(tmp_path / "undisturbed")})
    assert result.export.parameter_set() == undisturbed.export.parameter_set()
    assert list(output.rglob("*.__lock")) == []
    assert not (output / "runs").exists() or list((output / "runs").iterdir()) == []


def test_a_second_driver_is_refused(long_job: dict[str, Any], tmp_path: Path) -> None:
    job, output = write_job(long_job, tmp_path), tmp_path / "out"
    process = start_and_signal(job, output, signal.SIGSTOP, receipts=1)
    try:
        with pytest.raises(migrate.errors.OutputConflictError, match="another driver") as caught:
            migrate.run(str(job))
        assert str(process.pid) in str(caught.value.found)
    finally:
        os.kill(process.pid, signal.SIGCONT)
        process.communicate(timeout=120)
    assert process.returncode == 0
    assert migrate.run(str(job)).already_committed


def test_files_that_a_killed_commit_left_half_written(long_job: dict[str, Any], tmp_path: Path) -> None:
    """TensorStore would put the rest of a stale lock file behind the next manifest.ocdbt, and damage the database."""
    undisturbed = migrate.run({**long_job, "output": str(tmp_path / "undisturbed")})
    parameters = Path(tmp_path / "out" / "params" / undisturbed.export.manifest.parameter_set)
    for name in ("manifest.ocdbt.__lock", "_METADATA.__lock", "parameters.json.__lock"):
        parameters.mkdir(parents=True, exist_ok=True)
        (parameters / name).write_bytes(b"x" * 100_000)
    result = migrate.run(long_job)
    assert result.export.parameter_set() == undisturbed.export.parameter_set()
    assert reexport("verify", tmp_path / "out").returncode == 0
