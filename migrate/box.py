"""Boxes and grids: half-open index ranges of arrays, and how storage cuts an array into chunks. Pure arithmetic.

>>> grid = Grid(shape=(4, 6), chunk_shape=(2, 4))
>>> grid.counts
(2, 2)
>>> [str(box) for box in grid.boxes()]
['[0:2, 0:4]', '[0:2, 4:6]', '[2:4, 0:4]', '[2:4, 4:6]']
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Box:
    """A half-open index range of an array, one (start, stop) pair a dimension."""

    start: tuple[int, ...]
    """First index in each dimension."""
    stop: tuple[int, ...]
    """One past the last index in each dimension."""

    def __post_init__(self) -> None:
        if len(self.start) != len(self.stop):
            raise ValueError(f"box has {len(self.start)} starts but {len(self.stop)} stops")
        if any(a < 0 or a > b for a, b in zip(self.start, self.stop, strict=True)):
            raise ValueError(f"box {self} runs backwards or below zero")

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Box:
        """The box that covers an array of ``shape``."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.start)

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent in each dimension."""
        return tuple(b - a for a, b in zip(self.start, self.stop, strict=True))

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        """The box as a NumPy index."""
        return tuple(slice(a, b) for a, b in zip(self.start, self.stop, strict=True))

    def intersect(self, other: Box) -> Box | None:
        """The common part of two boxes of one rank, or None if they share no element."""
        start = tuple(max(a, b) for a, b in zip(self.start, other.start, strict=True))
        stop = tuple(min(a, b) for a, b in zip(self.stop, other.stop, strict=True))
        if any(a >= b for a, b in zip(start, stop, strict=True)):
            return None
        return Box(start, stop)

    def contains(self, other: Box) -> bool:
        """Whether every element of ``other`` lies in this box."""
        return all(a <= b for a, b in zip(self.start, other.start, strict=True)) and all(
            a >= b for a, b in zip(self.stop, other.stop, strict=True)
        )

    def relative_to(self, outer: Box) -> Box:
        """This box in coordinates whose origin is the start of ``outer``."""
        return Box(
            tuple(a - o for a, o in zip(self.start, outer.start, strict=True)),
            tuple(b - o for b, o in zip(self.stop, outer.start, strict=True)),
        )

    def __str__(self) -> str:
        return "[" + ", ".join(f"{a}:{b}" for a, b in zip(self.start, self.stop, strict=True)) + "]"


@dataclass(frozen=True, slots=True)
class Grid:
    """A regular cut of an array into chunks; the last chunk of a dimension may be ragged."""

    shape: tuple[int, ...]
    """Extent of the array."""
    chunk_shape: tuple[int, ...]
    """Extent of a full chunk; at least 1 in each dimension."""

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.chunk_shape):
            raise ValueError(f"grid of rank {len(self.shape)} has chunks of rank {len(self.chunk_shape)}")
        if any(c < 1 for c in self.chunk_shape):
            raise ValueError(f"chunk shape {self.chunk_shape} has an extent below 1")

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of chunks in each dimension; 0 where the array is empty."""
        return tuple(-(-s // c) for s, c in zip(self.shape, self.chunk_shape, strict=True))

    @property
    def size(self) -> int:
        """Number of chunks."""
        return math.prod(self.counts)

    def box(self, index: tuple[int, ...]) -> Box:
        """The box of the chunk with grid coordinates ``index``, clipped to the array."""
        start = tuple(i * c for i, c in zip(index, self.chunk_shape, strict=True))
        stop = tuple(min(a + c, s) for a, c, s in zip(start, self.chunk_shape, self.shape, strict=True))
        return Box(start, stop)

    def indices(self, within: Box | None = None) -> Iterator[tuple[int, ...]]:
        """Grid coordinates of the chunks that share an element with ``within`` (default: all), in C order."""
        box = Box.whole(self.shape) if within is None else within
        if box.size == 0:
            return iter(())
        ranges = [range(a // c, -(-b // c)) for a, b, c in zip(box.start, box.stop, self.chunk_shape, strict=True)]
        return itertools.product(*ranges)

    def boxes(self, within: Box | None = None) -> Iterator[Box]:
        """Boxes of the chunks that share an element with ``within`` (default: all), in C order."""
        return (self.box(index) for index in self.indices(within))

    def aligned(self, box: Box) -> bool:
        """Whether ``box`` is a union of whole chunks."""
        return all(
            a % c == 0 and (b % c == 0 or b == s)
            for a, b, c, s in zip(box.start, box.stop, self.chunk_shape, self.shape, strict=True)
        )

    def cover(self, box: Box) -> Box:
        """The smallest union of whole chunks that contains ``box``."""
        start = tuple(a // c * c for a, c in zip(box.start, self.chunk_shape, strict=True))
        stop = tuple(min(-(-b // c) * c, s) for b, c, s in zip(box.stop, self.chunk_shape, self.shape, strict=True))
        return Box(start, stop)
