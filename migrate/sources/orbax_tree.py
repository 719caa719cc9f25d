"""The tree of an Orbax item: which leaves it has, and where each one's value lies.

Two files may describe it. ``_METADATA`` (JSON, since 0.3) names the type of each value and of each key;
``checkpoint`` (msgpack, up to 0.4) is the tree itself, with ``PLACEHOLDER://name`` in place of every array that has
files of its own, and with small or aggregated arrays inside. Where both exist ``checkpoint`` has the values and
``_METADATA`` adds the types.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from migrate import storage
from migrate.errors import CorruptCheckpointError, UnsupportedLeafError
from migrate.sources.base import Placeholder
from migrate.sources.msgpack_tree import MsgpackFile, NumberOrArray, placeholder_of, walk
from migrate.sources.place import Place
from migrate.sources.zarr_documents import DOCUMENTS

METADATA = "_METADATA"
CHECKPOINT = "checkpoint"
KEY_METADATA = "array_metadatas"
"""Directory with what each writer process recorded of its arrays."""

_PLACEHOLDER = "PLACEHOLDER://"
_SEQUENCE_KEY = 1
_EMPTY = {
    "None": "none",
    "Dict": "empty_dict",
    "List": "empty_list",
    "Tuple": "empty_tuple",
    "NamedTuple": "empty",
    "Unknown": "empty",
}


@dataclass(frozen=True, slots=True)
class Stored:
    """A leaf whose value has files of its own."""

    path: tuple[str, ...]
    """Keys from the root."""
    sequence_levels: tuple[bool, ...]
    """For each key: whether its container is a list or tuple."""
    name: str
    """Name of the value on storage."""
    value_type: str | None = None
    """Orbax's name of the type, e.g. ``jax.Array``, ``scalar``, ``string``; None where not recorded."""
    in_checkpoint: bool = False
    """Whether the value is said to lie in the ``checkpoint`` file after all."""


@dataclass(frozen=True, slots=True)
class Inline:
    """A leaf whose value lies in the ``checkpoint`` file."""

    path: tuple[str, ...]
    """Keys from the root."""
    sequence_levels: tuple[bool, ...]
    """For each key: whether its container is a list or tuple."""
    value: NumberOrArray
    """The number, or where the array lies."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Everything the tree files say."""

    stored: tuple[Stored, ...]
    """Leaves with files of their own."""
    inline: tuple[Inline, ...]
    """Leaves inside ``checkpoint``."""
    placeholders: tuple[Placeholder, ...]
    """Positions without an array."""
    files: tuple[str, ...]
    """The tree files that were read."""
    metadata: dict[str, Any]
    """What ``_METADATA`` says beside the tree; empty without that file."""
    keeps_lists: bool | None = None
    """Whether ``checkpoint`` tells lists from mappings; None if it cannot be known."""


def read_tree(place: Place) -> Tree:
    """The tree of the item at ``place``.

    Raises :class:`CorruptCheckpointError` naming the file if none is there, one is broken, or they disagree, and
    :class:`UnsupportedLeafError` if the tree is a single array.
    """
    typed = _from_metadata(place) if METADATA in place.files else None
    if CHECKPOINT in place.files:
        tree = _from_msgpack(place)
        return tree if typed is None else _merged(tree, typed, place)
    if typed is not None:
        return typed
    if is_bare_array(place):
        return Tree((Stored((CHECKPOINT,), (False,), CHECKPOINT),), (), (), (), {})
    raise CorruptCheckpointError(
        "the checkpoint has no tree",
        where=place.uri,
        expected=f"a file {METADATA} or {CHECKPOINT}",
        found=place.looked_at(),
        remedy="restore the file from a copy of the checkpoint",
    )


def is_bare_array(place: Place) -> bool:
    """Whether ``place`` holds a single array and no tree file: what versions before 0.11 made of an array."""
    if METADATA in place.files or CHECKPOINT not in place.folders or place.folders - {CHECKPOINT, KEY_METADATA}:
        return False
    return DOCUMENTS["zarr"] in place.child(CHECKPOINT).files


def _from_metadata(place: Place) -> Tree:
    document = place.read_json(METADATA)
    where = storage.join(place.uri, METADATA)
    stored: list[Stored] = []
    placeholders: list[Placeholder] = []
    try:
        for entry in document.pop("tree_metadata").values():
            keys = entry["key_metadata"]
            path = tuple(str(key["key"]) for key in keys)
            levels = tuple(key["key_type"] == _SEQUENCE_KEY for key in keys)
            value_type = str(entry["value_metadata"]["value_type"])
            if not path and value_type not in _EMPTY:
                raise UnsupportedLeafError(
                    "the whole tree is one array, which has no name that a parameter could be matched with",
                    where=place.uri,
                    remedy="save it under a key, as {name: array}, or with ArraySave as an item of its own",
                )
            if value_type in _EMPTY:
                placeholders.append(Placeholder(path, _EMPTY[value_type]))
            else:
                skipped = bool(entry["value_metadata"].get("skip_deserialize"))
                stored.append(Stored(path, levels, ".".join(path), value_type, skipped))
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptCheckpointError(
            f"{METADATA} is not an Orbax tree",
            where=where,
            found=f"{type(error).__name__}: {error}",
            remedy="restore the file from a copy of the checkpoint",
        ) from error
    return Tree(tuple(stored), (), tuple(placeholders), (METADATA,), document)


def _from_msgpack(place: Place) -> Tree:
    file = MsgpackFile(place.uri, CHECKPOINT)
    root = file.tree()
    stored: list[Stored] = []
    inline: list[Inline] = []
    placeholders: list[Placeholder] = []
    keeps_lists = _has_list(root)
    # An empty mapping is one for sure only where lists are not written as mappings.
    empty_dict = "empty_dict" if keeps_lists else "empty"
    for path, levels, value in walk(root):
        if isinstance(value, str) and value.startswith(_PLACEHOLDER):
            stored.append(Stored(path, levels, value.removeprefix(_PLACEHOLDER)))
        elif (placeholder := placeholder_of(path, value, empty_dict=empty_dict)) is not None:
            placeholders.append(placeholder)
        else:
            inline.append(Inline(path, levels, file.number_or_array(path, value)))
    return Tree(tuple(stored), tuple(inline), tuple(placeholders), (CHECKPOINT,), {}, keeps_lists)


def _has_list(root: Any) -> bool | None:
    """Whether the tree has a list: True; keys that count like one's: False; neither: None."""
    stack, counted = [root], False
    while stack:
        value = stack.pop()
        if isinstance(value, list):
            return True
        if isinstance(value, dict):
            counted = counted or "0" in value
            stack.extend(value.values())
    return False if counted else None


def _merged(tree: Tree, typed: Tree, place: Place) -> Tree:
    """``tree`` with the types that ``_METADATA`` gives to its leaves and empty containers."""
    types = {leaf.path: leaf.value_type for leaf in typed.stored}
    kinds = {placeholder.path: placeholder.kind for placeholder in typed.placeholders}
    stored = tuple(replace(leaf, value_type=types.get(leaf.path)) for leaf in tree.stored)
    known = {entry.path for entries in (tree.stored, tree.inline, tree.placeholders) for entry in entries}
    if lost := sorted(set(types) - known):
        raise CorruptCheckpointError(
            f"{CHECKPOINT} lacks leaves that {METADATA} lists",
            where=place.uri,
            found=", ".join("/".join(path) for path in lost[:5]) + (", ..." if len(lost) > 5 else ""),
            remedy="the two files are of different checkpoints: restore them from a copy",
        )
    placeholders = tuple(
        entry if entry.kind == "string" else replace(entry, kind=kinds.get(entry.path, entry.kind))
        for entry in tree.placeholders
    )
    return replace(
        tree, stored=stored, placeholders=placeholders, files=tree.files + typed.files, metadata=typed.metadata
    )
