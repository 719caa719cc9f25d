"""Views compared with the same done in NumPy, box by box, in every storage order."""

from __future__ import annotations

import itertools
import math
import pickle
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from migrate import reshape
from migrate.box import Box
from migrate.cast import CastView, cast_problem, saturated
from migrate.errors import CastOverflowError
from migrate.views import (
    ConstantView,
    PaddedView,
    ReshapedView,
    SlicedView,
    StackedView,
    TransposedView,
    UnstackedView,
)


@dataclass(frozen=True)
class ArrayInMemory:
    """A reader that counts how many elements each read took; it stands in for storage, whose readers have own tests."""

    array: np.ndarray
    taken: list[int]

    def read(self, box: Box, *, storage_order: tuple[int, ...] | None = None) -> np.ndarray:
        self.taken.append(box.size)
        part = self.array[box.slices]
        return np.array(part if storage_order is None else part.transpose(storage_order), order="C")

    def to_json(self) -> dict[str, object]:
        return {"reader": "memory"}


def reader(array: np.ndarray) -> ArrayInMemory:
    return ArrayInMemory(array, [])


def numbered(shape: tuple[int, ...], dtype: Any = np.int32) -> np.ndarray:
    return np.arange(math.prod(shape)).reshape(shape).astype(dtype)


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    """A box within the shape, now and then empty or all of it."""
    bounds = [sorted((draw(st.integers(0, extent)), draw(st.integers(0, extent)))) for extent in shape]
    return Box(tuple(a for a, _ in bounds), tuple(b for _, b in bounds))


def check(data: st.DataObject, view: Any, expected: np.ndarray) -> None:
    """Any box, in C order and in any storage order; also after a pickle, as Beam sends it."""
    box = data.draw(boxes(expected.shape))
    order = tuple(data.draw(st.permutations(range(expected.ndim))))
    part = expected[box.slices]
    found = view.read(box)
    assert found.dtype == expected.dtype
    assert found.shape == part.shape
    np.testing.assert_array_equal(found, part)
    ordered = pickle.loads(pickle.dumps(view)).read(box, storage_order=order)
    assert ordered.flags.c_contiguous
    assert ordered.shape == part.transpose(order).shape
    np.testing.assert_array_equal(ordered, part.transpose(order))


shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)
# extents of 1 belong to no group of their own, 0 to an array without elements
factors = st.lists(st.sampled_from([1, 2, 3, 4]), min_size=0, max_size=4)


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes of equal size: the same factors, merged in two ways."""
    parts = draw(factors)

    def merged() -> tuple[int, ...]:
        shape: list[int] = []
        for factor in parts:
            if shape and draw(st.booleans()):
                shape[-1] *= factor
            else:
                shape.append(factor)
        return tuple(shape)

    return merged(), merged()


@given(shapes, st.data())
def test_transposed(shape: tuple[int, ...], data: st.DataObject) -> None:
    array = numbered(shape)
    axes = tuple(data.draw(st.permutations(range(array.ndim))))
    check(data, TransposedView(reader(array), axes), array.transpose(axes))


@given(reshapes(), st.data())
def test_reshaped(pair: tuple[tuple[int, ...], tuple[int, ...]], data: st.DataObject) -> None:
    inner, outer = pair
    array = numbered(inner)
    check(data, ReshapedView(reader(array), inner, outer, array.dtype), array.reshape(outer))


def test_reshaped_boxes_in_many_pieces() -> None:
    """Half of a split dimension is one run a row: far too many reads for one each."""
    array = numbered((4000, 6))
    source = reader(array)
    view = ReshapedView(source, (4000, 6), (4000, 2, 3), array.dtype)
    box = Box((10, 0, 1), (3990, 2, 2))
    np.testing.assert_array_equal(view.read(box), array.reshape(4000, 2, 3)[box.slices])
    # a column of two: read whole rows, but not many times more than asked for
    assert len(source.taken) < 100
    assert sum(source.taken) <= 8 * box.size
    assert max(source.taken) <= 4 * box.size


def test_reshaped_reads_stay_near_the_box_however_thin_it_is() -> None:
    """One element of each long row: the cover is the whole array, so the box is halved until its pieces are few."""
    array = numbered((600, 1000))
    source = reader(array)
    view = ReshapedView(source, (600, 1000), (600, 100, 10), array.dtype)
    box = Box((0, 3, 4), (600, 4, 5))
    np.testing.assert_array_equal(view.read(box), array.reshape(600, 100, 10)[box.slices])
    assert sum(source.taken) <= 8 * box.size


@given(shapes.filter(bool), st.data())
def test_sliced(shape: tuple[int, ...], data: st.DataObject) -> None:
    array = numbered(shape)
    window = data.draw(boxes(shape))
    check(data, SlicedView(reader(array), window.start), array[window.slices])


@given(shapes.filter(bool), st.data())
def test_padded(shape: tuple[int, ...], data: st.DataObject) -> None:
    array = numbered(shape, ml_dtypes.bfloat16)
    widths = [(0, data.draw(st.integers(0, 3))) for _ in shape]
    expected = np.pad(array, widths, constant_values=ml_dtypes.bfloat16(-1.5))
    check(data, PaddedView(reader(array), shape, -1.5, array.dtype), expected)


@given(shapes, st.integers(1, 4), st.data())
def test_stacked_and_unstacked(shape: tuple[int, ...], layers: int, data: st.DataObject) -> None:
    arrays = [numbered(shape) + 1000 * number for number in range(layers)]
    axis = data.draw(st.integers(0, len(shape)))
    stacked = StackedView(tuple(reader(array) for array in arrays), axis, arrays[0].dtype)
    check(data, stacked, np.stack(arrays, axis))
    number = data.draw(st.integers(0, layers - 1))
    check(data, UnstackedView(stacked, axis, number), arrays[number])


@given(shapes, st.data())
def test_constant(shape: tuple[int, ...], data: st.DataObject) -> None:
    check(data, ConstantView(2.5, np.dtype(ml_dtypes.float8_e5m2)), np.full(shape, 2.5, ml_dtypes.float8_e5m2))


@given(reshapes(), st.data())
def test_views_nest(pair: tuple[tuple[int, ...], tuple[int, ...]], data: st.DataObject) -> None:
    inner, outer = pair
    array = numbered(inner, np.int64)
    axes = tuple(data.draw(st.permutations(range(len(outer)))))
    reshaped = ReshapedView(reader(array), inner, outer, array.dtype)
    stacked = StackedView((TransposedView(reshaped, axes),) * 2, 0, array.dtype)
    expected = np.stack([array.reshape(outer).transpose(axes)] * 2)
    cast = CastView(stacked, np.dtype(np.float32), "error", "w")
    check(data, cast, expected.astype(np.float32))


@given(reshapes(), st.data())
def test_runs_and_boxes_of_a_reshape(pair: tuple[tuple[int, ...], tuple[int, ...]], data: st.DataObject) -> None:
    """The elements of a box, and the boxes of each run, counted one by one."""
    shape, other = pair
    box = data.draw(boxes(shape))
    if box.size == 0:
        return
    flat = numbered(shape)[box.slices].reshape(-1).tolist()
    runs = reshape.runs(box, shape)
    assert [i for start, stop in runs for i in range(start, stop)] == flat
    for start, stop in runs:
        read = [numbered(other)[piece.slices].reshape(-1) for piece in reshape.boxes_of_run(start, stop, other)]
        assert np.concatenate(read).tolist() == list(range(start, stop))
        cover, begin = reshape.cover_of_run(start, stop, other)
        assert numbered(other)[cover.slices].reshape(-1).tolist() == list(range(begin, begin + cover.size))
        assert begin <= start
        assert stop <= begin + cover.size


CASTS = [
    # (values, source, target, policy, expected): within the range, rounding is to nearest even
    ([1.0, 1.00390625, 1.01171875], "float32", "bfloat16", "error", [1.0, 1.0, 1.015625]),
    # beyond it, each policy says what happens; infinities and NaN are not overflow
    ([7e4, -7e4, np.inf, np.nan], "float32", "float16", "saturate", [65504.0, -65504.0, np.inf, np.nan]),
    ([7e4, -7e4, 1.0], "float32", "float16", "round", [np.inf, -np.inf, 1.0]),
    # float8_e4m3fn has no infinity: what overflows becomes NaN, or 448
    ([1000.0, 448.0], "bfloat16", "float8_e4m3fn", "round", [np.nan, 448.0]),
    ([1000.0, -1000.0, 449.0], "bfloat16", "float8_e4m3fn", "saturate", [448.0, -448.0, 448.0]),
    ([300, -300, 7], "int32", "int8", "saturate", [127, -128, 7]),
    ([200], "int32", "uint8", "error", [200]),
    ([9, -9, 3], "int8", "int4", "saturate", [7, -8, 3]),
    ([-1, 2**63], "uint64", "int64", "saturate", [2**63 - 1, 2**63 - 1]),
    ([True, False], "bool", "bfloat16", "error", [1.0, 0.0]),
    ([True, False], "bool", "int8", "saturate", [1, 0]),
    ([1.5], "float32", "complex64", "error", [1.5 + 0j]),
    ([1.5], "float32", "float64", "saturate", [1.5]),
    ([70000], "int32", "float16", "saturate", [65504.0]),
]


@pytest.mark.parametrize(("values", "source", "target", "policy", "expected"), CASTS)
def test_casts(values: list[Any], source: str, target: str, policy: Any, expected: list[Any]) -> None:
    array = np.asarray(values).astype(source)
    cast = CastView(reader(array), np.dtype(target), policy, "w").read(Box.whole(array.shape))
    assert cast.dtype == target
    np.testing.assert_array_equal(cast.astype(np.asarray(expected).dtype), np.asarray(expected))


OVERFLOWS = [
    ([1.0, 7e4], "float32", "float16"),
    ([3.4e38], "float32", "float16"),
    ([500.0], "bfloat16", "float8_e4m3fn"),
    ([200], "int16", "int8"),
    ([-1], "int16", "uint8"),
    ([9], "int8", "int4"),
    ([2**63], "uint64", "int64"),
    ([70000], "int32", "float16"),
    ([1e39 + 0j], "complex128", "complex64"),
]


@pytest.mark.parametrize(("values", "source", "target"), OVERFLOWS)
def test_overflow_is_an_error_that_names_array_and_box(values: list[Any], source: str, target: str) -> None:
    array = np.asarray(values).astype(source)
    with pytest.raises(CastOverflowError) as caught:
        CastView(reader(array), np.dtype(target), "error", "layers/w").read(Box.whole(array.shape))
    assert caught.value.what == f"1 of {len(values)} elements do not fit into {target}"
    assert caught.value.where == f"layers/w [0:{len(values)}]"


NUMBERS = ["bool", "int4", "int8", "uint8", "int32", "uint64", "float8_e4m3fn", "bfloat16", "float16", "float64"]


@pytest.mark.parametrize(("source", "target"), list(itertools.product(NUMBERS, NUMBERS)))
def test_saturated_casts_never_overflow(source: str, target: str) -> None:
    """Every pair that is allowed: the extremes of the source come out finite, or as they went in."""
    if cast_problem(np.dtype(source), np.dtype(target), "saturate"):
        return
    info: Any = None
    if source == "bool":
        extremes = np.asarray([False, True])
    else:
        integer = "int" in source
        info = ml_dtypes.iinfo(source) if integer else ml_dtypes.finfo(source)
        extremes = np.asarray([info.min, info.max, 0], dtype=source)
    with np.errstate(over="raise", invalid="raise"):
        cast = saturated(extremes, np.dtype(target)).astype(target)
    assert np.isfinite(cast.astype(np.float64)).all()
    order = cast.astype(np.float64)
    assert order[0] <= order[-1] <= order[1]


REFUSED = [
    ("float32", "int8", "error", "do it in the model"),  # quantising needs a scale
    ("int8", "bool", "saturate", "do it in the model"),
    ("complex64", "float32", "round", "do it in the model"),
    ("int32", "int8", "round", "no meaning between integers"),
]


@pytest.mark.parametrize(("source", "target", "policy", "words"), REFUSED)
def test_casts_that_would_lose_more_than_precision(source: str, target: str, policy: Any, words: str) -> None:
    assert words in str(cast_problem(np.dtype(source), np.dtype(target), policy))
