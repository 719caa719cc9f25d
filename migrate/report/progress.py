"""A job as it runs: a live bar on a terminal, plain lines elsewhere. Everything goes to standard error."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from migrate.report.plan import show_plan
from migrate.report.text import format_bytes, format_seconds, format_uri, plural

if TYPE_CHECKING:
    from migrate.preparation import Prepared

_LINE_SECONDS = 2.0
"""Time between two plain lines."""
_PLAN_ROWS = 40


class _RateColumn(ProgressColumn):
    """Bytes a second, in the units of the other columns."""

    def render(self, task: Task) -> Text:
        return Text(f"{format_bytes(task.speed)}/s" if task.speed else "")


def _columns(width: int) -> list[ProgressColumn]:
    """What a terminal of ``width`` columns has room for: rate and time left always, the rest where it fits."""
    whole = Column(no_wrap=True)
    items = TextColumn("{task.fields[items]}/{task.fields[all_items]} items", table_column=whole)
    return [
        *([TextColumn("rewriting", table_column=whole)] if width >= 50 else []),
        *([BarColumn(bar_width=40 if width >= 100 else 8)] if width >= 60 else []),
        DownloadColumn(binary_units=True, table_column=whole),
        *([items] if width >= 80 else []),
        _RateColumn(table_column=whole),
        TimeRemainingColumn(table_column=whole),
    ]


class ConsoleReporter:
    """Draws a run on the consoles of a command; implements :class:`migrate.preparation.Reporter`."""

    def __init__(self, out: Console | None, err: Console) -> None:
        """``out`` receives the plan (None: it is not shown), ``err`` the progress."""
        self._out = out
        self._err = err
        self._bar: Progress | None = None
        self._items = 0
        self._nbytes = 0
        self._began = 0.0
        self._last_line = 0.0

    def stage(self, stage: str, subject: str) -> None:
        """Announce a stage."""
        self._err.print(f"{stage} {format_uri(subject)}", style="dim", markup=False)

    def planned(self, prepared: Prepared) -> None:
        """Show the plan, before anything is written."""
        if self._out is not None:
            self._out.print()
            show_plan(self._out, prepared, limit=_PLAN_ROWS)
            self._out.print()

    def started(self, items: int, nbytes: int, reused_items: int) -> None:
        """Begin the bar, or say in a line what will be done."""
        self._items, self._nbytes, self._began = items, nbytes, time.monotonic()
        if reused_items:
            self._err.print(f"resuming: {plural(reused_items, 'item')} of an earlier run already verified", style="dim")
        if self._err.is_terminal:
            self._bar = Progress(*_columns(self._err.width), console=self._err, transient=True)
            self._bar.add_task("", total=nbytes, items=0, all_items=items)
            self._bar.start()
        else:
            self._err.print(f"rewriting {plural(items, 'item')}, {format_bytes(nbytes)}")

    def progress(self, items: int, nbytes: int) -> None:
        """Move the bar, or print a line every other second."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=nbytes, items=items)
        elif items and time.monotonic() - self._last_line > _LINE_SECONDS:
            self._last_line = time.monotonic()
            seconds = time.monotonic() - self._began
            # the first items open everything; a guess from them would be far off
            left = (
                f", {format_seconds(seconds / nbytes * (self._nbytes - nbytes))} left"
                if seconds > _LINE_SECONDS
                else ""
            )
            self._err.print(
                f"rewriting {items}/{self._items} items, {format_bytes(nbytes)} of {format_bytes(self._nbytes)}, "
                f"{format_bytes(nbytes / seconds)}/s{left}"
            )

    def finished(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
