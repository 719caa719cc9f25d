"""Figures of a fleet for Prometheus, as a file for the textfile collector of its node exporter."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from migrate import local_files
from migrate.errors import StorageError
from migrate.outcome import Outcome, Summary

STATES = ("current", "stale", "missing", "failed", "held")
_PREFIX = "reexport"


def write_metrics(summary: Summary, path: str | Path) -> None:
    """Replace the file at ``path``, whole, by the figures of ``summary``. Raises :class:`StorageError`."""
    try:
        local_files.write(Path(path).absolute(), "".join(_lines(summary)).encode(), durable=False)
    except OSError as error:
        raise StorageError(
            "the metrics cannot be written", where=f"--metrics {path}", found=error.strerror or str(error)
        ) from error


def state_after(outcome: Outcome) -> str:
    """The state of a cell after the reconcile: one of :data:`STATES`."""
    if outcome.result in {"published", "unchanged"}:
        return "current"
    if outcome.result == "failed":
        return "failed"
    if outcome.result == "held":
        return "held"
    return "missing" if outcome.export is None else "stale"


def _lines(summary: Summary) -> Iterator[str]:
    now = time.time()
    cells = [(o, {"model": o.assessment.cell.model, "target": o.assessment.cell.target}) for o in summary.outcomes]

    def family(name: str, words: str, samples: Iterable[tuple[dict[str, str], float]]) -> Iterator[str]:
        yield f"# HELP {_PREFIX}_{name} {words}\n# TYPE {_PREFIX}_{name} gauge\n"
        for labels, value in samples:
            shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            yield f"{_PREFIX}_{name}{f'{{{shown}}}' if shown else ''} {value:.15g}\n"

    yield from family(
        "export_state",
        "1 for the state a model and target is in, 0 for the others.",
        (({**labels, "state": s}, float(s == state_after(o))) for o, labels in cells for s in STATES),
    )
    yield from family(
        "export_age_seconds",
        "Time since the current export was committed.",
        ((labels, now - created) for o, labels in cells if (created := _created(o)) is not None),
    )
    sizes = [(labels, outcome.assessment.cost.nbytes) for outcome, labels in cells]
    yield from family("export_bytes", "Logical bytes of the export's arrays.", sizes)
    yield from family("written_bytes", "Logical bytes the reconcile wrote.", ((la, o.bytes_written) for o, la in cells))
    yield from family("work_seconds", "Time the reconcile worked on it.", ((labels, o.seconds) for o, labels in cells))
    yield from family("failures", "Failed reconciles in a row.", ((labels, o.failures) for o, labels in cells))
    yield from family("reconcile_timestamp_seconds", "Unix time at which the reconcile ended.", [({}, now)])
    yield from family("reconcile_seconds", "Time the reconcile took.", [({}, summary.seconds)])
    yield from family("reconcile_failed", "Models x targets that failed.", [({}, summary.count("failed"))])


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _created(outcome: Outcome) -> float | None:
    if outcome.created is None:
        return None
    return datetime.datetime.fromisoformat(outcome.created).timestamp()
