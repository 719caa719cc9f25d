"""A digest of what an array holds, whatever its chunks and dimension order on storage: of a sum, box by box.

The digest is multilinear: each element's word is multiplied by a pseudo-random odd 64-bit weight of its index, and the
products are added modulo 2**64, in two independent lanes. Boxes may therefore be summed in any order and any cut, and
two arrays that are stored differently can be compared without reading either again. One changed element always changes
the digest; of other changes less than one in 2**50 goes unseen, whatever their pattern. It finds damage and mistakes.
It does not withstand someone who wants two arrays to have one digest: for that, chunks have SHA-256 digests.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LANES = 2
_LOW = 1 << 14
_MASK = (1 << 64) - 1
_MOST_WORDS = 4  # of an element: complex128


@dataclass(frozen=True, slots=True)
class ContentSum:
    """The digest of some boxes of an array; those of disjoint boxes add up to that of their union."""

    lanes: tuple[int, ...] = (0,) * _LANES

    def __add__(self, other: ContentSum) -> ContentSum:
        return ContentSum(tuple((a + b) & _MASK for a, b in zip(self.lanes, other.lanes, strict=True)))

    @classmethod
    def total(cls, sums: Iterable[ContentSum]) -> ContentSum:
        """The digest of the union of disjoint boxes."""
        return sum(sums, cls())

    def hex(self) -> str:
        """32 hexadecimal digits."""
        return "".join(f"{lane:016x}" for lane in self.lanes)

    @classmethod
    def from_hex(cls, text: str) -> ContentSum:
        """The inverse of :meth:`hex`. Raises ValueError for any other text."""
        if len(text) != 16 * _LANES:
            raise ValueError(f"a content digest has {16 * _LANES} hexadecimal digits, not {len(text)}")
        return cls(tuple(int(text[at : at + 16], 16) for at in range(0, len(text), 16)))


def content_sum(block: np.ndarray, start: tuple[int, ...]) -> ContentSum:
    """The digest of ``block``, whose first element has the index ``start`` in its array.

    ``block`` has the array's logical dimension order; its strides may be any permutation of a contiguous block, as a
    transposed view has them, else it is copied. Elements count as their stored bytes: -0.0 is not 0.0.
    """
    if block.size == 0:
        return ContentSum()
    storage_order = sorted(range(block.ndim), key=lambda dimension: (-abs(block.strides[dimension]), dimension))
    contiguous = np.ascontiguousarray(block.transpose(storage_order))
    ranges = [(d, start[d], start[d] + block.shape[d]) for d in storage_order]
    # as many minor dimensions together as one table of weights holds: long inner loops
    split = len(ranges)
    while split and math.prod(contiguous.shape[split - 1 :]) <= _LOW:
        split -= 1
    major, minor = ranges[:split], ranges[split:]
    if ranges and not minor:
        *major, (dimension, first, stop) = ranges
        minor_parts = [[(dimension, *cut)] for cut in _cuts(first, stop)]
    else:
        minor_parts = [minor]
    rows = math.prod(high - low for _, low, high in major)
    words = [word.reshape(rows, -1) for word in _words(contiguous)]
    return ContentSum(tuple(_lane(lane, words, major, minor_parts) for lane in range(_LANES)))


_Range = tuple[int, int, int]
"""(dimension, first index, index after the last)."""


def _lane(
    lane: int, words: list[NDArray[np.unsignedinteger]], major: list[_Range], minor_parts: list[list[_Range]]
) -> int:
    row_weights = _product(lane, major)
    total, at = 0, 0
    for part in minor_parts:
        high, low = _factors(lane, part)
        columns = high.size * low.size
        for number, word in enumerate(words):
            block = word[:, at : at + columns].reshape(-1, high.size, low.size)
            # "unsafe" names the widening to 64 bits that einsum does block by block, without a copy of the whole
            sums = np.einsum("rhc,c->rh", block, low, dtype=np.uint64, casting="unsafe")
            total += _word_weight(lane, number) * int(np.dot(row_weights, sums @ high))
        at += columns
    return total & _MASK


def _factors(lane: int, part: list[_Range]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Two vectors whose outer product are the weights of a box: of a dimension longer than a table, high and low."""
    if len(part) == 1:
        ((dimension, start, stop),) = part
        if (stop - start) % _LOW == 0 and start % _LOW == 0:
            highs = [_high(lane, dimension, index) for index in range(start // _LOW, stop // _LOW)]
            return np.array(highs, np.uint64), _table(lane, dimension, 0)
    return np.ones(1, np.uint64), _product(lane, part)


def _cuts(start: int, stop: int) -> list[tuple[int, int]]:
    """A range cut into whole tables of weights in the middle and the rests before and behind."""
    first, last = -(-start // _LOW) * _LOW, stop // _LOW * _LOW
    if first > last:
        return [(start, stop)]
    return [cut for cut in ((start, first), (first, last), (last, stop)) if cut[0] < cut[1]]


def _words(block: np.ndarray) -> list[NDArray[np.unsignedinteger]]:
    """Each element as unsigned words of at most 32 bits: the highest bit of a word keeps half of the weight's bits."""
    itemsize = block.dtype.itemsize
    if itemsize in {1, 2, 4}:
        return [block.view(f"<u{itemsize}")]
    names = [f"word{number}" for number in range(itemsize // 4)]
    words = block.view(np.dtype([(name, "<u4") for name in names]))
    return [words[name] for name in names]


def _product(lane: int, ranges: list[_Range]) -> NDArray[np.uint64]:
    """Weights of all indices of a box, the last dimension fastest."""
    tables = [_weights(lane, dimension, start, stop) for dimension, start, stop in ranges]
    return functools.reduce(lambda a, b: np.multiply.outer(a, b).ravel(), tables, np.ones(1, np.uint64))


def _weights(lane: int, dimension: int, start: int, stop: int) -> NDArray[np.uint64]:
    """Weights of the indices ``start`` to ``stop`` of a dimension: a table of the low bits times one of the high."""
    low = _table(lane, dimension, 0)
    parts = []
    for index in range(start // _LOW, (stop - 1) // _LOW + 1):
        first = index * _LOW
        parts.append(low[max(start - first, 0) : stop - first] * _high(lane, dimension, index))
    return np.concatenate(parts)


@functools.lru_cache(maxsize=64)
def _table(lane: int, dimension: int, number: int) -> NDArray[np.uint64]:
    """Odd pseudo-random numbers; NumPy keeps the raw stream of Philox the same in all of its versions."""
    key = np.array([lane << 32 | dimension, number], np.uint64)
    return np.random.Philox(key=key).random_raw(_LOW) | np.uint64(1)


def _high(lane: int, dimension: int, index: int) -> np.uint64:
    value: np.uint64 = _table(lane, dimension, 1 + index // _LOW)[index % _LOW]
    return value


def _word_weight(lane: int, number: int) -> int:
    # as if the words of an element were one more dimension, whose number no array has
    return int(_table(lane, 1 << 16, 0)[number]) if number < _MOST_WORDS else 0
