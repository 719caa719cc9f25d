"""What a layout costs on a device, in words: the arithmetic behind a buffer's size. Pure.

>>> from migrate.layout import parse
>>> for line in padding_words(parse("bf16[16,1280,40]{2,1,0:T(8,128)(2,1)}")):
...     print(line)
the minor dimension is 2, of extent 40
tile (8,128): dimension 2 is padded from 40 to 128
tile (2,1) of that: nothing is padded
16 x 1280 x 128 elements x 2 bytes = 5,242,880 bytes
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from migrate.layout import COMBINE, ArrayShape, dtype_bits

_MAX_RANK = 6
"""Of a higher rank there are too many orders to try."""


def padding_words(shape: ArrayShape) -> tuple[str, ...]:
    """The steps from the shape to its :attr:`ArrayShape.device_bytes`, a line each; the last one is the product."""
    layout = shape.layout
    if 0 in shape.dimensions:
        return ("an array without elements takes 0 bytes",)
    lines: list[str] = []
    order = tuple(range(len(shape.dimensions))) if layout is None else layout.major_to_minor
    extents = [shape.dimensions[dimension] for dimension in order]
    names = [f"dimension {dimension}" for dimension in order]
    factors = list(extents)
    if order:
        lines.append(f"the minor dimension is {order[-1]}, of extent {extents[-1]}")
    for index, tile in enumerate(() if layout is None else layout.tiles):
        padded, extents, names, words = _tile(extents, names, tile)
        if index == 0:
            factors = padded
        elif words:
            factors = extents
        text = ",".join("*" if extent == COMBINE else str(extent) for extent in tile)
        lines.append(f"tile ({text}){' of that' if index else ''}: {'; '.join(words) or 'nothing is padded'}")
    if layout is None:
        lines.append("the message gives no layout: padding is not counted")
    elif not layout.tiles:
        lines.append("no tiles: nothing is padded")
    lines.append(_product(shape, factors))
    return tuple(lines)


def _tile(
    extents: list[int], names: list[str], tile: tuple[int, ...]
) -> tuple[list[int], list[int], list[str], list[str]]:
    """(padded extents, extents after tiling, their names, what is padded)."""
    lead = max(0, len(tile) - len(extents))
    extents, names = [1] * lead + extents, ["a leading 1"] * lead + names
    split = len(extents) - len(tile)
    padded = extents[:split]
    counts: list[int] = []
    inner: list[int] = []
    inner_names: list[str] = []
    words: list[str] = []
    merged = 1
    merged_names: list[str] = []
    for extent, name, size in zip(extents[split:], names[split:], tile, strict=True):
        merged, merged_names = merged * extent, [*merged_names, name]
        if size == COMBINE:
            continue
        count = -(-merged // size)
        name = " with ".join(dict.fromkeys(merged_names))  # noqa: PLW2901 -- the merged dimensions are one from here
        if count * size != merged:
            words.append(f"{name} {'are' if len(merged_names) > 1 else 'is'} padded from {merged} to {count * size}")
        padded.append(count * size)
        counts.append(count)
        inner.append(size)
        inner_names.append(f"{name} within a tile")
        merged, merged_names = 1, []
    outer_names = [f"tiles along {name.removesuffix(' within a tile')}" for name in inner_names]
    return padded, extents[:split] + counts + inner, names[:split] + outer_names + inner_names, words


def _product(shape: ArrayShape, factors: list[int]) -> str:
    layout = shape.layout
    text = f"{' x '.join(map(str, factors)) or '1'} elements"
    if layout is not None and layout.tail_padding_elements != 1:
        text += f", rounded up to a multiple of {layout.tail_padding_elements},"
    own = dtype_bits(shape.dtype)
    bits = (layout.element_bits if layout is not None else 0) or max(8, own)
    size = f"{bits} bits" if bits % 8 else ("1 byte" if bits == 8 else f"{bits // 8} bytes")
    if own < 8:
        size += f" (packed {shape.dtype})" if bits < 8 else f" (an unpacked {shape.dtype})"
    return f"{text} x {size} = {shape.device_bytes:,} bytes"


def orders_of_size(shape: ArrayShape, nbytes: int) -> tuple[tuple[int, ...], ...]:
    """The dimension orders, minor to major, in which the shape takes ``nbytes`` on a device with its own tiles."""
    layout = shape.layout
    if layout is None or len(shape.dimensions) > _MAX_RANK:
        return ()
    orders = itertools.permutations(range(len(shape.dimensions))[::-1])
    return tuple(
        order for order in orders if replace(shape, layout=replace(layout, minor_to_major=order)).device_bytes == nbytes
    )
