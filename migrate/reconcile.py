"""Makes what a fleet serves current, with the least work: nothing, a publication, a compile, or writing arrays.

Cells fail alone. Each is worked on under a lease in its own output, so that reconciles on two machines share the work;
LATEST moves last, and only if nobody else moved it. A crash anywhere leaves the export that was current.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from typing import Protocol

from migrate import history, notify, pointer, storage
from migrate.assessment import Assessment, assess, goes_back, unusable
from migrate.audit import verify_export
from migrate.batch import compile_into_cache
from migrate.collector import collect
from migrate.driver import run_prepared
from migrate.errors import NotAnExportError, OutputConflictError, ReexportError, VerificationError
from migrate.export import Export, Paths
from migrate.fleet import Cell, Fleet
from migrate.history import Status
from migrate.lease import Lease
from migrate.outcome import Outcome, Result, Summary, message
from migrate.preparation import Reporter, Silent, compile_directory, prepare
from migrate.publication import publish
from migrate.reuse import current_export
from migrate.smoke import run_smoke

_RENEW_SECONDS = 5.0


class Listener(Protocol):
    """Hears what a reconcile does."""

    def compiling(self, cells: Sequence[Cell]) -> None:
        """The programs of all cells are compiled, or found in the cache."""

    def assessed(self, assessment: Assessment) -> None:
        """What a cell needs is known."""

    def working(self, cell: Cell) -> Reporter:
        """The work on a cell begins; gives who hears of its stages."""

    def done(self, outcome: Outcome) -> None:
        """A cell is done."""


class Quiet:
    """A listener that says nothing."""

    def compiling(self, cells: Sequence[Cell]) -> None:
        """Ignored."""

    def assessed(self, assessment: Assessment) -> None:
        """Ignored."""

    def working(self, cell: Cell) -> Reporter:
        """Nobody hears of the stages."""
        return Silent()

    def done(self, outcome: Outcome) -> None:
        """Ignored."""


def reconcile(
    fleet: Fleet, cells: Sequence[Cell] | None = None, *, dry_run: bool = False, listener: Listener | None = None
) -> Summary:
    """Make ``cells`` (default: all) of a fleet current. With ``dry_run`` only find out what that would take.

    What fails is in the summary, not raised. Raises :class:`migrate.errors.ConfigError` if the webhook's URL cannot be
    had.
    """
    listener = listener or Quiet()
    cells = fleet.cells if cells is None else cells
    url = fleet.notifications.url()
    started, began, run_id = history.now(), time.perf_counter(), uuid.uuid4().hex[:12]
    with ExitStack() as stack:
        assessments = _assess_all(fleet, cells, listener, stack)
        outcomes = () if dry_run else _act_on_all(fleet, assessments, listener)
    summary = Summary(fleet, run_id, started, time.perf_counter() - began, dry_run, assessments, outcomes)
    if dry_run:
        return summary
    warnings = [*_record(summary), *_notify(summary, url)]
    return replace(summary, warnings=tuple(warnings))


def _assess_all(fleet: Fleet, cells: Sequence[Cell], listener: Listener, stack: ExitStack) -> tuple[Assessment, ...]:
    """Prepare every cell; the compile directories of those that need work live as long as ``stack``."""
    listener.compiling(cells)
    refused = compile_into_cache({cell.name: cell.job for cell in cells}, fleet.concurrency.compiles)
    found = []
    for cell in cells:
        assessment = _assess(cell, refused.get(cell.name), stack)
        listener.assessed(assessment)
        found.append(assessment)
    return tuple(found)


def _assess(cell: Cell, refused: ReexportError | None, stack: ExitStack) -> Assessment:
    if refused is not None:
        return unusable(cell, refused)
    try:
        with ExitStack() as own:
            prepared = prepare(cell.job, own.enter_context(compile_directory()))
            assessment = assess(cell, prepared)
            if assessment.stale:
                stack.push(own.pop_all())
        return assessment
    except ReexportError as error:
        return unusable(cell, error)
    except Exception as error:
        return unusable(cell, _unexpected(error))


def _unexpected(error: Exception) -> ReexportError:
    """A fault of this program must not stop the other cells."""
    return ReexportError(
        "an unexpected error",
        found=f"{type(error).__name__}: {error}",
        remedy="please report it; the other models are not affected",
    )


def _act_on_all(fleet: Fleet, assessments: Sequence[Assessment], listener: Listener) -> tuple[Outcome, ...]:
    def act(assessment: Assessment) -> Outcome:
        outcome = _act(assessment, listener)
        warnings = (*outcome.warnings, *_remember(fleet, outcome))
        outcome = replace(outcome, warnings=warnings)
        listener.done(outcome)
        return outcome

    if fleet.concurrency.rewrites == 1:
        return tuple(map(act, assessments))
    pool = ThreadPoolExecutor(fleet.concurrency.rewrites, thread_name_prefix="reconcile")
    futures = [pool.submit(act, assessment) for assessment in assessments]
    try:
        wait(futures, return_when=FIRST_EXCEPTION)
        return tuple(future.result() for future in futures)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _act(assessment: Assessment, listener: Listener) -> Outcome:
    cell = assessment.cell
    current = assessment.current.manifest.export if assessment.current else None
    if assessment.state == "unusable":
        return Outcome(assessment, "failed", current, error=assessment.error)
    began = time.perf_counter()
    if not assessment.stale:
        result: Result = "held" if assessment.state == "held" else "unchanged"
        warnings = _collect(cell, only_marked=True)
        return Outcome(assessment, result, current, 0, time.perf_counter() - began, None, warnings)
    try:
        with _lease(cell):
            return replace(_work(assessment, listener), seconds=time.perf_counter() - began)
    except _BusyError:
        return Outcome(assessment, "busy", current, 0, time.perf_counter() - began)
    except ReexportError as error:
        return Outcome(assessment, "failed", current, 0, time.perf_counter() - began, error)
    except Exception as error:
        return Outcome(assessment, "failed", current, 0, time.perf_counter() - began, _unexpected(error))


class _BusyError(Exception):
    """Another reconcile holds the cell."""


@contextlib.contextmanager
def _lease(cell: Cell) -> Iterator[None]:
    """Hold the cell's lease, renewed in the background: verifying and smoke commands report no progress."""
    uri = Paths(cell.job.output).run("reconcile")
    try:
        lease = Lease(uri)
    except OutputConflictError as error:
        raise _BusyError from error
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(_RENEW_SECONDS):
            # a lost lease is found where it matters: LATEST moves only from the export it was seen to name
            with contextlib.suppress(ReexportError):
                lease.renew()

    thread = threading.Thread(target=renew, name="reconcile-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        lease.release()
        for folder in (uri, storage.join(cell.job.output, "runs")):
            storage.delete_empty_directory(folder)


def _work(assessment: Assessment, listener: Listener) -> Outcome:
    """Write, verify, try and publish the wanted export; the cell's lease is held."""
    cell, prepared, wanted = assessment.cell, assessment.prepared, assessment.wanted
    assert prepared is not None
    assert wanted is not None
    before = current_export(cell.job.output)
    current = before.manifest.export if before else None
    now = pointer.read(cell.job.output)
    # another reconcile, or a person, was faster
    if current == wanted:
        return Outcome(assessment, "unchanged", current, published=before)
    if (now is not None and wanted in now.rolled_back) or goes_back(cell, prepared, before):
        return Outcome(assessment, "held", current)
    reporter = listener.working(cell)
    made = run_prepared(prepared, supersede=True, publish=False, reporter=reporter)
    # what was written counts, whatever becomes of it
    outcome = Outcome(assessment, "failed", current, made.bytes_written, bytes_copied=made.bytes_copied)
    try:
        reporter.stage("verifying", made.export.uri)
        _verify(made.export, before)
        if cell.smoke is not None:
            reporter.stage("trying", made.export.uri)
            run_smoke(cell.smoke.command, made.export.uri, cell.smoke.timeout_seconds, current=current)
        publish(cell.job.output, wanted, expected=current)
    except ReexportError as error:
        return replace(outcome, error=error)
    except Exception as error:
        return replace(outcome, error=_unexpected(error))
    return replace(outcome, result="published", export=wanted, warnings=_collect(cell), published=made.export)


def _verify(export: Export, before: Export | None) -> None:
    """Read the whole export; arrays that are current already were read when they became so."""
    if before is None or before.manifest.parameter_set != export.manifest.parameter_set:
        verify_export(export)
        return
    export.parameter_set()
    for program in export.manifest.programs:
        for file in program.files:
            export.read_file(program, file)


def _collect(cell: Cell, *, only_marked: bool = False) -> tuple[str, ...]:
    """Delete old exports; what goes wrong is no failure of what was published."""
    try:
        if only_marked and not storage.list_directory(storage.join(cell.job.output, "retired")):
            return ()
        collect(cell.job.output, keep=cell.retention.keep, grace_seconds=cell.retention.grace)
    except (OutputConflictError, NotAnExportError, VerificationError) as error:
        return (f"old exports were not deleted: {error.what}",)
    except ReexportError as error:
        return (f"old exports were not deleted: {error}",)
    return ()


def _remember(fleet: Fleet, outcome: Outcome) -> list[str]:
    """Write the cell's status and its event; gives what went wrong."""
    if outcome.result in {"busy", "held"} or (outcome.result == "unchanged" and not outcome.assessment.status):
        return []
    cell, status = outcome.assessment.cell, outcome.assessment.status
    if outcome.result == "unchanged":
        if status is None or status.outcome != "failed":
            return []
        new = Status(history.now(), "published", outcome.export, 0)
    else:
        error = outcome.error.to_json() if outcome.error else None
        new = Status(history.now(), outcome.result, outcome.assessment.wanted, outcome.failures, error)
    try:
        history.write_status(cell.job.output, new)
        if outcome.result != "unchanged":
            history.append(fleet.output, {"time": new.time, "event": "cell", **outcome.to_json()})
    except ReexportError as error:
        return [f"{cell.name} could not be recorded: {error.what}"]
    return []


def _record(summary: Summary) -> list[str]:
    try:
        history.append(summary.fleet.output, {"time": history.now(), "event": "reconcile", **summary.totals()})
    except ReexportError as error:
        return [f"the reconcile could not be recorded: {error.what}"]
    return []


def _notify(summary: Summary, url: str | None) -> list[str]:
    settings = summary.fleet.notifications
    told = {"change": summary.count("published"), "failure": summary.count("failed")}
    if url is None or not any(told[kind] for kind in settings.on):
        return []
    try:
        notify.post(url, message(summary), timeout_seconds=settings.timeout_seconds)
    except ReexportError as error:
        return [f"{error.what}: {error.where}: {error.found}"]
    return []
