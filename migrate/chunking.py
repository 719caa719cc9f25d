"""How arrays are cut: stored chunks that never cross a device shard, and items shaped to read little twice. Pure.

Shapes repeat from layer to layer, so every choice is made once a shape.
"""

from __future__ import annotations

import functools
import math

GOOD_AMPLIFICATION = 1.5
"""Reading the source so often is not worth smaller chunks."""
MIN_CHUNK_BYTES = 128 << 10
"""Chunks are not cut below this for the sake of reading."""


@functools.lru_cache(maxsize=4096)
def choose_chunk_shape(
    shape: tuple[int, ...],
    shard_shape: tuple[int, ...],
    major_to_minor: tuple[int, ...],
    item_bytes: int,
    max_chunk_bytes: int,
) -> tuple[int, ...]:
    """The stored chunk: the shard, cut along its physically major dimensions until it has at most ``max_chunk_bytes``.

    Along a sharded dimension the chunk's extent divides the shard's, so that no chunk crosses a shard; along the
    others it may be ragged at the array's end. Extents are at least 1.
    """
    chunk = [max(1, extent) for extent in shard_shape]
    for dimension in major_to_minor:
        chunk_bytes = math.prod(chunk) * item_bytes
        if chunk_bytes <= max_chunk_bytes:
            break
        extent = chunk[dimension]
        most = max(1, max_chunk_bytes // (chunk_bytes // extent))
        if shard_shape[dimension] == shape[dimension]:
            chunk[dimension] = -(-extent // -(-extent // most))
        else:
            chunk[dimension] = _largest_divisor(extent, most)
    return tuple(chunk)


@functools.lru_cache(maxsize=4096)
def cut_across(
    shape: tuple[int, ...],
    shard_shape: tuple[int, ...],
    chunk_shape: tuple[int, ...],
    source_chunk: tuple[int, ...],
    *,
    item_bytes: int,
    max_item_bytes: int,
) -> tuple[int, ...]:
    """``chunk_shape``, cut further where whole chunks would make the items read every source chunk again and again.

    That is where source and target cut different dimensions of an array much larger than an item. The chunk is then
    halved along the dimensions that the source cuts finer, as long as that lowers :func:`read_amplification`, which
    ends below :data:`GOOD_AMPLIFICATION`, or at chunks of :data:`MIN_CHUNK_BYTES`.
    """

    def amplification(chunk: tuple[int, ...]) -> float:
        item = choose_item_shape(shape, chunk, source_chunk, item_bytes, max_item_bytes)
        return read_amplification(shape, item, source_chunk)

    chunk = chunk_shape
    reached = amplification(chunk)
    while reached > GOOD_AMPLIFICATION and math.prod(chunk) * item_bytes >= 2 * MIN_CHUNK_BYTES:
        candidates = []
        for dimension, extent in enumerate(chunk):
            if extent > source_chunk[dimension]:
                half = max(source_chunk[dimension], extent // 2)
                if shard_shape[dimension] != shape[dimension]:
                    half = _largest_divisor(extent, half)
                cut = (*chunk[:dimension], half, *chunk[dimension + 1 :])
                candidates.append((amplification(cut), -math.prod(cut), cut))
        if not candidates or min(candidates)[0] >= reached:
            break
        reached, _, chunk = min(candidates)
    return chunk


def _largest_divisor(number: int, most: int) -> int:
    best = 1
    for candidate in range(1, math.isqrt(number) + 1):
        if number % candidate == 0:
            for divisor in (candidate, number // candidate):
                if divisor <= most:
                    best = max(best, divisor)
    return best


def read_amplification(shape: tuple[int, ...], item_shape: tuple[int, ...], source_chunk: tuple[int, ...]) -> float:
    """How often a source chunk is read on average, when each item reads every source chunk it touches once."""
    amplification = 1.0
    for extent, item, chunk in zip(shape, item_shape, source_chunk, strict=True):
        if extent == 0:
            continue
        items, chunks = -(-extent // item), -(-extent // chunk)
        common = (extent - 1) // math.lcm(item, chunk) + 1
        pieces = items + chunks - common
        amplification *= pieces / chunks
    return amplification


@functools.lru_cache(maxsize=4096)
def choose_item_shape(
    shape: tuple[int, ...],
    chunk_shape: tuple[int, ...],
    source_chunk: tuple[int, ...],
    item_bytes: int,
    max_item_bytes: int,
) -> tuple[int, ...]:
    """The box of an item: a multiple of the stored chunk of at most ``max_item_bytes``, grown to read little twice.

    Each step grows one dimension, by choice of the lowest :func:`read_amplification`, then of the largest box.
    """
    item = [min(chunk, extent) for chunk, extent in zip(chunk_shape, shape, strict=True)]
    limit = max_item_bytes // item_bytes
    while True:
        best: tuple[float, int, list[int]] | None = None
        for dimension, extent in enumerate(shape):
            if item[dimension] >= extent:
                continue
            chunk = chunk_shape[dimension]
            for wanted in (item[dimension] * 2, math.lcm(chunk, source_chunk[dimension]), extent):
                grown = list(item)
                # an extent that reaches the array's end need not be a multiple of the chunk
                grown[dimension] = min(-(-wanted // chunk) * chunk, extent)
                if grown[dimension] <= item[dimension] or math.prod(grown) > limit:
                    continue
                key = (read_amplification(shape, tuple(grown), source_chunk), -math.prod(grown), grown)
                best = key if best is None else min(best, key)
        if best is None:
            return tuple(item)
        item = best[2]
