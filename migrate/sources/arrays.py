"""Finds stored arrays in a key-value store, and makes leaves of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from migrate import storage
from migrate.errors import CorruptCheckpointError
from migrate.sources import zarr_documents
from migrate.sources.base import Leaf, MissingChunks
from migrate.sources.dtypes import dtype_named
from migrate.sources.readers import tensorstore_reader
from migrate.sources.zarr_documents import DOCUMENTS, Driver, Fetched

DATABASE = "manifest.ocdbt"
"""File that makes a directory an OCDBT database."""


@dataclass(frozen=True, slots=True)
class FoundArray:
    """An array on storage, known by its metadata document."""

    kvstore: dict[str, Any]
    """TensorStore spec of the key-value store it lies in."""
    path: str
    """Its path there, without a slash at the end."""
    document: Fetched
    """Its metadata document."""

    @property
    def key(self) -> str:
        """Key of the metadata document in the store."""
        return f"{self.path}/{DOCUMENTS[self.document.driver]}"


def find_arrays(kvstore: dict[str, Any], paths: Sequence[str], drivers: Sequence[Driver]) -> dict[str, FoundArray]:
    """The array at each of ``paths`` that has one, in the first of the formats ``drivers`` that it is found in.

    Raises :class:`CorruptCheckpointError` if the database cannot be read or a path leads out of the directory,
    :class:`migrate.errors.StorageError` if the store cannot be read.
    """
    found: dict[str, FoundArray] = {}
    if kvstore["driver"] != "ocdbt":
        require_inside(paths, zarr_documents.kvstore_uri(kvstore))
    # Format by format: as a rule a checkpoint has only one, and the second is then never looked for.
    for driver in drivers:
        wanted = [path for path in paths if path not in found]
        for path, document in zarr_documents.fetch(kvstore, wanted, driver).items():
            found[path] = FoundArray(kvstore, path, document)
    return found


def require_inside(paths: Iterable[str], where: str) -> None:
    """Refuse a path that does not name one file or directory below another, wherever it is read.

    That is an absolute one, one with ``..`` or a NUL, and one with a backslash, which TensorStore takes for a slash.
    Raises :class:`CorruptCheckpointError`, naming it.
    """
    for path in paths:
        if "\0" in path or "\\" in path or any(part in ("", ".", "..") for part in path.split("/")):
            raise CorruptCheckpointError(
                f"the name {path!r} is no plain path below the checkpoint",
                where=where,
                expected="a relative path without `..`, empty parts, backslashes and NULs",
                remedy="the file that lists it is damaged or forged: restore it; if the model has such a key, rename "
                "it and save again",
            )


def list_arrays(uri: str, *, ocdbt: bool) -> dict[str, FoundArray]:
    """Every array below the directory at ``uri``, or in the database there, by path; none inside another.

    Lists every key. Raises as :func:`find_arrays`.
    """
    import tensorstore as ts

    kvstore = zarr_documents.kvstore_spec(uri, ocdbt=ocdbt)
    if ocdbt:
        store = ts.KvStore.open(kvstore, context=zarr_documents.context()).result()
        try:
            keys = sorted(key.decode() for key in store.list().result())
        except (ValueError, OSError) as error:
            raise zarr_documents.read_error(error, "the database cannot be listed", uri) from error
    else:
        keys = storage.list_keys(uri)
    found: dict[str, FoundArray] = {}
    for driver, document in DOCUMENTS.items():
        paths = [key.removesuffix(f"/{document}") for key in keys if key.endswith(f"/{document}")]
        for path, fetched in zarr_documents.fetch(kvstore, paths, driver).items():
            if not zarr_documents.is_group(fetched):
                found.setdefault(path, FoundArray(kvstore, path, fetched))
    return found


def array_leaf(
    array: FoundArray,
    path: tuple[str, ...],
    sequence_levels: tuple[bool, ...],
    *,
    missing_chunks: MissingChunks,
    kind: str = "array",
    view_as: Mapping[str, str] = MappingProxyType({}),
) -> Leaf:
    """The leaf at ``path`` of the tree that is stored as ``array``.

    ``view_as`` maps names of stored dtypes to the dtypes whose bits they hold.

    Raises :class:`CorruptCheckpointError` naming leaf and file if the metadata document is broken, and
    :class:`migrate.errors.UnsupportedLeafError` for a dtype that cannot be carried.
    """
    name = "/".join(path)
    where = f"{name}: {zarr_documents.kvstore_uri(array.kvstore)}{array.key}"
    document = zarr_documents.parse(array.document, where)
    meant = view_as.get(document.dtype.name) if view_as else None
    return Leaf(
        path=path,
        shape=document.shape,
        dtype=document.dtype if meant is None else dtype_named(meant),
        reader=tensorstore_reader(
            array.kvstore, array.path, document.driver, name=name, missing_chunks=missing_chunks, view_as=meant
        ),
        chunk_shape=document.chunk_shape,
        sequence_levels=sequence_levels,
        kind=kind,
    )
