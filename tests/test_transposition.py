"""Permuted copies against NumPy's own, for every path through the tiling."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from migrate.transposition import transposed


def counted(shape: tuple[int, ...], dtype: object) -> np.ndarray:
    """Every byte pattern that fits, so that a moved element, a swapped byte or a quietened NaN shows."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape))
    return np.random.default_rng(count).integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype).reshape(shape)


def check(array: np.ndarray, axes: tuple[int, ...]) -> None:
    result = transposed(array, axes)
    expected = array.transpose(axes)
    assert result.dtype == array.dtype
    assert result.shape == expected.shape
    assert result.flags.c_contiguous
    assert result.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("shape", "axes", "dtype"),
    [
        pytest.param((), (), "float32", id="scalar"),
        pytest.param((0, 5), (1, 0), "float32", id="empty"),
        pytest.param((700, 900), (1, 0), "float32", id="ragged tiles"),
        pytest.param((700, 901), (1, 0), ml_dtypes.bfloat16, id="bfloat16"),
        pytest.param((700, 901), (1, 0), ml_dtypes.float8_e4m3fn, id="float8"),
        pytest.param((700, 901), (1, 0), ml_dtypes.int4, id="a byte an element"),
        pytest.param((600, 301), (1, 0), "float64", id="8 bytes"),
        pytest.param((600, 301), (1, 0), "complex128", id="16 bytes"),
        pytest.param((600, 301), (1, 0), bool, id="bool"),
        pytest.param((600, 301), (1, 0), "V3", id="an odd size"),
        pytest.param((3, 700, 301), (2, 1, 0), "uint16", id="reversal"),
        pytest.param((700, 3, 301), (2, 1, 0), "uint16", id="reversal with a short middle"),
        pytest.param((5, 300, 700), (0, 2, 1), "uint16", id="a batch of matrices"),
        pytest.param((300, 700, 5), (1, 0, 2), "uint16", id="equal minor dimensions"),
        pytest.param((7,) * 6, (5, 4, 3, 2, 1, 0), "uint16", id="many short dimensions"),
        pytest.param((2, 200_000), (1, 0), "uint16", id="long and narrow"),
        pytest.param((200_000, 2), (1, 0), "uint16", id="narrow and long"),
        pytest.param((1, 700, 1, 301, 1), (4, 3, 2, 1, 0), "uint16", id="dimensions of extent 1"),
    ],
)
def test_moves_every_byte_to_its_place(shape: tuple[int, ...], axes: tuple[int, ...], dtype: object) -> None:
    check(counted(shape, dtype), axes)


def test_copies_nothing_where_the_bytes_lie_so_already() -> None:
    array = counted((30, 40, 50), "uint16")
    result = transposed(array.transpose(2, 0, 1), (1, 2, 0))
    assert np.shares_memory(result, array)


@given(data=st.data())
def test_any_window_of_any_array_in_any_order(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 4))
    # up to 160,000 elements: above what is copied in one piece
    shape = (
        *(data.draw(st.sampled_from([1, 2, 3, 17, 20])) for _ in range(rank - 1)),
        data.draw(st.sampled_from([1, 20, 300, 1000])),
    )
    before = data.draw(st.sampled_from(list(itertools.permutations(range(rank)))))
    axes = data.draw(st.sampled_from(list(itertools.permutations(range(rank)))))
    array = counted(shape, "uint32").transpose(before)
    window = tuple(slice(data.draw(st.integers(0, extent - 1)), extent) for extent in array.shape)
    check(array[window], axes)
