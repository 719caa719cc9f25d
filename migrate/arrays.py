"""The OCDBT databases that hold an export's arrays, and the digests of their chunks.

While a run goes each writer process fills a database of its own, ``ocdbt.process_<writer>/``; the commit merges them
into the root database without copying values. Workers never write ``zarr.json``: the commit does.
"""

from __future__ import annotations

import hashlib
import urllib.parse
from typing import TYPE_CHECKING, Any

from migrate import local_files, storage
from migrate.box import Box
from migrate.content import ContentSum, content_sum
from migrate.zarr import StoredArray

if TYPE_CHECKING:
    import numpy as np
    import tensorstore as ts


WRITER_PREFIX = "ocdbt.process_"
"""Orbax's name for the database of one writer process."""


def open_array(stored: StoredArray, database: dict[str, Any]) -> ts.TensorStore:
    """The array in the OCDBT ``database``. Its ``zarr.json`` is neither read nor written; absent chunks are errors."""
    import tensorstore as ts

    spec = {
        "driver": "zarr3",
        "kvstore": {**database, "path": stored.storage_name + "/"},
        "metadata": stored.zarr_metadata(),
        "store_data_equal_to_fill_value": True,
        "fill_missing_data_reads": False,
    }
    return ts.open(spec, context=storage.context(), open=True, assume_metadata=True).result()


def open_database(database: dict[str, Any]) -> ts.KvStore:
    """The key-value store of an OCDBT ``database``; all share one context, which merging needs."""
    import tensorstore as ts

    return ts.KvStore.open(database, context=storage.context()).result()


def root_database(uri: str) -> dict[str, Any]:
    """TensorStore JSON of the parameter set's root OCDBT database."""
    return {"driver": "ocdbt", "base": storage.kvstore_spec(uri)}


def writer_directory(writer: str) -> str:
    """Name of the directory that holds the database of one writer process, as Orbax names them."""
    return WRITER_PREFIX + writer


def writer_database(uri: str, writer: str) -> dict[str, Any]:
    """TensorStore JSON of the database that the process ``writer`` fills."""
    return root_database(storage.join(uri, writer_directory(writer)))


_flushed: set[str] = set()
"""Data files of this process that are on the disk; none is ever written twice."""


def flush_database(uri: str, writer: str) -> None:
    """Make everything that ``writer``, this process, has committed below ``uri`` so far survive a power loss.

    Object stores need none of it. Raises :class:`migrate.errors.StorageError`.
    """
    if storage.is_local(uri):
        folder = storage.join(uri, writer_directory(writer))
        keys = [key for key in storage.list_keys(folder) if not key.endswith(local_files.LOCK_SUFFIX)]
        fresh = [key for key in keys if f"{folder}/{key}" not in _flushed]
        storage.flush_files(folder, fresh)
        # the manifest is replaced by each commit
        _flushed.update(f"{folder}/{key}" for key in fresh if "/" in key)


def data_files(uri: str) -> dict[str, int]:
    """The files that the OCDBT database at ``uri`` needs, with the bytes each must have at least.

    Raises ValueError or OSError if the database itself cannot be read.
    """
    import tensorstore as ts

    base = storage.open_kvstore(uri)
    versions = ts.ocdbt.dump(base, context=storage.context()).result()["versions"]
    needed: dict[str, int] = {}
    pending = [versions[-1]["root"].get("location")]  # an empty tree has no root
    while pending:
        location = pending.pop()
        if location is None:
            continue
        # type:base path:file:offset:length, with escapes
        kind, folder, name, offset, length = location.split(":")
        file = urllib.parse.unquote(folder) + urllib.parse.unquote(name)
        needed[file] = max(needed.get(file, 0), int(offset) + int(length))
        if kind == "btreenode":
            entries = ts.ocdbt.dump(base, location, context=storage.context()).result()["entries"]
            pending += [entry.get("location") or entry.get("indirect_value") for entry in entries]
    return needed


def in_storage_order(chunk: np.ndarray) -> bytes | memoryview:
    """The bytes of an array whose dimensions already are in storage order."""
    import numpy as np

    return np.ascontiguousarray(chunk).reshape(-1).view(np.uint8).data


def chunk_digest(chunk: np.ndarray) -> str:
    """Hex SHA-256 of a chunk (clipped to the array) whose dimensions are in storage order."""
    return hashlib.sha256(in_storage_order(chunk)).hexdigest()


def content(elements: np.ndarray, box: Box, order: tuple[int, ...]) -> ContentSum:
    """The content digest of ``box`` of an array, whose ``elements`` have their dimensions permuted to ``order``."""
    import numpy as np

    return content_sum(elements.transpose(np.argsort(order)), box.start)


def permuted_slices(box: Box, order: tuple[int, ...]) -> tuple[slice, ...]:
    """The index of ``box`` in an array whose dimensions were permuted to ``order``."""
    slices = box.slices
    return tuple(slices[dimension] for dimension in order)
