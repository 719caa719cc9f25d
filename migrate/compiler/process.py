"""One subprocess, watched until it ends: by itself, at its limit of time or memory, or because it is called off."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.05
_FIRST_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Ended:
    """How a subprocess ended."""

    reason: Literal["exit", "timeout", "memory", "cancelled"]
    """``exit``: by itself, or killed by somebody else."""
    code: int
    """Exit code; negative: the signal."""
    peak_bytes: int
    """Largest resident memory that was seen, in bytes; 0 where the system does not tell."""


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    *,
    timeout_seconds: float,
    max_memory_bytes: int | None = None,
    cancelled: threading.Event | None = None,
) -> Ended:
    """Run ``command``, its output in ``log``; it never outlives this call.

    ``max_memory_bytes`` bounds its resident memory. It is looked at 20 times a second: libtpu and jaxlib map gigabytes
    that they never touch, so a limit of the address space (RLIMIT_AS) says nothing.
    """
    with log.open("wb") as output:
        # A session of its own: Ctrl-C in the terminal reaches us alone, and we end it with whatever it started.
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
        )
    deadline = time.monotonic() + timeout_seconds
    reason: Literal["exit", "timeout", "memory", "cancelled"] = "exit"
    peak_bytes, pause = 0, _FIRST_POLL_SECONDS
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(min(pause, deadline - time.monotonic()), 0.001))
                break
            pause = min(pause * 1.5, _POLL_SECONDS)
            resident_bytes, highest_bytes = _resident_bytes(process.pid)
            peak_bytes = max(peak_bytes, highest_bytes)
            if time.monotonic() >= deadline:
                reason = "timeout"
            elif max_memory_bytes is not None and resident_bytes > max_memory_bytes:
                reason = "memory"
            elif cancelled is not None and cancelled.is_set():
                reason = "cancelled"
            if reason != "exit":
                break
    finally:
        _end(process)
    return Ended(reason, process.returncode, peak_bytes)


def _resident_bytes(pid: int) -> tuple[int, int]:
    """(resident now, highest so far) of a process in bytes; zeros if the system does not tell."""
    found = {"VmRSS": 0, "VmHWM": 0}
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in found:
                found[name] = int(value.split()[0]) * 1024
    return found["VmRSS"], found["VmHWM"]


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.stdin is not None:
        process.stdin.close()
