"""A batch as it runs, and what became of its jobs, for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from migrate.report.progress import ConsoleReporter
from migrate.report.structured import JsonReporter, log, log_error
from migrate.report.tables import print_table, table
from migrate.report.text import format_bytes, format_error, format_seconds, plural

if TYPE_CHECKING:
    from rich.console import Console

    from migrate.batch import BatchResult
    from migrate.errors import ReexportError
    from migrate.preparation import Prepared


class ConsoleBatchReporter:
    """A line a job while they are prepared, then one bar for all; implements :class:`migrate.batch.BatchReporter`."""

    def __init__(self, err: Console) -> None:
        self._err = err
        self._bar = ConsoleReporter(None, err)
        self.started = self._bar.started
        self.progress = self._bar.progress
        self.finished = self._bar.finished

    def compiling(self, jobs: int) -> None:
        """Say that compiles begin."""
        self._err.print(f"compiling the programs of {plural(jobs, 'job')}", style="dim")

    def prepared(self, name: str, prepared: Prepared) -> None:
        """Say how much a job is."""
        plan = prepared.plan
        planned = f"{plural(len(plan.arrays), 'array')}, {format_bytes(plan.nbytes)}, {plural(len(plan.items), 'item')}"
        self._err.print(f"planned {name}: {planned}", style="dim", markup=False)

    def failed(self, name: str, error: ReexportError) -> None:
        """Say at once what failed; the summary says why."""
        self._err.print(Text(f"failed {name}: {error.what}", style="red"))


class JsonBatchReporter(JsonReporter):
    """Logs a batch; implements :class:`migrate.batch.BatchReporter`."""

    def compiling(self, jobs: int) -> None:
        """Compiles begin."""
        log("compiling", jobs=jobs)

    def prepared(self, name: str, prepared: Prepared) -> None:
        """A job is planned."""
        JsonReporter(job=name).planned(prepared)

    def failed(self, name: str, error: ReexportError) -> None:
        """A job has failed."""
        log_error(error, job=name)


def show_batch(out: Console, result: BatchResult) -> None:
    """A row a job, then every error in full."""
    rows = [
        (
            name,
            "committed already" if done.already_committed else "committed",
            f"{len(done.plan.arrays):,}",
            format_bytes(done.bytes_written),
            done.export.manifest.export,
        )
        for name, done in result.results.items()
    ]
    rows += [(name, "failed", "", "", "") for name in result.failures]
    columns = [("job", False), ("result", False), ("arrays", True), ("written", True), ("export", False)]
    print_table(out, table(columns, rows))
    for name, error in result.failures.items():
        out.print()
        out.print(Text(f"{name}: {format_error(error)}"))
    out.print()
    written = format_bytes(sum(done.bytes_written for done in result.results.values()))
    out.print(
        f"{plural(len(result.results), 'export')} committed, {plural(len(result.failures), 'job')} failed; "
        f"{written} written in {format_seconds(result.seconds)}"
    )
