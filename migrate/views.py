"""Arrays that are computed from other arrays, box by box: what the mapping rules make of a checkpoint's leaves.

Each view is an :class:`migrate.sources.ArrayReader` over other readers. They nest, pickle, and hold no more than a
small multiple of the box that is asked for, whatever the size of the arrays below.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from migrate import reshape
from migrate.box import Box
from migrate.cast import constant
from migrate.sources.base import ArrayReader
from migrate.transposition import transposed

Shape = tuple[int, ...]

_MAX_PIECES = 256
"""A reshaped box that falls into more pieces than this is read as a larger box, from which it is picked."""
_MAX_COVER = 4
"""... if that is at most so many times larger; else the box is halved."""


def _in_order(array: np.ndarray, order: Shape | None) -> np.ndarray:
    return transposed(array, range(array.ndim) if order is None else order)


def _empty(shape: Shape, dtype: np.dtype[Any], order: Shape | None) -> tuple[np.ndarray, np.ndarray]:
    """An array that is contiguous in storage order, and its view in logical order."""
    if order is None:
        result = np.empty(shape, dtype)
        return result, result
    result = np.empty([shape[d] for d in order], dtype)
    return result, result.transpose(np.argsort(order))


@dataclass(frozen=True, slots=True)
class TransposedView:
    """``inner`` with its dimensions permuted as by ``numpy.transpose(inner, axes)``."""

    inner: ArrayReader
    axes: Shape

    def read(self, box: Box, *, storage_order: Shape | None = None) -> np.ndarray:
        """The elements of ``box``."""
        order = storage_order or tuple(range(box.rank))
        back = np.argsort(self.axes)
        inner_box = Box(tuple(box.start[d] for d in back), tuple(box.stop[d] for d in back))
        return self.inner.read(inner_box, storage_order=tuple(self.axes[d] for d in order))

    def to_json(self) -> dict[str, object]:
        """The view's description."""
        return {"view": "transpose", "axes": list(self.axes), "of": self.inner.to_json()}


@dataclass(frozen=True, slots=True)
class ReshapedView:
    """``inner`` of ``inner_shape`` with ``shape``, in C order, as by ``numpy.reshape``."""

    inner: ArrayReader
    inner_shape: Shape
    shape: Shape
    dtype: np.dtype[Any]

    def read(self, box: Box, *, storage_order: Shape | None = None) -> np.ndarray:
        """The elements of ``box``."""
        if box.size == 0:
            return _empty(box.shape, self.dtype, storage_order)[0]
        result = np.empty(box.shape, self.dtype)
        self._fill(result, box)
        return _in_order(result, storage_order)

    def _fill(self, result: np.ndarray, box: Box) -> None:
        """Fill ``result``, of the box's shape and possibly a part of a larger array, with the elements of ``box``."""
        parts: list[tuple[Shape, Box, Shape]] = []
        taken = 0
        for inner, outer in reshape.groups(self.inner_shape, self.shape):
            stop = taken + len(outer)
            parts.append((outer, Box(box.start[taken:stop], box.stop[taken:stop]), inner))
            taken = stop
        pieces = math.prod(reshape.count_runs(part, outer) for outer, part, _ in parts)
        if pieces <= _MAX_PIECES:
            self._fill_from_pieces(result, parts)
            return
        covers = []
        for outer, part, inner in parts:
            first, last = _flat(part.start, outer), _flat(tuple(b - 1 for b in part.stop), outer)
            covers.append(reshape.cover_of_run(first, last + 1, inner))
        if math.prod(cover.size for cover, _ in covers) <= _MAX_COVER * box.size:
            self._fill_from_cover(result, parts, covers)
            return
        for half, index in _halves(box):
            self._fill(result[index], half)

    def _fill_from_pieces(self, result: np.ndarray, parts: list[tuple[Shape, Box, Shape]]) -> None:
        flat = np.empty([part.size for _, part, _ in parts], self.dtype)
        choices = []
        for outer, part, inner in parts:
            pieces, at = [], 0
            for start, stop in reshape.runs(part, outer):
                for piece in reshape.boxes_of_run(start, stop, inner):
                    pieces.append((piece, slice(at, at + piece.size)))
                    at += piece.size
            choices.append(pieces)
        for choice in itertools.product(*choices):
            read = self.inner.read(_joined(piece for piece, _ in choice))
            index = tuple(where for _, where in choice)
            flat[index] = read.reshape([where.stop - where.start for where in index])
        result[...] = flat.reshape(result.shape)

    def _fill_from_cover(
        self, result: np.ndarray, parts: list[tuple[Shape, Box, Shape]], covers: list[tuple[Box, int]]
    ) -> None:
        read = self.inner.read(_joined(cover for cover, _ in covers)).reshape([cover.size for cover, _ in covers])
        for axis, ((outer, part, _), (_, begin)) in enumerate(zip(parts, covers, strict=True)):
            # flat positions of the group's elements, relative to the cover's own flat interval
            positions = np.zeros(1, np.int64)
            for start, stop, extent in zip(part.start, part.stop, outer, strict=True):
                positions = (positions[:, None] * extent + np.arange(start, stop)).reshape(-1)
            read = read.take(positions - begin, axis=axis)
        result[...] = read.reshape(result.shape)

    def to_json(self) -> dict[str, object]:
        """The view's description."""
        return {"view": "reshape", "shape": list(self.shape), "of": self.inner.to_json()}


def _flat(index: Shape, shape: Shape) -> int:
    position = 0
    for i, extent in zip(index, shape, strict=True):
        position = position * extent + i
    return position


def _joined(boxes: Any) -> Box:
    """One box whose dimensions are those of several boxes, one after the other."""
    chosen = list(boxes)
    return Box(tuple(a for b in chosen for a in b.start), tuple(a for b in chosen for a in b.stop))


def _halves(box: Box) -> Iterator[tuple[Box, tuple[slice, ...]]]:
    """Two halves of ``box`` along its first dimension that can be cut, each with its place in the box."""
    d = next(d for d, extent in enumerate(box.shape) if extent > 1)
    middle = (box.start[d] + box.stop[d]) // 2
    for start, stop in ((box.start[d], middle), (middle, box.stop[d])):
        half = Box((*box.start[:d], start, *box.start[d + 1 :]), (*box.stop[:d], stop, *box.stop[d + 1 :]))
        yield half, half.relative_to(box).slices


@dataclass(frozen=True, slots=True)
class SlicedView:
    """The window of ``inner`` that begins at ``start``."""

    inner: ArrayReader
    start: Shape

    def read(self, box: Box, *, storage_order: Shape | None = None) -> np.ndarray:
        """The elements of ``box``."""
        moved = Box(
            tuple(a + o for a, o in zip(box.start, self.start, strict=True)),
            tuple(b + o for b, o in zip(box.stop, self.start, strict=True)),
        )
        return self.inner.read(moved, storage_order=storage_order)

    def to_json(self) -> dict[str, object]:
        """The view's description."""
        return {"view": "slice", "start": list(self.start), "of": self.inner.to_json()}


@dataclass(frozen=True, slots=True)
class PaddedView:
    """``inner`` of ``inner_shape``, and ``fill`` behind its end in any dimension."""

    inner: ArrayReader
    inner_shape: Shape
    fill: float
    dtype: np.dtype[Any]

    def read(self, box: Box, *, storage_order: Shape | None = None) -> np.ndarray:
        """The elements of ``box``."""
        result, logical = _empty(box.shape, self.dtype, storage_order)
        inside = box.intersect(Box.whole(self.inner_shape))
        if inside is None or inside != box:
            result[...] = constant(self.fill, self.dtype)
        if inside is not None:
            # equal orders on both sides, so this is one plain copy
            order = storage_order or tuple(range(box.rank))
            logical[inside.relative_to(box).slices].transpose(order)[...] = self.inner.read(inside, storage_order=order)
        return result

    def to_json(self) -> dict[str, object]:
        """The view's description."""
        return {"view": "pad", "fill": self.fill, "of": self.inner.to_json()}


@dataclass(frozen=True, slots=True)
class StackedView:
    """Several arrays of one shape along a new dimension ``axis``, as by ``numpy.stack``."""

    inners: tuple[ArrayReader, ...]
    axis: int
    dtype: np.dtype[Any]

    def read(self, box: Box, *, storage_order: Shape | None = None) -> np.ndarray:
        """The elements of ``box``."""
        result, logical = _empty(box.shape, self.dtype, storage_order)
        axis = self.axis
        inner_box = Box(
            box.start[:axis] + box.start[axis + 1 :],
            box.stop[:axis] + box.stop[axis + 1 :],
        )
        slices = logical.transpose([axis, *(d for d in range(box.rank) if d != axis)])
        for position, number in enumerate(range(box.start[axis], box.stop[axis])):
            slices[position, ...] = self.inners[number].read(inner_box)
        return result

    def to_json(self) -> dict[str, object]:
        """The view's description."""
        return {"view": "stack", "axis": self.axis, "of": [inner.to_json() for inner in self.inners]}


@dataclass(frozen=True, slots=True)
class UnstackedView:
    """``inner[..., index, ...]`` with the index at dimension ``axis``."""

    inner: ArrayReader
    axis: int
    index: int

    def read(self, box: Box, *, storage_order: Shape | None = None) -> np.ndarray:
        """The elements of ``box``."""
        axis = self.axis
        inner_box = Box(
            (*box.start[:axis], self.index, *box.start[axis:]),
            (*box.stop[:axis], self.index + 1, *box.stop[axis:]),
        )
        order = storage_order or tuple(range(box.rank))
        # the dimension of extent 1 goes first, where dropping it costs nothing
        inner_order = (axis, *(d + (d >= axis) for d in order))
        read: np.ndarray = self.inner.read(inner_box, storage_order=inner_order)[0]
        return read

    def to_json(self) -> dict[str, object]:
        """The view's description."""
        return {"view": "unstack", "axis": self.axis, "index": self.index, "of": self.inner.to_json()}


@dataclass(frozen=True, slots=True)
class ConstantView:
    """One value everywhere."""

    value: float
    dtype: np.dtype[Any]

    def read(self, box: Box, *, storage_order: Shape | None = None) -> np.ndarray:
        """The elements of ``box``."""
        result, _ = _empty(box.shape, self.dtype, storage_order)
        result[...] = constant(self.value, self.dtype)
        return result

    def to_json(self) -> dict[str, object]:
        """The view's description."""
        return {"view": "constant", "value": self.value}
