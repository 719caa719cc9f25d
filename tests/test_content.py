"""Content digests: the same for an array however it is cut and stored, another for any other content."""

from __future__ import annotations

import itertools
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from migrate.content import ContentSum, content_sum

DTYPES = [bool, np.int8, ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16, np.float32, np.int64, np.complex64, np.complex128]
SHAPES = [(), (1,), (5,), (3, 7), (2, 3, 4, 5), (16383,), (16385,), (50_000,), (3, 20_001), (129, 127), (2, 1, 16384)]


def random_array(shape: tuple[int, ...], dtype: object, seed: int = 0) -> np.ndarray:
    itemsize = np.dtype(dtype).itemsize
    data = np.random.default_rng(seed).integers(0, 2 if dtype is bool else 256, math.prod(shape) * itemsize, np.uint8)
    return data.view(dtype).reshape(shape)


def zeros(array: np.ndarray) -> tuple[int, ...]:
    return (0,) * array.ndim


def cut(array: np.ndarray, cuts: list[list[int]]) -> ContentSum:
    """The sum over the boxes between ``cuts`` of each dimension."""
    edges = [
        sorted({0, extent, *(c % (extent + 1) for c in mine)}) for extent, mine in zip(array.shape, cuts, strict=True)
    ]
    boxes = itertools.product(*(itertools.pairwise(e) for e in edges))
    return ContentSum.total(
        content_sum(array[tuple(slice(*b) for b in box)], tuple(low for low, _ in box)) for box in boxes
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_neither_cut_nor_dimension_order_matters(shape: tuple[int, ...], dtype: object) -> None:
    array = random_array(shape, dtype)
    whole = content_sum(array, zeros(array))
    assert cut(array, [[1, extent // 2, 16384] for extent in shape]) == whole
    for order in itertools.permutations(range(len(shape))):
        stored = array.transpose(order).copy(order="C")
        assert content_sum(stored.transpose(np.argsort(order)), zeros(array)) == whole


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_cut_adds_up(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4)))
    array = random_array(shape, data.draw(st.sampled_from(DTYPES)), data.draw(st.integers(0, 99)))
    cuts = [data.draw(st.lists(st.integers(0, 40), max_size=3)) for _ in shape]
    assert cut(array, cuts) == content_sum(array, zeros(array))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_flipped_bit_shows(data: st.DataObject) -> None:
    array = random_array((4, 5, 6), data.draw(st.sampled_from(DTYPES[1:])))
    flipped = array.copy()
    flat = flipped.reshape(-1).view(np.uint8)
    for bit in data.draw(st.sets(st.integers(0, flat.size * 8 - 1), min_size=1, max_size=4)):
        flat[bit // 8] ^= 1 << bit % 8
    assert content_sum(flipped, zeros(array)) != content_sum(array, zeros(array))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16, np.complex64])
def test_signs_that_change_in_pairs_show(dtype: object) -> None:
    """The highest bits of two words: their weights differ by an even number, which a single wide word would lose."""
    array = np.arange(1, 65).astype(dtype)
    seen = {content_sum(array, (0,))}
    for a, b in itertools.combinations(range(64), 2):
        changed = array.copy()
        changed[[a, b]] *= -1
        seen.add(content_sum(changed, (0,)))
    assert len(seen) == 1 + math.comb(64, 2)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("two rows swapped", lambda a: a[[1, 0, *range(2, 64)]]),
        ("transposed", lambda a: a.T),
        ("rolled", lambda a: np.roll(a, 1)),
        ("one element moved", lambda a: np.where(a == a[0, 0], a[0, 1], np.where(a == a[0, 1], a[0, 0], a))),
        ("a zero of the other sign", lambda a: np.where(a == 0, -0.0, a)),
        ("a row taken for another", lambda a: a[[*range(63), 0]]),
    ],
)
def test_other_content_shows(name: str, change: object) -> None:
    array = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    other = change(array).astype(np.float32)
    assert other.shape == array.shape
    assert content_sum(other, (0, 0)) != content_sum(array, (0, 0)), name


def test_digests_stay_what_they_are() -> None:
    """They lie in committed manifests: another NumPy, or another implementation, must give the same."""
    assert (
        content_sum(np.arange(40_000, dtype=np.int32).reshape(200, 200), (0, 0)).hex()
        == "6d6bdb714739f7800b7448eb08e4eae0"
    )
    assert content_sum(np.arange(40_000, dtype=np.float64), (7,)).hex() == "3685ad00e3f15880d71c73bbe61e4000"


def test_hex_comes_back() -> None:
    found = content_sum(np.ones(3, np.float32), (0,))
    assert ContentSum.from_hex(found.hex()) == found
    with pytest.raises(ValueError, match="32 hexadecimal digits"):
        ContentSum.from_hex("ab")


def test_the_weights_are_a_product_over_dimensions() -> None:
    """What docs/export-format.md states, element by element in Python's own integers."""
    array = random_array((3, 17_000), np.uint16)
    for lane in range(2):
        table = {
            (dimension, number): np.random.Philox(key=np.array([lane << 32 | dimension, number], np.uint64)).random_raw(
                1 << 14
            )
            | np.uint64(1)
            for dimension, number in [(0, 0), (0, 1), (1, 0), (1, 1), (1 << 16, 0)]
        }
        total = 0
        for (row, column), value in np.ndenumerate(array):
            weight = 1
            for dimension, index in enumerate((row, column)):
                weight *= int(table[dimension, 0][index % (1 << 14)]) * int(table[dimension, 1][index // (1 << 14)])
            total += int(value) * weight
        expected = total * int(table[1 << 16, 0][0]) % (1 << 64)
        assert content_sum(array, (0, 0)).lanes[lane] == expected
