"""What makes a directory an Orbax item: a tree of arrays, a single array, or a random key.

A single array (of ``ArrayCheckpointHandler``) lies in a directory ``checkpoint``; newer versions write a tree file too.
A random key (of the handlers for JAX and NumPy keys) is an item within an item: ``<name>/`` holds its data,
``<name>_metadata/`` says what kind of key it was.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from migrate import storage
from migrate.sources import steps
from migrate.sources.arrays import DATABASE
from migrate.sources.base import Leaf
from migrate.sources.orbax_tree import CHECKPOINT, KEY_METADATA, METADATA, is_bare_array
from migrate.sources.place import Place
from migrate.sources.zarr_documents import DOCUMENTS

PROCESS = "ocdbt.process_"
"""Start of the name of a writer process's own database."""
STRINGS = "_strings.json"
"""File with the texts of a tree."""

# Written beside a tree file, never without one.
_SIDE_FILES = frozenset({"_sharding", STRINGS})
# Written into a finished item or step, or into the step of an item.
_FINISHED_FILES = frozenset({steps.COMMITTED, "_CHECKPOINT_METADATA"})
_MAP_BYTES = frozenset([*range(0x80, 0x90), 0xDE, 0xDF])
_SEARCHED_FOLDERS = 3
_KEY_FILE = "metadata"
_KEY_FILE_BYTES = 64


def is_item(place: Place) -> bool:
    """Whether ``place`` is an item of arrays, whole or damaged."""
    files = place.files
    if METADATA in files or KEY_METADATA in place.folders or has_processes(place):
        return True
    if files & _SIDE_FILES and (place.folders or DATABASE in files):  # 0.3 gave each text a directory of its own
        return True
    if CHECKPOINT in files:
        first = place.start(CHECKPOINT)
        # Other software calls a text file `checkpoint` too; arrays beside it tell a damaged one of ours.
        return bool(first and first[0] in _MAP_BYTES) or _holds_arrays(place)
    return is_bare_array(place) or random_key(place) is not None or _lost_its_tree(place)


def has_processes(place: Place) -> bool:
    """Whether ``place`` holds the database of a writer process."""
    return any(name.startswith(PROCESS) for name in place.folders)


@dataclass(frozen=True, slots=True)
class RandomKey:
    """A random key that is an item."""

    place: Place
    """The item inside that holds its data."""
    kind: str
    """What it was, for people."""
    is_typed: bool
    """Whether it was a typed JAX key, whose data has a dtype of its own."""

    def leaf(self, leaf: Leaf) -> Leaf:
        """``leaf`` of the data as what it was. The implementation is not recorded; two words are threefry2x32."""
        if not self.is_typed:
            return leaf
        return replace(leaf, kind="prng_key", prng_impl="threefry2x32" if leaf.shape[-1:] == (2,) else None)


def random_key(place: Place) -> RandomKey | None:
    """The random key that ``place`` holds, if it is one."""
    if len(place.folders) != 2 or place.files - {steps.COMMITTED}:
        return None
    name, about = sorted(place.folders, key=len)
    if about != f"{name}_metadata" or _KEY_FILE not in place.child(about).files:
        return None
    try:
        said = json.loads(storage.read_range(place.child(about).uri, _KEY_FILE, 0, _KEY_FILE_BYTES))
    except ValueError:
        return None
    kinds = {
        '{"typed": true}': "JAX",
        '{"typed": false}': "JAX, as plain integers",
        '{"legacy": true}': "NumPy, a tuple",
        '{"legacy": false}': "NumPy, a mapping",
    }
    kind = kinds.get(json.dumps(said))
    return RandomKey(place.child(name), kind, kind == "JAX") if kind else None


def _holds_arrays(place: Place) -> bool:
    documents = set(DOCUMENTS.values())
    some = sorted(place.folders)[:_SEARCHED_FOLDERS]
    return DATABASE in place.files or any(documents & place.child(name).files for name in some)


def _lost_its_tree(place: Place) -> bool:
    """Whether arrays lie here whose tree file must have been lost, since Orbax finished this directory or its step."""
    if not _holds_arrays(place):
        return False
    return bool(place.files & _FINISHED_FILES) or storage.exists(place.parent, "_CHECKPOINT_METADATA")
