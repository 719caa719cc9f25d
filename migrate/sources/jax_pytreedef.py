"""The tree in a ``pytreedef.json`` of ``jax.experimental.array_serialization``, read without jax.

The tree is a flatbuffer of nested nodes (jax/_src/export/serialization.fbs): field 0 is the kind of a node, 1 its
children, 2 the keys of a dict's children. Beside it stands a description of each leaf, in the tree's order.
"""

from __future__ import annotations

import base64
import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from migrate.errors import CorruptCheckpointError
from migrate.sources.base import Placeholder
from migrate.sources.place import parse_json

_TREE, _LEAVES = "__jax_pytreedef_repr", "__jax_leaf_ids"
_LEAF, _NONE, _TUPLE, _LIST, _DICT, _CUSTOM = range(6)
_EMPTY = {_NONE: "none", _TUPLE: "empty_tuple", _LIST: "empty_list", _DICT: "empty_dict", _CUSTOM: "empty"}
_MAX_DEPTH = 200

_Path = tuple[str, ...]
_Levels = tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class TreeLeaf:
    """An array of the tree."""

    path: tuple[str, ...]
    """Keys from the root; children of a custom node are numbered."""
    sequence_levels: tuple[bool, ...]
    """For each key: whether its container is numbered rather than named."""
    name: str
    """Name of the array on storage: the number of the leaf in the tree's order."""


def read_tree(text: bytes, where: str) -> tuple[list[TreeLeaf], list[Placeholder]]:
    """(every array, every position without one).

    Raises :class:`CorruptCheckpointError` naming ``where`` if the file is broken.
    """
    document = parse_json(text, where)
    leaves: list[TreeLeaf] = []
    placeholders: list[Placeholder] = []
    count = 0
    try:
        buffer = base64.b64decode(document[_TREE], validate=True)
        described: list[Any] = document[_LEAVES]
        (root,) = struct.unpack_from("<I", buffer)
        for path, levels, kind in _walk(buffer, root, (), (), itertools.count()):
            if kind != _LEAF:
                placeholders.append(Placeholder(path, _EMPTY[kind]))
                continue
            description = described[count]
            if description in (None, "null"):
                placeholders.append(Placeholder(path, "none"))
            else:
                leaves.append(TreeLeaf(path, levels, str(count)))
            count += 1
        if count != len(described):
            raise ValueError(f"the tree has {count} leaves, {len(described)} are described")
    except (LookupError, TypeError, ValueError, struct.error) as error:
        raise CorruptCheckpointError(
            f"{where.rpartition('/')[2]} does not hold a tree",
            where=where,
            found=f"{type(error).__name__}: {error}",
            remedy="restore the file from a copy of the checkpoint",
        ) from error
    return leaves, placeholders


def _walk(
    buffer: bytes, table: int, path: _Path, levels: _Levels, visited: Iterator[int]
) -> Iterator[tuple[_Path, _Levels, int]]:
    """(path, levels, kind) of every leaf and empty container below the node at byte ``table``."""
    if next(visited) > len(buffer):  # more nodes than bytes: they refer to each other
        raise ValueError("the tree is not one")
    if len(path) > _MAX_DEPTH:
        raise ValueError(f"nested deeper than {_MAX_DEPTH}")
    at = _field(buffer, table, 0)
    kind = buffer[at] if at else _LEAF
    if kind not in range(_CUSTOM + 1):
        raise ValueError(f"node kind {kind}")
    children = _vector(buffer, table, 1)
    names = [_string(buffer, at) for at in _vector(buffer, table, 2)]
    if not children or kind in (_LEAF, _NONE):
        yield path, levels, kind
        return
    if kind == _DICT and len(names) != len(children):
        raise ValueError(f"{len(children)} children with {len(names)} keys")
    for index, child in enumerate(children):
        key = names[index] if kind == _DICT else str(index)
        yield from _walk(buffer, child, (*path, key), (*levels, kind != _DICT), visited)


def _field(buffer: bytes, table: int, number: int) -> int:
    """Byte of a table's field, or 0 if it is left out."""
    vtable = table - int(struct.unpack_from("<i", buffer, table)[0])
    (size,) = struct.unpack_from("<H", buffer, vtable)
    slot = 4 + 2 * number
    if slot >= size:
        return 0
    (offset,) = struct.unpack_from("<H", buffer, vtable + slot)
    return table + int(offset) if offset else 0


def _vector(buffer: bytes, table: int, number: int) -> list[int]:
    """Bytes at which the elements of a field that is a vector of tables or strings start."""
    at = _field(buffer, table, number)
    if not at:
        return []
    at += int(struct.unpack_from("<I", buffer, at)[0])
    (count,) = struct.unpack_from("<I", buffer, at)
    if 4 * count > len(buffer):
        raise ValueError(f"a vector of {count} elements in {len(buffer)} bytes")
    slots = range(at + 4, at + 4 + 4 * count, 4)
    return [slot + int(struct.unpack_from("<I", buffer, slot)[0]) for slot in slots]


def _string(buffer: bytes, at: int) -> str:
    (size,) = struct.unpack_from("<I", buffer, at)
    return buffer[at + 4 : at + 4 + size].decode()
