"""Reads boxes of arrays that lie as plain C-order bytes in a file: msgpack and safetensors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from migrate import storage
from migrate.box import Box
from migrate.errors import CorruptCheckpointError
from migrate.sources.dtypes import dtype_named
from migrate.transposition import transposed

READ_BYTES = 8 << 20
"""Upper bound, in bytes, of one read that serves more than a single row."""

_WORTH_A_READ_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of the array's elements that lies together in the file."""

    first: int
    """Number, in C order, of the first element."""
    start: int
    """Byte offset of that element in the file."""
    count: int
    """Number of elements."""


@dataclass(frozen=True, slots=True)
class RawReader:
    """Reads boxes of an array stored as little-endian C-order bytes, in byte ranges of one file."""

    uri: str
    """Directory of the file."""
    key: str
    """Name of the file."""
    name: str
    """The leaf's name, for messages."""
    dtype_name: str
    """Stored dtype: a NumPy or ml_dtypes name."""
    shape: tuple[int, ...]
    """Shape of the whole array."""
    segments: tuple[Segment, ...]
    """The runs, in order; together they are the whole array."""

    def read(self, box: Box, *, storage_order: tuple[int, ...] | None = None) -> np.ndarray:
        """The elements of ``box``, C-contiguous in ``storage_order`` (default: C order).

        Reads whole rows where the box cuts short ones, at most :data:`READ_BYTES` at a time. Raises
        :class:`CorruptCheckpointError` if the file is too short, :class:`migrate.errors.StorageError` if it cannot
        be read.
        """
        result = np.empty(box.shape, self._dtype)
        if box.size:
            for target, first, rows in _runs(self.shape, box, self._dtype.itemsize):
                stop = first + math.prod(rows.shape)
                whole = np.frombuffer(self._elements(first, stop, box), self._dtype).reshape(rows.shape)
                result[target] = whole[rows.inner]
        return transposed(result, storage_order) if storage_order else result

    def to_json(self) -> dict[str, object]:
        """The reader's kind, file and byte ranges."""
        return {
            "reader": "raw",
            "file": storage.join(self.uri, self.key),
            "dtype": self.dtype_name,
            "shape": list(self.shape),
            "segments": [[segment.first, segment.start, segment.count] for segment in self.segments],
        }

    @property
    def _dtype(self) -> np.dtype[np.generic]:
        return dtype_named(self.dtype_name)

    def _elements(self, first: int, stop: int, box: Box) -> bytes:
        """The bytes of elements ``first`` to ``stop`` in C order."""
        size = self._dtype.itemsize
        parts = []
        for segment in self.segments:
            a = max(first, segment.first)
            b = min(stop, segment.first + segment.count)
            if a < b:
                start = segment.start + (a - segment.first) * size
                parts.append(storage.read_range(self.uri, self.key, start, start + (b - a) * size))
        found = sum(map(len, parts))
        if found != (stop - first) * size:
            raise CorruptCheckpointError(
                f"array {self.name} is cut short",
                where=f"{self.name} {box} in {storage.join(self.uri, self.key)}",
                expected=f"{(stop - first) * size:,} bytes",
                found=f"{found:,} bytes",
                remedy="the file is truncated: restore it from a copy",
            )
        return parts[0] if len(parts) == 1 else b"".join(parts)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Consecutive elements as an array of ``shape``, of which ``inner`` is wanted."""

    shape: tuple[int, ...]
    inner: tuple[slice, ...]


def _runs(shape: tuple[int, ...], box: Box, itemsize: int) -> Iterator[tuple[tuple[slice | int, ...], int, _Rows]]:
    """Cut ``box`` into consecutive reads: (where in the box, first element, rows to read and what of them to keep)."""
    if not shape:
        yield (), 0, _Rows((), ())
        return
    row = math.prod(shape[1:])
    inner = box.slices[1:]
    # A long row of which the box wants a part is read by itself, and only that part of it.
    if row * itemsize > _WORTH_A_READ_BYTES and box.shape[1:] != shape[1:]:
        part = Box(box.start[1:], box.stop[1:])
        for i in range(box.start[0], box.stop[0]):
            for target, first, rows in _runs(shape[1:], part, itemsize):
                yield (i - box.start[0], *target), i * row + first, rows
        return
    step = max(1, READ_BYTES // max(row * itemsize, 1))
    for i in range(box.start[0], box.stop[0], step):
        j = min(i + step, box.stop[0])
        target = (slice(i - box.start[0], j - box.start[0]),)
        yield target, i * row, _Rows((j - i, *shape[1:]), (slice(None), *inner))


@dataclass(frozen=True, slots=True)
class ValueReader:
    """A number that the tree file itself holds, as an array of rank 0."""

    value: bool | int | float | complex
    """The number."""
    dtype_name: str
    """Its dtype: ``bool``, ``int64``, ``uint64``, ``float64`` or ``complex128``."""

    def read(self, box: Box, *, storage_order: tuple[int, ...] | None = None) -> np.ndarray:
        """The number with shape ``()``; ``box`` and ``storage_order`` are of rank 0."""
        del box, storage_order
        return np.array(self.value, self.dtype_name)

    def to_json(self) -> dict[str, object]:
        """The reader's kind and the number."""
        value = [self.value.real, self.value.imag] if isinstance(self.value, complex) else self.value
        return {"reader": "value", "value": value, "dtype": self.dtype_name}


def value_reader(value: bool | int | float | complex) -> ValueReader | None:
    """The reader of a Python number in the dtype NumPy gives it; None for an int beyond 64 bits."""
    if isinstance(value, int) and not isinstance(value, bool) and not -(1 << 63) <= value < 1 << 64:
        return None
    return ValueReader(value, np.asarray(value).dtype.name)


def chunk_shape(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """The unit in which an array of plain bytes is best read: whole rows, at most :data:`READ_BYTES`.

    >>> chunk_shape((4096, 1024), 4)
    (2048, 1024)
    """
    chunk = [max(extent, 1) for extent in shape]
    for axis in range(len(chunk)):
        row_bytes = math.prod(chunk[axis + 1 :]) * itemsize
        if chunk[axis] * row_bytes <= READ_BYTES:
            break
        chunk[axis] = max(1, READ_BYTES // row_bytes)
    return tuple(chunk)
