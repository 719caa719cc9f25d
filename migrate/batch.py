"""Many jobs at once: distinct programs compile once, all items run in one pipeline, a job that fails fails alone."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from migrate import export, storage
from migrate.compiler.parallel import compile_all
from migrate.config import Job
from migrate.conflict import is_committed
from migrate.driver import Result
from migrate.errors import ExitCode, ReexportError
from migrate.execution import check_runner, execute
from migrate.export import Paths
from migrate.failures import FAILURES_KEY
from migrate.preparation import Prepared, Silent, compile_directory, prepare
from migrate.session import Session, tidy


class BatchReporter(Protocol):
    """Hears what a batch does."""

    def compiling(self, jobs: int) -> None:
        """The programs of that many jobs are compiled, or found in the cache."""

    def prepared(self, name: str, prepared: Prepared) -> None:
        """A job is planned."""

    def started(self, items: int, nbytes: int, reused_items: int) -> None:
        """The rewrite of all jobs begins, as :class:`migrate.preparation.Reporter` says."""

    def progress(self, items: int, nbytes: int) -> None:
        """That many items and logical bytes of all jobs are done; called several times a second."""

    def finished(self) -> None:
        """The rewrite has ended, well or not."""

    def failed(self, name: str, error: ReexportError) -> None:
        """A job has failed; the others go on."""


class _Quiet(Silent):
    def compiling(self, jobs: int) -> None:
        """Ignored."""

    def prepared(self, name: str, prepared: Prepared) -> None:
        """Ignored."""

    def failed(self, name: str, error: ReexportError) -> None:
        """Ignored."""


@dataclass(frozen=True)
class BatchResult:
    """What became of every job of a batch."""

    results: dict[str, Result]
    """Of the jobs that are committed, by name."""
    failures: dict[str, ReexportError]
    """Of the others."""
    seconds: float
    """Wall time of the whole batch."""

    @property
    def exit_code(self) -> ExitCode:
        """Done if every job is."""
        return ExitCode.FAILED if self.failures else ExitCode.DONE

    def to_json(self) -> dict[str, object]:
        """A JSON object for ``reexport run --json``."""
        return {
            "committed": {name: result.to_json() for name, result in self.results.items()},
            "failures": {name: error.to_json() for name, error in self.failures.items()},
            "seconds": round(self.seconds, 3),
        }


def run_batch(
    jobs: Mapping[str, Job],
    *,
    supersede: bool = False,
    compile_jobs: int | None = None,
    failures_uri: str | None = None,
    reporter: BatchReporter | None = None,
) -> BatchResult:
    """Re-export all ``jobs``, given by name; each ends committed or in ``failures``, whatever becomes of the others.

    Jobs that differ in source alone share one compile; at most ``compile_jobs`` run at once (default: see
    :func:`migrate.compiler.compile_all`). Their items run in one pipeline for each runner and number of workers that
    the jobs ask for. Below ``failures_uri`` a ``failures.json`` says what failed; without a failure there is none. The
    same call resumes what was interrupted, as :func:`migrate.run` does.
    """
    batch = _Batch(jobs, supersede, reporter or _Quiet())
    started = time.perf_counter()
    with ExitStack() as stack:
        batch.prepare(stack, compile_jobs)
        batch.begin(stack)
        batch.rewrite()
        batch.finish(started)
    result = BatchResult(batch.results, batch.failures, time.perf_counter() - started)
    if failures_uri is not None:
        _record(failures_uri, result.failures)
    return result


class _Batch:
    """A batch under way; each step leaves out the jobs that failed before."""

    def __init__(self, jobs: Mapping[str, Job], supersede: bool, reporter: BatchReporter) -> None:
        self._jobs = jobs
        self._supersede = supersede
        self._reporter = reporter
        self._ready: dict[str, Prepared] = {}
        self._sessions: dict[str, Session] = {}
        self.results: dict[str, Result] = {}
        self.failures: dict[str, ReexportError] = {}

    def _fail(self, name: str, error: ReexportError) -> None:
        self.failures[name] = error
        self._reporter.failed(name, error)

    def prepare(self, stack: ExitStack, compile_jobs: int | None) -> None:
        """Compile what is distinct side by side, into the cache; then open and plan every job."""
        for name, job in self._jobs.items():
            try:
                check_runner(job)
            except ReexportError as error:
                self._fail(name, error)
        self._reporter.compiling(len(self._jobs))
        jobs = {name: job for name, job in self._jobs.items() if name not in self.failures}
        for name, refused in compile_into_cache(jobs, compile_jobs).items():
            self._fail(name, refused)
        for name, job in self._jobs.items():
            if name in self.failures:
                continue
            try:
                with ExitStack() as own:
                    prepared = prepare(job, own.enter_context(compile_directory()))
                    stack.push(own.pop_all())
            except ReexportError as error:
                self._fail(name, error)
            else:
                self._ready[name] = prepared
                self._reporter.prepared(name, prepared)

    def begin(self, stack: ExitStack) -> None:
        """Take every job's lease, and look at what is left to do."""
        for name, prepared in self._ready.items():
            try:
                if is_committed(prepared, supersede=self._supersede):
                    tidy(prepared)
                    export.set_latest(prepared.job.output, prepared.export_id)
                else:
                    self._sessions[name] = stack.enter_context(Session(prepared))
            except ReexportError as error:
                self._fail(name, error)

    def rewrite(self) -> None:
        """Run the pipelines: one for each runner and number of workers."""
        working = {name: session for name, session in self._sessions.items() if session.work is not None}
        if not working:
            return
        items = sum(len(session.work.items) for session in working.values() if session.work)
        nbytes = sum(session.nbytes for session in working.values())
        self._reporter.started(items, nbytes, sum(session.reused_items for session in working.values()))

        def poll() -> None:
            done = [session.progress() for session in working.values()]
            self._reporter.progress(sum(items for items, _ in done), sum(nbytes for _, nbytes in done))

        try:
            for engine in dict.fromkeys(map(self._engine, working)):
                group = {n: s.work for n, s in working.items() if s.work and self._engine(n) == engine}
                runner, options, workers = engine
                try:
                    execute(group, runner=runner, runner_options=options, workers=workers, on_poll=poll)
                except ReexportError as error:
                    # jobs that were committed before the pipeline broke are committed all the same
                    for name in group:
                        self._sessions[name].blame(error)
        finally:
            self._reporter.finished()

    def _engine(self, name: str) -> tuple[str, tuple[str, ...], int | None]:
        chosen = self._jobs[name].rewrite
        return chosen.runner, chosen.runner_options, chosen.workers

    def finish(self, started: float) -> None:
        """Every job's export, or why there is none."""
        for name, prepared in self._ready.items():
            if name in self.failures:
                continue
            session = self._sessions.get(name)
            try:
                if session is not None:
                    session.check()
                found = export.open_export(Paths(prepared.job.output).export(prepared.export_id))
            except ReexportError as error:
                self._fail(name, error)
                continue
            work = session.work if session else None
            done, written = (len(work.items), session.nbytes) if session and work else (0, 0)
            seconds = time.perf_counter() - started
            copied = session.copied_bytes if session else 0
            self.results[name] = Result(found, prepared.plan, session is None, done, written, seconds, copied)


def compile_into_cache(jobs: Mapping[str, Job], compile_jobs: int | None = None) -> dict[str, ReexportError]:
    """Fill the compile cache with the primary programs of ``jobs``, distinct ones side by side; the errors by name.

    A job without a cache is left out: it compiles when it is prepared. A log that an error names stays.
    """
    cached = {name: job for name, job in jobs.items() if job.compile.cache}
    if not cached:
        return {}
    directory = Path(tempfile.mkdtemp(prefix="reexport-compile-"))
    keep = False
    try:
        results = compile_all(list(cached.values()), directory, compile_jobs=compile_jobs)
        refused = {n: r for n, r in zip(cached, results, strict=True) if isinstance(r, ReexportError)}
        keep = any(str(directory) in str(error) for error in refused.values())
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)
    return refused


def _record(uri: str, failed: Mapping[str, ReexportError]) -> None:
    if failed:
        document = {name: error.to_json() for name, error in failed.items()}
        storage.write(uri, FAILURES_KEY, json.dumps(document, indent=1).encode())
    elif storage.exists(uri, FAILURES_KEY):
        storage.delete(uri, FAILURES_KEY)
