"""Measuring a process tree from outside: wall time, and the peak of its proportional set size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SAMPLE_SECONDS = 0.05


@dataclass(frozen=True)
class Measured:
    """One run of a process."""

    seconds: float
    """Wall time from its start to its end."""
    peak_bytes: int
    """Largest sum of the proportional set sizes of it and its children, sampled."""
    told: dict[str, Any]
    """The JSON object on the last line of its output."""


def measure(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Measured:
    """Run ``command`` to its end; raises RuntimeError with its last lines if it fails."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=output, stderr=errors, env={**os.environ, **(environment or {})}, text=True
        )
        peak = _Peak(process.pid)
        peak.start()
        code = process.wait()
        seconds = time.perf_counter() - started
        peak.ended.set()
        peak.join()
        output.seek(0)
        errors.seek(0)
        if code:
            raise RuntimeError(f"{' '.join(command)} ended with {code}:\n{errors.read()[-4000:]}")
        lines = output.read().splitlines()
    return Measured(seconds, peak.bytes, json.loads(lines[-1]) if lines else {})


class _Peak(threading.Thread):
    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self.bytes = 0
        self._pid = pid

    def run(self) -> None:
        while not self.ended.wait(_SAMPLE_SECONDS):
            self.bytes = max(self.bytes, sum(map(_pss, _tree(self._pid))))


def _tree(pid: int) -> list[int]:
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        found.append(parent)
        try:
            for task in Path(f"/proc/{parent}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except OSError:
            continue
    return found


def _pss(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:  # it has ended
        pass
    return 0


def python(file: str, *arguments: str) -> list[str]:
    """The command that runs a Python file with this interpreter."""
    return [sys.executable, file, *arguments]
