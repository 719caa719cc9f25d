"""Copies with permuted dimensions, as fast as memory allows.

NumPy and TensorStore walk such a copy element by element in the order of one side, so that the other side touches a new
cache line, and soon a new page, at every step: 0.1 to 0.4 GiB/s (docs/performance.md). Here it is cut into tiles that
fit the cache; each is read along the source's rows, turned in a small buffer, and written along the result's rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

_SMALL_BYTES = 1 << 16
"""An array of this size fits the cache as it is."""
_SAME_SIZE = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}
"""By item size, a dtype that NumPy copies without looking at; ml_dtypes' own are slower, and hold the GIL."""
_TILE_ELEMENTS = {4: 1 << 16}
"""Of a tile, by item size: measured."""
_OTHER_TILE_ELEMENTS = 1 << 14
_CACHED_LINES = 256
"""So many cache lines are still there when the next element of each is wanted."""


def transposed(array: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """``array.transpose(axes)`` as a C-contiguous array: a view where the bytes lie so already, else a copy.

    Any shape, any dtype of 1, 2, 4, 8 or 16 bytes; bits are moved, never values. Allocates the result and a tile.
    """
    view = array.transpose(axes)
    if view.flags.c_contiguous:
        return view
    result = np.empty(view.shape, view.dtype)
    same_size = _SAME_SIZE.get(array.dtype.itemsize)
    if view.nbytes <= _SMALL_BYTES or same_size is None:
        result[...] = view
    else:
        _copy(result.view(same_size), array.view(same_size).transpose(axes))
    return result


def _copy(result: np.ndarray, view: np.ndarray) -> None:
    """``result[...] = view`` for a C-contiguous ``result``."""
    shape, strides = _merged(view.shape, view.strides)
    view = np.lib.stride_tricks.as_strided(view, shape, strides)
    result = result.reshape(shape)
    source_last = min(range(len(shape)), key=lambda d: abs(strides[d]))
    lines_before_reuse = math.prod(shape[source_last + 1 :])  # 1 where both sides run along the same dimension
    if lines_before_reuse <= _CACHED_LINES:
        result[...] = view
        return
    tile = _tile_shape(shape, strides, _TILE_ELEMENTS.get(view.itemsize, _OTHER_TILE_ELEMENTS))
    # the buffer's dimensions stand in the source's order
    order = sorted(range(len(shape)), key=lambda d: -abs(strides[d]))
    buffer = np.empty([tile[d] for d in order], view.dtype).transpose(np.argsort(order))
    starts = (range(0, extent, step) for extent, step in zip(shape, tile, strict=True))
    for start in itertools.product(*starts):
        index = tuple(slice(a, a + step) for a, step in zip(start, tile, strict=True))
        piece = view[index]
        turned = buffer[tuple(map(slice, piece.shape))]
        turned[...] = piece
        result[index] = turned


def _merged(shape: Sequence[int], strides: Sequence[int]) -> tuple[list[int], list[int]]:
    """Shape and strides (bytes) of the same elements in the same order, in as few dimensions as there can be."""
    merged_shape: list[int] = []
    merged_strides: list[int] = []
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        if merged_shape and merged_strides[-1] == stride * extent:
            merged_shape[-1] *= extent
            merged_strides[-1] = stride
        else:
            merged_shape.append(extent)
            merged_strides.append(stride)
    return merged_shape, merged_strides


def _tile_shape(shape: Sequence[int], strides: Sequence[int], elements: int) -> list[int]:
    """About a square in the fastest dimensions of both sides; what they leave goes to the next faster ones."""
    last = len(shape) - 1
    side = math.isqrt(elements)
    tile = [1] * len(shape)
    by_speed = sorted(range(len(shape)), key=lambda d: abs(strides[d]))
    for dimension in (by_speed[0], last):
        tile[dimension] = min(shape[dimension], side)
    for dimension in (by_speed[0], last, *by_speed, *reversed(range(len(shape)))):
        room = elements // (math.prod(tile) // tile[dimension])
        tile[dimension] = min(shape[dimension], max(tile[dimension], room))
    return tile
