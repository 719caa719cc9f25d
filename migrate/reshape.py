"""Which boxes of an array make up a box of the same array reshaped. Pure arithmetic.

A reshape cuts the dimensions of both shapes into groups of equal products, left to right: ``[8,4,40] -> [8,160]`` has
the groups (8)->(8) and (4,40)->(160). Within a group a box is a set of runs, intervals of its flat C-order index.

>>> groups((8, 4, 40), (8, 160))
[((8,), (8,)), ((4, 40), (160,))]
>>> runs(Box((1, 8), (3, 24)), (4, 40))
[(48, 64), (88, 104)]
>>> [str(box) for box in boxes_of_run(30, 50, (4, 40))]
['[0:1, 30:40]', '[1:2, 0:10]']
"""

from __future__ import annotations

import itertools
import math

from migrate.box import Box

Shape = tuple[int, ...]


def groups(inner: Shape, outer: Shape) -> list[tuple[Shape, Shape]]:
    """The finest cut of both shapes into runs of dimensions with equal products; both must have equal sizes above 0.

    Dimensions of extent 1 join the group before them, or the first.
    """
    found: list[tuple[Shape, Shape]] = []
    i = o = 0
    while i < len(inner) or o < len(outer):
        i0, o0 = i, o
        inner_size, outer_size = 1, 1
        while True:
            if inner_size <= outer_size and i < len(inner):
                inner_size *= inner[i]
                i += 1
            elif o < len(outer):
                outer_size *= outer[o]
                o += 1
            if inner_size == outer_size and (inner_size > 1 or (i == len(inner) and o == len(outer))):
                break
        while i < len(inner) and inner[i] == 1:
            i += 1
        while o < len(outer) and outer[o] == 1:
            o += 1
        found.append((inner[i0:i], outer[o0:o]))
    return found


def runs(box: Box, shape: Shape) -> list[tuple[int, int]]:
    """The (start, stop) flat C-order intervals that ``box`` of an array of ``shape`` consists of, ascending."""
    if not shape:
        return [(0, 1)]
    cut = _last_cut(box, shape)
    behind = math.prod(shape[cut + 1 :])
    length = box.shape[cut] * behind
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    leading = itertools.product(*(range(a, b) for a, b in zip(box.start[:cut], box.stop[:cut], strict=True)))
    first = box.start[cut] * behind
    return [
        (start, start + length)
        for start in (sum(i * s for i, s in zip(index, strides[:cut], strict=True)) + first for index in leading)
    ]


def count_runs(box: Box, shape: Shape) -> int:
    """How many intervals :func:`runs` would give."""
    return math.prod(box.shape[: _last_cut(box, shape)])


def _last_cut(box: Box, shape: Shape) -> int:
    """The last dimension that the box does not take whole, or 0; behind it everything is contiguous."""
    return max(
        (d for d, (extent, whole) in enumerate(zip(box.shape, shape, strict=True)) if extent != whole), default=0
    )


def boxes_of_run(start: int, stop: int, shape: Shape) -> list[Box]:
    """Boxes of an array of ``shape`` whose elements in C order, one box after the other, are the flat interval."""
    if start >= stop:
        return []
    if not shape:
        return [Box((), ())]
    row = math.prod(shape[1:])
    first, last = start // row, (stop - 1) // row
    if first == last:
        inner = boxes_of_run(start - first * row, stop - first * row, shape[1:])
        return [Box((first, *b.start), (first + 1, *b.stop)) for b in inner]
    found: list[Box] = []
    whole_from, whole_to = -(-start // row), stop // row
    if start < whole_from * row:
        found += boxes_of_run(start, whole_from * row, shape)
    if whole_from < whole_to:
        found.append(Box((whole_from, *(0 for _ in shape[1:])), (whole_to, *shape[1:])))
    if whole_to * row < stop:
        found += boxes_of_run(whole_to * row, stop, shape)
    return found


def cover_of_run(start: int, stop: int, shape: Shape) -> tuple[Box, int]:
    """The smallest box of ``shape`` that is one flat interval and contains ``start:stop``, and where it begins."""
    begin: list[int] = []
    end: list[int] = []
    offset = 0
    for d in range(len(shape)):
        row = math.prod(shape[d + 1 :])
        first, last = (start - offset) // row, (stop - 1 - offset) // row
        begin.append(first)
        end.append(last + 1)
        offset += first * row
        if first != last:
            begin += [0] * (len(shape) - d - 1)
            end += shape[d + 1 :]
            break
    return Box(tuple(begin), tuple(end)), offset
