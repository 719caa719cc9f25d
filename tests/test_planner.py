"""Grids, items and their bounds: the arithmetic of a plan, compared with counting."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from migrate import chunking
from migrate.box import Box, Grid
from migrate.chunking import (
    choose_chunk_shape,
    choose_item_shape,
    cut_across,
    read_amplification,
)
from migrate.errors import MappingError, UnsupportedLeafError
from migrate.mapping import Dropped, Mapping, Match
from migrate.planner import TargetArray, cut_items, make_plan
from migrate.signature import ParameterSpec
from migrate.sources.base import Leaf
from migrate.transforms import Derived
from migrate.zarr import StoredArray


class NoReader:
    """A plan reads nothing."""

    def read(self, box: Box, *, storage_order: tuple[int, ...] | None = None) -> np.ndarray:
        raise AssertionError("a plan read an array")

    def to_json(self) -> dict[str, object]:
        return {}


@st.composite
def sharded_arrays(draw: st.DrawFn) -> dict[str, Any]:
    """Shapes whose sharded extents divide evenly, as JAX demands; any order, bounds from one element up."""
    rank = draw(st.integers(0, 4))
    shard = tuple(draw(st.integers(0, 12)) for _ in range(rank))
    return {
        "shape": tuple(extent * draw(st.sampled_from([1, 1, 2, 3])) for extent in shard),
        "shard_shape": shard,
        "major_to_minor": tuple(draw(st.permutations(range(rank)))),
        "item_bytes": draw(st.sampled_from([1, 2, 4, 16])),
        "max_chunk_bytes": draw(st.integers(1, 3000)),
    }


@given(sharded_arrays())
def test_chunks_never_cross_a_shard_and_stay_under_the_bound(case: dict[str, Any]) -> None:
    chunk = choose_chunk_shape(**case)
    assert all(extent >= 1 for extent in chunk)
    for extent, shard, whole in zip(chunk, case["shard_shape"], case["shape"], strict=True):
        assert extent <= max(1, shard)
        if whole != shard:
            assert shard % extent == 0
    # cutting every dimension to 1 is always possible, so only a single element can be above the bound
    assert math.prod(chunk) * case["item_bytes"] <= max(case["max_chunk_bytes"], case["item_bytes"])


@given(sharded_arrays())
def test_chunks_are_cut_along_the_physically_major_dimensions_only(case: dict[str, Any]) -> None:
    """Below the one that is cut in part everything is whole: a chunk is one run of the shard's bytes."""
    chunk = choose_chunk_shape(**case)
    states = [
        "whole" if chunk[d] == max(1, case["shard_shape"][d]) else "one" if chunk[d] == 1 else "part"
        for d in case["major_to_minor"]
    ]
    states = [s for d, s in zip(case["major_to_minor"], states, strict=True) if case["shard_shape"][d] > 1]
    order = {"one": 0, "part": 1, "whole": 2}
    assert sorted(states, key=order.__getitem__) == states
    assert states.count("part") <= 1


CHUNKS = [
    # the shard as it is, where it fits
    ((8, 12), (8, 3), (0, 1), 4, 96, (8, 3)),
    # a sharded dimension is cut to a divisor: 6 does not divide 8, 4 does
    ((16, 4), (8, 4), (0, 1), 1, 24, (4, 4)),
    # an unsharded one may be ragged at the end, and is then cut evenly: 10 as 5+5, not 6+4
    ((10, 4), (10, 4), (0, 1), 1, 24, (5, 4)),
    # the major dimension is cut first, whichever that is
    ((8, 8), (8, 8), (1, 0), 1, 16, (8, 2)),
    # a prime extent of a sharded dimension has no divisor in between
    ((14,), (7,), (0,), 1, 6, (1,)),
    # a scalar
    ((), (), (), 8, 1, ()),
    # no elements: extents of a chunk are 1 at least, in Zarr
    ((0, 4), (0, 4), (0, 1), 4, 1000, (1, 4)),
]


@pytest.mark.parametrize(("shape", "shard", "order", "item_bytes", "most", "chunk"), CHUNKS)
def test_chosen_chunks(
    shape: tuple[int, ...], shard: tuple[int, ...], order: tuple[int, ...], item_bytes: int, most: int, chunk: Any
) -> None:
    assert choose_chunk_shape(shape, shard, order, item_bytes, most) == chunk


def target(shape: tuple[int, ...], chunk: tuple[int, ...], source: tuple[int, ...], name: str = "w") -> TargetArray:
    stored = StoredArray(name, shape, "int16", chunk, tuple(range(len(shape))), "none")
    return TargetArray("params", (name,), (False,), stored, shape, stored.nbytes, name, name, source, NoReader())


@st.composite
def targets(draw: st.DrawFn, name: str = "w") -> TargetArray:
    rank = draw(st.integers(0, 3))
    shape = tuple(draw(st.integers(0, 9)) for _ in range(rank))
    # chunks of the two grids cross in every way, larger than the array too
    cuts = st.tuples(*(st.integers(1, 10) for _ in range(rank)))
    return target(shape, draw(cuts), draw(cuts), name)


@st.composite
def target_lists(draw: st.DrawFn) -> list[TargetArray]:
    return [draw(targets(name=f"w{number}")) for number in range(draw(st.integers(0, 4)))]


BOUNDS = st.integers(1, 2000)


@given(target_lists(), BOUNDS)
def test_items_cover_every_element_exactly_once(arrays: list[TargetArray], max_item_bytes: int) -> None:
    visits = {array.name: np.zeros(array.stored.shape, int) for array in arrays}
    for item in cut_items(arrays, max_item_bytes):
        assert item.parts
        for part in item.parts:
            assert part.array.stored.grid.aligned(part.box)
            visits[part.array.name][part.box.slices] += 1
    assert all((count == 1).all() for count in visits.values())


@given(target_lists(), BOUNDS)
def test_items_stay_under_the_bound_unless_one_chunk_does_not(arrays: list[TargetArray], max_item_bytes: int) -> None:
    for item in cut_items(arrays, max_item_bytes):
        chunks = sum(len(list(part.array.stored.grid.boxes(part.box))) for part in item.parts)
        assert item.nbytes == sum(part.box.size * 2 for part in item.parts)
        assert item.nbytes <= max_item_bytes or chunks == 1


@given(target_lists(), BOUNDS)
def test_item_ids_are_stable_and_distinct(arrays: list[TargetArray], max_item_bytes: int) -> None:
    ids = [item.id for item in cut_items(arrays, max_item_bytes)]
    assert len(set(ids)) == len(ids)
    assert ids == [item.id for item in cut_items(list(arrays), max_item_bytes)]


def test_item_ids_tell_different_work_apart() -> None:
    """Ids name receipts: two pieces of work under one id would skip one of them."""
    base = target((8,), (4,), (8,))
    stored = base.stored
    variants = [
        base,
        replace(base, recipe="v"),  # other elements
        replace(base, path=("v",)),
        replace(base, stored=replace(stored, chunk_shape=(8,))),
        replace(base, stored=replace(stored, compression="zstd")),
        replace(base, stored=replace(stored, dtype="uint16")),
    ]
    ids = [next(cut_items([variant], 16)).id for variant in variants]
    assert len(set(ids)) == len(ids)


@given(targets(), BOUNDS)
def test_an_item_is_a_multiple_of_the_stored_chunk(array: TargetArray, max_item_bytes: int) -> None:
    stored = array.stored
    item = choose_item_shape(stored.shape, stored.chunk_shape, array.source_chunk_shape, 2, max_item_bytes)
    for extent, chunk, whole in zip(item, stored.chunk_shape, stored.shape, strict=True):
        assert extent == whole or extent % chunk == 0


def chunk_reads(shape: tuple[int, ...], item: tuple[int, ...], source: tuple[int, ...]) -> float:
    grid = Grid(shape, source)
    return sum(len(list(grid.boxes(box))) for box in Grid(shape, item).boxes()) / grid.size


@given(targets(), st.data())
def test_read_amplification_is_what_counting_gives(array: TargetArray, data: st.DataObject) -> None:
    shape = array.stored.shape
    item = tuple(data.draw(st.integers(1, max(1, extent))) for extent in shape)
    found = read_amplification(shape, item, array.source_chunk_shape)
    assert found >= 1
    if 0 not in shape:
        assert found == pytest.approx(chunk_reads(shape, item, array.source_chunk_shape))


ITEMS = [
    # row chunks to column chunks: an item takes a whole row of source chunks where the bound allows
    ((64, 64), (64, 8), (8, 64), 64 * 64, (64, 64), 1.0),
    # and as much of it as fits where it does not
    ((64, 64), (64, 8), (8, 64), 64 * 16, (64, 16), 4.0),
    # grids that agree are read once at any bound
    ((64, 64), (8, 64), (8, 64), 8 * 64, (8, 64), 1.0),
    # whole source chunks of three, stored chunks of two
    ((60,), (2,), (3,), 7, (6,), 1.0),
]


@pytest.mark.parametrize(("shape", "chunk", "source", "most", "item", "amplification"), ITEMS)
def test_chosen_items(shape: Any, chunk: Any, source: Any, most: int, item: Any, amplification: float) -> None:
    assert choose_item_shape(shape, chunk, source, 1, most) == item
    assert read_amplification(shape, item, source) == amplification


@pytest.mark.parametrize(
    ("shape", "shard", "chunk", "source", "cut"),
    [
        # the grids are equal: nothing to gain
        pytest.param((128, 512, 256), (1, 512, 256), (1, 512, 256), (1, 512, 256), (1, 512, 256), id="same grid"),
        # an item holds a column of source chunks
        pytest.param((8, 64, 64), (8, 64, 8), (8, 64, 8), (1, 64, 64), (8, 64, 8), id="small array"),
        # every chunk touches all 128 source chunks, each as large as an item
        pytest.param((128, 512, 256), (128, 512, 2), (128, 512, 2), (1, 512, 256), (1, 512, 2), id="crossing grids"),
    ],
)
def test_chunks_are_cut_across_where_items_would_read_everything(
    shape: Any, shard: Any, chunk: Any, source: Any, cut: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunking, "MIN_CHUNK_BYTES", 256)
    cut_across.cache_clear()
    assert cut_across(shape, shard, chunk, source, item_bytes=2, max_item_bytes=512 * 256 * 2) == cut
    cut_across.cache_clear()


@given(data=st.data())
def test_cutting_across_keeps_shards_whole_and_never_reads_more(data: st.DataObject) -> None:
    case = data.draw(sharded_arrays())
    shape, shard = case["shape"], case["shard_shape"]
    most = data.draw(st.integers(1, 1 << 12))
    source = tuple(data.draw(st.integers(1, max(1, extent))) for extent in shape)
    chunk = choose_chunk_shape(**case)
    if not math.prod(shape):
        return
    cut = cut_across(shape, shard, chunk, source, item_bytes=case["item_bytes"], max_item_bytes=most)

    def amplification(chunk: tuple[int, ...]) -> float:
        item = choose_item_shape(shape, chunk, source, case["item_bytes"], most)
        return read_amplification(shape, item, source)

    assert amplification(cut) <= amplification(chunk)
    assert all(c == whole or s == whole or s % c == 0 for c, s, whole in zip(cut, shard, shape, strict=True))


def matched(path: tuple[str, ...], shape: tuple[int, ...] = (8, 4), dtype: str = "float32", number: int = 0) -> Match:
    rank = len(shape)
    spec = ParameterSpec(
        number, "params", path, (False,) * len(path), shape, dtype, ((),) * rank, shape, tuple(range(rank))
    )
    leaf = Leaf(("old", *path), shape, np.dtype(dtype), NoReader(), shape)
    return Match(spec, Derived.of(leaf, "/".join(path)))


def plan_of(*matches: Match, **options: Any) -> Any:
    settings = {"source_identity": "s", "max_item_bytes": 64, "max_chunk_bytes": 1 << 20, **options}
    return make_plan(Mapping(matches, (), (Dropped("old/step", "drop: step"),), ()), **settings)


def test_plan_of_a_job() -> None:
    plan = plan_of(matched(("a", "kernel")), matched(("a", "bias"), (4,), "bfloat16", 1))
    kernel = plan.arrays[0]
    assert (kernel.name, kernel.source_name, kernel.stored.storage_name) == ("a/kernel", "old/a/kernel", "a.kernel")
    # a chunk above max_item_bytes would make an item above it
    assert kernel.stored.chunk_shape == (4, 4)
    assert (plan.nbytes, plan.device_bytes) == (8 * 4 * 4 + 4 * 2, 8 * 4 * 4 + 4 * 2)
    assert [item.nbytes for item in plan.items] == [64, 64, 8]
    assert plan.dropped == (("old/step", "drop: step"),)
    shown = json.loads(json.dumps(plan.to_json()))
    assert [array["path"] for array in shown["arrays"]] == [["a", "kernel"], ["a", "bias"]]
    assert (shown["items"], shown["bytes"]) == (3, plan.nbytes)


def test_parameter_set_changes_with_what_decides_the_bytes_and_nothing_else() -> None:
    one = matched(("a",))
    base = plan_of(one).parameter_set
    turned = replace(one, parameter=replace(one.parameter, major_to_minor=(1, 0)))
    different = {
        "source": plan_of(one, source_identity="t"),
        "order": plan_of(turned),
        "chunks": plan_of(one, max_chunk_bytes=32),
        "compression": plan_of(one, compression="zstd"),
        "leaf": plan_of(replace(one, array=replace(one.array, recipe=("leaf", "other")))),
    }
    assert len({base, *(plan.parameter_set for plan in different.values())}) == len(different) + 1
    # device tiles are not stored, neither is the HLO parameter number
    tiled = replace(one, parameter=replace(one.parameter, tiles=((8, 128),), number=7))
    assert plan_of(tiled).parameter_set == base


CLASHES = [
    # Orbax joins keys with dots, and so do we
    (("a.b",), ("a", "b")),
    # chunks of the first lie at a/c/0, in the directory of the second
    (("a",), ("a/c",)),
    (("a",), ("a/c/d/e",)),
]


@pytest.mark.parametrize(("first", "second"), CLASHES)
def test_parameters_that_would_share_a_storage_key_are_refused(first: Any, second: Any) -> None:
    for pair in itertools.permutations([first, second]):
        with pytest.raises(MappingError, match="one key") as caught:
            plan_of(*(matched(path, number=number) for number, path in enumerate(pair)))
        assert str(list(first)) in caught.value.where
        assert str(list(second)) in caught.value.where


def test_similar_names_do_not_clash() -> None:
    assert len(plan_of(matched(("a",)), matched(("aa",)), matched(("a", "b")), matched(("b/a",))).arrays) == 4


def test_dtype_that_cannot_be_stored_is_refused_while_planning() -> None:
    with pytest.raises(UnsupportedLeafError, match="uint4"):
        plan_of(matched(("a",), dtype="uint4"))


def test_empty_plan() -> None:
    plan = plan_of()
    assert (plan.items, plan.nbytes) == ((), 0)


def test_a_bare_array_has_no_name_to_be_stored_under() -> None:
    with pytest.raises(MappingError, match="one bare array"):
        plan_of(matched(()))
