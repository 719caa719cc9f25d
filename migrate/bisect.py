"""The first member of a sequence that differs from its beginning, found in about log2(n) looks. Pure.

>>> first_change(range(100), lambda n: n >= 37)
Change(before=36, after=37, skipped=())
>>> first_change(range(100), lambda n: None if 30 < n < 40 else n >= 37)
Change(before=30, after=40, skipped=(31, 32, 33, 34, 35, 36, 37, 38, 39))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """Where a sequence changes."""

    before: T
    """The last member known to be like the first of all."""
    after: T
    """The first one after it that is known to differ."""
    skipped: tuple[T, ...]
    """What lies between the two, and could not be looked at; empty if the change is in ``after`` itself."""


def first_change(members: Sequence[T], differs: Callable[[T], bool | None]) -> Change[T] | None:
    """A place where ``members`` change, or None if the last one does not differ from the first.

    ``differs`` says whether a member differs from the first; None: that cannot be told, and the member is skipped. It
    is asked at most once for each, for the last one first, and never for the first. Where the sequence changes and
    changes back, one of its changes is found: ``before`` is like the first member, ``after`` is not.

    Raises ValueError if there are fewer than two members, or the last one cannot be told.
    """
    if len(members) < 2:
        raise ValueError("a search needs two members at least")
    last = differs(members[-1])
    if last is None:
        raise ValueError("the last member cannot be compared with the first")
    if not last:
        return None
    low, high = 0, len(members) - 1
    unknown: set[int] = set()
    while open_ := [index for index in range(low + 1, high) if index not in unknown]:
        # as near to the middle as can be: beside what was skipped there, not at an end
        index = min(open_, key=lambda index: abs(2 * index - low - high))
        answer = differs(members[index])
        if answer is None:
            unknown.add(index)
        elif answer:
            high = index
        else:
            low = index
    return Change(members[low], members[high], tuple(members[low + 1 : high]))


def most_looks(count: int) -> int:
    """How often :func:`first_change` asks at most for ``count`` members, if none is skipped."""
    return 1 + max(0, (count - 2).bit_length())
