"""Several compiles at once, each in its own subprocess, as many as the memory holds."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from migrate.compiler.driver import CompileResult, compile_program
from migrate.config import Job
from migrate.errors import ConfigError, ReexportError
from migrate.signature import canonical_digest

_USABLE = 0.8
"""Part of the available memory that compiles may be expected to need; the rest is for this process and page cache."""
_CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def compile_all(
    jobs: Sequence[Job], directory: Path, *, compile_jobs: int | None = None, memory_bytes: int | None = None
) -> list[CompileResult | ReexportError]:
    """Compile the primary program of each of ``jobs``; for each, in order, its result or the error it ended with.

    Jobs that ask for the same compile (program, target, search path and limits) share one, and its files, in a folder
    of ``directory`` named after what was asked for. At most ``compile_jobs`` run at once, default: the number of
    CPUs; and no more than what together is expected to need ``memory_bytes`` (see ``compile.memory_bytes`` of each
    job), default: four fifths of the memory that is available now. One runs even if it is expected to need more. The
    expectation is not enforced; ``compile.max_memory_bytes`` is.

    A failing compile fails the jobs that asked for it and no others. When this is interrupted, the compiles that run
    are ended. Raises :class:`ConfigError` if ``compile_jobs`` or ``memory_bytes`` is not positive.
    """
    for name, value in (("compile_jobs", compile_jobs), ("memory_bytes", memory_bytes)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} is not positive", where=name, expected="1 or more", found=str(value))
    asked: dict[str, Job] = {}
    for job in jobs:
        asked.setdefault(_question(job), job)
    most = compile_jobs or os.cpu_count() or 1
    budget = _Budget(memory_bytes or int(available_bytes() * _USABLE))
    cancelled = threading.Event()

    def compile_one(question: str, job: Job) -> CompileResult | ReexportError:
        try:
            with budget.taken(job.compile.memory_bytes):
                if cancelled.is_set():
                    return ReexportError("the compile was called off", where=job.program.origin)
                return compile_program(job, directory / question[:16], cancelled=cancelled)
        except ReexportError as error:
            return error

    with ThreadPoolExecutor(min(most, len(asked)) or 1, thread_name_prefix="compile") as pool:
        futures = {question: pool.submit(compile_one, question, job) for question, job in asked.items()}
        try:
            done = {question: future.result() for question, future in futures.items()}
        except BaseException:
            cancelled.set()
            raise
    return [done[_question(job)] for job in jobs]


def available_bytes() -> int:
    """Memory in bytes that new processes can use without swapping: of the machine, or of this control group if less."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) * 1024)
    for limit, used in _CGROUP_FILES:
        with contextlib.suppress(OSError, ValueError):  # no such group, or "max"
            found.append(max(int(Path(limit).read_text()) - int(Path(used).read_text()), 1))
    return min(found)


class _Budget:
    """Bytes that are handed out as they become free; a demand above all of them waits until it is alone."""

    def __init__(self, nbytes: int) -> None:
        self._free = self._all = nbytes
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def taken(self, nbytes: int) -> Iterator[None]:
        nbytes = min(nbytes, self._all)
        with self._changed:
            self._changed.wait_for(lambda: nbytes <= self._free)
            self._free -= nbytes
        try:
            yield
        finally:
            with self._changed:
                self._free += nbytes
                self._changed.notify_all()


def _question(job: Job) -> str:
    """Digest of all of a job that its compile can see."""
    parts = [section.model_dump(mode="json") for section in (job.program, job.target, job.compile)]
    return canonical_digest([*parts, job.python_path])
