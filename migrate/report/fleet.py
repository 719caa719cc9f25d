"""A fleet for a terminal: states and costs, what a reconcile does, its summary, its history."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from migrate.outcome import RESULTS
from migrate.report.progress import ConsoleReporter
from migrate.report.tables import print_table, table
from migrate.report.text import format_bytes, format_error, format_seconds, format_uri, plural

if TYPE_CHECKING:
    from migrate.assessment import Assessment, Cost
    from migrate.fleet import Cell
    from migrate.outcome import Outcome, Summary
    from migrate.preparation import Prepared, Reporter


class ConsoleListener:
    """Says on a console what a reconcile does; implements :class:`migrate.reconcile.Listener`."""

    def __init__(self, err: Console, *, one_at_a_time: bool) -> None:
        """Bars are drawn only if cells are worked on ``one_at_a_time``."""
        self._err = err
        self._one_at_a_time = one_at_a_time
        self._lock = threading.Lock()

    def _say(self, text: str) -> None:
        with self._lock:
            self._err.print(text, soft_wrap=True)

    def compiling(self, cells: Sequence[Cell]) -> None:
        """Compiles begin."""
        self._say(f"compiling for {plural(len(cells), 'pair')} of model and target; the cache is asked first")

    def assessed(self, assessment: Assessment) -> None:
        """A cell's state."""
        self._say(f"{assessment.cell.name}: {assessment.text}")

    def working(self, cell: Cell) -> Reporter:
        """Work on a cell begins."""
        self._say(f"{cell.name}: {format_uri(cell.job.output)}")
        return _Stages(self._err) if self._one_at_a_time else _Named(self._say, cell.name)

    def done(self, outcome: Outcome) -> None:
        """A cell is done."""
        name = outcome.assessment.cell.name
        if outcome.error is not None:
            self._say(f"{name}: failed\n{format_error(outcome.error)}")
        elif outcome.result in {"published", "busy"}:
            self._say(f"{name}: {outcome.result}")
        for warning in outcome.warnings:
            self._say(f"{name}: warning: {warning}")


class _Stages(ConsoleReporter):
    """Stages and the bar, without the plan of every job."""

    def __init__(self, err: Console) -> None:
        super().__init__(None, err)


class _Named:
    """Stages of a cell among others, each with its name."""

    def __init__(self, say: Any, name: str) -> None:
        self._say = say
        self._name = name

    def stage(self, stage: str, subject: str) -> None:
        self._say(f"{self._name}: {stage} {format_uri(subject)}")

    def planned(self, prepared: Prepared) -> None:
        pass

    def started(self, items: int, nbytes: int, reused_items: int) -> None:
        self._say(f"{self._name}: rewriting {plural(items, 'item')}, {format_bytes(nbytes)}")

    def progress(self, items: int, nbytes: int) -> None:
        pass

    def finished(self) -> None:
        pass


_WORK = {
    "nothing": "nothing",
    "publish": "publish what is written",
    "recompile": "recompile only, 0 B",
}


def cost_text(cost: Cost) -> str:
    """What there is to do: ``recompile only, 0 B``."""
    if cost.work in _WORK:
        return _WORK[cost.work]
    whole = format_bytes(cost.nbytes)
    if cost.work == "everything":
        return f"write everything, {whole}"
    changed = f"{cost.changed_arrays} of {plural(cost.arrays, 'array')}"
    return f"{changed} changed, {format_bytes(cost.changed_bytes)} of {whole}"


def show_plan(out: Console, summary: Summary) -> None:
    """A dry run: state and cost of every cell."""
    columns = [("model", False), ("target", False), ("state", False), ("to do", False)]
    rows = [
        (a.cell.model, a.cell.target, a.text, "repair the job" if a.state == "unusable" else cost_text(a.cost))
        for a in summary.assessments
    ]
    print_table(out, table(columns, rows))
    work = [a for a in summary.assessments if a.stale]
    out.print()
    pairs = f"{plural(len(rows), 'pair')} of model and target"
    out.print(f"{pairs}, {len(work)} to be worked on; looked at in {format_seconds(summary.seconds)}")


def show_summary(out: Console, summary: Summary) -> None:
    """What a reconcile did, a cell a line, and all together."""
    columns = [
        ("model", False),
        ("target", False),
        ("was", False),
        ("result", False),
        ("current export", False),
        ("wrote", True),
        ("time", True),
    ]
    print_table(out, table(columns, [_row(outcome) for outcome in summary.outcomes]))
    counts = [f"{count} {result}" for result in RESULTS if (count := summary.count(result))]
    written = f"{format_bytes(summary.bytes_written)} written in {format_seconds(summary.seconds)}"
    if summary.bytes_copied:
        written += f", {format_bytes(summary.bytes_copied)} of it copied from the exports before"
    out.print()
    out.print(f"{', '.join(counts)}; {written}")
    for warning in summary.warnings:
        out.print(f"warning: {warning}")


def _row(outcome: Outcome) -> tuple[str, ...]:
    cell = outcome.assessment.cell
    return (
        cell.model,
        cell.target,
        outcome.assessment.text,
        outcome.result,
        outcome.export or "-",
        format_bytes(outcome.bytes_written),
        format_seconds(outcome.seconds),
    )


def show_history(out: Console, events: Sequence[Mapping[str, Any]]) -> None:
    """Events of the history, oldest first."""
    words = ("time", "model/target", "was", "result", "wrote", "why")
    columns = [(word, word == "wrote") for word in words]
    print_table(out, table(columns, [_event_row(event) for event in events]))


def _event_row(event: Mapping[str, Any]) -> tuple[str, ...]:
    time, wrote = str(event.get("time", "")), format_bytes(event.get("bytes_written") or 0)
    if event.get("event") != "cell":
        results = event.get("results") or {}
        counts = ", ".join(f"{count} {result}" for result, count in results.items() if count)
        return (time, "all", "", counts, wrote, "; ".join(event.get("warnings") or ()))
    error = event.get("error") or {}
    why = str(error.get("what") or "; ".join(event.get("reasons") or ()))
    name = f"{event.get('model')}/{event.get('target')}"
    return (time, name, str(event.get("state", "")), str(event.get("result", "")), wrote, why)
