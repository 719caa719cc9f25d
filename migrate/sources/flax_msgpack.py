"""Flax checkpoints: a msgpack file a step, with all arrays inside.

Two additions: an array above a limit (1 GiB) is cut into pieces under one dict, and multi-process runs put arrays
that no process had whole beside the file, as Zarr arrays in ``<file>_gda/``. Lists, tuples and dicts are all written
as mappings, so empty ones cannot be told apart.
"""

from __future__ import annotations

import math
from typing import Any

from migrate import storage
from migrate.errors import (
    AmbiguousCheckpointError,
    CorruptCheckpointError,
    UncommittedCheckpointError,
    UnknownFormatError,
)
from migrate.sources import steps, zarr_documents
from migrate.sources.arrays import FoundArray, array_leaf, find_arrays
from migrate.sources.base import MissingChunks, SourceCheckpoint
from migrate.sources.identity import identity_of
from migrate.sources.msgpack_tree import MsgpackFile, PackedArray, is_array_spec, placeholder_of, starts_like_tree, walk
from migrate.sources.place import Place
from migrate.sources.raw import Segment

_CHUNKED = "__msgpack_chunked_array__"
_BESIDE = "//GDAPlaceholder:"
_BESIDE_SUFFIX = "_gda"
_ORBAX = "PLACEHOLDER://"
_TEMPORARY = ("tmp", "_tmp", ".tmp")


class FlaxFormat:
    """Recognises and opens Flax msgpack files and directories of them."""

    name = "Flax msgpack"
    looks_for = "a msgpack file with a tree of arrays, or a directory of such files"

    def recognises(self, place: Place) -> bool:
        """Whether ``place`` is such a file, or a directory that holds some."""
        if place.is_file:
            return starts_like_tree(place.parent, place.name)
        return bool(_files(place))

    def steps_in(self, place: Place) -> list[str] | None:
        """Names of the finished steps of this format directly in ``place``; None if it is no directory of steps."""
        return _numbered(place) or None

    def open(
        self, place: Place, *, step: int | None, item: str | None, missing_chunks: MissingChunks
    ) -> SourceCheckpoint:
        """Open it; what stands around the arrays of the file is read, no array.

        Raises :class:`migrate.errors.SourceError`.
        """
        if place.is_file:
            steps.require_single(place, step, item)
            return _open_file(place.parent, place.name, missing_chunks)
        return _open_file(place.uri, _choose(place, step, item), missing_chunks)


def _files(place: Place) -> list[str]:
    return [name for name in sorted(place.files) if starts_like_tree(place.uri, name)]


def _numbered(place: Place) -> list[str]:
    """The finished files whose names give a step."""
    names = [name for name in place.files if steps.step_number(name) is not None and not name.endswith(_TEMPORARY)]
    return [name for name in sorted(names) if starts_like_tree(place.uri, name)]


def _choose(place: Place, step: int | None, item: str | None) -> str:
    names = [name for name in _files(place) if not name.endswith(_TEMPORARY)]
    if not names:
        raise UncommittedCheckpointError(
            "no checkpoint is finished",
            where=place.uri,
            found=", ".join(_files(place)),
            remedy="wait for its writer to finish",
        )
    steps.require_no_item(place, item)
    if numbered := _numbered(place):
        return steps.choose_step(place, numbered, step)
    steps.require_step(place, step)
    if len(names) > 1:
        raise AmbiguousCheckpointError(
            f"{len(names)} files hold a tree",
            where=place.uri,
            found=", ".join(names),
            remedy="give the path of the file that is meant",
        )
    return names[0]


def _open_file(folder: str, name: str, missing_chunks: MissingChunks) -> SourceCheckpoint:
    file = MsgpackFile(folder, name)
    where = storage.join(folder, name)
    leaves, placeholders = [], []
    beside: dict[str, tuple[tuple[str, ...], tuple[bool, ...]]] = {}
    for path, levels, found in walk(file.tree(), is_leaf=lambda value: _CHUNKED in value or is_array_spec(value)):
        if _lies_elsewhere(found):
            raise UnknownFormatError(
                "this file is the tree of an Orbax or T5X checkpoint, without its arrays",
                where=where,
                found=f"{'/'.join(path)} is {found}",
                remedy="give the path of the directory that holds the file",
            )
        value = _joined(found, f"{'/'.join(path)} in {where}") if isinstance(found, dict) and found else found
        if isinstance(value, str) and value.startswith(_BESIDE):
            beside[value.removeprefix(_BESIDE)] = (path, levels)
        elif (placeholder := placeholder_of(path, value, empty_dict="empty")) is not None:
            placeholders.append(placeholder)
        else:
            leaves.append(file.leaf(file.number_or_array(path, value), path, levels))
    arrays = _arrays_beside(folder, f"{name}{_BESIDE_SUFFIX}", list(beside))
    for key, (path, levels) in beside.items():
        leaves.append(array_leaf(arrays[key], path, levels, missing_chunks=missing_chunks))
    keys = [name, *(f"{name}{_BESIDE_SUFFIX}/{key}" for key in storage.list_keys(f"{where}{_BESIDE_SUFFIX}"))]
    details = {"arrays in the file": str(len(leaves) - len(beside))}
    return SourceCheckpoint(
        uri=where,
        format="flax-msgpack-gda" if beside else "flax-msgpack",
        version="unknown",
        leaves=tuple(sorted(leaves, key=lambda leaf: leaf.path)),
        identity=identity_of(folder, {array.key: array.document.text for array in arrays.values()}, keys=keys),
        placeholders=tuple(sorted(placeholders, key=lambda placeholder: placeholder.path)),
        step=steps.step_number(name),
        details={**details, "arrays beside it": str(len(beside))} if beside else details,
    )


def _lies_elsewhere(value: Any) -> bool:
    if isinstance(value, str):
        return value.startswith(_ORBAX)
    return isinstance(value, dict) and is_array_spec(value)


def _arrays_beside(folder: str, name: str, paths: list[str]) -> dict[str, FoundArray]:
    uri = storage.join(folder, name)
    arrays = find_arrays(zarr_documents.kvstore_spec(uri, ocdbt=False), paths, ("zarr",)) if paths else {}
    lost = [path for path in paths if path not in arrays]
    if lost:
        raise CorruptCheckpointError(
            f"{len(lost)} arrays beside the file are missing",
            where=uri,
            expected=", ".join(f"{path}/.zarray" for path in lost[:5]),
            remedy="the checkpoint was saved or copied in part: restore it from a copy, or use another step",
        )
    return arrays


def _joined(chunked: dict[Any, Any], where: str) -> PackedArray:
    """The array whose pieces, flat and in order, are in a dict of their own."""
    try:
        shape = tuple(int(chunked["shape"][str(axis)]) for axis in range(len(chunked["shape"])))
        pieces: list[PackedArray] = [chunked["chunks"][str(index)] for index in range(len(chunked["chunks"]))]
        segments = []
        first = 0
        for piece in pieces:
            (segment,) = piece.segments
            segments.append(Segment(first, segment.start, segment.count))
            first += segment.count
        dtypes = {piece.dtype_name for piece in pieces}
        if first != math.prod(shape) or len(dtypes) != 1:
            raise ValueError(f"{first:,} elements of {sorted(dtypes)} for the shape {list(shape)}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptCheckpointError(
            "an array's pieces do not make it up",
            where=where,
            found=f"{type(error).__name__}: {error}",
            remedy="the file is damaged: restore it from a copy, or use another step",
        ) from error
    return PackedArray(shape, dtypes.pop(), tuple(segments))
