"""A job up to its plan: open the checkpoint, compile the program, match and plan. Nothing is written to the output."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from migrate import compiler, pointer, sources, storage
from migrate.compiler import CompileResult, policies
from migrate.config import Job, job_from_mapping, load_job
from migrate.errors import ConfigError, ProgramError, ReexportError, StorageError
from migrate.mapping import check_select, match
from migrate.planner import Plan, make_plan
from migrate.signature import ParameterSpec, Signature, canonical_digest
from migrate.sources import SourceCheckpoint


class Reporter(Protocol):
    """Hears what a job does; the command line draws it, a Python caller may ignore it."""

    def stage(self, stage: str, subject: str) -> None:
        """A stage begins: ``opening`` a checkpoint, ``compiling`` a program, and others."""

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
    compiled: Mapping[str, CompileResult]
    """By program's name, the primary one first."""
    plan: Plan
    timings: dict[str, float] = field(default_factory=dict)
    """Seconds of each stage."""

    @property
    def signatures(self) -> tuple[Signature, ...]:
        """What the executables expect, that of the primary program first."""
        return tuple(result.signature for result in self.compiled.values())

    @property
    def export_id(self) -> str:
        """Content address of the export: parameter set and fingerprints, with names where several programs are."""
        fingerprints = [(name, result.signature.fingerprint.digest) for name, result in self.compiled.items()]
        identity = fingerprints[0][1] if len(fingerprints) == 1 else fingerprints
        return canonical_digest([self.plan.parameter_set, identity])[:16]


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
    _check_output(job, reporter)
    timings: dict[str, float] = {}
    with _timed(timings, "open"):
        reporter.stage("opening", job.source.path)
        checkpoint = open_source(job)
        check_select(checkpoint.leaves, job.source.select)
    with _timed(timings, "compile"):
        compiled = compile_programs(job, directory, reporter)
    with _timed(timings, "plan"):
        mapping = match(
            checkpoint.leaves,
            union_of_weights(result.signature for result in compiled.values()),
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


def _check_output(job: Job, reporter: Reporter) -> None:
    """Refuse an output inside the source, which is read-only to us, and one that cannot be used: before the compile,
    which takes longer."""
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
    else:
        reporter.stage("looking at", output)  # a store that does not answer is asked for a minute
    pointer.read(output)


def compile_programs(
    job: Job, directory: Path, reporter: Reporter | None = None, *, last: str | None = None
) -> dict[str, CompileResult]:
    """Compile all programs of a job, the primary one first; by name, each into a directory of its own below
    ``directory`` if there are several.

    A parameter that several programs have lies as the first of them wants it. ``last`` names the last program that is
    wanted; the ones after it are left out. Raises what
    :func:`migrate.compiler.compile_program` does, and :class:`migrate.errors.ProgramError` if two programs do not agree
    on a parameter.
    """
    reporter = reporter or Silent()
    compiled: dict[str, CompileResult] = {}
    for program in (job.program, *job.secondary_programs):
        reporter.stage("compiling", f"{program.origin} for {job.target.topology}")
        place = directory if len(job.programs) == 1 else directory / program.name
        shared = union_of_weights(result.signature for result in compiled.values())
        compiled[program.name] = compiler.compile_program(job.only(program), place, shared)
        if program.name == last:
            return compiled
    parameters = [p for result in compiled.values() for p in result.signature.parameters]
    policies.check_rules(job.target.layouts, parameters, "target.layouts")
    return compiled


def union_of_weights(signatures: Iterable[Signature]) -> tuple[ParameterSpec, ...]:
    """The parameters that a checkpoint fills, each as the first of ``signatures`` that has it expects it.

    Raises :class:`ProgramError` if one program has an array where another has a group of arrays.
    """
    union: dict[tuple[str, ...], ParameterSpec] = {}
    owners: dict[tuple[str, ...], str] = {}
    for signature in signatures:
        for parameter in signature.weights:
            if union.setdefault(parameter.path, parameter) is parameter:
                owners[parameter.path] = signature.program
    for path in union:
        for length in range(1, len(path)):
            if path[:length] in union:
                raise ProgramError(
                    "a parameter of one program is a group of parameters in another",
                    where=f"{'/'.join(path[:length])} of program {owners[path[:length]]}",
                    found=f"{'/'.join(path)} of program {owners[path]}",
                    remedy="give one of them another path",
                )
    return tuple(union.values())


def compile_program(job: Job | Mapping[str, Any] | str | Path, directory: str | Path) -> CompileResult:
    """Compile a job's primary program for its target; signature, executable, artifact and log go to ``directory``.

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
