"""One job from its source to its committed export: prepare, then rewrite, verify and commit through the pipeline."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from migrate import export
from migrate.config import Job
from migrate.conflict import goes_forward, is_committed
from migrate.execution import check_runner, execute
from migrate.export import Export, Paths
from migrate.planner import Plan
from migrate.preparation import Prepared, Reporter, Silent, as_job, compile_directory, prepare
from migrate.session import Session, tidy


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
    bytes_copied: int = 0
    """Of ``bytes_written``, what the export before held already: it was copied from there."""

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
            "bytes_copied": self.bytes_copied,
            "seconds": round(self.seconds, 3),
            "timings": {stage: round(seconds, 3) for stage, seconds in self.export.manifest.timings.items()},
        }


def run(
    job: Job | Mapping[str, Any] | str | Path, *, supersede: bool = False, reporter: Reporter | None = None
) -> Result:
    """Re-export one checkpoint: when this returns, the export is whole, verified and committed.

    An interrupted or failed run leaves nothing visible; the same call then repeats only items without a durable
    receipt. Running a finished job again writes nothing. ``supersede`` lets an output that already holds another
    export receive this one beside it, as the current one. Raises :class:`ReexportError`.
    """
    started = time.perf_counter()
    job = as_job(job)
    check_runner(job)  # before the compile, which takes longer
    with compile_directory() as directory:
        prepared = prepare(job, directory, reporter)
        result = run_prepared(prepared, supersede=supersede, reporter=reporter)
    return replace(result, seconds=time.perf_counter() - started)


def run_prepared(
    prepared: Prepared, *, supersede: bool = False, publish: bool = True, reporter: Reporter | None = None
) -> Result:
    """What :func:`run` does once the plan is made; ``prepared`` must still have its compile directory.

    Without ``publish`` the export is committed, but LATEST stays as it is. Raises :class:`ReexportError`.
    """
    started = time.perf_counter()
    reporter = reporter or Silent()
    paths = Paths(prepared.job.output)
    check_runner(prepared.job)
    reporter.planned(prepared)
    done = written = copied = 0
    already = is_committed(prepared, supersede=supersede)
    if not already:
        with Session(prepared, publish=publish) as session:
            done, written = _rewrite(session, prepared.job, reporter)
            copied = session.copied_bytes
    else:
        tidy(prepared)
        if publish:
            if goes_forward(prepared):
                reporter.stage("going forward again to", f"export {prepared.export_id}, which was rolled back")
            export.set_latest(paths.output, prepared.export_id)
    committed = export.open_export(paths.export(prepared.export_id))
    return Result(committed, prepared.plan, already, done, written, time.perf_counter() - started, copied)


def _rewrite(session: Session, job: Job, reporter: Reporter) -> tuple[int, int]:
    """Write, verify and commit; (items, logical bytes) that were not there before."""
    if session.work is None:
        return 0, 0
    reporter.started(len(session.work.items), session.nbytes, session.reused_items)
    try:
        execute(
            {job.output: session.work},
            runner=job.rewrite.runner,
            runner_options=job.rewrite.runner_options,
            workers=job.rewrite.workers,
            on_poll=lambda: reporter.progress(*session.progress()),
        )
    finally:
        reporter.finished()
    session.check()
    return len(session.work.items), session.nbytes
