"""The plan: the storage grid of every array and the cut of the work into items of bounded bytes.

Pure arithmetic: nothing is read or written here, and neither jax nor TensorStore is imported. A chunk never crosses a
device shard; an item is a union of whole chunks, shaped so that it reads as few source chunks twice as its byte bound
allows.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from migrate.box import Box, Grid
from migrate.chunking import choose_chunk_shape, choose_item_shape, cut_across
from migrate.errors import MappingError
from migrate.mapping import Mapping, Match
from migrate.signature import canonical_digest, canonical_json
from migrate.sources.base import ArrayReader, Leaf
from migrate.zarr import TREES, StoredArray, Tree


@dataclass(frozen=True, slots=True)
class TargetArray:
    """One array of the export: how it is stored and where its elements come from."""

    tree: Tree
    """Whether it is one of the program's parameters."""
    path: tuple[str, ...]
    """Tree path in it."""
    sequence_levels: tuple[bool, ...]
    """For each key of ``path``: True if its container is a list or tuple."""
    stored: StoredArray
    """Shape, dtype, chunks and dimension order on storage."""
    shard_shape: tuple[int, ...]
    """Shape of a device's shard; a stored chunk divides it, or is ragged only at the array's own end."""
    device_bytes: int
    """Bytes of one device's shard, tile padding included."""
    source_name: str
    """Where its elements come from, for people: a leaf's path and what the mapping did to it."""
    recipe: str
    """Digest of exactly how its elements come from the source's leaves."""
    source_chunk_shape: tuple[int, ...]
    """Unit in which the source is read."""
    source: ArrayReader
    """Reads the elements."""
    prng_impl: str | None = None
    """Implementation of the random keys whose data this is, e.g. ``threefry2x32``."""

    @property
    def name(self) -> str:
        """Tree path joined with ``/``, for people."""
        return "/".join(self.path)

    @property
    def source_grid(self) -> Grid:
        """The chunks in which the source is read."""
        return Grid(self.stored.shape, self.source_chunk_shape)

    @property
    def source_chunk_bytes(self) -> int:
        """Logical bytes of a source chunk, which storage reads as a whole."""
        return math.prod(self.source_chunk_shape) * self.stored.item_bytes

    def storage_identity(self) -> str:
        """What decides the stored bytes, given the source's identity, as canonical JSON."""
        stored = self.stored
        layout = (stored.shape, stored.dtype, stored.chunk_shape, stored.major_to_minor, stored.compression)
        return f"{canonical_json([self.tree, self.path, self.recipe])[:-1]},{_metadata_json(*layout)}]"


@dataclass(frozen=True, slots=True)
class ItemPart:
    """Some whole chunks of one array."""

    array: TargetArray
    box: Box
    """Union of whole chunks of ``array``."""

    @property
    def nbytes(self) -> int:
        """Logical bytes of the box."""
        return self.box.size * self.array.stored.item_bytes


@dataclass(frozen=True, slots=True)
class Item:
    """The unit of Beam work: whole chunks, possibly of many small arrays."""

    id: str
    """Content address: equal work has an equal id, however the plan was made."""
    parts: tuple[ItemPart, ...]

    @property
    def nbytes(self) -> int:
        """Logical bytes of all parts."""
        return sum(part.nbytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be written, before anything is."""

    parameter_set: str
    """Content address of the stored arrays: source identity and storage layout."""
    arrays: tuple[TargetArray, ...]
    """In HLO parameter order."""
    items: tuple[Item, ...]
    """Cover every chunk of every array exactly once."""
    dropped: tuple[tuple[str, str], ...]
    """(leaf, rule) for every leaf that is left out."""
    idle_rules: tuple[str, ...] = ()
    """Mapping rules that matched nothing."""

    @property
    def nbytes(self) -> int:
        """Logical bytes of all arrays."""
        return sum(array.stored.nbytes for array in self.arrays)

    @property
    def device_bytes(self) -> int:
        """Bytes of all shards on one device, tile padding included."""
        return sum(array.device_bytes for array in self.arrays)

    def _repr_html_(self) -> str:
        """A short table, which notebooks show."""
        from migrate.report.notebook import plan_html

        return plan_html(self)

    def to_json(self) -> dict[str, object]:
        """A JSON object for ``reexport plan --json``; byte counts are logical unless named otherwise."""
        return {
            "parameter_set": self.parameter_set,
            "bytes": self.nbytes,
            "device_bytes": self.device_bytes,
            "items": len(self.items),
            "arrays": [
                {
                    "tree": array.tree,
                    "path": list(array.path),
                    "source": array.source_name,
                    "shape": list(array.stored.shape),
                    "dtype": array.stored.dtype,
                    "source_chunk_shape": list(array.source_chunk_shape),
                    "chunk_shape": list(array.stored.chunk_shape),
                    "shard_shape": list(array.shard_shape),
                    "major_to_minor": list(array.stored.major_to_minor),
                    "bytes": array.stored.nbytes,
                    "device_bytes": array.device_bytes,
                }
                for array in self.arrays
            ],
            "idle_rules": list(self.idle_rules),
            "dropped": [{"leaf": leaf, "reason": reason} for leaf, reason in self.dropped],
        }


def make_plan(
    mapping: Mapping,
    *,
    source_identity: str,
    max_item_bytes: int,
    max_chunk_bytes: int,
    compression: str = "none",
) -> Plan:
    """Decide the storage grid of every matched parameter and cut the work into items of at most ``max_item_bytes``.

    Raises :class:`MappingError` if two parameters would share a storage key.
    """
    limit = min(max_item_bytes, max_chunk_bytes)
    arrays = (
        *(_parameter(match, limit, max_item_bytes, compression) for match in mapping.matches),
        *(_carried(leaf, limit, compression) for leaf in mapping.carried),
    )
    for tree in TREES:
        _check_storage_names([array for array in arrays if array.tree == tree])
    identities = [array.storage_identity() for array in arrays]
    return Plan(
        parameter_set=_digest(f"[{canonical_json(source_identity)},[{','.join(identities)}]]")[:16],
        arrays=arrays,
        items=tuple(cut_items(arrays, max_item_bytes, identities)),
        dropped=tuple((dropped.leaf, dropped.reason) for dropped in mapping.dropped),
        idle_rules=mapping.idle_rules,
    )


def _parameter(match: Match, max_chunk_bytes: int, max_item_bytes: int, compression: str) -> TargetArray:
    parameter, array = match.parameter, match.array
    shape, shard_shape, order = parameter.shape, parameter.shard_shape, parameter.major_to_minor
    chunk_shape = choose_chunk_shape(shape, shard_shape, order, array.dtype.itemsize, max_chunk_bytes)
    if math.prod(shape):
        chunk_shape = cut_across(
            shape,
            shard_shape,
            chunk_shape,
            array.chunk_shape,
            item_bytes=array.dtype.itemsize,
            max_item_bytes=max_item_bytes,
        )
    return TargetArray(
        tree="params",
        path=parameter.path,
        sequence_levels=parameter.sequence_levels,
        stored=StoredArray(
            # joined as Orbax joins the keys of a path
            storage_name=".".join(parameter.path),
            shape=parameter.shape,
            dtype=parameter.dtype,
            chunk_shape=chunk_shape,
            major_to_minor=order,
            compression=compression,
        ),
        shard_shape=parameter.shard_shape,
        device_bytes=parameter.device_bytes,
        source_name=array.origin,
        recipe=canonical_digest(array.recipe),
        source_chunk_shape=array.chunk_shape,
        source=array.reader,
    )


def _carried(leaf: Leaf, max_chunk_bytes: int, compression: str) -> TargetArray:
    """A leaf as it is: no device wants it, so it keeps the source's chunks and lies in C order."""
    order = tuple(range(len(leaf.shape)))
    return TargetArray(
        tree="carried",
        path=leaf.path,
        sequence_levels=leaf.sequence_levels or (False,) * len(leaf.path),
        stored=StoredArray(
            storage_name=".".join(leaf.path),
            shape=leaf.shape,
            dtype=leaf.dtype.name,
            chunk_shape=choose_chunk_shape(leaf.shape, leaf.chunk_shape, order, leaf.dtype.itemsize, max_chunk_bytes),
            major_to_minor=order,
            compression=compression,
        ),
        shard_shape=leaf.shape,
        device_bytes=0,
        source_name=leaf.name,
        recipe=canonical_digest(leaf.recipe),
        source_chunk_shape=leaf.chunk_shape,
        source=leaf.reader,
        prng_impl=leaf.prng_impl,
    )


def _check_storage_names(arrays: Sequence[TargetArray]) -> None:
    seen: dict[str, TargetArray] = {}
    if any(not array.path for array in arrays):
        raise MappingError(
            "the program's parameters are one bare array, which has no name on storage",
            expected="a dict, list or tuple of arrays",
            remedy="let the model take {'name': array}",
        )
    for array in sorted(arrays, key=lambda a: a.stored.storage_name):
        name = array.stored.storage_name
        # "a" and "a/c" clash too: chunks of the first lie at a/c/0.
        clash = seen.get(name) or next((seen[p] for p in _parents(name) if p in seen), None)
        if clash is not None:
            raise MappingError(
                "two parameters would be stored under one key",
                where=f"{list(clash.path)} and {list(array.path)}",
                expected="paths that differ when joined with '.', as Orbax joins them",
                found=f"{clash.stored.storage_name!r} and {name!r}",
                remedy="rename one of them in the model",
            )
        seen[name] = array


def _parents(name: str) -> Iterator[str]:
    parts = name.split("/")
    return ("/".join(parts[:n]) for n in range(1, len(parts)))


def cut_items(
    arrays: Sequence[TargetArray], max_item_bytes: int, identities: Sequence[str] | None = None
) -> Iterator[Item]:
    """Items that cover every chunk of every array exactly once, each of at most ``max_item_bytes`` logical bytes.

    Runners split a list of items by their number, so items are of even size: large parts stand alone, and small ones
    are gathered until the bound. A single chunk above the bound (there is none if the chunks were chosen under it)
    makes an item of its own. ``identities`` are the arrays' storage identities, where they are known already.
    """
    pending: list[ItemPart] = []
    names: list[str] = []
    pending_bytes = 0
    for number, array in enumerate(arrays):
        identity = identities[number] if identities is not None else array.storage_identity()
        for part in _cut_array(array, max_item_bytes):
            nbytes = part.nbytes
            if 2 * nbytes >= max_item_bytes:
                yield _item([part], [identity])
                continue
            if pending_bytes + nbytes > max_item_bytes:
                yield _item(pending, names)
                pending, names, pending_bytes = [], [], 0
            pending.append(part)
            names.append(identity)
            pending_bytes += nbytes
    if pending:
        yield _item(pending, names)


def _item(parts: Sequence[ItemPart], identities: Sequence[str]) -> Item:
    described = (
        f"[{identity},[{','.join(map(str, part.box.start))}],[{','.join(map(str, part.box.stop))}]]"
        for identity, part in zip(identities, parts, strict=True)
    )
    return Item(_digest(f"[{','.join(described)}]")[:24], tuple(parts))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@functools.lru_cache(maxsize=4096)
def _metadata_json(
    shape: tuple[int, ...], dtype: str, chunk_shape: tuple[int, ...], order: tuple[int, ...], compression: str
) -> str:
    """Of the Zarr document, which the many layers of a model share."""
    return canonical_json(StoredArray("", shape, dtype, chunk_shape, order, compression).zarr_metadata())


def _cut_array(array: TargetArray, max_item_bytes: int) -> Iterator[ItemPart]:
    stored = array.stored
    if math.prod(stored.shape) == 0:
        return
    item_shape = choose_item_shape(
        stored.shape, stored.chunk_shape, array.source_chunk_shape, stored.item_bytes, max_item_bytes
    )
    if item_shape == stored.shape:
        yield ItemPart(array, Box.whole(stored.shape))
        return
    for box in Grid(stored.shape, item_shape).boxes():
        yield ItemPart(array, box)
