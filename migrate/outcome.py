"""What a reconcile made of each model x target, and of all together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from migrate.assessment import Assessment
from migrate.errors import ReexportError
from migrate.export import Export
from migrate.fleet import Fleet

Result = Literal["unchanged", "published", "failed", "busy", "held"]
RESULTS: tuple[Result, ...] = ("unchanged", "published", "failed", "busy", "held")


@dataclass(frozen=True)
class Outcome:
    """What a reconcile made of a cell."""

    assessment: Assessment
    result: Result
    """``busy``: another reconcile works on it."""
    export: str | None
    """Id of the current export afterwards."""
    bytes_written: int = 0
    """Logical bytes."""
    seconds: float = 0.0
    """Wall time of the work, the assessment not included."""
    error: ReexportError | None = None
    warnings: tuple[str, ...] = ()
    """What went wrong after the publication, such as deleting old exports."""
    published: Export | None = None
    """The export that became current."""
    bytes_copied: int = 0
    """Of ``bytes_written``, what the export before held already: it was copied from there."""

    @property
    def created(self) -> str | None:
        """When the current export was committed, ISO 8601; None if there is none."""
        export = self.published or self.assessment.current
        return export.manifest.created if export else None

    @property
    def failures(self) -> int:
        """How often in a row it has failed now."""
        before = self.assessment.status.failures if self.assessment.status else 0
        return before + 1 if self.result == "failed" else 0

    def to_json(self) -> dict[str, object]:
        """A JSON object for ``--json``, the history and the webhook."""
        return {
            **self.assessment.to_json(),
            "result": self.result,
            "export": self.export,
            "bytes_written": self.bytes_written,
            "bytes_copied": self.bytes_copied,
            "seconds": round(self.seconds, 3),
            "failures": self.failures,
            "error": self.error.to_json() if self.error else None,
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True)
class Summary:
    """A whole reconcile."""

    fleet: Fleet
    id: str
    started: str
    """ISO 8601, UTC."""
    seconds: float
    dry_run: bool
    assessments: tuple[Assessment, ...]
    outcomes: tuple[Outcome, ...]
    """Empty in a dry run."""
    warnings: tuple[str, ...] = ()
    """What went wrong beside the exports: the history, the webhook."""

    def count(self, result: Result) -> int:
        """Cells with this result."""
        return sum(outcome.result == result for outcome in self.outcomes)

    @property
    def bytes_written(self) -> int:
        """Logical bytes of all cells."""
        return sum(outcome.bytes_written for outcome in self.outcomes)

    @property
    def bytes_copied(self) -> int:
        """Of these, what earlier exports held already."""
        return sum(outcome.bytes_copied for outcome in self.outcomes)

    def to_json(self) -> dict[str, object]:
        """A JSON object for ``--json``, and without the cells for the history."""
        cells: Sequence[Assessment | Outcome] = self.assessments if self.dry_run else self.outcomes
        return {**self.totals(), "cells": [cell.to_json() for cell in cells]}

    def totals(self) -> dict[str, object]:
        """The figures of all cells together."""
        return {
            "reconcile": self.id,
            "fleet": self.fleet.path,
            "output": self.fleet.output,
            "started": self.started,
            "dry_run": self.dry_run,
            "seconds": round(self.seconds, 3),
            "bytes_written": self.bytes_written,
            "bytes_copied": self.bytes_copied,
            "results": {} if self.dry_run else {result: self.count(result) for result in RESULTS},
            "states": {a.state: sum(b.state == a.state for b in self.assessments) for a in self.assessments},
            "warnings": list(self.warnings),
        }


def message(summary: Summary) -> dict[str, object]:
    """What a webhook receives: ``text`` for people (chat systems show it), the figures, and the cells of interest."""
    told = [outcome for outcome in summary.outcomes if outcome.result in {"published", "failed"}]
    lines = [f"reexport: {summary.count('published')} published, {summary.count('failed')} failed"]
    for outcome in told:
        why = outcome.error.what if outcome.error else outcome.assessment.text
        lines.append(f"{outcome.assessment.cell.name}: {outcome.result} - {why}")
    return {"text": "\n".join(lines), **summary.totals(), "cells": [outcome.to_json() for outcome in told]}
