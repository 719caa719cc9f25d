"""The metadata documents of Zarr arrays: fetched many at once, and read without opening an array.

Opening a TensorStore costs about a millisecond; a checkpoint of 20,000 arrays is opened from its ``.zarray`` and
``zarr.json`` documents alone, all of whose reads are in flight together.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from migrate import storage
from migrate.box import Grid
from migrate.errors import CorruptCheckpointError, StorageError, UnsupportedLeafError
from migrate.sources.dtypes import logical_dtype
from migrate.sources.place import parse_json

if TYPE_CHECKING:
    import tensorstore as ts

Driver = Literal["zarr", "zarr3"]
"""TensorStore's name of the array format: Zarr v2 or v3."""

DOCUMENTS: dict[Driver, str] = {"zarr": ".zarray", "zarr3": "zarr.json"}
"""Name of the metadata document below an array's path."""

MAX_DOCUMENT_BYTES = 16 << 20
"""Upper bound, in bytes, of one metadata document."""

CACHE_BYTES = 64 << 20
"""Cache of a process, in bytes, for the nodes of OCDBT databases and the chunks read last."""

NOT_IN_ZARR = frozenset({"int1", "uint1", "uint2", "uint4", "float6_e2m3fn", "float6_e3m2fn", "float8_e4m3"})
"""Dtypes of ml_dtypes that TensorStore does not read from Zarr arrays."""

_IN_FLIGHT = 1024
_CACHED_BYTES = 4096
_LARGE_CHUNK_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class ArrayDocument:
    """What an array's metadata document says."""

    driver: Driver
    """Format of the array."""
    shape: tuple[int, ...]
    """Logical shape."""
    dtype: np.dtype[np.generic]
    """Logical dtype."""
    chunk_shape: tuple[int, ...]
    """The unit of reading; with sharding the inner chunk. Every extent at least 1."""
    stored_chunk_shape: tuple[int, ...]
    """The unit of storage: one key a chunk."""
    key_prefix: str
    """What every chunk's key starts with, after the array's path."""
    key_separator: str
    """What stands between the coordinates in a chunk's key."""

    def chunk_keys(self) -> Iterator[str]:
        """The key of every chunk the grid asks for, below the array's path, in C order."""
        grid = Grid(self.shape, self.stored_chunk_shape)
        if not self.shape:
            yield self.key_prefix.rstrip(self.key_separator) or "0"
            return
        for index in grid.indices():
            yield self.key_prefix + self.key_separator.join(map(str, index))


@dataclass(frozen=True, slots=True)
class Fetched:
    """One metadata document as it was found."""

    driver: Driver
    """Which kind of document it is."""
    text: bytes
    """Its content."""


@functools.lru_cache(maxsize=1)
def context() -> ts.Context:
    """The TensorStore context in which checkpoints are read: one, so that its cache is shared.

    Without a cache every chunk of an OCDBT database is found by reading the same nodes of its tree again.
    """
    import tensorstore as ts

    return ts.Context({"cache_pool": {"total_bytes_limit": CACHE_BYTES}})


def kvstore_spec(uri: str, *, ocdbt: bool) -> dict[str, Any]:
    """The key-value store of the directory at ``uri``, or of the OCDBT database in it."""
    base = storage.kvstore_spec(uri)
    return {"driver": "ocdbt", "base": base} if ocdbt else base


def fetch(kvstore: dict[str, Any], paths: Sequence[str], driver: Driver) -> dict[str, Fetched]:
    """The metadata document of each array path that has one; all reads are issued before any is awaited.

    Raises :class:`CorruptCheckpointError` if the database cannot be read, :class:`StorageError` if the store cannot.
    """
    import tensorstore as ts

    store = ts.KvStore.open(kvstore, context=context()).result()
    found: dict[str, Fetched] = {}
    for first in range(0, len(paths), _IN_FLIGHT):
        keys = {path: f"{path}/{DOCUMENTS[driver]}" for path in paths[first : first + _IN_FLIGHT]}
        futures = {path: store.read(key) for path, key in keys.items()}
        for path, future in futures.items():
            try:
                result = future.result()
            except (ValueError, OSError, NotImplementedError) as error:
                raise read_error(error, f"{keys[path]} cannot be read", kvstore_uri(kvstore)) from error
            if result.state == "value":
                found[path] = Fetched(driver, bytes(result.value))
    return found


def is_group(document: Fetched) -> bool:
    """Whether a Zarr v3 document describes a group of arrays, which holds no data itself."""
    return document.driver == "zarr3" and re.search(rb'"node_type"\s*:\s*"group"', document.text) is not None


def kvstore_uri(kvstore: dict[str, Any]) -> str:
    """A readable address of a key-value store spec."""
    if "base" in kvstore:
        return kvstore_uri(kvstore["base"])
    scheme = {"s3": "s3://", "gcs": "gs://"}.get(kvstore["driver"], "")
    bucket = f"{kvstore['bucket']}/" if "bucket" in kvstore else ""
    return f"{scheme}{bucket}{kvstore['path']}"


def read_error(error: BaseException, what: str, where: str) -> CorruptCheckpointError | StorageError:
    """The typed form of a TensorStore failure: trouble with the store itself is not called damage."""
    failure = storage.storage_error(what, where, error)
    text = failure.found or ""
    if any(code in text for code in ("PERMISSION_DENIED", "UNAUTHENTICATED", "UNAVAILABLE", "RESOURCE_EXHAUSTED")):
        return failure
    return CorruptCheckpointError(
        what,
        where=where,
        found=text,
        remedy="the data is damaged or incomplete: restore it from a copy, or use another step",
    )


def parse(document: Fetched, where: str) -> ArrayDocument:
    """What the document says.

    Raises :class:`CorruptCheckpointError` naming ``where`` if it is broken, and :class:`UnsupportedLeafError` for a
    dtype that cannot be carried.
    """
    if len(document.text) > _CACHED_BYTES:
        return _parse(document, where)
    try:
        return _parse_cached(document)
    except (CorruptCheckpointError, UnsupportedLeafError):
        return _parse(document, where)


@functools.lru_cache(maxsize=1024)
def _parse_cached(document: Fetched) -> ArrayDocument:
    """Most arrays of a model share their document with those of other layers; errors are not kept."""
    return _parse(document, "")


def _parse(document: Fetched, where: str) -> ArrayDocument:
    if len(document.text) > MAX_DOCUMENT_BYTES:
        raise CorruptCheckpointError(
            f"{DOCUMENTS[document.driver]} is too large to describe an array",
            where=where,
            expected=f"at most {MAX_DOCUMENT_BYTES:,} bytes",
            found=f"{len(document.text):,} bytes",
            remedy="restore the file from a copy of the checkpoint",
        )
    value = parse_json(document.text, where)
    try:
        array = _parse_v2(value, where) if document.driver == "zarr" else _parse_v3(value, where)
        _require_plausible_chunks(array)
        return array
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CorruptCheckpointError(
            f"{DOCUMENTS[document.driver]} does not describe an array",
            where=where,
            found=f"{type(error).__name__}: {error}",
            remedy="restore the file from a copy of the checkpoint",
        ) from error


def _require_plausible_chunks(array: ArrayDocument) -> None:
    """Refuse a large chunk that is larger still than its array: TensorStore ends a process that cannot allocate it."""
    chunk_bytes = math.prod(array.chunk_shape) * array.dtype.itemsize
    if chunk_bytes > _LARGE_CHUNK_BYTES and chunk_bytes > 2 * math.prod(array.shape) * array.dtype.itemsize:
        raise ValueError(f"chunks {list(array.chunk_shape)} of an array {list(array.shape)}")


def _parse_v2(value: dict[str, Any], where: str) -> ArrayDocument:
    chunks = _extents(value["chunks"], least=1)
    shape = _extents(value["shape"], least=0)
    if len(chunks) != len(shape):
        raise ValueError(f"shape {shape} with chunks {chunks}")
    return ArrayDocument(
        driver="zarr",
        shape=shape,
        dtype=_dtype(value["dtype"], where),
        chunk_shape=chunks,
        stored_chunk_shape=chunks,
        key_prefix="",
        key_separator=str(value.get("dimension_separator", ".")),
    )


def _parse_v3(value: dict[str, Any], where: str) -> ArrayDocument:
    if value["node_type"] != "array":
        raise ValueError(f"node_type is {value['node_type']!r}")
    shape = _extents(value["shape"], least=0)
    stored = _extents(value["chunk_grid"]["configuration"]["chunk_shape"], least=1)
    if len(stored) != len(shape):
        raise ValueError(f"shape {shape} with chunks {stored}")
    encoding = value["chunk_key_encoding"]
    default = encoding["name"] == "default"
    separator = str(encoding.get("configuration", {}).get("separator", "/" if default else "."))
    return ArrayDocument(
        driver="zarr3",
        shape=shape,
        dtype=_dtype(value["data_type"], where),
        chunk_shape=_inner_chunk(value["codecs"], stored),
        stored_chunk_shape=stored,
        key_prefix=f"c{separator}" if default else "",
        key_separator=separator,
    )


def _inner_chunk(codecs: list[dict[str, Any]], stored: tuple[int, ...]) -> tuple[int, ...]:
    """The chunk inside a shard, in the array's own order of dimensions; ``stored`` where nothing is sharded."""
    order = tuple(range(len(stored)))
    for codec in codecs:
        if codec["name"] == "transpose":
            by = codec["configuration"]["order"]
            order = tuple(order[dimension] for dimension in by)
        if codec["name"] == "sharding_indexed":
            inner = _extents(codec["configuration"]["chunk_shape"], least=1)
            chunk = [0] * len(stored)
            for extent, dimension in zip(inner, order, strict=True):
                chunk[dimension] = extent
            return tuple(chunk)
    return stored


def _extents(value: list[Any], *, least: int) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(extent) is int for extent in value):
        raise ValueError(f"extents {value!r}")
    extents = tuple(value)
    if any(extent < least for extent in extents) or math.prod(max(extent, 1) for extent in extents) >= 1 << 62:
        raise ValueError(f"extents {list(extents)}")
    return extents


def _dtype(name: object, where: str) -> np.dtype[np.generic]:
    dtype = logical_dtype(name) if isinstance(name, str) else None
    if dtype is None or dtype.name in NOT_IN_ZARR:
        raise UnsupportedLeafError(
            f"dtype {name!r} cannot be carried into an export",
            where=where,
            expected="a number, bool or complex dtype of NumPy or ml_dtypes",
            remedy="drop the leaf with a mapping rule, or convert it in the source",
        )
    return dtype
