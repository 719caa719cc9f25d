"""A job up to its plan: open the checkpoint, compile the program, match and plan. Nothing is written to the output."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from migrate import compiler, sources, storage
from migrate.compiler import CompileResult
from migrate.config import Job, job_from_mapping, load_job
from migrate.errors import ConfigError, ReexportError, StorageError
from migrate.mapping import check_select, match
from migrate.planner import Plan, make_plan
from migrate.signature import Signature, canonical_digest
from migrate.sources import SourceCheckpoint


class Reporter(Protocol):
    """Hears what a job does; the command line draws it, a Python caller may ignore it."""

    def stage(self, stage: str, subject: str) -> None:
        """A stage begins: ``opening`` a checkpoint, or ``compiling`` a program."""

    def planned(self, prepared: Prepared) -> None:
        """The plan is made; nothing has been written yet."""

    def started(self, items: int, nbytes: int, reused_items: int) -> None:
        """The rewrite begins: ``items`` to do, of ``nbytes`` logical bytes; ``reused_items`` have receipts already."""

    def progress(self, items: int, nbytes: int) -> None:
        """That many items and logical bytes are done; called several times a second."""

    def finished(self) -> None:
        """The rewrite has ended, well or not."""


class Silent:
    """A reporter that says nothing."""

    def stage(self, stage: str, subject: str) -> None:
        """Ignored."""

    def planned(self, prepared: Prepared) -> None:
        """Ignored."""

    def started(self, items: int, nbytes: int, reused_items: int) -> None:
        """Ignored."""

    def progress(self, items: int, nbytes: int) -> None:
        """Ignored."""

    def finished(self) -> None:
        """Ignored."""


@dataclass(frozen=True)
class Prepared:
    """A job that has been opened, compiled and planned. Nothing has been written to its output."""

    job: Job
    checkpoint: SourceCheckpoint
    compiled: CompileResult
    plan: Plan
    timings: dict[str, float] = field(default_factory=dict)
    """Seconds of each stage."""

    @property
    def signature(self) -> Signature:
        """What the executable expects."""
        return self.compiled.signature

    @property
    def export_id(self) -> str:
        """Content address of the export: parameter set and fingerprint."""
        return canonical_digest([self.plan.parameter_set, self.signature.fingerprint.digest])[:16]


def as_job(job: Job | Mapping[str, Any] | str | Path) -> Job:
    """A job from a job object, a mapping with a job file's keys, or the path of a job file."""
    if isinstance(job, Job):
        return job
    if not isinstance(job, Mapping | str | Path):
        raise ConfigError(
            "not a job", expected="a migrate.Job, a mapping, or the path of a job file", found=type(job).__name__
        )
    return job_from_mapping(dict(job)) if isinstance(job, Mapping) else load_job(job)


@contextmanager
def compile_directory() -> Iterator[Path]:
    """A temporary directory for a compile; it is kept when an error leaves it, for the log in it."""
    directory = Path(tempfile.mkdtemp(prefix="reexport-compile-"))
    try:
        yield directory
    except ReexportError as error:
        if str(directory) not in str(error):
            shutil.rmtree(directory, ignore_errors=True)
        raise
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    shutil.rmtree(directory, ignore_errors=True)


def open_source(job: Job) -> SourceCheckpoint:
    """The job's checkpoint. Raises :class:`migrate.errors.SourceError`."""
    source = job.source
    return sources.open_checkpoint(
        source.path, step=source.step, item=source.item, missing_chunks=source.missing_chunks
    )


def prepare(job: Job, directory: Path, reporter: Reporter | None = None) -> Prepared:
    """Open the source, compile the program into ``directory``, and plan. Writes nothing to the output.

    Raises every :class:`ReexportError` that bad input can cause.
    """
    reporter = reporter or Silent()
    _check_output(job)
    timings: dict[str, float] = {}
    with _timed(timings, "open"):
        reporter.stage("opening", job.source.path)
        checkpoint = open_source(job)
        check_select(checkpoint.leaves, job.source.select)
    with _timed(timings, "compile"):
        reporter.stage("compiling", f"{job.program.origin} for {job.target.topology}")
        compiled = compiler.compile_program(job, directory)
    with _timed(timings, "plan"):
        mapping = match(
            checkpoint.leaves,
            compiled.signature.weights,
            rules=job.mapping,
            select=job.source.select,
            carry=job.source.carry,
            placeholders=checkpoint.placeholders,
        )
        plan = make_plan(
            mapping,
            source_identity=checkpoint.identity,
            max_item_bytes=job.rewrite.max_item_bytes,
            max_chunk_bytes=job.rewrite.max_chunk_bytes,
            compression=job.rewrite.compression,
        )
    return Prepared(job, checkpoint, compiled, plan, timings)


def _check_output(job: Job) -> None:
    """Refuse an output inside the source, which is read-only to us."""
    source, output = (storage.normalise(uri) for uri in (job.source.path, job.output))
    if f"{output}/".startswith(f"{source}/"):
        raise ConfigError(
            "the output lies inside the source checkpoint, which is never written to",
            where="output",
            expected=f"a place outside {source}",
            found=output,
        )
    if storage.is_local(output):
        path = storage.local_path(output)
        nearest = next(p for p in (path, *path.parents) if p.exists())
        if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
            raise StorageError(
                "the output cannot be written",
                where=f"output: {output}",
                found=f"{nearest} is not writable" if nearest.is_dir() else f"{nearest} is not a directory",
                remedy="choose another output, or change its permissions",
            )


def compile_program(job: Job | Mapping[str, Any] | str | Path, directory: str | Path) -> CompileResult:
    """Compile a job's program for its target; signature, executable, artifact and log go to ``directory``.

    Raises what :func:`migrate.compiler.compile_program` does.
    """
    return compiler.compile_program(as_job(job), Path(directory))


@contextmanager
def _timed(timings: dict[str, float], stage: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    timings[stage] = time.perf_counter() - started


def plan(job: Job | Mapping[str, Any] | str | Path) -> Plan:
    """What a job would write, without writing it; compiles the program. Raises :class:`ReexportError`."""
    with compile_directory() as directory:
        return prepare(as_job(job), directory).plan
