"""T5X checkpoints: a msgpack tree and Zarr v2 arrays in one directory a step.

``checkpoint`` holds ``{"version": ..., "optimizer": tree}``. A partitioned array stands in the tree as its TensorStore
spec, whose path is relative to the directory; the rest is in the file itself. Version 2 stores bfloat16 as uint16.
"""

from __future__ import annotations

from typing import Any

from migrate import storage
from migrate.errors import CorruptCheckpointError
from migrate.sources import steps, zarr_documents
from migrate.sources.arrays import array_leaf, find_arrays
from migrate.sources.base import MissingChunks, SourceCheckpoint
from migrate.sources.identity import identity_of
from migrate.sources.msgpack_tree import MsgpackFile, is_array_spec, placeholder_of, walk
from migrate.sources.orbax_tree import METADATA
from migrate.sources.place import Place
from migrate.sources.steps import Chosen

_TREE = "checkpoint"
# The tree is a mapping of two; the first key follows its header of one byte.
_STARTS = (b"\x82\xa7version", b"\x82\xa9optimizer")
_UINT16_MEANS_BFLOAT16 = 2


class T5xFormat:
    """Recognises and opens T5X checkpoints."""

    name = "T5X"
    looks_for = "a msgpack file `checkpoint` with `version` and `optimizer`, or steps that have one"

    def recognises(self, place: Place) -> bool:
        """Whether ``place`` is a T5X step or a directory of steps."""
        if place.is_file or METADATA in place.files:
            return False
        if _TREE in place.files:  # its directories, of which there may be thousands, are arrays
            return _is_item(place)
        return any(_is_item(place.child(name)) for name in place.folders)

    def steps_in(self, place: Place) -> list[str] | None:
        """Names of the finished steps of this format directly in ``place``; None if it is no directory of steps."""
        return steps.steps_in(place, _is_item)

    def open(
        self, place: Place, *, step: int | None, item: str | None, missing_chunks: MissingChunks
    ) -> SourceCheckpoint:
        """Open it. Raises :class:`migrate.errors.SourceError`."""
        return _open_item(steps.resolve(place, step, item, _is_item), missing_chunks)


def _is_item(place: Place) -> bool:
    return _TREE in place.files and place.start(_TREE).startswith(_STARTS)


def _open_item(chosen: Chosen, missing_chunks: MissingChunks) -> SourceCheckpoint:
    place = chosen.place
    where = storage.join(place.uri, _TREE)
    file = MsgpackFile(place.uri, _TREE)
    root = file.tree()
    version = root["version"] if isinstance(root.get("version"), int) else None
    leaves, placeholders = [], []
    specs: dict[str, tuple[tuple[str, ...], tuple[bool, ...]]] = {}
    for path, levels, value in walk(root.get("optimizer"), is_leaf=is_array_spec):
        if isinstance(value, dict) and value:
            key = _array_path(value, f"{'/'.join(path)} in {where}")
            if key in specs:
                raise CorruptCheckpointError(
                    f"two leaves share the stored array {key!r}",
                    where=where,
                    found=f"{'/'.join(specs[key][0])} and {'/'.join(path)}",
                    remedy="the value of one of them is lost: restore the checkpoint from a copy",
                )
            specs[key] = (path, levels)
        elif (placeholder := placeholder_of(path, value, empty_dict="empty")) is not None:
            placeholders.append(placeholder)
        else:
            leaves.append(file.leaf(file.number_or_array(path, value), path, levels))
    arrays = find_arrays(zarr_documents.kvstore_spec(place.uri, ocdbt=False), list(specs), ("zarr", "zarr3"))
    for key, (path, levels) in specs.items():
        if key not in arrays:
            raise CorruptCheckpointError(
                f"the array {key} is missing",
                where=f"{'/'.join(path)} in {place.uri}",
                expected=f"{key}/.zarray",
                remedy="restore it from a copy of the checkpoint, or use another step",
            )
        old = version is not None and version <= _UINT16_MEANS_BFLOAT16
        view_as = {"uint16": "bfloat16"} if old else {}
        leaves.append(array_leaf(arrays[key], path, levels, missing_chunks=missing_chunks, view_as=view_as))
    return SourceCheckpoint(
        uri=place.uri,
        format="t5x",
        version="unknown" if version is None else f"t5x checkpoint version {version}",
        leaves=tuple(sorted(leaves, key=lambda leaf: leaf.path)),
        identity=identity_of(place.uri, {array.key: array.document.text for array in arrays.values()}),
        placeholders=tuple(sorted(placeholders, key=lambda placeholder: placeholder.path)),
        step=chosen.step,
        details={"arrays in the tree file": str(len(leaves) - len(specs)), **chosen.notes},
    )


def _array_path(spec: dict[str, Any], where: str) -> str:
    """Path of the array below the checkpoint; the spec's store and bucket are only where it was first saved."""
    kvstore = spec["kvstore"]
    path = kvstore.get("path") if isinstance(kvstore, dict) else None
    if not isinstance(path, str) or path.startswith("/") or ".." in path.split("/") or not path.strip("/"):
        raise CorruptCheckpointError(
            "an array's spec has no path below the checkpoint",
            where=where,
            found=repr(path),
            remedy="the file is damaged: restore it from a copy, or use another step",
        )
    return path.rstrip("/")
