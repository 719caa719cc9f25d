"""What a model x target of a fleet needs: its current export against what its job would make today. Writes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from migrate import history, pointer, storage
from migrate.difference import compare_signatures
from migrate.errors import ReexportError
from migrate.export import Export, Paths, is_export
from migrate.fleet import Cell
from migrate.history import Status
from migrate.manifest import PARAMETERS_KEY
from migrate.preparation import Prepared
from migrate.reuse import current_export, reusable
from migrate.signature import Fingerprint

State = Literal["current", "stale", "missing", "failed last time", "held", "unusable"]
"""``held``: a person rolled back from what the job makes, or its source went back to an older step.
``unusable``: the job cannot be prepared."""
Work = Literal["nothing", "publish", "recompile", "rewrite", "everything"]
"""``publish``: the export exists already. ``recompile``: its arrays do. ``rewrite``: some of them do."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What has to be written; bytes are logical ones."""

    work: Work
    changed_arrays: int = 0
    """Arrays that are not stored like this already."""
    arrays: int = 0
    changed_bytes: int = 0
    nbytes: int = 0

    def to_json(self) -> dict[str, object]:
        """A JSON object."""
        return {
            "work": self.work,
            "changed_arrays": self.changed_arrays,
            "arrays": self.arrays,
            "changed_bytes": self.changed_bytes,
            "bytes": self.nbytes,
        }


@dataclass(frozen=True)
class Assessment:
    """The state of a cell, and what it takes to make it current."""

    cell: Cell
    state: State
    reasons: tuple[str, ...]
    """What differs, in words: ``libtpu 0.0.42.1 -> 0.0.52``."""
    cost: Cost
    current: Export | None
    """The export that LATEST names."""
    wanted: str | None
    """Id of the export that the job makes; None if it cannot be prepared."""
    status: Status | None
    """What the last reconcile with something to do made of it."""
    error: ReexportError | None = None
    prepared: Prepared | None = field(default=None, repr=False)

    @property
    def stale(self) -> bool:
        """Whether something has to be done."""
        return self.state not in {"current", "held"}

    @property
    def text(self) -> str:
        """``stale (libtpu 0.0.42.1 -> 0.0.52; 3 of 211 parameters change layout)``."""
        return f"{self.state} ({'; '.join(self.reasons)})" if self.reasons else self.state

    def to_json(self) -> dict[str, object]:
        """A JSON object for ``reexport reconcile --json``."""
        return {
            "model": self.cell.model,
            "target": self.cell.target,
            "output": self.cell.job.output,
            "state": self.state,
            "reasons": list(self.reasons),
            "current": self.current.manifest.export if self.current else None,
            "wanted": self.wanted,
            **self.cost.to_json(),
            "error": self.error.to_json() if self.error else None,
        }


def assess(cell: Cell, prepared: Prepared) -> Assessment:
    """Compare a cell's current export with its job as it was prepared now.

    Raises :class:`ReexportError` if the output is damaged or cannot be read.
    """
    output = cell.job.output
    current, status = current_export(output), history.read_status(output)
    wanted = prepared.export_id
    cost = _cost(output, prepared, current)
    now = pointer.read(output)

    def result(state: State, reasons: Iterable[str] = (), done: Cost = cost) -> Assessment:
        return Assessment(cell, state, tuple(reasons), done, current, wanted, status, None, prepared)

    if current is not None and current.manifest.export == wanted:
        return result("current", (), Cost("nothing", 0, cost.arrays, 0, cost.nbytes))
    reasons = list(_reasons(current, prepared)) if current is not None else []
    if now is not None and wanted in now.rolled_back:
        return result("held", [f"rolled back from {wanted}"], Cost("nothing", 0, cost.arrays, 0, cost.nbytes))
    if back := goes_back(cell, prepared, current):
        return result("held", [back], Cost("nothing", 0, cost.arrays, 0, cost.nbytes))
    if status is not None and status.outcome == "failed":
        times = f" {status.failures} times" if status.failures > 1 else ""
        what = status.error["what"] if status.error else "no reason is known"
        return result("failed last time", [f"failed{times}: {what}" if times else what, *reasons])
    return result("missing" if current is None else "stale", reasons)


def goes_back(cell: Cell, prepared: Prepared, current: Export | None) -> str | None:
    """In words, that the latest step of the source's directory is now older than the one that is current.

    A step that is gone, or not seen for a while, is no reason to serve older weights. None if it is not older, lies in
    another directory, or if the fleet allows it.
    """
    if current is None or not cell.only_newer:
        return None
    before, now = current.manifest.source, prepared.checkpoint.step
    if before.step is None or now is None or now >= before.step:
        return None
    same_directory = before.uri.startswith(f"{storage.normalise(cell.job.source.path)}/")
    return f"source step {before.step} -> {now} goes back" if same_directory else None


def unusable(cell: Cell, error: ReexportError) -> Assessment:
    """The assessment of a cell whose job cannot be prepared, or whose output cannot be read."""
    try:
        current, status = current_export(cell.job.output), history.read_status(cell.job.output)
    except ReexportError:
        current = status = None
    return Assessment(cell, "unusable", (error.what,), Cost("nothing"), current, None, status, error)


def _cost(output: str, prepared: Prepared, current: Export | None) -> Cost:
    plan, paths = prepared.plan, Paths(output)
    if is_export(paths.export(prepared.export_id)):
        return Cost("publish", 0, len(plan.arrays), 0, plan.nbytes)
    if storage.exists(paths.parameters(plan.parameter_set), PARAMETERS_KEY):
        return Cost("recompile", 0, len(plan.arrays), 0, plan.nbytes)
    stored = reusable(plan, prepared.checkpoint.identity, current)
    changed = [array for array in plan.arrays if (array.tree, array.name) not in stored]
    work: Work = "rewrite" if stored else "everything"
    changed_bytes = sum(array.stored.nbytes for array in changed)
    return Cost(work, len(changed), len(plan.arrays), changed_bytes, plan.nbytes)


def _reasons(current: Export, prepared: Prepared) -> Iterator[str]:
    source, checkpoint = current.manifest.source, prepared.checkpoint
    if source.identity != checkpoint.identity:
        moved = source.step is not None and source.step != checkpoint.step
        yield f"source step {source.step} -> {checkpoint.step}" if moved else "source changed"
    before = {program.name: program.fingerprint for program in current.manifest.programs}
    if list(before) != list(prepared.compiled):
        yield f"programs {', '.join(before)} -> {', '.join(prepared.compiled)}"
    changes: dict[str, None] = {}
    changed = total = 0
    for name, compiled in prepared.compiled.items():
        if name not in before:
            continue
        changes |= dict.fromkeys(_fingerprint_changes(before[name], compiled.signature.fingerprint))
        difference = compare_signatures(current.signature(name), compiled.signature)
        changed += len(difference.parameters)
        total += len(compiled.signature.parameters)
    yield from changes
    if changed:
        yield f"{changed} of {total} parameters {'change' if changed > 1 else 'changes'} layout"
    if source.identity == checkpoint.identity and not changes and list(before) == list(prepared.compiled):
        yield "mapping, chunk bound or compression"


def _fingerprint_changes(before: Fingerprint, after: Fingerprint) -> Iterator[str]:
    for name in ("libtpu", "jax", "jaxlib", "topology"):
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            yield f"{name} {old or 'none'} -> {new or 'none'}"
    for name, words in (
        ("mesh", "mesh"),
        ("flags", "flags"),
        ("layout_policy", "layout policy"),
        ("stablehlo_sha256", "program"),
    ):
        if getattr(before, name) != getattr(after, name):
            yield f"{words} changed"
