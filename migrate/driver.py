"""One job from its source to its committed export: open, compile, plan, rewrite through Beam, report.

The rewrite pipeline is found by its entry point, ``reexport.pipelines``: this package never imports Beam.
"""

from __future__ import annotations

import importlib.metadata
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from migrate import compiler, export, failures, ledger, receipt, rewrite, sources, storage
from migrate.commit import CommitRequest, Work
from migrate.compiler import CompileResult
from migrate.config import Job, job_from_mapping, load_job
from migrate.errors import OutputConflictError, ReexportError, StorageError
from migrate.export import Export, Paths
from migrate.lease import Lease
from migrate.manifest import (
    EXECUTABLE_FILE,
    EXPORTED_FILE,
    MANIFEST_KEY,
    PARAMETERS_KEY,
    SIGNATURE_FILE,
    FileRecord,
    ProgramRecord,
    SourceRecord,
)
from migrate.mapping import check_select, match
from migrate.planner import Plan, make_plan
from migrate.receipt import Destination
from migrate.signature import Signature, canonical_digest
from migrate.sources import SourceCheckpoint

_POLL_SECONDS = 0.2
_TOOLS = ("reexport", "jax", "jaxlib", "libtpu", "orbax-checkpoint", "tensorstore", "apache-beam", "numpy")
_PIPELINES = "reexport.pipelines"


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


@dataclass(frozen=True)
class Result:
    """What a run achieved."""

    export: Export
    plan: Plan
    already_committed: bool
    """The output held this very export; nothing was written."""
    items_done: int
    """Items this run wrote; the others had receipts of an earlier run."""
    bytes_written: int
    """Logical bytes this run wrote."""
    seconds: float
    """Wall time of the whole job."""

    def to_json(self) -> dict[str, object]:
        """A JSON object for ``reexport run --json``."""
        return {
            "export": self.export.uri,
            "parameters": self.export.parameters_uri,
            "already_committed": self.already_committed,
            "items_done": self.items_done,
            "items": len(self.plan.items),
            "arrays": len(self.plan.arrays),
            "bytes": self.plan.nbytes,
            "bytes_written": self.bytes_written,
            "seconds": round(self.seconds, 3),
            "timings": {stage: round(seconds, 3) for stage, seconds in self.export.manifest.timings.items()},
        }


def as_job(job: Job | Mapping[str, Any] | str | Path) -> Job:
    """A job from a job object, a mapping with a job file's keys, or the path of a job file."""
    if isinstance(job, Job):
        return job
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
    timings: dict[str, float] = {}
    with _timed(timings, "open"):
        reporter.stage("opening", job.source.path)
        checkpoint = open_source(job)
        check_select(checkpoint.leaves, job.source.select)
    with _timed(timings, "compile"):
        reporter.stage("compiling", f"{job.program.entry} for {job.target.topology}")
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


@contextmanager
def _timed(timings: dict[str, float], stage: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    timings[stage] = time.perf_counter() - started


def plan(job: Job | Mapping[str, Any] | str | Path) -> Plan:
    """What a job would write, without writing it; compiles the program. Raises :class:`ReexportError`."""
    with compile_directory() as directory:
        return prepare(as_job(job), directory).plan


def run(
    job: Job | Mapping[str, Any] | str | Path, *, supersede: bool = False, reporter: Reporter | None = None
) -> Result:
    """Re-export one checkpoint: when this returns, the export is whole, verified and committed.

    An interrupted or failed run leaves nothing visible; the same call then repeats only items without a durable
    receipt. Running a finished job again writes nothing. ``supersede`` lets an output that already holds another
    export receive this one beside it, as the current one. Raises :class:`ReexportError`.
    """
    started = time.perf_counter()
    reporter = reporter or Silent()
    job = as_job(job)
    with compile_directory() as directory:
        prepared = prepare(job, directory, reporter)
        paths = Paths(job.output)
        reporter.planned(prepared)
        if _already_committed(paths, prepared, supersede):
            export.set_latest(job.output, prepared.export_id)
            found = export.open_export(paths.export(prepared.export_id))
            return Result(found, prepared.plan, True, 0, 0, time.perf_counter() - started)
        done, written = _rewrite(paths, prepared, reporter)
    committed = export.open_export(paths.export(prepared.export_id))
    return Result(committed, prepared.plan, False, done, written, time.perf_counter() - started)


def _already_committed(paths: Paths, prepared: Prepared, supersede: bool) -> bool:
    current = export.latest(paths.output)
    directory = paths.export(prepared.export_id)
    if current not in {None, prepared.export_id} and not supersede:
        raise _conflict(export.open_export(paths.output), prepared)
    return export.is_export(directory)


def _conflict(found: Export, prepared: Prepared) -> OutputConflictError:
    differences = []
    source = found.manifest.source
    if source.identity != prepared.checkpoint.identity:
        differences.append(f"source {source.uri} ({source.identity[:12]})")
    for program in found.manifest.programs:
        old, new = program.fingerprint, prepared.signature.fingerprint
        fields = ("stablehlo_sha256", "topology", "mesh", "jax", "jaxlib", "libtpu", "flags", "layout_policy")
        differences += [f"{name} {getattr(old, name)}" for name in fields if getattr(old, name) != getattr(new, name)]
    return OutputConflictError(
        "the output already holds an export of another identity",
        where=found.paths.output,
        expected=f"export {prepared.export_id}",
        found=f"export {found.manifest.export}, which differs in: " + ("; ".join(differences) or "storage layout"),
        remedy="choose another output, or run with --supersede to add this export beside it as the current one",
    )


def _rewrite(paths: Paths, prepared: Prepared, reporter: Reporter) -> tuple[int, int]:
    """Write, verify and commit; (items, logical bytes) that were not there before."""
    plan_, export_id = prepared.plan, prepared.export_id
    run_uri = paths.run(plan_.parameter_set)
    lease = Lease(run_uri)
    ledger_directory = tempfile.mkdtemp(prefix="reexport-ledger-")
    try:
        if export.is_export(paths.export(export_id)):
            return 0, 0  # another driver committed it before this one had the lease
        destination = Destination(
            paths.parameters(plan_.parameter_set), paths.carried(plan_.parameter_set), run_uri, ledger_directory
        )
        failures.take(destination)
        _delete_unfinished(paths, destination, export_id)
        programs = (_store_program(paths, prepared),)
        items = plan_.items
        if storage.exists(destination.parameters_uri, PARAMETERS_KEY):
            items = ()  # another export shares the set
        receipts = receipt.load_all(destination, [item.id for item in items])
        items = tuple(item for item in items if item.id not in receipts)
        nbytes = sum(item.nbytes for item in items)
        _check_free_space(paths.output, nbytes)
        source = prepared.checkpoint
        request = CommitRequest(
            output=paths.output,
            export_id=export_id,
            plan=plan_,
            source=SourceRecord(source.uri, source.format, source.version, source.identity, source.step, source.item),
            programs=programs,
            tools=_tool_versions(),
            timings=prepared.timings,
            rewrite_began=time.time(),
        )
        reporter.started(len(items), nbytes, len(receipts))
        rewrite.allow(destination)
        try:
            _execute(Work(items, request, destination), prepared.job, lease, reporter)
        finally:
            reporter.finished()
        if not export.is_export(paths.export(export_id)):
            raise _failure(failures.take(destination), destination)
        return len(items), nbytes
    finally:
        lease.release()
        shutil.rmtree(ledger_directory, ignore_errors=True)


def _delete_unfinished(paths: Paths, destination: Destination, export_id: str) -> None:
    """What a killed run left half-written where this one will write; the lease says that nobody else does."""
    storage.delete_unfinished(paths.export(export_id))
    storage.delete_unfinished(destination.parameters_uri)
    storage.delete_unfinished(destination.carried_uri)
    storage.delete_unfinished(storage.join(destination.run_uri, "receipts"))


def _failure(found: list[ReexportError], destination: Destination) -> ReexportError:
    if not found:
        return ReexportError("the pipeline ended without committing", where=destination.run_uri)
    # the first failure stops the others, which then only say so
    causes = [error for error in found if not isinstance(error, rewrite.StoppedError)] or found
    first = causes[0]
    if len(causes) > 1:
        first.what = f"{first.what} (and {len(causes) - 1} more failures)"
    return first


def _store_program(paths: Paths, prepared: Prepared) -> ProgramRecord:
    """Put the program's files into the export's directory, which does not exist until COMMIT.json does."""
    job, compiled = prepared.job, prepared.compiled
    contents = {
        SIGNATURE_FILE: compiled.signature.to_json().encode(),
        EXECUTABLE_FILE: compiled.executable.read_bytes(),
        EXPORTED_FILE: compiled.exported.read_bytes(),
    }
    directory = paths.program(prepared.export_id, job.program.name)
    storage.delete(paths.export(prepared.export_id), MANIFEST_KEY)  # of a run that died before its commit
    for name, data in contents.items():
        storage.write(directory, name, data)
    return ProgramRecord(
        name=job.program.name,
        entry=job.program.entry,
        fingerprint=compiled.signature.fingerprint,
        files={name: FileRecord.of(data) for name, data in contents.items()},
    )


def _check_free_space(output: str, nbytes: int) -> None:
    """Refuse early what a disk cannot hold. Object stores tell no free space."""
    if not storage.is_local(output):
        return
    path = storage.local_path(output)
    free_bytes = shutil.disk_usage(next(p for p in (path, *path.parents) if p.exists())).free
    if nbytes > free_bytes:
        raise StorageError(
            "disk full: the arrays do not fit into the output's file system",
            where=output,
            expected=f"{nbytes:,} bytes free",
            found=f"{free_bytes:,} bytes free",
            remedy="free space at the output or choose another one",
        )


def _tool_versions() -> dict[str, str]:
    versions = {}
    for name in _TOOLS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _execute(work: Work, job: Job, lease: Lease, reporter: Reporter) -> None:
    """Run the pipeline in a thread; this one polls the ledger, renews the lease and owns Ctrl-C."""
    pipeline = _pipeline("batch")
    crash: list[BaseException] = []

    def target() -> None:
        try:
            pipeline({job.output: work}, runner_name=job.rewrite.runner, workers=job.rewrite.workers)
        except BaseException as error:
            crash.append(error)

    thread = threading.Thread(target=target, name="reexport-pipeline", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_POLL_SECONDS)
            reporter.progress(*ledger.read(work.destination.ledger or ""))
            lease.renew()
    except BaseException:
        # items under way end by themselves; without receipts they count for nothing
        rewrite.stop(work.destination)
        thread.join(timeout=60)
        raise
    if crash:
        error = crash[0]
        if isinstance(error, ReexportError):
            raise error
        lines = str(error).strip().splitlines()
        raise ReexportError(
            "the Beam pipeline failed",
            where=f"runner {job.rewrite.runner}",
            found=lines[-1] if lines else type(error).__name__,
            remedy="nothing was committed; the same command resumes",
        ) from error


@contextmanager
def _quiet_logging() -> Iterator[None]:
    """Importing Beam warns, on the root logger, of Google Cloud clients that a run without them never needs."""
    root, handler = logging.getLogger(), logging.NullHandler()
    root.addHandler(handler)  # else logging would configure itself for the whole process
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        root.removeHandler(handler)


def _pipeline(name: str) -> Callable[..., None]:
    for entry_point in importlib.metadata.entry_points(group=_PIPELINES, name=name):
        with _quiet_logging():
            function: Callable[..., None] = entry_point.load()
        return function
    raise ReexportError(
        f"the pipeline {name!r} is not installed",
        where=f"entry point group {_PIPELINES}",
        remedy="install the distribution `reexport` again",
    )
