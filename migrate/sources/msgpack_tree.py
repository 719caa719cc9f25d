"""Trees in msgpack files, as Flax and old Orbax write them, read without loading their arrays.

The arrays of such a file lie inside it as extension values. The scanner below reads only what stands around them and
notes where each one lies, so that a file of any size opens in little memory and its arrays are read box by box.
Extension codes: 1 an array, 2 a Python complex, 3 a NumPy scalar; an array or scalar is itself msgpack, the triple
(shape, dtype name, bytes). Nothing is unpickled; msgpack cannot hold code.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from migrate import storage
from migrate.errors import CorruptCheckpointError, UnsupportedLeafError
from migrate.sources import raw
from migrate.sources.base import Leaf, Placeholder
from migrate.sources.dtypes import logical_dtype
from migrate.sources.raw import RawReader, Segment

MAX_TREE_BYTES = 256 << 20
"""Upper bound, in bytes, of the keys, strings and numbers of a tree; its arrays do not count."""

MAX_TREE_VALUES = 8_000_000
"""Upper bound on the number of values in a tree, each of which takes some 100 bytes here and may take one there."""

_MAX_DEPTH = 200
_WINDOW_BYTES = 1 << 16
_ARRAY, _COMPLEX, _NUMPY_SCALAR = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Packed:
    """Bytes that were left in the file."""

    code: int | None
    """Extension code, or None for plain bytes."""
    start: int
    """Offset of the first byte in the file."""
    size: int
    """Number of bytes."""


@dataclass(frozen=True, slots=True)
class PackedArray:
    """An array whose bytes were left in the file."""

    shape: tuple[int, ...]
    """Shape of the array."""
    dtype_name: str
    """A NumPy or ml_dtypes name."""
    segments: tuple[Segment, ...]
    """Where its elements lie."""
    is_scalar: bool = False
    """Whether it was a NumPy scalar."""


NumberOrArray = PackedArray | bool | int | float | complex
"""What a leaf inside the file may be."""


class MsgpackFile:
    """One msgpack file: its tree, and the arrays in it."""

    def __init__(self, uri: str, key: str) -> None:
        self.uri = uri
        self.key = key
        self._window_start = 0
        self._window = b""
        self._read_bytes = 0
        self._values = 0

    def tree(self) -> Any:
        """The tree: dicts, lists, strings, numbers, bools, None, :class:`PackedArray` and, unread, :class:`Packed`.

        Raises :class:`CorruptCheckpointError` naming the file if it is truncated or no msgpack.
        """
        try:
            value, end = self._value(0, 0)
            # Payloads are skipped over, not read: that the last one is there is asked for explicitly.
            if self._bytes(end - 1, end) == b"" or self._bytes(end, end + 1, may_end=True):
                raise ValueError(f"the tree ends at byte {end:,}, the file does not")
        except (ValueError, struct.error, RecursionError, TypeError, OverflowError) as error:
            raise self._broken(str(error)) from error
        return value

    def number_or_array(self, path: tuple[str, ...], value: Any) -> NumberOrArray:
        """``value`` of the tree; raises :class:`CorruptCheckpointError` if it is neither a number nor an array."""
        if isinstance(value, NumberOrArray):
            return value
        raise CorruptCheckpointError(
            f"{self.key} holds a value of no known kind",
            where=f"{'/'.join(path)} in {storage.join(self.uri, self.key)}",
            found=repr(value),
            remedy="drop the leaf in the source, or report this with the version that wrote it",
        )

    def leaf(self, found: NumberOrArray, path: tuple[str, ...], levels: tuple[bool, ...]) -> Leaf:
        """The leaf at ``path`` that holds an array or number of this file.

        Raises :class:`UnsupportedLeafError` for a dtype that cannot be carried.
        """
        name = "/".join(path)
        where = f"{name} in {storage.join(self.uri, self.key)}"
        if not isinstance(found, PackedArray):
            number = raw.value_reader(found)
            dtype = logical_dtype(number.dtype_name) if number else None
            if number is None or dtype is None:
                raise UnsupportedLeafError("an integer beyond 64 bits cannot be carried", where=where)
            return Leaf(path, (), dtype, number, (), levels, kind="scalar")
        dtype = logical_dtype(found.dtype_name)
        if dtype is None:
            raise UnsupportedLeafError(
                f"dtype {found.dtype_name!r} cannot be carried into an export",
                where=where,
                expected="a number, bool or complex dtype of NumPy or ml_dtypes",
                remedy="drop the leaf with a mapping rule, or convert it in the source",
            )
        reader = RawReader(self.uri, self.key, name, found.dtype_name, found.shape, found.segments)
        chunk = raw.chunk_shape(found.shape, dtype.itemsize)
        kind = "scalar" if found.is_scalar else "array"
        return Leaf(path, found.shape, dtype, reader, chunk, levels, kind=kind)

    def _broken(self, found: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(
            f"{self.key} is not a whole msgpack tree",
            where=storage.join(self.uri, self.key),
            found=found,
            remedy="the file is truncated or damaged: restore it from a copy, or use another step",
        )

    def _value(self, at: int, depth: int) -> tuple[Any, int]:
        """(the value that starts at byte ``at``, the byte after it)."""
        if depth > _MAX_DEPTH:
            raise ValueError(f"nested deeper than {_MAX_DEPTH}")
        self._values += 1
        if self._values > MAX_TREE_VALUES:
            raise ValueError(f"the tree has more than {MAX_TREE_VALUES:,} values")
        kind, count, at = self._header(at)
        if kind == "map":
            mapping: dict[Any, Any] = {}
            for _ in range(count):
                key, at = self._value(at, depth + 1)
                if isinstance(key, (dict, list, Packed)):
                    raise ValueError(f"a mapping key before byte {at:,} is no string or number")
                mapping[key], at = self._value(at, depth + 1)
            if len(mapping) != count:
                raise ValueError(f"a mapping before byte {at:,} has a key twice")
            return mapping, at
        if kind == "array":
            items = []
            for _ in range(count):
                item, at = self._value(at, depth + 1)
                items.append(item)
            return items, at
        if kind == "str":
            return self._bytes(at, at + count).decode(), at + count
        if kind == "bin":
            return Packed(None, at, count), at + count
        if kind == "ext":
            code = struct.unpack(">b", self._bytes(at, at + 1))[0]
            return self._extension(Packed(code, at + 1, count)), at + 1 + count
        return self._number(kind, count, at)

    def _extension(self, packed: Packed) -> PackedArray | Packed | complex:
        """What an extension value holds; itself for a code that is none of Flax's."""
        if packed.code == _COMPLEX:
            (real, imaginary), _ = self._value(packed.start, 0)
            return complex(real, imaginary)
        if packed.code not in (_ARRAY, _NUMPY_SCALAR):
            return packed
        head, count, at = self._header(packed.start)
        if head != "array" or count != 3:
            raise ValueError(f"the array at byte {packed.start:,} is no triple")
        extents, at = self._value(at, 0)
        dtype_name, at = self._value(at, 0)
        # Old writers did not tell bytes from text: after either header come the elements.
        _, size, first = self._header(at)
        shape = tuple(int(extent) for extent in extents)
        if any(extent < 0 for extent in shape) or first + size > packed.start + packed.size:
            raise ValueError(f"the array at byte {packed.start:,} has shape {list(shape)} and {size:,} bytes")
        dtype = logical_dtype(str(dtype_name))
        elements = math.prod(shape)
        if dtype is not None and elements * dtype.itemsize != size:
            raise ValueError(f"the array at byte {packed.start:,} has {size:,} bytes for {dtype_name}{list(shape)}")
        return PackedArray(shape, str(dtype_name), (Segment(0, first, elements),), packed.code == _NUMPY_SCALAR)

    def _number(self, kind: str, count: int, at: int) -> tuple[Any, int]:
        if kind == "constant":
            return (None, False, True)[count], at
        if kind == "int":
            return count, at
        size = struct.calcsize(kind)
        return struct.unpack(kind, self._bytes(at, at + size))[0], at + size

    def _header(self, at: int) -> tuple[str, int, int]:
        """(kind of value, its count or value, the byte after the header)."""
        byte = self._bytes(at, at + 1)[0]
        at += 1
        for low, high, kind, base in _FIXED:
            if low <= byte <= high:
                return kind, byte - base, at
        if byte not in _SIZED:
            raise ValueError(f"byte {byte:#04x} at {at - 1:,} starts no value")
        kind, form = _SIZED[byte]
        if form.isdigit():
            return kind, int(form), at
        if not form:
            return kind, 0, at
        size = struct.calcsize(form)
        return kind, struct.unpack(form, self._bytes(at, at + size))[0], at + size

    def _bytes(self, start: int, stop: int, *, may_end: bool = False) -> bytes:
        """Bytes of the file, through a window that holds the neighbourhood of the last read."""
        self._read_bytes += stop - start
        if self._read_bytes > MAX_TREE_BYTES:
            raise ValueError(f"keys and strings hold more than {MAX_TREE_BYTES:,} bytes")
        if start < self._window_start or stop > self._window_start + len(self._window):
            self._window = storage.read_range(self.uri, self.key, start, max(stop, start + _WINDOW_BYTES))
            self._window_start = start
        found = self._window[start - self._window_start : stop - self._window_start]
        if len(found) != stop - start and not may_end:
            raise ValueError(f"the file ends before byte {stop:,}")
        return found


def walk(
    value: Any,
    path: tuple[str, ...] = (),
    levels: tuple[bool, ...] = (),
    *,
    is_leaf: Callable[[dict[Any, Any]], bool] = lambda _: False,
) -> Iterator[tuple[tuple[str, ...], tuple[bool, ...], Any]]:
    """(path, sequence levels, value) of everything in a tree that is not a filled dict or list.

    A dict of which ``is_leaf`` says so is not looked into.
    """
    if isinstance(value, dict) and value and not is_leaf(value):
        for key, child in value.items():
            yield from walk(child, (*path, str(key)), (*levels, False), is_leaf=is_leaf)
    elif isinstance(value, list) and value:
        for index, child in enumerate(value):
            yield from walk(child, (*path, str(index)), (*levels, True), is_leaf=is_leaf)
    else:
        yield path, levels, value


def is_array_spec(value: dict[Any, Any]) -> bool:
    """Whether a dict of the tree is the TensorStore spec of an array, as T5X writes it."""
    return "driver" in value and "kvstore" in value


def placeholder_of(path: tuple[str, ...], value: Any, *, empty_dict: str) -> Placeholder | None:
    """The placeholder for text, None or an empty container; ``empty_dict`` is the kind that ``{}`` stands for."""
    if isinstance(value, str):
        return Placeholder(path, "string", value)
    if value is None:
        return Placeholder(path, "none")
    if isinstance(value, (dict, list)) and not value:
        return Placeholder(path, "empty_list" if isinstance(value, list) else empty_dict)
    return None


def starts_like_tree(uri: str, key: str) -> bool:
    """Whether a file begins like a msgpack mapping with text for keys; reads a few bytes."""
    start = storage.read_range(uri, key, 0, 6)
    if not start:
        return False
    fixed, sized = 0x80 < start[0] < 0x90, {0xDE: 3, 0xDF: 5}.get(start[0])
    at = 1 if fixed else sized
    return at is not None and len(start) > at and (0xA0 <= start[at] < 0xC0 or start[at] in (0xD9, 0xDA, 0xDB))


# First bytes that carry a small value or length in themselves: (from, to, kind, what to subtract).
_FIXED = (
    (0x00, 0x7F, "int", 0),
    (0xE0, 0xFF, "int", 0x100),
    (0x80, 0x8F, "map", 0x80),
    (0x90, 0x9F, "array", 0x90),
    (0xA0, 0xBF, "str", 0xA0),
    (0xC0, 0xC0, "constant", 0xC0),
    (0xC2, 0xC3, "constant", 0xC1),
)

# The other first bytes: (kind, how the length that follows is packed, or the length itself). A number's kind is how
# the number that follows is packed.
_SIZED = {
    0xC4: ("bin", ">B"),
    0xC5: ("bin", ">H"),
    0xC6: ("bin", ">I"),
    0xC7: ("ext", ">B"),
    0xC8: ("ext", ">H"),
    0xC9: ("ext", ">I"),
    0xCA: (">f", ""),
    0xCB: (">d", ""),
    0xCC: (">B", ""),
    0xCD: (">H", ""),
    0xCE: (">I", ""),
    0xCF: (">Q", ""),
    0xD0: (">b", ""),
    0xD1: (">h", ""),
    0xD2: (">i", ""),
    0xD3: (">q", ""),
    0xD4: ("ext", "1"),
    0xD5: ("ext", "2"),
    0xD6: ("ext", "4"),
    0xD7: ("ext", "8"),
    0xD8: ("ext", "16"),
    0xD9: ("str", ">B"),
    0xDA: ("str", ">H"),
    0xDB: ("str", ">I"),
    0xDC: ("array", ">H"),
    0xDD: ("array", ">I"),
    0xDE: ("map", ">H"),
    0xDF: ("map", ">I"),
}
