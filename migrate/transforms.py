"""What each mapping rule makes of an array: its new shape and dtype, and the view that computes its boxes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from migrate import reshape
from migrate.cast import CastView, cast_problem, constant
from migrate.rules import CastRule, PadRule, ReshapeRule, SliceRule, TransposeRule, UnstackRule
from migrate.sources.base import ArrayReader, Leaf
from migrate.views import PaddedView, ReshapedView, SlicedView, StackedView, TransposedView, UnstackedView

Shape = tuple[int, ...]
Recipe = tuple[Any, ...]
"""Nested tuples of texts and numbers."""


@dataclass(frozen=True, slots=True)
class Derived:
    """An array made from leaves by rules; nothing of it has been read."""

    name: str
    """Its path, as the rules so far have named it."""
    shape: Shape
    dtype: np.dtype[Any]
    reader: ArrayReader
    chunk_shape: Shape
    """Shape, roughly, of the unit in which the storage below is read; extents of at least 1. A hint for planning."""
    sources: tuple[str, ...]
    """Paths of the leaves it is made from."""
    recipe: Recipe
    """How the elements come from leaves, exactly: of two arrays of one checkpoint, equal only if the elements are."""
    steps: tuple[str, ...] = ()
    """What was done to them, in order, for people."""

    @classmethod
    def of(cls, leaf: Leaf, name: str) -> Derived:
        """A leaf as it is."""
        shape, chunk_shape = tuple(leaf.shape), tuple(leaf.chunk_shape)
        return cls(name, shape, leaf.dtype, leaf.reader, chunk_shape, (leaf.name,), leaf.recipe)

    @property
    def origin(self) -> str:
        """Where it comes from, in one line: ``layers/0/w and 7 more | stack 0 | cast bfloat16``."""
        first = self.sources[0] if self.sources else ""
        more = f" and {len(self.sources) - 1} more" if len(self.sources) > 1 else ""
        return " | ".join(part for part in (first + more, *self.steps) if part)

    def step(self, text: str, *exact: object, **changes: Any) -> Derived:
        """This array after one more step; ``exact`` is what ``text`` does not say to the last digit."""
        return replace(self, steps=(*self.steps, text), recipe=(text, *exact, self.recipe), **changes)


def apply(rule: Any, array: Derived, matched: re.Match[str]) -> Iterator[tuple[str, Derived]]:
    """(name, array) of what a rule other than drop, rename, tie, stack and init makes of one array.

    Raises ValueError, in words for the user, if the rule does not fit the array.
    """
    match rule:
        case CastRule():
            yield array.name, _cast(array, np.dtype(rule.dtype), rule)
        case TransposeRule():
            yield array.name, _transpose(array, rule.axes)
        case ReshapeRule():
            yield array.name, _reshape(array, rule.shape)
        case SliceRule():
            yield array.name, _slice(array, rule.axis, rule.start, rule.stop)
        case PadRule():
            yield array.name, _pad(array, rule.axis, rule.length, rule.fill)
        case UnstackRule():
            yield from _unstack(array, rule.axis, matched.expand(rule.to))
        case _:
            raise TypeError(f"unknown rule {rule!r}")


def stack(layers: Mapping[int, Derived], axis: int, name: str) -> Derived:
    """Layers 0, 1, ... along a new dimension ``axis``. Raises ValueError if one is missing or differs."""
    missing = sorted(set(range(max(layers) + 1)) - set(layers))
    if missing:
        raise ValueError(f"layer {', '.join(map(str, missing[:5]))} of 0 to {max(layers)} is missing")
    members = [layers[number] for number in range(len(layers))]
    first = members[0]
    for member in members:
        if (member.shape, member.dtype) != (first.shape, first.dtype):
            raise ValueError(
                f"{member.origin} is {member.dtype.name}{list(member.shape)}, "
                f"{first.origin} is {first.dtype.name}{list(first.shape)}"
            )
    if axis > len(first.shape):
        raise ValueError(f"axis {axis} is beyond the {len(first.shape)} dimensions of a layer")
    return Derived(
        name,
        _inserted(first.shape, axis, len(members)),
        first.dtype,
        StackedView(tuple(member.reader for member in members), axis, first.dtype),
        _inserted(first.chunk_shape, axis, 1),
        tuple(source for member in members for source in member.sources),
        ("stack", axis, *(member.recipe for member in members)),
        (*first.steps, f"stack {axis}"),
    )


def _unstack(array: Derived, axis: int, template: str) -> Iterator[tuple[str, Derived]]:
    _check_axis(array, axis)
    for number in range(array.shape[axis]):
        name = template.replace("{layer}", str(number))
        yield (
            name,
            array.step(
                f"unstack {axis}[{number}]",
                name=name,
                shape=_removed(array.shape, axis),
                chunk_shape=_removed(array.chunk_shape, axis),
                reader=UnstackedView(array.reader, axis, number),
            ),
        )


def _cast(array: Derived, dtype: np.dtype[Any], rule: CastRule) -> Derived:
    problem = cast_problem(array.dtype, dtype, rule.overflow)
    if problem:
        raise ValueError(problem)
    if dtype == array.dtype:
        return array
    reader = CastView(array.reader, dtype, rule.overflow, array.origin)
    text = f"cast {dtype.name}" + ("" if rule.overflow == "error" else f" ({rule.overflow})")
    return array.step(text, dtype=dtype, reader=reader)


def _transpose(array: Derived, axes: Shape) -> Derived:
    if len(axes) != len(array.shape):
        raise ValueError(f"{len(axes)} axes for an array of {len(array.shape)} dimensions, {list(array.shape)}")
    return array.step(
        f"transpose {','.join(map(str, axes))}",
        shape=tuple(array.shape[axis] for axis in axes),
        chunk_shape=tuple(array.chunk_shape[axis] for axis in axes),
        reader=TransposedView(array.reader, axes),
    )


def _reshape(array: Derived, wanted: Shape) -> Derived:
    size = math.prod(array.shape)
    known = math.prod(extent for extent in wanted if extent >= 0)
    shape = tuple(size // max(known, 1) if extent < 0 else extent for extent in wanted)
    if math.prod(shape) != size:
        raise ValueError(f"{list(array.shape)} has {size} elements, which do not fit into {list(wanted)}")
    return array.step(
        f"reshape {','.join(map(str, shape))}",
        shape=shape,
        chunk_shape=_reshaped_chunk(array, shape),
        reader=ReshapedView(array.reader, array.shape, shape, array.dtype),
    )


def _reshaped_chunk(array: Derived, shape: Shape) -> Shape:
    """About the storage unit below a reshaped array: each group's share of a chunk, as many trailing elements."""
    if 0 in shape:
        return tuple(max(1, extent) for extent in shape)
    chunk: list[int] = []
    taken = 0
    for inner, outer in reshape.groups(array.shape, shape):
        left = math.prod(array.chunk_shape[taken : taken + len(inner)])
        taken += len(inner)
        extents: list[int] = []
        for extent in reversed(outer):
            extents.append(max(1, min(extent, left)))
            left //= extents[-1]
        chunk += reversed(extents)
    return tuple(chunk)


def _slice(array: Derived, axis: int, start: int, stop: int) -> Derived:
    _check_axis(array, axis)
    extent = array.shape[axis]
    if not start <= stop <= extent:
        raise ValueError(f"[{start}:{stop}] is not within dimension {axis} of {list(array.shape)}")
    offset = tuple(start if d == axis else 0 for d in range(len(array.shape)))
    return array.step(
        f"slice {axis}[{start}:{stop}]",
        shape=_replaced(array.shape, axis, stop - start),
        chunk_shape=_replaced(array.chunk_shape, axis, max(1, min(array.chunk_shape[axis], stop - start))),
        reader=SlicedView(array.reader, offset),
    )


def _pad(array: Derived, axis: int, length: int, fill: float) -> Derived:
    _check_axis(array, axis)
    if length < array.shape[axis]:
        raise ValueError(f"length {length} is below the {array.shape[axis]} of dimension {axis}; use slice to shorten")
    constant(fill, array.dtype)  # raises what the user should know before anything is written
    return array.step(
        f"pad {axis} to {length} with {fill:g}",
        repr(fill),
        shape=_replaced(array.shape, axis, length),
        reader=PaddedView(array.reader, array.shape, fill, array.dtype),
    )


def _check_axis(array: Derived, axis: int) -> None:
    if axis >= len(array.shape):
        raise ValueError(f"there is no dimension {axis} in {list(array.shape)}")


def _inserted(shape: Shape, axis: int, extent: int) -> Shape:
    return (*shape[:axis], extent, *shape[axis:])


def _removed(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], *shape[axis + 1 :])


def _replaced(shape: Shape, axis: int, extent: int) -> Shape:
    return (*shape[:axis], extent, *shape[axis + 1 :])
