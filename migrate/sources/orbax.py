"""Orbax checkpoints, from 0.1 to today.

An item is a directory with a tree file (see :mod:`migrate.sources.orbax_tree`) and its arrays: Zarr v2 or v3, each
in a directory of its own or all in one OCDBT database. What a version writes is told from the files, never from a
version number, which Orbax does not record. Other items: see :mod:`migrate.sources.orbax_items`.
"""

from __future__ import annotations

from dataclasses import replace

from migrate import storage
from migrate.errors import CorruptCheckpointError, UncommittedCheckpointError, UnsupportedLeafError
from migrate.sources import steps, zarr_documents
from migrate.sources.arrays import DATABASE, FoundArray, array_leaf, find_arrays
from migrate.sources.base import MissingChunks, Placeholder, SourceCheckpoint
from migrate.sources.identity import identity_of
from migrate.sources.msgpack_tree import MsgpackFile
from migrate.sources.orbax_items import PROCESS, STRINGS, has_processes, is_item, random_key
from migrate.sources.orbax_tree import CHECKPOINT, KEY_METADATA, METADATA, Stored, Tree, read_tree
from migrate.sources.place import Place
from migrate.sources.steps import Chosen
from migrate.sources.zarr_documents import DOCUMENTS, Driver


class OrbaxFormat:
    """Recognises and opens Orbax checkpoints."""

    name = "Orbax"
    looks_for = "a directory with _METADATA or a msgpack file `checkpoint`, or steps or items that have one"

    def recognises(self, place: Place) -> bool:
        """Whether ``place`` is an Orbax item, step or directory of steps."""
        return not place.is_file and steps.holds_items(place, is_item)

    def steps_in(self, place: Place) -> list[str] | None:
        """Names of the finished steps of this format directly in ``place``; None if it is no directory of steps."""
        return steps.steps_in(place, is_item)

    def open(
        self, place: Place, *, step: int | None, item: str | None, missing_chunks: MissingChunks
    ) -> SourceCheckpoint:
        """Open it; reads the tree files and every array's metadata document, no array.

        Raises :class:`migrate.errors.SourceError`.
        """
        chosen = steps.resolve(
            place, step, item, is_item, aside=lambda found: "random key" if random_key(found) else None
        )
        _require_committed(chosen)
        return _open_item(chosen, missing_chunks)


def _aside(place: Place) -> str | None:
    return "random key" if random_key(place) else None


def _open_item(chosen: Chosen, missing_chunks: MissingChunks) -> SourceCheckpoint:
    key = random_key(chosen.place)
    place = key.place if key else chosen.place
    tree = read_tree(place)
    _require_distinct(tree, place)
    strings = _strings(place, tree)
    arrays = _find_arrays(place, tree, strings)
    key_impls = _key_impls(place)
    file = MsgpackFile(place.uri, CHECKPOINT)
    leaves = [file.leaf(leaf.value, leaf.path, leaf.sequence_levels) for leaf in tree.inline]
    placeholders = list(tree.placeholders)
    for stored in tree.stored:
        if stored.name in strings:
            placeholders.append(Placeholder(stored.path, "string", strings[stored.name]))
        else:
            kind = "scalar" if stored.value_type == "scalar" else "array"
            array = arrays[stored.name]
            leaf = array_leaf(array, stored.path, stored.sequence_levels, missing_chunks=missing_chunks, kind=kind)
            if stored.name in key_impls:
                leaf = replace(leaf, kind="prng_key", prng_impl=key_impls[stored.name])
            leaves.append(key.leaf(leaf) if key else leaf)
    contents = {array.key: array.document.text for array in arrays.values()}
    for name in (*tree.files, DATABASE):
        if name in place.files:
            # The tree file of an aggregate is as large as its arrays; its stamp has to do.
            contents[name] = storage.read_range(place.uri, name, 0, zarr_documents.MAX_DOCUMENT_BYTES)
    return SourceCheckpoint(
        uri=chosen.place.uri,
        format=_format(place, arrays),
        version=_version(place, chosen.step_place, tree),
        leaves=tuple(sorted(leaves, key=lambda leaf: leaf.path)),
        identity=identity_of(chosen.place.uri, contents),
        placeholders=tuple(sorted(placeholders, key=lambda placeholder: placeholder.path)),
        step=chosen.step,
        item=chosen.item,
        details=_details(place, tree, chosen),
    )


def _require_distinct(tree: Tree, place: Place) -> None:
    """Orbax joins keys with dots and does not notice when two leaves get one name; one of the values is lost."""
    seen: dict[str, Stored] = {}
    for leaf in tree.stored:
        other = seen.setdefault(leaf.name, leaf)
        if other is not leaf:
            raise CorruptCheckpointError(
                f"two leaves share the stored array {leaf.name!r}",
                where=place.uri,
                found=f"{_spelled(other.path)} and {_spelled(leaf.path)}",
                remedy="the value of one of them is lost: rename the key with dots in the model and save again",
            )


def _spelled(path: tuple[str, ...]) -> str:
    return "".join(f"[{key!r}]" for key in path)


def _strings(place: Place, tree: Tree) -> dict[str, str]:
    """Text of each leaf, by name, that is a string: all in one file, or (0.3) in a directory each."""
    texts = place.read_json(STRINGS) if STRINGS in place.files else {}
    strings: dict[str, str] = {}
    for leaf in tree.stored:
        if leaf.value_type not in (None, "string"):
            continue
        own = place.child(leaf.name)
        if leaf.name not in texts and leaf.name in place.folders and STRINGS in own.files:
            texts = {**texts, **own.read_json(STRINGS)}
        if leaf.name in texts:
            strings[leaf.name] = str(texts[leaf.name])
        elif leaf.value_type == "string":
            raise CorruptCheckpointError(
                f"the text of {leaf.name} is missing",
                where=storage.join(place.uri, STRINGS),
                remedy="restore the file from a copy of the checkpoint",
            )
    return strings


def _find_arrays(place: Place, tree: Tree, strings: dict[str, str]) -> dict[str, FoundArray]:
    """Where each stored leaf's array lies, by name."""
    names = [leaf.name for leaf in tree.stored if leaf.name not in strings]
    drivers: tuple[Driver, ...] = ("zarr3", "zarr") if tree.metadata.get("use_zarr3") else ("zarr", "zarr3")
    if DATABASE not in place.files and (has_processes(place) or tree.metadata.get("use_ocdbt")):
        raise CorruptCheckpointError(
            f"{DATABASE} is missing",
            where=storage.join(place.uri, DATABASE),
            expected="the manifest that joins the arrays of all writer processes",
            remedy="restore the file from a copy of the checkpoint",
        )
    found: dict[str, FoundArray] = {}
    for ocdbt in (True, False) if DATABASE in place.files else (False,):
        kvstore = zarr_documents.kvstore_spec(place.uri, ocdbt=ocdbt)
        found.update(find_arrays(kvstore, [name for name in names if name not in found], drivers))
    # 0.2.7 and 0.3.5 split a name with a slash: the database lies in a directory named like the part before it.
    split = [name.rpartition("/") for name in names if name not in found and "/" in name]
    for folder in sorted({folder for folder, _, _ in split}):
        if DATABASE in place.child(folder).files:
            kvstore = zarr_documents.kvstore_spec(storage.join(place.uri, folder), ocdbt=True)
            below = find_arrays(kvstore, [path for parent, _, path in split if parent == folder], drivers)
            found.update({f"{folder}/{path}": array for path, array in below.items()})
    for leaf in tree.stored:
        if leaf.name not in found and leaf.name not in strings:
            raise _array_missing(place, leaf, drivers)
    return found


def _array_missing(
    place: Place, leaf: Stored, drivers: tuple[Driver, ...]
) -> CorruptCheckpointError | UnsupportedLeafError:
    where = f"{'/'.join(leaf.path)} in {place.uri}"
    if leaf.value_type not in (None, "jax.Array", "np.ndarray", "scalar"):
        return UnsupportedLeafError(
            f"a leaf of type {leaf.value_type!r} cannot be carried into an export",
            where=where,
            expected="an array, number, string or empty container",
            remedy="leave it out of the saved tree, or save it as an item of its own",
        )
    expected = [CHECKPOINT] if leaf.in_checkpoint else [f"{leaf.name}/{DOCUMENTS[driver]}" for driver in drivers]
    return CorruptCheckpointError(
        f"the array {leaf.name} is missing",
        where=where,
        expected=" or ".join(expected),
        found="no such file",
        remedy="restore it from a copy of the checkpoint, or use another step",
    )


def _key_impls(place: Place) -> dict[str, str]:
    """Implementation of each leaf, by name, that is a random key; recorded since 0.11."""
    impls: dict[str, str] = {}
    folder = place.child(KEY_METADATA)
    for name in sorted(folder.files):
        document = folder.read_json(name)
        try:
            for entry in document["array_metadatas"]:
                metadata = entry["array_metadata"]
                impl = (metadata.get("ext_metadata") or {}).get("random_key_impl")
                if impl is not None:
                    impls[str(metadata["param_name"])] = str(impl)
        except (KeyError, TypeError, AttributeError) as error:
            raise CorruptCheckpointError(
                f"{KEY_METADATA}/{name} does not describe arrays",
                where=storage.join(folder.uri, name),
                found=f"{type(error).__name__}: {error}",
                remedy="restore the file from a copy of the checkpoint",
            ) from error
    return impls


def _require_committed(chosen: Chosen) -> None:
    """On an object store, where nothing can be renamed, a file says that a directory is finished.

    Orbax itself asks for that file on Google Cloud Storage. Elsewhere a copy of a checkpoint that was finished by a
    rename has none, so its absence counts only if the item, its step or another step has it.
    """
    if storage.is_local(chosen.place.uri):
        return
    places = [chosen.place, chosen.step_place]
    marked = [steps.COMMITTED in place.files for place in places]
    if all(marked) or _commit_time(chosen.step_place):
        return
    if chosen.place.uri.startswith("gs://") or any(marked) or _another_step_is_marked(chosen):
        raise UncommittedCheckpointError(
            f"the checkpoint is not finished: {steps.COMMITTED} is missing",
            where=chosen.step_place.uri,
            found=chosen.step_place.looked_at(),
            remedy="wait for its writer to finish, or use an earlier step; if this is a whole copy of a checkpoint "
            f"from a local disk, put an empty {steps.COMMITTED} into it",
        )


def _another_step_is_marked(chosen: Chosen) -> bool:
    if chosen.step is None:
        return False
    keys = (key.split("/") for key in Place(chosen.step_place.parent).keys)
    return any(key[-1] == steps.COMMITTED and steps.step_number(key[0]) is not None and len(key) == 2 for key in keys)


def _commit_time(place: Place) -> bool:
    if "_CHECKPOINT_METADATA" not in place.files:
        return False
    return bool(place.read_json("_CHECKPOINT_METADATA").get("commit_timestamp_nsecs"))


def _format(place: Place, arrays: dict[str, FoundArray]) -> str:
    drivers = {array.document.driver for array in arrays.values()}
    if not drivers:
        return "orbax-msgpack"
    zarr = "-".join(sorted("zarr3" if driver == "zarr3" else "zarr2" for driver in drivers))
    return f"orbax-{zarr}" + ("-ocdbt" if DATABASE in place.files else "")


def _version(place: Place, step_place: Place, tree: Tree) -> str:
    """The range of versions that write these files; seen in checkpoints of 0.1.1 to 0.12.8."""
    if not tree.files:
        return "orbax 0.11 or older"
    if METADATA not in tree.files:
        by_lists = {None: "orbax 0.1 to 0.3", True: "orbax 0.1.6 to 0.3", False: "orbax 0.1.0 to 0.1.5"}
        return by_lists[tree.keeps_lists]
    if CHECKPOINT in tree.files:
        return "orbax 0.4" if "use_zarr3" in tree.metadata else "orbax 0.3 to 0.4"
    signs = [
        ("use_ocdbt" in tree.metadata, "orbax 0.12 or newer"),
        (KEY_METADATA in place.folders, "orbax 0.11"),
        ("store_array_data_equal_to_fill_value" in tree.metadata, "orbax 0.7 to 0.11"),
        ("_CHECKPOINT_METADATA" in step_place.files, "orbax 0.5 to 0.6"),
    ]
    return next((version for seen, version in signs if seen), "orbax 0.4 to 0.6")


def _details(place: Place, tree: Tree, chosen: Chosen) -> dict[str, str]:
    details = {"tree": " and ".join(tree.files) or "none: a single array"}
    processes = sum(name.startswith(PROCESS) for name in place.folders)
    if processes:
        details["writer processes"] = str(processes)
    if tree.inline:
        details["values in the tree file"] = str(len(tree.inline))
    if key := random_key(chosen.place):
        details["random key"] = key.kind
    return {**details, **chosen.notes}
