"""Safetensors: one file, or several with an index.

A file is the length of its header (8 bytes, little-endian), the header (JSON: name -> dtype, shape, byte offsets) and
the arrays as plain C-order bytes. Only headers are read when it is opened.
"""

from __future__ import annotations

import itertools
import math
import posixpath
import struct
from dataclasses import dataclass
from typing import Any

from migrate import storage
from migrate.errors import (
    AmbiguousCheckpointError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    UnsupportedLeafError,
)
from migrate.sources import raw, steps
from migrate.sources.arrays import require_inside
from migrate.sources.base import Leaf, MissingChunks, SourceCheckpoint
from migrate.sources.dtypes import logical_dtype
from migrate.sources.identity import identity_of
from migrate.sources.place import Place, parse_json
from migrate.sources.raw import RawReader, Segment

MAX_HEADER_BYTES = 100_000_000
"""Upper bound, in bytes, of a file's header: the same as the reference implementation's."""

_SUFFIX = ".safetensors"
_INDEX_SUFFIX = ".index.json"
_MAX_INDEX_BYTES = 256 << 20
_SMALLEST_HEADER = 2
_DTYPES = {
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{
        f"{letter}{bits}": f"{name}{bits}" for letter, name in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)
    },
    "BF16": "bfloat16",
    "BOOL": "bool",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}


class SafetensorsFormat:
    """Recognises and opens safetensors files and directories."""

    name = "safetensors"
    looks_for = "a file with a safetensors header, an index of such files, or a directory that holds them"

    def recognises(self, place: Place) -> bool:
        """Whether ``place`` is a file, an index, or a directory (of steps) with them."""
        if place.is_file:
            return _header_bytes(place.parent, place.name) is not None or _is_index(place.parent, place.name)
        return steps.holds_items(place, _holds_files)

    def steps_in(self, place: Place) -> list[str] | None:
        """Names of the finished steps of this format directly in ``place``; None if it is no directory of steps."""
        return steps.steps_in(place, _holds_files)

    def open(
        self, place: Place, *, step: int | None, item: str | None, missing_chunks: MissingChunks
    ) -> SourceCheckpoint:
        """Open it; ``item`` names one of several files or indices. Reads headers only; chunks cannot be missing.

        Raises :class:`migrate.errors.SourceError`.
        """
        if place.is_file:
            steps.require_single(place, step, item)
            return _open_files(place.parent, place.name, step=None, item=None)
        if choices := _choices(place):
            steps.require_step(place, step)
            number = steps.step_number(place.name)
            return _open_files(place.uri, _choose(place, choices, item), step=number, item=item)
        chosen = steps.resolve(place, step, item, _holds_files)
        name = _choose(chosen.place, _choices(chosen.place), None)
        return _open_files(chosen.place.uri, name, step=chosen.step, item=chosen.item)


def _choose(place: Place, choices: list[str], item: str | None) -> str:
    if item is None and len(choices) > 1:
        raise AmbiguousCheckpointError(
            f"{len(choices)} files hold arrays, and no index joins them",
            where=place.uri,
            found=", ".join(choices),
            remedy="name the one that is meant as the item, or give its path",
        )
    if item is not None and item not in choices:
        raise CheckpointNotFoundError(
            f"there is no item {item!r}", where=place.uri, found=", ".join(choices), remedy="name one of these files"
        )
    return choices[0] if item is None else item


def _choices(place: Place) -> list[str]:
    """Indices in a directory, or its files if it has no index."""
    indices = [name for name in sorted(place.files) if name.endswith(_INDEX_SUFFIX) and _is_index(place.uri, name)]
    return indices or [
        name for name in sorted(place.files) if name.endswith(_SUFFIX) and _header_bytes(place.uri, name) is not None
    ]


def _holds_files(place: Place) -> bool:
    return bool(_choices(place))


def _is_index(uri: str, name: str) -> bool:
    start = storage.read_range(uri, name, 0, 1)
    if start != b"{":
        return False
    try:
        index = parse_json(storage.read(uri, name, max_bytes=_MAX_INDEX_BYTES) or b"", name)
    except CorruptCheckpointError:
        # Cut short, but called an index and next to what it indexes.
        return name.endswith(_SUFFIX + _INDEX_SUFFIX)
    return isinstance(index.get("weight_map"), dict)


def _header_bytes(uri: str, name: str) -> int | None:
    """Length of the header, in bytes, if the file begins like one of ours."""
    start = storage.read_range(uri, name, 0, 9)
    if len(start) < 9 or start[8:] != b"{":
        return None
    size = int(struct.unpack("<Q", start[:8])[0])
    return size if _SMALLEST_HEADER <= size <= MAX_HEADER_BYTES else None


def _open_files(folder: str, name: str, *, step: int | None, item: str | None) -> SourceCheckpoint:
    contents: dict[str, bytes] = {}
    if _header_bytes(folder, name) is not None:
        files = [name]
        weights = None
    else:
        contents[name] = storage.read(folder, name, max_bytes=_MAX_INDEX_BYTES) or b""
        weights = _weight_map(contents[name], storage.join(folder, name))
        files = sorted(set(weights.values()))
    leaves: dict[str, Leaf] = {}
    unlisted: list[str] = []
    details: dict[str, str] = {"files": str(len(files))}
    for file in files:
        header = _read_header(folder, file)
        contents[f"{file} header"] = header.text
        details.update({key: str(value) for key, value in header.metadata.items()})
        for tensor, entry in header.entries.items():
            if weights is None or weights.get(tensor) == file:
                leaves[tensor] = _leaf(folder, file, tensor, entry, header)
            elif tensor not in weights:
                unlisted.append(f"{tensor} in {file}")
    if weights is not None and (lost := sorted(set(weights) - set(leaves))):
        raise CorruptCheckpointError(
            "the index lists arrays that its files lack",
            where=storage.join(folder, name),
            found=", ".join(f"{tensor} in {weights[tensor]}" for tensor in lost[:5]),
            remedy="index and files are of different checkpoints: restore them from a copy",
        )
    if unlisted:
        raise CorruptCheckpointError(
            f"the files hold {len(unlisted):,} arrays that the index does not list",
            where=storage.join(folder, name),
            found=", ".join(unlisted[:5]) + (", ..." if len(unlisted) > 5 else ""),
            remedy="index and files are of different checkpoints: restore them from a copy; or add the arrays to the "
            "index if they belong to it",
        )
    return SourceCheckpoint(
        uri=storage.join(folder, name),
        format="safetensors",
        version="unknown",
        leaves=tuple(sorted(leaves.values(), key=lambda leaf: leaf.path)),
        identity=identity_of(folder, contents, keys=sorted({name, *files})),
        step=step,
        item=item,
        details=details,
    )


def _weight_map(text: bytes, where: str) -> dict[str, str]:
    index = parse_json(text, where).get("weight_map")
    if not isinstance(index, dict) or not all(isinstance(file, str) for file in index.values()):
        raise CorruptCheckpointError(
            "the index has no weight_map of file names",
            where=where,
            remedy="the file is damaged: restore it from a copy",
        )
    require_inside(index.values(), where)
    return index


@dataclass(frozen=True, slots=True)
class _Header:
    text: bytes
    entries: dict[str, dict[str, Any]]
    metadata: dict[str, Any]
    data_start: int


def _read_header(folder: str, file: str) -> _Header:
    where = storage.join(folder, file)
    size = _header_bytes(folder, file)
    if size is None:
        raise _broken(where, "no header" if storage.exists(folder, file) else "the file is missing")
    text = storage.read_range(folder, file, 8, 8 + size)
    entries = parse_json(text, where, unique_keys=True)
    metadata = entries.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict):
        raise _broken(where, "__metadata__ is no mapping")
    end = 8 + size
    spans = []
    for tensor, entry in entries.items():
        try:
            start, stop = _integers(entry["data_offsets"])
            shape = _integers(entry["shape"])
            code = str(entry["dtype"])
        except (KeyError, TypeError, ValueError) as error:
            raise _broken(where, f"{tensor}: {type(error).__name__}: {error}") from error
        if not 0 <= start <= stop or any(extent < 0 for extent in shape):
            raise _broken(where, f"{tensor}: shape {list(shape)}, offsets {start} to {stop}")
        dtype = logical_dtype(_DTYPES.get(code, ""))
        if dtype is not None and math.prod(shape) * dtype.itemsize != stop - start:
            raise _broken(where, f"{tensor}: {entry['dtype']}{list(shape)} in {stop - start:,} bytes")
        if start < stop:
            spans.append((start, stop, tensor))
    spans.sort()
    for (_, stop, tensor), (start, _, other) in itertools.pairwise(spans):
        if start < stop:
            raise _broken(where, f"{tensor} and {other} overlap")
    end += max((stop for _, stop, _ in spans), default=0)
    if storage.read_range(folder, file, end - 1, end) == b"":
        raise _broken(where, f"the file ends before byte {end:,}")
    return _Header(text, entries, metadata, 8 + size)


def _integers(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(number) is int for number in value):
        raise ValueError(f"{value!r} where integers belong")
    return tuple(value)


def _leaf(folder: str, file: str, tensor: str, entry: dict[str, Any], header: _Header) -> Leaf:
    dtype_name = _DTYPES.get(str(entry.get("dtype")))
    dtype = logical_dtype(dtype_name) if dtype_name else None
    if dtype_name is None or dtype is None:
        raise UnsupportedLeafError(
            f"dtype {entry.get('dtype')!r} cannot be carried into an export",
            where=f"{tensor} in {storage.join(folder, file)}",
            expected=", ".join(sorted(_DTYPES)),
            remedy="convert the array in the source",
        )
    shape = tuple(int(extent) for extent in entry["shape"])
    segment = Segment(0, header.data_start + int(entry["data_offsets"][0]), math.prod(shape))
    reader = RawReader(folder, file, tensor, dtype_name, shape, (segment,))
    return Leaf((tensor,), shape, dtype, reader, raw.chunk_shape(shape, dtype.itemsize), (False,))


def _broken(where: str, found: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(
        f"{posixpath.basename(where)} is not a whole safetensors file",
        where=where,
        found=found,
        remedy="the file is truncated or damaged: restore it from a copy",
    )
