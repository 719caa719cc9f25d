"""Which exports of an output stay, and what may be deleted. Pure: :mod:`migrate.collector` finds out and deletes.

Nothing is deleted at once. What is no longer wanted is first *marked*, with the time; an export is hidden as well, by
taking its COMMIT.json away. It is deleted when its mark is older than a grace period. A reader holds nothing and writes
nothing: it opened its export while that was visible, and has the grace period to finish. An object store tells no times
of its objects, so the marks hold them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

DEFAULT_KEEP = 3
DEFAULT_GRACE_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Committed:
    """A visible export."""

    id: str
    created: str
    """ISO 8601, UTC."""
    parameter_set: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """What lies in an output."""

    committed: tuple[Committed, ...]
    hidden: Mapping[str, str | None]
    """Exports without COMMIT.json, hidden by a collection or never finished -> their parameter set, if it is known."""
    sets: frozenset[str]
    """Ids of parameter sets, finished or not, of carried leaves, and of runs' own state."""
    current: str | None
    """The export that LATEST names."""
    published: frozenset[str] = frozenset()
    """Exports that LATEST has named, as far as it remembers."""
    running: frozenset[str] = frozenset()
    """Parameter sets on which a living process holds the lease."""
    export_marks: Mapping[str, float] = field(default_factory=dict)
    """Export -> Unix time, in seconds, since when it is not wanted."""
    set_marks: Mapping[str, float] = field(default_factory=dict)
    """Parameter set -> the same."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done."""

    keep: Mapping[str, str]
    """Visible exports that stay -> why."""
    hide: tuple[str, ...]
    """Visible exports that are hidden now."""
    delete_exports: tuple[str, ...]
    """Hidden exports, also of those hidden now, whose grace period is over."""
    delete_sets: tuple[str, ...]
    """Parameter sets that nothing refers to any more."""
    mark_exports: tuple[str, ...]
    mark_sets: tuple[str, ...]
    """What is marked now and stays for the grace period."""
    unmark_exports: tuple[str, ...]
    unmark_sets: tuple[str, ...]
    """Marks of what is wanted again, or gone."""
    waiting_exports: tuple[str, ...]
    waiting_sets: tuple[str, ...]
    """What was marked before and whose grace period still lasts, or that a running job may be using."""


def decide(inventory: Inventory, *, keep: int, grace_seconds: float, now: float) -> Decision:
    """What a collection at Unix time ``now`` does with an output.

    Visible stay: the ``keep`` newest exports, as many of those that were current once (tries that failed push none of
    them out), the one that LATEST names, and those whose parameter set a running job holds. A set stays as long as an
    export refers to it that is visible or whose grace period lasts. While any job runs in the output, exports without
    COMMIT.json stay whose set is not known: it may be writing one of them.
    """
    kept = _kept(inventory, keep)
    hide = tuple(export.id for export in inventory.committed if export.id not in kept)
    sets_of = {**inventory.hidden, **{export.id: export.parameter_set for export in inventory.committed}}
    # a mark of a visible export is an old one: it was committed again since
    marks = {name: time for name, time in inventory.export_marks.items() if name in inventory.hidden}
    over = {
        name
        for name in (*inventory.hidden, *hide)
        if now - marks.get(name, now) >= grace_seconds and not _in_use(sets_of[name], inventory.running)
    }
    wanted = {sets_of[name] for name in (*kept, *inventory.hidden, *hide) if name not in over}
    released = {sets_of[name] for name in over if name in marks or name in hide}
    loose = sorted(inventory.sets - wanted)
    delete_sets = {
        name
        for name in loose
        if name not in inventory.running
        and (name in released or now - inventory.set_marks.get(name, now) >= grace_seconds)
    }
    staying = [name for name in (*inventory.hidden, *hide) if name not in over]
    loose_staying = [name for name in loose if name not in delete_sets]
    return Decision(
        keep=kept,
        hide=hide,
        delete_exports=tuple(sorted(over)),
        delete_sets=tuple(sorted(delete_sets)),
        mark_exports=tuple(name for name in staying if name not in marks),
        mark_sets=tuple(
            name for name in loose_staying if name not in inventory.set_marks and name not in inventory.running
        ),
        unmark_exports=tuple(sorted(set(inventory.export_marks) - set(staying) - over)),
        unmark_sets=tuple(sorted(set(inventory.set_marks) - set(loose_staying) - delete_sets)),
        waiting_exports=tuple(name for name in staying if name in marks),
        waiting_sets=tuple(name for name in loose_staying if name in inventory.set_marks or name in inventory.running),
    )


def _kept(inventory: Inventory, keep: int) -> dict[str, str]:
    newest = sorted(inventory.committed, key=lambda export: (export.created, export.id), reverse=True)
    kept: dict[str, str] = {}
    served = [export.id for export in newest if export.id in inventory.published][:keep]
    for index, export in enumerate(newest):
        if export.id == inventory.current:
            kept[export.id] = "current"
        elif index < keep:
            kept[export.id] = f"one of the {keep} newest" if keep > 1 else "the newest"
        elif export.id in served:
            newest_ones = f"one of the {keep} newest" if keep > 1 else "the newest"
            kept[export.id] = f"{newest_ones} of those that were current"
        elif export.parameter_set in inventory.running:
            kept[export.id] = "a running job holds its arrays"
    return kept


def _in_use(parameter_set: str | None, running: frozenset[str]) -> bool:
    return bool(running) if parameter_set is None else parameter_set in running
