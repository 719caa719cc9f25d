"""A Dask scheduler and worker processes, as an operator would start them: each a command of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

# a shell that runs the tests in the background has them, and what they start, ignore Ctrl-C
_DASK = [sys.executable, "-m", "distributed.cli.dask_scheduler"], [sys.executable, "-m", "distributed.cli.dask_worker"]


class Cluster:
    """One scheduler, and workers that can be killed and added while a job goes on."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        self._log = (directory / "dask.log").open("ab")
        port = self.address.rsplit(":", 1)[1]
        self._scheduler = self._start(*_DASK[0], "--host", "127.0.0.1", "--port", port, "--no-dashboard")
        self.workers: list[subprocess.Popen[bytes]] = []

    @property
    def options(self) -> list[str]:
        """The runner's options."""
        return [f"--dask_client_address={self.address}"]

    @property
    def log(self) -> str:
        """What scheduler and workers said."""
        return Path(self._log.name).read_text()

    def add_worker(self) -> None:
        """Start a worker with one thread, which nobody starts again when it dies."""
        options = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1", "--memory-limit", "0"]
        preload = ["--preload", "pipelines.dask_worker"]
        self.workers.append(self._start(*_DASK[1], self.address, *options, *preload))

    def kill_worker(self, number: int) -> None:
        """kill -9 one worker, and start another in its place."""
        victim = self.workers.pop(number)
        victim.kill()
        victim.wait()
        self.add_worker()

    def wait_for_workers(self) -> None:
        """Return once every worker is known to the scheduler."""
        deadline = time.monotonic() + 60
        while self.log.count("Registered to:") < len(self.workers) and time.monotonic() < deadline:
            time.sleep(0.05)

    def close(self) -> None:
        for process in (*self.workers, self._scheduler):
            process.kill()
            process.wait()
        self._log.close()

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdout=self._log, stderr=self._log, cwd=self._directory, env=_environment())


def _environment() -> dict[str, str]:
    return {**os.environ, "DASK_DISTRIBUTED__WORKER__DAEMON": "false"}


@contextlib.contextmanager
def dask_cluster(directory: Path, workers: int = 2) -> Iterator[Cluster]:
    """A cluster whose processes have ended when the block has."""
    directory.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(directory)
    try:
        for _ in range(workers):
            cluster.add_worker()
        cluster.wait_for_workers()
        yield cluster
    finally:
        cluster.close()
