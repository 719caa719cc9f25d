"""Arrays that the current export holds just as a new one wants them: copied from there, not made from the source again.

Their chunks are equal by content address (same source, same mapping, same storage layout), so only what changed is read
from the source and laid out anew.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from migrate import arrays, pointer
from migrate.box import Box
from migrate.errors import ReexportError
from migrate.export import Export, Paths, open_export
from migrate.manifest import ArrayRecord
from migrate.planner import Item, ItemPart, Plan, TargetArray
from migrate.sources.base import ArrayReader
from migrate.zarr import StoredArray

if TYPE_CHECKING:
    import numpy as np

_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class CommittedArray:
    """Reads whole chunks of an array of a committed export; where one is not what was committed, reads the source."""

    stored: StoredArray
    directory: str
    """Directory of the parameter set."""
    digests: tuple[str, ...]
    """Hex SHA-256 of each chunk, in C order of the chunk grid."""
    source: ArrayReader
    """What the chunks were made from."""

    def read(self, box: Box, *, storage_order: tuple[int, ...] | None = None) -> np.ndarray:
        """The elements of ``box``, as :meth:`migrate.sources.ArrayReader.read` says."""
        elements = self._committed(box)
        if elements is None:
            return self.source.read(box, storage_order=storage_order)
        order = self.stored.major_to_minor
        if storage_order == order:
            return elements
        import numpy as np

        logical = elements.transpose(np.argsort(order))
        return np.ascontiguousarray(logical if storage_order is None else logical.transpose(storage_order))

    def _committed(self, box: Box) -> np.ndarray | None:
        """The elements in storage order; None if a chunk is damaged or gone, or ``box`` cuts one."""
        grid, order = self.stored.grid, self.stored.major_to_minor
        if not grid.aligned(box):
            return None
        try:
            store = arrays.open_array(self.stored, arrays.root_database(self.directory))
            elements: np.ndarray = store[box.slices].transpose(order).read().result()
        except (ValueError, OSError):
            return None
        for index in grid.indices(box):
            chunk = elements[arrays.permuted_slices(grid.box(index).relative_to(box), order)]
            if arrays.chunk_digest(chunk) != self.digests[_position(index, grid.counts)]:
                return None
        return elements

    def to_json(self) -> dict[str, object]:
        """Where the array lies."""
        return {"export": self.directory, "array": self.stored.storage_name}


def _position(index: Sequence[int], counts: Sequence[int]) -> int:
    """Number of a chunk in C order."""
    position = 0
    for one, count in zip(index, counts, strict=True):
        position = position * count + one
    return position


def current_export(output: str) -> Export | None:
    """The export that LATEST of an output names, or None."""
    now = pointer.read(output)
    return None if now is None else open_export(Paths(output).export(now.export))


def reusable(plan: Plan, source_identity: str, current: Export | None) -> dict[_Key, ArrayRecord]:
    """By (tree, name), the records of the arrays that ``current`` holds just as ``plan`` wants them, elements included.

    Raises :class:`migrate.errors.VerificationError` if the records are not the committed ones.
    """
    if current is None or current.manifest.source.identity != source_identity:
        return {}
    there = {(record.tree, record.name): record for record in current.parameter_set().arrays}
    found = ((array, there.get((array.tree, array.name))) for array in plan.arrays)
    return {
        (array.tree, array.name): record
        for array, record in found
        if record is not None and (record.stored, record.recipe) == (array.stored, array.recipe)
    }


def with_committed(plan: Plan, source_identity: str, output: str) -> tuple[Plan, frozenset[_Key]]:
    """The plan, with arrays that the current export of ``output`` holds read from there; and which these are.

    Ids of items and of the parameter set stay. A current export that cannot be read is of no use, but no error.
    """
    try:
        current = current_export(output)
        records = reusable(plan, source_identity, current)
    except ReexportError:
        return plan, frozenset()
    if current is None or not records:
        return plan, frozenset()
    directories = {"params": current.parameters_uri, "carried": current.carried_uri}
    changed: dict[_Key, TargetArray] = {
        (array.tree, array.name): _from_export(array, records, directories)
        for array in plan.arrays
        if (array.tree, array.name) in records
    }
    items = tuple(_with_arrays(item, changed) for item in plan.items)
    all_arrays = tuple(changed.get((array.tree, array.name), array) for array in plan.arrays)
    return replace(plan, arrays=all_arrays, items=items), frozenset(changed)


def _from_export(
    array: TargetArray, records: Mapping[_Key, ArrayRecord], directories: Mapping[str, str]
) -> TargetArray:
    digests = records[array.tree, array.name].chunk_digests
    reader = CommittedArray(array.stored, directories[array.tree], digests, array.source)
    return replace(array, source=reader, source_chunk_shape=array.stored.chunk_shape)


def _with_arrays(item: Item, changed: Mapping[_Key, TargetArray]) -> Item:
    keys = [(part.array.tree, part.array.name) for part in item.parts]
    if not any(key in changed for key in keys):
        return item
    parts = (ItemPart(changed.get(key, part.array), part.box) for key, part in zip(keys, item.parts, strict=True))
    return Item(item.id, tuple(parts))


def copied_bytes(items: Sequence[Item], keys: frozenset[_Key]) -> int:
    """Logical bytes of the parts of ``items`` that belong to these arrays."""
    parts = itertools.chain.from_iterable(item.parts for item in items)
    return sum(part.nbytes for part in parts if (part.array.tree, part.array.name) in keys)
