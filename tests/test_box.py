"""Boxes and grids: every property is compared with sets of indices."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from migrate.box import Box, Grid

MAX_EXTENT = 9


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    """Rank 0 to 3; empty extents, chunks that do not divide, chunks larger than the array."""
    rank = draw(st.integers(0, 3))
    extents = st.integers(0, MAX_EXTENT)
    shape = tuple(draw(extents) for _ in range(rank))
    return Grid(shape, tuple(draw(st.integers(1, MAX_EXTENT + 2)) for _ in range(rank)))


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    ranges = [sorted((draw(st.integers(0, s)), draw(st.integers(0, s)))) for s in shape]
    return Box(tuple(a for a, _ in ranges), tuple(b for _, b in ranges))


@st.composite
def grids_and_boxes(draw: st.DrawFn) -> tuple[Grid, Box]:
    grid = draw(grids())
    return grid, draw(boxes(grid.shape))


@st.composite
def box_pairs(draw: st.DrawFn) -> tuple[Box, Box]:
    shape = draw(grids()).shape
    return draw(boxes(shape)), draw(boxes(shape))


def elements(box: Box) -> set[tuple[int, ...]]:
    return set(itertools.product(*(range(a, b) for a, b in zip(box.start, box.stop, strict=True))))


@given(grids())
def test_chunks_tile_the_array_exactly_once(grid: Grid) -> None:
    visits = np.zeros(grid.shape, int)
    for box in grid.boxes():
        visits[box.slices] += 1
    assert (visits == 1).all()
    assert grid.size == len(list(grid.boxes())) == len(list(grid.indices()))


@given(grids_and_boxes())
def test_chunks_within_a_box_are_those_that_share_an_element(case: tuple[Grid, Box]) -> None:
    grid, box = case
    assert list(grid.boxes(box)) == [chunk for chunk in grid.boxes() if elements(chunk) & elements(box)]
    assert [grid.box(index) for index in grid.indices(box)] == list(grid.boxes(box))


@given(grids_and_boxes())
def test_cover_is_the_smallest_aligned_box_around(case: tuple[Grid, Box]) -> None:
    grid, box = case
    cover = grid.cover(box)
    assert cover.contains(box)
    assert grid.aligned(cover)
    if box.size:
        assert elements(cover) == set().union(*(elements(chunk) for chunk in grid.boxes(box)))
    assert grid.cover(cover) == cover


@given(grids_and_boxes())
def test_aligned_means_no_chunk_is_cut(case: tuple[Grid, Box]) -> None:
    grid, box = case
    cut = any(0 < len(elements(chunk) & elements(box)) < chunk.size for chunk in grid.boxes())
    if box.size:
        assert grid.aligned(box) == (not cut)


@given(box_pairs())
def test_intersection_has_the_common_elements(pair: tuple[Box, Box]) -> None:
    a, b = pair
    common = a.intersect(b)
    assert (elements(common) if common else set()) == elements(a) & elements(b)
    assert common == b.intersect(a)


@given(box_pairs())
def test_contains_agrees_with_elements(pair: tuple[Box, Box]) -> None:
    a, b = pair
    if b.size:  # an empty box has no element to judge by, only a position
        assert a.contains(b) == (elements(b) <= elements(a))


@given(box_pairs())
def test_relative_box_finds_the_same_elements_in_the_outer_one(pair: tuple[Box, Box]) -> None:
    outer, other = pair
    inner = outer.intersect(other)
    if inner is not None:
        numbers = np.arange((MAX_EXTENT + 1) ** outer.rank).reshape((MAX_EXTENT + 1,) * outer.rank)
        np.testing.assert_array_equal(numbers[outer.slices][inner.relative_to(outer).slices], numbers[inner.slices])


@given(grids())
def test_whole_box_counts_every_element(grid: Grid) -> None:
    whole = Box.whole(grid.shape)
    assert (whole.shape, whole.size, whole.rank) == (grid.shape, len(elements(whole)), len(grid.shape))
    assert grid.aligned(whole)


WRONG_BOXES = [
    ((0,), (1, 1)),  # ranks differ
    ((2,), (1,)),  # backwards
    ((-1,), (1,)),  # below zero: NumPy would count from the end
]


@pytest.mark.parametrize(("start", "stop"), WRONG_BOXES)
def test_impossible_boxes_are_refused(start: tuple[int, ...], stop: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="box"):
        Box(start, stop)


WRONG_GRIDS = [
    ((4,), (2, 2)),  # ranks differ
    ((4, 4), (2, 0)),  # a chunk without extent would never reach the end
]


@pytest.mark.parametrize(("shape", "chunk_shape"), WRONG_GRIDS)
def test_impossible_grids_are_refused(shape: tuple[int, ...], chunk_shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="chunk"):
        Grid(shape, chunk_shape)


@pytest.mark.parametrize("method", [Box.intersect, Box.contains, Box.relative_to])
def test_boxes_of_different_rank_do_not_mix(method: object) -> None:
    with pytest.raises(ValueError, match="zip"):
        method(Box((0,), (1,)), Box((0, 0), (1, 1)))


def test_boxes_of_a_scalar() -> None:
    scalar = Box((), ())
    assert (scalar.size, str(scalar), scalar.intersect(scalar)) == (1, "[]", scalar)
    assert list(Grid((), ()).boxes()) == [scalar]
