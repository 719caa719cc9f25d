"""kill -9 at any moment: the same command goes on, and in the end every stored chunk is what it would have been."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tensorstore as ts

import migrate
from migrate.export import is_export

from .conftest import decoder_job, reexport, small_job, tree_digest, write_job
from .dask_cluster import dask_cluster

KILLS_IN_A_ROW = 3
"""An output is left alone then, so that it gets to its end."""
WORKER_KILLS, DRIVER_KILLS = 10, 5
"""On a cluster that lives on; a run of it takes several times as long as one of threads."""


def stored_values(export: migrate.Export) -> dict[str, bytes]:
    """Every key of the export's database; its files have random names, and are no measure of what it holds."""
    database = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{export.parameters_uri}/"}}
    store = ts.KvStore.open(database).result()
    return {key.decode(): bytes(store[key]) for key in store.list().result()}


def say(text: str) -> None:
    """Pytest shows it when the test fails."""
    sys.stdout.write(text + "\n")


@dataclass
class Killed:
    """A job whose process is killed again and again."""

    job: dict[str, Any]
    directory: Path
    draw: random.Random
    runner: list[str]
    undisturbed: migrate.Export
    seconds: float
    """Of the undisturbed command, from its start to its end."""
    kills: int = 0
    number: int = 0

    def start(self) -> subprocess.Popen[str]:
        path = write_job({**self.job, "output": str(self.output)}, self.directory)
        command = [sys.executable, "-m", "migrate.cli", "run", str(path), *self.runner]
        return subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    @property
    def output(self) -> Path:
        return self.directory / f"out-{self.number}"

    def kill_once(self) -> bool:
        """Kill the whole process group at a moment drawn over the whole run; whether the run was still going."""
        moment = self.draw.uniform(0.05, 1.1) * self.seconds
        process = self.start()
        try:
            _, stderr = process.communicate(timeout=moment)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            self.kills += 1
            say(f"killed after {moment:.2f} of {self.seconds:.2f} s; {self.found()}")
            return True
        assert process.returncode == 0, stderr
        return False

    def found(self) -> str:
        receipts = len(list(self.output.glob("runs/*/receipts/*.json")))
        return f"{receipts} receipts, " + ("committed" if list(self.output.rglob("COMMIT.json")) else "not committed")

    def check_nothing_half_visible(self) -> None:
        for commit in self.output.rglob("COMMIT.json"):
            assert is_export(str(commit.parent))
            migrate.verify_export(migrate.open_export(str(commit.parent)))

    def finish(self) -> None:
        """The same command, undisturbed: what it leaves is what a run leaves that nobody killed."""
        receipts = len(list(self.output.glob("runs/*/receipts/*.json")))
        process = self.start()
        _, stderr = process.communicate(timeout=300)
        assert process.returncode == 0, stderr
        if receipts:
            assert "of an earlier run already verified" in stderr or "committed" in self.found(), stderr
        export = migrate.open_export(str(self.output))
        assert export.parameter_set() == self.undisturbed.parameter_set()
        assert stored_values(export) == stored_values(self.undisturbed)
        migrate.verify_export(export)
        left = sorted(path.name for path in self.output.rglob("*") if ".__lock" in path.name or "-tmp-" in path.name)
        assert left == []
        assert not list(self.output.glob("runs/*"))
        self.number += 1


@pytest.fixture
def killed(old_checkpoint: Path, decoder_checkpoint: Path, tmp_path: Path) -> Callable[[str, list[str], int], Killed]:
    """(``small`` or ``decoder``, runner's arguments, seed) -> a job, what it leaves undisturbed, how long it takes."""

    def make(model: str, runner: list[str], seed: int) -> Killed:
        if model == "small":
            job = small_job(old_checkpoint, tmp_path / "undisturbed", "cpu:8")
            job["rewrite"] = {"max_item_bytes": 64}
        else:
            job = decoder_job(decoder_checkpoint, tmp_path / "undisturbed", "cpu:8")
            job["rewrite"] = {"max_item_bytes": 8192}
        migrate.run({**job, "output": str(tmp_path / "first")})  # its compile is in the cache from now on
        path = write_job(job, tmp_path)
        began = time.monotonic()
        done = reexport("run", path, *runner)
        seconds = time.monotonic() - began
        assert done.returncode == 0, done.stderr
        undisturbed = migrate.open_export(str(tmp_path / "undisturbed"))
        return Killed(job, tmp_path, random.Random(seed), runner, undisturbed, seconds)

    return make


def kill_and_resume(one: Killed, points: int, seed: int) -> None:
    say(f"seed {seed}")
    while one.kills < points:
        for _ in range(KILLS_IN_A_ROW):
            going = one.kill_once() if one.kills < points else False
            one.check_nothing_half_visible()
            if not going:
                break
        one.finish()


def seed() -> int:
    """Another at every run; a failure prints it."""
    return int(os.environ.get("KILL_POINTS_SEED") or random.SystemRandom().randrange(1 << 32))


def test_three_moments(killed: Callable[..., Killed], old_checkpoint: Path) -> None:
    before, chosen = tree_digest(old_checkpoint), seed()
    kill_and_resume(killed("small", [], chosen), 3, chosen)
    assert tree_digest(old_checkpoint) == before


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["local", "dask"])
def test_25_moments(runner: str, killed: Callable[..., Killed]) -> None:
    chosen = seed()
    kill_and_resume(killed("decoder", ["--runner", runner], chosen), 25, chosen)


@pytest.mark.slow
def test_workers_die_while_the_job_goes_on(killed: Callable[..., Killed], tmp_path: Path) -> None:
    """On a cluster that outlives the driver: the job ends well, or says so and goes on when it is called again."""
    chosen = seed()
    say(f"seed {chosen}")
    draw = random.Random(chosen)
    with dask_cluster(tmp_path / "cluster") as cluster:
        one = killed("decoder", ["--runner", "dask", "--", *cluster.options], chosen)
        kills = 0
        while kills < WORKER_KILLS:
            process = one.start()
            while process.poll() is None:
                try:
                    process.wait(draw.uniform(0.2, 0.6) * one.seconds)
                except subprocess.TimeoutExpired:
                    cluster.kill_worker(draw.randrange(2))
                    kills += 1
                    say(f"killed a worker; {one.found()}")
            _, stderr = process.communicate()
            say(f"ended with {process.returncode}")
            assert process.returncode == 0 or ("error: " in stderr and "Traceback" not in stderr), stderr
            one.check_nothing_half_visible()
            cluster.wait_for_workers()
            one.finish()


@pytest.mark.slow
def test_the_driver_dies_and_the_cluster_lives_on(killed: Callable[..., Killed], tmp_path: Path) -> None:
    """Workers finish what they were given, while the same command is called again."""
    chosen = seed()
    with dask_cluster(tmp_path / "cluster") as cluster:
        kill_and_resume(killed("decoder", ["--runner", "dask", "--", *cluster.options], chosen), DRIVER_KILLS, chosen)
