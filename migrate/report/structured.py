"""What a run or a reconcile does as JSON, an object a line on standard error, for systems that collect logs."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from migrate.history import now

if TYPE_CHECKING:
    from migrate.assessment import Assessment
    from migrate.errors import ReexportError
    from migrate.fleet import Cell
    from migrate.outcome import Outcome
    from migrate.preparation import Prepared, Reporter

_PROGRESS_SECONDS = 10.0
_lock = threading.Lock()


def log(event: str, fields: Mapping[str, Any] | None = None, *, level: str = "info", **more: Any) -> None:
    """Print one event: ``time``, ``level``, ``event`` and its fields."""
    line = json.dumps({"time": now(), "level": level, "event": event} | dict(fields or {}) | more, default=str)
    with _lock:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def log_error(error: ReexportError, **fields: Any) -> None:
    """Print an error as an event."""
    log("error", error.to_json(), level="error", **fields)


class JsonReporter:
    """Logs a run; implements :class:`migrate.preparation.Reporter`."""

    def __init__(self, **fields: str) -> None:
        """``fields`` are part of every line, such as model and target."""
        self._fields: dict[str, Any] = dict(fields)
        self._last = 0.0

    def stage(self, stage: str, subject: str) -> None:
        """A stage begins."""
        log("stage", stage=stage, subject=subject, **self._fields)

    def planned(self, prepared: Prepared) -> None:
        """The plan is made."""
        plan = prepared.plan
        log(
            "planned",
            export=prepared.export_id,
            arrays=len(plan.arrays),
            items=len(plan.items),
            bytes=plan.nbytes,
            **self._fields,
        )

    def started(self, items: int, nbytes: int, reused_items: int) -> None:
        """The rewrite begins."""
        self._last = time.monotonic()
        log("rewriting", items=items, bytes=nbytes, reused_items=reused_items, **self._fields)

    def progress(self, items: int, nbytes: int) -> None:
        """A line every ten seconds."""
        if time.monotonic() - self._last > _PROGRESS_SECONDS:
            self._last = time.monotonic()
            log("progress", items=items, bytes=nbytes, **self._fields)

    def finished(self) -> None:
        """The rewrite has ended."""
        log("rewrite ended", **self._fields)


class JsonListener:
    """Logs a reconcile; implements :class:`migrate.reconcile.Listener`."""

    def compiling(self, cells: Sequence[Cell]) -> None:
        """Compiles begin."""
        log("compiling", cells=len(cells))

    def assessed(self, assessment: Assessment) -> None:
        """A cell's state."""
        level = "error" if assessment.state == "unusable" else "info"
        log("assessed", assessment.to_json(), level=level)

    def working(self, cell: Cell) -> Reporter:
        """Work on a cell begins."""
        log("working", model=cell.model, target=cell.target)
        return JsonReporter(model=cell.model, target=cell.target)

    def done(self, outcome: Outcome) -> None:
        """A cell is done."""
        log("done", outcome.to_json(), level="error" if outcome.result == "failed" else "info")
