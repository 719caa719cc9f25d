"""Checkpoints of ``jax.experimental.array_serialization``, in its three forms.

- *pytree* (jax 0.7 and newer): ``pytreedef.json`` and a database ``array_store`` with an array for each leaf's number;
- *database*: one OCDBT database with an array a key, as ``get_tensorstore_spec(ocdbt=True)`` names it;
- *directories*: a directory an array; the directories above it are the tree.

The last two record neither containers nor None: keys that look like indices may have been either.

An Orbax or T5X checkpoint of directories that lost its tree file looks like the third form, but for the names of its
arrays: keys joined with dots. Such names are refused unless the directory is a Zarr group, which none of these writers
makes: then the names are meant as they are. A database of such names is opened, and said to have them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from migrate import storage
from migrate.errors import CorruptCheckpointError
from migrate.sources import steps, zarr_documents
from migrate.sources.arrays import DATABASE, FoundArray, array_leaf, find_arrays, list_arrays
from migrate.sources.base import Leaf, MissingChunks, SourceCheckpoint
from migrate.sources.identity import identity_of
from migrate.sources.jax_pytreedef import read_tree
from migrate.sources.place import Place
from migrate.sources.steps import Chosen
from migrate.sources.zarr_documents import DOCUMENTS

_TREE = "pytreedef.json"
_STORE = "array_store"
_SEARCHED_FOLDERS = 2000
_GROUPS = frozenset({".zgroup", "zarr.json"})


class JaxArraysFormat:
    """Recognises and opens what jax's own array serialization wrote."""

    name = "jax.experimental.array_serialization"
    looks_for = f"{_TREE}, an OCDBT database of arrays ({DATABASE}), or a tree of Zarr directories"

    def recognises(self, place: Place) -> bool:
        """Whether ``place`` has one of the three forms, or steps of the first two."""
        if place.is_file or not place.exists:
            return False
        return steps.holds_items(place, _is_item) or _holds_directories(place)

    def steps_in(self, place: Place) -> list[str] | None:
        """Names of the finished steps of this format directly in ``place``; None if it is no directory of steps."""
        return steps.steps_in(place, _is_item)

    def open(
        self, place: Place, *, step: int | None, item: str | None, missing_chunks: MissingChunks
    ) -> SourceCheckpoint:
        """Open it. Raises :class:`migrate.errors.SourceError`.

        A tree of directories has no steps: a step's number could not be told from the index of a list.
        """
        if not steps.holds_items(place, _is_item):
            steps.require_single(place, step, item)
            return _open_arrays(Chosen(place, place), missing_chunks, ocdbt=False)
        chosen = steps.resolve(place, step, item, _is_item)
        if _TREE in chosen.place.files:
            return _open_pytree(chosen, missing_chunks)
        return _open_arrays(chosen, missing_chunks, ocdbt=True)


def _is_item(place: Place) -> bool:
    return _TREE in place.files or DATABASE in place.files


def _holds_directories(place: Place) -> bool:
    """Whether an array lies below ``place``; looks at a bounded number of directories, the uppermost first."""
    documents = set(DOCUMENTS.values())
    pending = deque(place.child(name) for name in sorted(place.folders))
    for _ in range(_SEARCHED_FOLDERS):
        if not pending:
            return False
        folder = pending.popleft()
        if documents & folder.files:
            return True
        pending.extend(folder.child(name) for name in sorted(folder.folders))
    return False


def _databases(place: Place) -> list[str]:
    """Paths of the databases in and below ``place``: a key with a slash was given one in a directory of its own."""
    keys = storage.list_keys(place.uri)
    return [key.rpartition("/")[0] for key in keys if key == DATABASE or key.endswith(f"/{DATABASE}")]


def _open_pytree(chosen: Chosen, missing_chunks: MissingChunks) -> SourceCheckpoint:
    place = chosen.place
    text = place.read(_TREE)
    saved, placeholders = read_tree(text, storage.join(place.uri, _TREE))
    store = place.child(_STORE)
    if saved and DATABASE not in store.files:
        raise CorruptCheckpointError(
            f"{_STORE}/{DATABASE} is missing",
            where=storage.join(store.uri, DATABASE),
            expected=f"the database of {len(saved)} arrays",
            remedy="the checkpoint was saved or copied in part: restore it from a copy, or use another step",
        )
    names = [leaf.name for leaf in saved]
    arrays: dict[str, FoundArray] = {}
    if saved:
        arrays = find_arrays(zarr_documents.kvstore_spec(store.uri, ocdbt=True), names, ("zarr3", "zarr"))
    leaves = []
    for leaf in saved:
        if leaf.name not in arrays:
            raise CorruptCheckpointError(
                f"array {leaf.name} is missing",
                where=f"{'/'.join(leaf.path)} in {store.uri}",
                expected=f"{leaf.name}/{DOCUMENTS['zarr3']}",
                remedy="the checkpoint was saved or copied in part: restore it from a copy, or use another step",
            )
        array = arrays[leaf.name]
        leaves.append(array_leaf(array, leaf.path, leaf.sequence_levels, missing_chunks=missing_chunks))
    return SourceCheckpoint(
        uri=place.uri,
        format="jax-pytree",
        version="jax 0.7 or newer",
        leaves=_sorted(leaves),
        identity=identity_of(place.uri, {_TREE: text, **_contents(store, arrays)}),
        placeholders=tuple(sorted(placeholders, key=lambda placeholder: placeholder.path)),
        step=chosen.step,
        item=chosen.item,
        details=chosen.notes,
    )


def _open_arrays(chosen: Chosen, missing_chunks: MissingChunks, *, ocdbt: bool) -> SourceCheckpoint:
    place = chosen.place
    arrays = {}
    for folder in _databases(place) if ocdbt else [""]:
        inside = list_arrays(storage.join(place.uri, folder) if folder else place.uri, ocdbt=ocdbt)
        arrays.update({f"{folder}/{path}" if folder else path: array for path, array in inside.items()})
    joined = _look_joined(arrays)
    if joined and not ocdbt and not place.files & _GROUPS:
        raise CorruptCheckpointError(
            "the tree file of these arrays seems to be lost: their names are keys joined with dots",
            where=place.uri,
            expected="_METADATA or `checkpoint`, which Orbax and T5X write beside such arrays",
            found=place.looked_at(),
            remedy="restore the file from a copy of the checkpoint, or use another step; if there never was one and "
            'these are the full names, make the directory a Zarr group: put a file .zgroup with {"zarr_format": 2} '
            "into it",
        )
    note = "; if Orbax wrote them, its tree file is lost: these are keys joined with dots" if joined else ""
    leaves = []
    for path, array in arrays.items():
        keys = tuple(path.split("/"))
        leaves.append(array_leaf(array, keys, (False,) * len(keys), missing_chunks=missing_chunks))
    return SourceCheckpoint(
        uri=place.uri,
        format="jax-arrays-ocdbt" if ocdbt else "jax-arrays",
        version="unknown",
        leaves=_sorted(leaves),
        identity=identity_of(place.uri, _contents(place, arrays)),
        step=chosen.step,
        item=chosen.item,
        details={"tree": "the names of the arrays; containers and None are not recorded" + note, **chosen.notes},
    )


def _look_joined(paths: Iterable[str]) -> bool:
    """Whether names of arrays look like keys joined with dots: all in one folder, or several with the same first key.

    >>> _look_joined(["params.w", "step"]), _look_joined(["x/a.b", "x/a.c"]), _look_joined(["x/a.b", "y"])
    (True, True, False)
    """
    split = [path.rpartition("/") for path in paths]
    dotted = Counter((folder, name.partition(".")[0]) for folder, _, name in split if "." in name)
    return bool(dotted) and (max(dotted.values()) > 1 or not any(folder for folder, _, _ in split))


def _contents(place: Place, arrays: dict[str, FoundArray]) -> dict[str, bytes]:
    contents = {path: array.document.text for path, array in arrays.items()}
    if DATABASE in place.files:
        contents[DATABASE] = place.read(DATABASE)
    return contents


def _sorted(leaves: list[Leaf]) -> tuple[Leaf, ...]:
    return tuple(sorted(leaves, key=lambda leaf: leaf.path))
