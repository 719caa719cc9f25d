"""Which checkpoint a path means: a directory of steps, one step, or one item of a step.

A training run keeps ``<root>/<step>/<item>/``; older and simpler writers leave out the item, the step, or both. What
a directory is, is judged by what lies in it; names only give the number of a step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from migrate.errors import AmbiguousCheckpointError, CheckpointNotFoundError, UncommittedCheckpointError
from migrate.sources.place import Place

TEMPORARY = ".orbax-checkpoint-tmp"
"""Part of the name of every directory that Orbax has not finished."""

_TEMPORARY_T5X = re.compile(r"\.tmp-\d+$")

COMMITTED = "commit_success.txt"
"""File that makes an Orbax directory finished where directories cannot be renamed."""

_STEP = re.compile(r"(?:.*[_-])?(\d+)")
_STEP_MARKERS = frozenset({"_CHECKPOINT_METADATA", "orbax.checkpoint"})


@dataclass(frozen=True, slots=True)
class Chosen:
    """One item of one step."""

    place: Place
    """Where the item lies."""
    step_place: Place
    """Where its step lies; the same place if the step is the item."""
    step: int | None = None
    """Training step, if the path or its parent is named like one."""
    item: str | None = None
    """Name of the item, if it lies in a directory of its own."""
    notes: dict[str, str] = field(default_factory=dict)
    """What else could have been chosen, for people."""


def step_number(name: str) -> int | None:
    """The step that a directory or file name gives.

    >>> step_number("5"), step_number("checkpoint_10"), step_number("ckpt_000003"), step_number("params")
    (5, 10, 3, None)
    """
    match = _STEP.fullmatch(name)
    return int(match.group(1)) if match else None


def is_temporary(name: str) -> bool:
    """Whether a directory of this name is one that its writer has not finished."""
    return TEMPORARY in name or _TEMPORARY_T5X.search(name) is not None


def choose_step(place: Place, names: list[str], step: int | None) -> str:
    """The one of ``names`` (all with a step number) that holds ``step``, by default the latest.

    Raises :class:`CheckpointNotFoundError` or :class:`AmbiguousCheckpointError`, listing the steps that are there.
    """
    numbers = {name: number for name in names if (number := step_number(name)) is not None}
    wanted = max(numbers.values()) if step is None else step
    found = sorted(name for name, number in numbers.items() if number == wanted)
    if not found:
        unfinished = _unfinished_steps(place)
        if any(step_number(name.partition(".")[0]) == step for name in unfinished):
            raise uncommitted(place, f"step {step} is not finished", unfinished)
        raise CheckpointNotFoundError(
            f"there is no step {step}",
            where=place.uri,
            found=f"steps {listed(numbers.values())}",
            remedy="name one of these steps, or none for the latest",
        )
    if len(found) > 1:
        raise AmbiguousCheckpointError(
            f"several directories or files hold step {wanted}",
            where=place.uri,
            found=", ".join(found),
            remedy="give the path of the one that is meant",
        )
    return found[0]


def resolve(
    place: Place,
    step: int | None,
    item: str | None,
    is_item: Callable[[Place], bool],
    *,
    aside: Callable[[Place], str | None] = lambda _: None,
) -> Chosen:
    """The item that ``place``, ``step`` and ``item`` mean; ``is_item`` tells a directory that holds arrays.

    An item that ``aside`` has a word for is only meant if it is named, or the only one.

    Raises :class:`CheckpointNotFoundError`, :class:`AmbiguousCheckpointError` and
    :class:`UncommittedCheckpointError`, each listing what is there.
    """
    # The path may also be that of an item, whose step is the one that is not finished.
    unfinished_path = [name for name in place.uri.split("/")[-2:] if is_temporary(name)]
    if unfinished_path:
        raise uncommitted(place, "this directory is not finished", unfinished_path)
    if is_item(place):
        require_single(place, step, item)
        return Chosen(place, place, step_number(place.name))
    steps = step_names(place, is_item, wanted=step is not None)
    if not steps:
        if unfinished := _unfinished_steps(place):
            raise uncommitted(place, "no step is finished", unfinished)
        require_step(place, step)
        return _choose_item(place, step_number(place.name), item, is_item, {}, aside=aside)
    notes = {"steps": listed(map(step_number, steps))} if len(steps) > 1 else {}
    chosen = place.child(choose_step(place, steps, step))
    number = step_number(chosen.name)
    if not is_item(chosen):
        return _choose_item(chosen, number, item, is_item, notes, aside=aside)
    if item is not None:
        return resolve(chosen, None, item, is_item, aside=aside)
    return Chosen(chosen, chosen, number, notes=notes)


def require_step(place: Place, step: int | None) -> None:
    """Refuse another step than that of ``place``, a single checkpoint; raises :class:`CheckpointNotFoundError`."""
    found = step_number(place.name)
    if step is not None and step != found:
        raise CheckpointNotFoundError(
            f"there is no step {step}",
            where=place.uri,
            found="a single checkpoint" + ("" if found is None else f", of step {found}"),
            remedy="leave the step out, or give the path of the directory that holds the steps",
        )


def require_no_item(place: Place, item: str | None) -> None:
    """Refuse an item where ``place`` has none; raises :class:`CheckpointNotFoundError`."""
    if item is not None:
        raise CheckpointNotFoundError(
            f"there is no item {item!r}",
            where=place.uri,
            found="a checkpoint without items",
            remedy="leave the item out, or give the path of the directory that holds the items",
        )


def require_single(place: Place, step: int | None, item: str | None) -> None:
    """Refuse any item, and another step than that of ``place``; raises :class:`CheckpointNotFoundError`."""
    require_step(place, step)
    require_no_item(place, item)


def holds_items(place: Place, is_item: Callable[[Place], bool]) -> bool:
    """Whether ``place`` is an item, a step of items, or a directory of steps, finished or not."""
    if is_item(place) or place.files & _STEP_MARKERS or any(is_temporary(name) for name in place.folders):
        return True
    return any(is_item(place.child(name)) for name in place.folders) or bool(step_names(place, is_item))


def step_names(place: Place, is_item: Callable[[Place], bool], *, wanted: bool = False) -> list[str]:
    """Names of the finished steps in ``place``; empty if it is a step itself.

    A step may hold items whose names end in a number, beside others that do not; so may a directory of steps that
    are items, beside a copy of the best one. Only with ``wanted`` are such names taken for steps.
    """
    if place.files & _STEP_MARKERS:
        return []
    numbered = [name for name in sorted(place.folders) if step_number(name) is not None and not is_temporary(name)]
    items = [name for name in numbered if is_item(place.child(name))]
    of_items = [name for name in numbered if name not in items and _is_step(place.child(name), is_item)]
    others = any(step_number(name) is None and is_item(place.child(name)) for name in place.folders)
    if others and not of_items and not wanted:
        return []
    return sorted(items + of_items)


def steps_in(place: Place, is_item: Callable[[Place], bool]) -> list[str] | None:
    """Names of the finished steps in ``place``, none if all are unfinished; None if it is no directory of steps."""
    if place.is_file or is_item(place):
        return None
    return step_names(place, is_item) or ([] if _unfinished_steps(place) else None)


def _unfinished_steps(place: Place) -> list[str]:
    """Names of the steps in ``place`` that their writer has not finished, or has not yet."""
    names = sorted(name for name in place.folders if is_temporary(name))
    return [name for name in names if step_number(name.partition(".")[0]) is not None]


def _is_step(place: Place, is_item: Callable[[Place], bool]) -> bool:
    return bool(place.files & _STEP_MARKERS) or any(is_item(place.child(name)) for name in place.folders)


def uncommitted(place: Place, what: str, names: list[str]) -> UncommittedCheckpointError:
    """The error for a checkpoint whose writer has not finished, or never will."""
    return UncommittedCheckpointError(
        what,
        where=place.uri,
        found=", ".join(names),
        remedy="wait for its writer to finish; if the writer died, use an earlier step",
    )


def _choose_item(
    place: Place,
    step: int | None,
    item: str | None,
    is_item: Callable[[Place], bool],
    notes: dict[str, str],
    *,
    aside: Callable[[Place], str | None],
) -> Chosen:
    finished = [name for name in sorted(place.folders) if not is_temporary(name)]
    unfinished = sorted(place.folders - set(finished))
    items = [name for name in finished if is_item(place.child(name))]
    asides = {name: word for name in items if (word := aside(place.child(name)))}
    others = [f"{name} (no tree)" for name in finished if name not in items]
    told = [f"{name} ({asides[name]})" if name in asides else name for name in items]
    items_listed = ", ".join([*told, *others, *(f"{name} (not finished)" for name in unfinished)]) or "nothing"
    meant = [name for name in items if name not in asides] or items
    if item is None and len(meant) > 1:
        raise AmbiguousCheckpointError(
            f"{len(meant)} items hold arrays",
            where=place.uri,
            found=items_listed,
            remedy="name the item that is meant",
        )
    name = item if item is not None else next(iter(meant), None)
    if name is None or name not in items:
        if any(entry.startswith(f"{name or ''}{TEMPORARY}") or name is None for entry in unfinished):
            raise uncommitted(place, "the item is not finished", unfinished)
        raise CheckpointNotFoundError(
            f"there is no item {name!r} with arrays" if name is not None else "no item holds arrays",
            where=place.uri,
            found=items_listed,
            remedy="name an item that holds arrays",
        )
    if len(items) + len(others) > 1:
        notes = {**notes, "items": items_listed}
    return Chosen(place.child(name), place, step, name, notes)


def listed(numbers: Iterable[int | None]) -> str:
    """Step numbers, in order, for messages."""
    return ", ".join(str(number) for number in sorted(n for n in numbers if n is not None))
