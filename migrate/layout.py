"""XLA shapes with layouts: their text form, tiling, and the bytes they take on a device. Pure arithmetic.

The text form is the one XLA prints in HLO and in error messages. A layout lists dimensions minor to major, then
attributes: ``T`` tiles, ``L`` tail padding alignment in elements, ``E`` element size in bits, ``S`` memory space
(https://openxla.org/xla/tiled_layout and xla/layout.h). The two sizes of error E0102 come out:

>>> parse("bf16[16,1280,40]{2,1,0:T(8,128)(2,1)}").device_bytes
5242880
>>> parse("bf16[16,1280,40]{1,2,0:T(8,128)(2,1)}").device_bytes
1638400
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from migrate.errors import LayoutSyntaxError

COMBINE = -1
"""In a tile: this dimension is merged with the next more minor one before tiling; XLA prints ``*``."""

# numpy / ml_dtypes name -> (XLA primitive type, bits of one element)
_DTYPES: dict[str, tuple[str, int]] = {
    "bool": ("pred", 8),
    "int2": ("s2", 2),
    "int4": ("s4", 4),
    "int8": ("s8", 8),
    "int16": ("s16", 16),
    "int32": ("s32", 32),
    "int64": ("s64", 64),
    "uint2": ("u2", 2),
    "uint4": ("u4", 4),
    "uint8": ("u8", 8),
    "uint16": ("u16", 16),
    "uint32": ("u32", 32),
    "uint64": ("u64", 64),
    "float16": ("f16", 16),
    "bfloat16": ("bf16", 16),
    "float32": ("f32", 32),
    "float64": ("f64", 64),
    "complex64": ("c64", 64),
    "complex128": ("c128", 128),
    "float4_e2m1fn": ("f4e2m1fn", 4),
    "float8_e3m4": ("f8e3m4", 8),
    "float8_e4m3": ("f8e4m3", 8),
    "float8_e4m3fn": ("f8e4m3fn", 8),
    "float8_e4m3fnuz": ("f8e4m3fnuz", 8),
    "float8_e4m3b11fnuz": ("f8e4m3b11fnuz", 8),
    "float8_e5m2": ("f8e5m2", 8),
    "float8_e5m2fnuz": ("f8e5m2fnuz", 8),
    "float8_e8m0fnu": ("f8e8m0fnu", 8),
}
_BITS = dict(_DTYPES.values())
_NUMPY_NAMES = {xla: name for name, (xla, _) in _DTYPES.items()}


def xla_dtype(numpy_name: str) -> str:
    """The XLA primitive type of a NumPy or ml_dtypes dtype name: ``bfloat16`` -> ``bf16``.

    Raises :class:`LayoutSyntaxError` for a dtype XLA does not have.
    """
    try:
        return _DTYPES[numpy_name][0]
    except KeyError:
        # some write XLA's own name
        close = difflib.get_close_matches(numpy_name, _DTYPES, n=1)
        meant = _NUMPY_NAMES.get(numpy_name) or (close[0] if close else None)
        raise LayoutSyntaxError(
            f"XLA has no element type for dtype {numpy_name!r}" + (f"; did you mean {meant}?" if meant else "")
        ) from None


def dtype_bits(xla_type: str) -> int:
    """Bits of one element of an XLA primitive type, unpacked layouts aside: ``s4`` -> 4, ``pred`` -> 8."""
    try:
        return _BITS[xla_type]
    except KeyError:
        raise LayoutSyntaxError(f"unknown XLA element type {xla_type!r}", expected=", ".join(sorted(_BITS))) from None


@dataclass(frozen=True, slots=True)
class Layout:
    """How the elements of an array lie in memory."""

    minor_to_major: tuple[int, ...]
    """Dimension numbers, fastest varying first."""
    tiles: tuple[tuple[int, ...], ...] = ()
    """Tile shapes, major to minor; each further tile cuts the tile before it."""
    tail_padding_elements: int = 1
    """The buffer is padded to a multiple of this many elements; XLA prints ``L(n)``."""
    element_bits: int = 0
    """Bits an element takes, where the layout says so (``E(n)``); 0: the dtype's, but at least 8."""
    memory_space: int = 0
    """XLA memory space; 0 is the device's default memory, 5 host memory."""

    @property
    def major_to_minor(self) -> tuple[int, ...]:
        """Dimension numbers, slowest varying first, as ``jax.experimental.layout.Layout`` has them."""
        return self.minor_to_major[::-1]

    def __str__(self) -> str:
        attributes = ""
        if self.tiles:
            attributes += "T" + "".join(f"({','.join(_tile_dim(d) for d in tile)})" for tile in self.tiles)
        if self.tail_padding_elements != 1:
            attributes += f"L({self.tail_padding_elements})"
        if self.element_bits:
            attributes += f"E({self.element_bits})"
        if self.memory_space:
            attributes += f"S({self.memory_space})"
        order = ",".join(map(str, self.minor_to_major))
        return "{" + order + (":" + attributes if attributes else "") + "}"


def _tile_dim(extent: int) -> str:
    return "*" if extent == COMBINE else str(extent)


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """An array's element type, dimensions and, where known, layout."""

    dtype: str
    """XLA primitive type, e.g. ``bf16``."""
    dimensions: tuple[int, ...]
    """Logical extents, major dimension first."""
    layout: Layout | None = None
    """None: not stated; bytes are then those of the dense row-major array."""

    @property
    def numpy_dtype(self) -> str:
        """The NumPy or ml_dtypes name of the element type."""
        return _NUMPY_NAMES[self.dtype]

    @property
    def dense_bytes(self) -> int:
        """Bytes of the elements alone, with sub-byte elements at one byte each."""
        return math.prod(self.dimensions) * max(8, dtype_bits(self.dtype)) // 8

    @property
    def tiled_dimensions(self) -> tuple[int, ...]:
        """Extents of the physical array, major to minor: tile counts first, then the extents inside a tile."""
        if self.layout is None:
            return self.dimensions
        physical = [self.dimensions[d] for d in self.layout.major_to_minor]
        for tile in self.layout.tiles:
            physical = _apply_tile(physical, tile)
        return tuple(physical)

    @property
    def device_bytes(self) -> int:
        """Bytes of the buffer on one device, tile padding included; 0 for an array without elements."""
        if 0 in self.dimensions:
            return 0
        layout = self.layout
        elements = math.prod(self.tiled_dimensions)
        bits = max(8, dtype_bits(self.dtype))
        if layout is not None:
            elements = -(-elements // layout.tail_padding_elements) * layout.tail_padding_elements
            bits = layout.element_bits or bits
        return -(-elements * bits // 8)

    def __str__(self) -> str:
        dimensions = ",".join(map(str, self.dimensions))
        # XLA leaves the braces of a scalar out when there is nothing in them.
        layout = "" if self.layout is None or self.layout == Layout(()) else str(self.layout)
        return f"{self.dtype}[{dimensions}]{layout}"


@dataclass(frozen=True, slots=True)
class TupleShape:
    """A tuple of shapes, as a program with several results has."""

    elements: tuple[ArrayShape | TupleShape, ...]
    """The shapes in order."""

    @property
    def device_bytes(self) -> int:
        """Bytes of all elements, without the table of pointers to them."""
        return sum(element.device_bytes for element in self.elements)

    def __str__(self) -> str:
        return "(" + ", ".join(map(str, self.elements)) + ")"


Shape = ArrayShape | TupleShape


def _apply_tile(physical: list[int], tile: tuple[int, ...]) -> list[int]:
    # A shape shorter than its tile is padded with leading 1s (openxla.org/xla/tiled_layout).
    physical = [1] * (len(tile) - len(physical)) + physical
    split = len(physical) - len(tile)
    counts: list[int] = []
    extents: list[int] = []
    merged = 1
    for dimension, extent in zip(physical[split:], tile, strict=True):
        if extent == COMBINE:
            merged *= dimension
            continue
        counts.append(-(-merged * dimension // extent))
        extents.append(extent)
        merged = 1
    return physical[:split] + counts + extents


_ARRAY = re.compile(r"\s*([a-z][a-z0-9]*)\[([^\]]*)\](\{[^}]*\})?")
_LAYOUT = re.compile(r"\{([0-9,\s]*)(?::([^}]*))?\}")
_ATTRIBUTE = re.compile(r"(T)((?:\([0-9*,\s]*\))+)|([LES])\((\d{1,18})\)")


def parse(text: str) -> Shape:
    """The shape that ``text`` describes, e.g. ``bf16[16,1280,40]{1,2,0:T(8,128)(2,1)}`` or ``(f32[], s32[4])``.

    Raises :class:`LayoutSyntaxError` that shows where the text stops being a shape.
    """
    shape, end = _parse_shape(text, 0)
    if text[end:].strip():
        raise _syntax(text, end, "nothing more")
    return shape


def find(text: str) -> Iterator[ArrayShape]:
    """Every array shape with a layout in a longer text, such as an error message, in order."""
    for match in re.finditer(r"[a-z][a-z0-9]*\[[0-9,]*\]\{[^}]*\}", text):
        try:
            shape, _ = _parse_shape(match.group(), 0)
        except LayoutSyntaxError:
            continue
        if isinstance(shape, ArrayShape):
            yield shape


def parse_layout(text: str) -> Layout:
    """The layout that ``text`` describes, braces included. Raises :class:`LayoutSyntaxError`."""
    match = _LAYOUT.fullmatch(text.strip())
    if match is None:
        raise _syntax(text, 0, "a layout such as {1,0:T(8,128)}")
    order = _integers(match.group(1), text)
    if sorted(order) != list(range(len(order))):
        raise _syntax(text, 1, f"a permutation of 0 to {len(order) - 1}")
    tiles: tuple[tuple[int, ...], ...] = ()
    numbers: dict[str, int] = {}
    attributes, start, end = match.group(2) or "", match.start(2), 0
    while end < len(attributes):
        attribute = _ATTRIBUTE.match(attributes, end)
        name = attribute and (attribute.group(1) or attribute.group(3))
        if attribute is None or name is None or name in numbers or (name == "T" and tiles):
            raise _syntax(text, start + end, "each of T(...), L(n), E(n), S(n) at most once")
        if name == "T":
            tiles = tuple(_tile(part, text) for part in re.findall(r"\(([^)]*)\)", attribute.group(2)))
        else:
            numbers[name] = int(attribute.group(4))
        end = attribute.end()
    if numbers.get("L") == 0:
        raise _syntax(text, start, "a tail padding of at least one element")
    return Layout(
        minor_to_major=order,
        tiles=tiles,
        tail_padding_elements=numbers.get("L", 1),
        element_bits=numbers.get("E", 0),
        memory_space=numbers.get("S", 0),
    )


def _parse_shape(text: str, at: int) -> tuple[Shape, int]:
    opening = re.compile(r"\s*\(").match(text, at)
    if opening:
        return _parse_tuple(text, opening.end())
    match = _ARRAY.match(text, at)
    if match is None:
        raise _syntax(text, at, "a shape such as bf16[8,128]{1,0}")
    dtype, dimensions = match.group(1), _integers(match.group(2), text)
    dtype_bits(dtype)
    layout = parse_layout(match.group(3)) if match.group(3) else None
    if layout is not None and len(layout.minor_to_major) != len(dimensions):
        raise _syntax(text, match.start(3), f"a layout of {len(dimensions)} dimensions")
    return ArrayShape(dtype, dimensions, layout), match.end()


_MAX_TUPLE_DEPTH = 64


def _parse_tuple(text: str, at: int) -> tuple[TupleShape, int]:
    if text.count("(", 0, at) - text.count(")", 0, at) > _MAX_TUPLE_DEPTH:
        raise _syntax(text, at, f"tuples at most {_MAX_TUPLE_DEPTH} deep")
    elements: list[Shape] = []
    end = re.compile(r"\s*").match(text, at).end()  # type: ignore[union-attr]  # an empty match always exists
    while not text.startswith(")", end):
        element, end = _parse_shape(text, end)
        elements.append(element)
        # XLA prints /*index=5*/ before every fifth element of a long tuple.
        separator = re.compile(r"\s*(,\s*(/\*index=\d+\*/)?|(?=\)))").match(text, end)
        if separator is None:
            raise _syntax(text, end, "',' or ')'")
        end = separator.end()
    return TupleShape(tuple(elements)), end + 1


def _integers(text: str, whole: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if not all(re.fullmatch(r"\d{1,18}", part) for part in parts):
        raise _syntax(whole, max(whole.find(text), 0), "non-negative integers separated by commas")
    return tuple(int(part) for part in parts)


def _tile(text: str, whole: str) -> tuple[int, ...]:
    extents = tuple(COMBINE if part.strip() == "*" else _integers(part, whole)[0] for part in text.split(",") if part)
    if not extents or 0 in extents or extents[-1] == COMBINE:
        raise _syntax(whole, max(whole.find(text), 0), "tile extents of at least 1, the last one not '*'")
    return extents


def _syntax(text: str, at: int, expected: str) -> LayoutSyntaxError:
    shown = text if len(text) <= 200 else text[:200] + "..."
    return LayoutSyntaxError(
        f"not an XLA shape: {shown!r}",
        where=f"character {at}",
        expected=expected,
        found=repr(text[at : at + 24]) if text[at : at + 24] else "the end of the text",
    )
