"""Reads boxes of arrays that TensorStore opens."""

from __future__ import annotations

import functools
import itertools
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from migrate import storage
from migrate.box import Box
from migrate.errors import CorruptCheckpointError, SourceError, StorageError
from migrate.sources import ocdbt, zarr_documents
from migrate.sources.base import MissingChunks
from migrate.sources.dtypes import dtype_named
from migrate.sources.zarr_documents import Driver
from migrate.transposition import transposed

if TYPE_CHECKING:
    import tensorstore as ts

_OPEN_ARRAYS = 512
_SHOWN = 5
_NAMED_CHUNKS = 10_000_000


@dataclass(frozen=True, slots=True)
class TensorStoreReader:
    """Reads boxes of one array through TensorStore; opened once a process, when it is first read."""

    spec_json: str
    """The TensorStore spec as JSON text: hashable, picklable, without credentials."""
    name: str
    """The leaf's name, for messages."""
    missing_chunks: MissingChunks = "error"
    """What an absent chunk does."""
    view_as: str | None = None
    """The dtype whose bits the stored elements are, where that is another one of the same size."""

    def read(self, box: Box, *, storage_order: tuple[int, ...] | None = None) -> np.ndarray:
        """The elements of ``box``: ``box.size`` of them, C-contiguous in ``storage_order`` (default: C order).

        Raises :class:`CorruptCheckpointError` naming array, box and file if chunks are absent or damaged, and
        :class:`StorageError` if the store cannot be reached.
        """
        try:
            store, order = _open(self.spec_json)
            # as it lies: what TensorStore would permute on the way takes several times as long as doing it afterwards
            result: np.ndarray = store[box.slices].transpose(order).read(order="C").result()
        except (ValueError, OSError, NotImplementedError) as error:
            raise self._error(error, box) from error
        wanted = range(box.rank) if storage_order is None else storage_order
        result = transposed(result, [order.index(dimension) for dimension in wanted])
        return result if self.view_as is None else result.view(dtype_named(self.view_as))

    def to_json(self) -> dict[str, object]:
        """The reader's kind, TensorStore spec, treatment of absent chunks, and dtype if it is not the stored one."""
        spec: dict[str, object] = json.loads(self.spec_json)
        told: dict[str, object] = {"reader": "tensorstore", "spec": spec, "missing_chunks": self.missing_chunks}
        return told if self.view_as is None else {**told, "view_as": self.view_as}

    def _error(self, error: BaseException, box: Box) -> SourceError | StorageError:
        spec: dict[str, Any] = json.loads(self.spec_json)
        where = f"{self.name} {box} in {_address(spec)}"
        failure = zarr_documents.read_error(error, f"array {self.name} cannot be read", where)
        if isinstance(failure, StorageError):
            return failure
        try:
            reason = self._lost_files(spec, where) or self._absent_chunks(spec, where, error)
        except (SourceError, StorageError, ValueError, OSError, LookupError):
            return failure
        return reason or failure

    def _lost_files(self, spec: dict[str, Any], where: str) -> CorruptCheckpointError | None:
        kvstore = spec["kvstore"]
        if kvstore["driver"] != "ocdbt":
            return None
        lost = ocdbt.lost_files(kvstore["base"], zarr_documents.kvstore_uri(kvstore))
        if not lost:
            return None
        return CorruptCheckpointError(
            f"array {self.name} cannot be read: data files of its database are missing",
            where=where,
            found=f"{len(lost):,} missing: {_shortened(lost)}",
            remedy="the checkpoint was copied or deleted in part: restore these files from a copy, or use another step",
        )

    def _absent_chunks(self, spec: dict[str, Any], where: str, error: BaseException) -> CorruptCheckpointError | None:
        if "is missing" not in str(error):
            return None
        absent, total = absent_chunks(spec)
        unnamed = "parts of chunks are absent" if total <= _NAMED_CHUNKS else "too many are absent to name them"
        return CorruptCheckpointError(
            f"array {self.name} has absent chunks",
            where=where,
            expected=f"{total:,} chunks",
            found=f"{len(absent):,} absent: {_shortened(absent)}" if absent else unnamed,
            remedy="if the writer leaves out chunks that hold only the fill value (Orbax 0.4.8 to 0.6.4 with Zarr v3 "
            "and jax.experimental.array_serialization do), `missing_chunks: zeros` accepts them; otherwise data is "
            "lost: restore it from a copy, or use another step",
        )


def tensorstore_reader(
    kvstore: dict[str, Any],
    path: str,
    driver: Driver,
    *,
    name: str,
    missing_chunks: MissingChunks,
    view_as: str | None = None,
) -> TensorStoreReader:
    """The reader of the array at ``path`` of a key-value store."""
    prefix = kvstore.get("path", "")
    spec = {
        "driver": driver,
        "kvstore": {**kvstore, "path": f"{prefix}{path}/"},
        "fill_missing_data_reads": missing_chunks == "zeros",
    }
    return TensorStoreReader(json.dumps(spec, sort_keys=True), name, missing_chunks, view_as)


def absent_chunks(spec: dict[str, Any]) -> tuple[list[str], int]:
    """(keys of chunks the array's grid asks for and the store lacks, number of chunks in the grid).

    No key if the grid has more than ten million: a damaged document may ask for any number. Lists every key of the
    array: for messages, not for the reading itself.
    """
    import tensorstore as ts

    store = ts.KvStore.open(spec["kvstore"], context=storage.context()).result()
    driver: Driver = spec["driver"]
    document = zarr_documents.DOCUMENTS[driver]
    text = bytes(store.read(document).result().value)
    array = zarr_documents.parse(zarr_documents.Fetched(driver, text), document)
    present = {key.decode() for key in store.list().result()}
    total = math.prod(-(-extent // chunk) for extent, chunk in zip(array.shape, array.stored_chunk_shape, strict=True))
    if total > _NAMED_CHUNKS:
        return [], total
    return list(itertools.filterfalse(present.__contains__, array.chunk_keys())), total


@functools.lru_cache(maxsize=_OPEN_ARRAYS)
def _open(spec_json: str) -> tuple[ts.TensorStore, tuple[int, ...]]:
    """The array, and the dimension order in which its chunks lie."""
    import tensorstore as ts

    spec = json.loads(spec_json)
    store = ts.open(spec, open=True, read=True, context=zarr_documents.context()).result()
    return store, tuple(store.chunk_layout.inner_order or range(store.rank))


def forget_opened() -> None:
    """Drop what this process keeps of stored arrays and databases, which may have been replaced since.

    TensorStore would take a database that lies where another one did for a damaged one, and read an array by the
    metadata it had before.
    """
    _open.cache_clear()
    zarr_documents.context.cache_clear()


def _address(spec: dict[str, Any]) -> str:
    kvstore = spec["kvstore"]
    root = zarr_documents.kvstore_uri(kvstore)
    return f"{root} (key {kvstore['path']})" if kvstore["driver"] == "ocdbt" else root


def _shortened(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
