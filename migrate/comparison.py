"""What an export holds against its source, or against another export: by content, however either is stored."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pydantic

from migrate import arrays, sources, storage
from migrate.content import ContentSum
from migrate.errors import NotAnExportError
from migrate.export import Export, open_export
from migrate.manifest import ArrayRecord
from migrate.mapping import match
from migrate.planner import ItemPart, make_plan
from migrate.preparation import union_of_weights
from migrate.rules import Rule

_ITEM_BYTES = 64 << 20
_RULES: pydantic.TypeAdapter[tuple[Rule, ...]] = pydantic.TypeAdapter(tuple[Rule, ...])


@dataclass(frozen=True, slots=True)
class ArrayDifference:
    """One array that is not the same on both sides."""

    tree: str
    """``params`` or ``carried``."""
    name: str
    """Tree path joined with ``/``."""
    expected: str
    """What the export holds; ``nothing`` if it has no such array."""
    found: str
    """What the other side holds."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The arrays of an export and of what it was compared with."""

    export: str
    """URI of the export."""
    other: str
    """URI of the source checkpoint, or of the other export."""
    arrays: int
    """Arrays that were compared."""
    nbytes: int
    """Their logical bytes."""
    differences: tuple[ArrayDifference, ...]
    same_files: bool | None = None
    """Whether the checkpoint is, file by file, the one that the export was made from; None: compared with an export."""

    def to_json(self) -> dict[str, object]:
        """A JSON object for ``reexport verify --json``."""
        return {
            "other": self.other,
            "arrays": self.arrays,
            "bytes": self.nbytes,
            "same_files": self.same_files,
            "differences": [
                {"tree": d.tree, "array": d.name, "expected": d.expected, "found": d.found} for d in self.differences
            ],
        }


_Key = tuple[str, str]
_Held = tuple[tuple[int, ...], str, ContentSum]
"""Shape, dtype and content digest."""


def compare_exports(export: Export, other: Export | str | os.PathLike[str]) -> Comparison:
    """Compare the arrays of two exports by the digests they were committed with, whatever their layouts.

    Reads records alone; arrays only of an export from before there were content digests. Raises
    :class:`NotAnExportError` and :class:`migrate.errors.VerificationError`.
    """
    if not isinstance(other, Export):
        other = open_export(other)
    here, there = dict(_held_by(export)), dict(_held_by(other))
    return _comparison(export, other.uri, here, there)


def compare_with_source(
    export: Export | str | os.PathLike[str],
    *,
    source: str | None = None,
    workers: int = 2,
) -> Comparison:
    """Read the source again, through the mapping that the export was made with, and compare every array's content.

    ``source`` is where the checkpoint lies now, if not where it was. Holds ``workers`` pieces of at most 64 MiB at a
    time. Raises :class:`NotAnExportError` for an export that does not say how it was made,
    :class:`migrate.errors.SourceError` and :class:`migrate.errors.MappingError` if the checkpoint is not there or no
    longer fits.
    """
    if not isinstance(export, Export):
        export = open_export(export)
    record = export.manifest.source
    if not record.reading:
        raise NotAnExportError(
            "the export does not say how its source was read",
            where=export.uri,
            expected="an export made by this version of reexport",
            remedy="run its job again into another output, and compare with `reexport verify A --against B`",
        )
    reading = dict(record.reading)
    try:
        rules = _RULES.validate_python(reading.pop("mapping"))
    except ValueError as error:
        raise NotAnExportError(
            "the export's record of its mapping cannot be read",
            where=export.uri,
            found=str(error).splitlines()[0],
            remedy="run its job again into another output, and compare with `reexport verify A --against B`",
        ) from error
    # the record holds the place of the very step and item
    checkpoint = sources.open_checkpoint(source or record.uri, missing_chunks=reading["missing_chunks"])
    signatures = [export.signature(program.name) for program in export.manifest.programs]
    plan = make_plan(
        match(
            checkpoint.leaves,
            union_of_weights(signatures),
            rules=rules,
            select=reading["select"],
            carry=reading["carry"],
            placeholders=checkpoint.placeholders,
        ),
        source_identity=checkpoint.identity,
        max_item_bytes=_ITEM_BYTES,
        max_chunk_bytes=_ITEM_BYTES,
    )
    there: dict[_Key, _Held] = {
        (array.tree, array.name): (array.stored.shape, array.stored.dtype, ContentSum()) for array in plan.arrays
    }
    with ThreadPoolExecutor(workers) as pool:
        for part, found in pool.map(_part_content, (part for item in plan.items for part in item.parts)):
            key = (part.array.tree, part.array.name)
            shape, dtype, total = there[key]
            there[key] = (shape, dtype, total + found)
    return _comparison(export, checkpoint.uri, dict(_held_by(export)), there, checkpoint.identity == record.identity)


def _part_content(part: ItemPart) -> tuple[ItemPart, ContentSum]:
    order = part.array.stored.major_to_minor
    elements = part.array.source.read(part.box, storage_order=order)
    return part, arrays.content(elements, part.box, order)


def _held_by(export: Export) -> Iterator[tuple[_Key, _Held]]:
    databases = {
        "params": arrays.root_database(export.parameters_uri),
        "carried": arrays.root_database(export.carried_uri),
    }
    for record in export.parameter_set().arrays:
        content = ContentSum.from_hex(record.content) if record.content else _read(record, databases[record.tree])
        yield (record.tree, record.name), (record.stored.shape, record.stored.dtype, content)


def _read(record: ArrayRecord, database: dict[str, Any]) -> ContentSum:
    """Content of an array whose record has no digest of it."""
    store = arrays.open_array(record.stored, database)
    order = record.stored.major_to_minor
    total = ContentSum()
    try:
        for box in record.stored.grid.boxes():
            chunk = store[box.slices].transpose(order).read().result()
            total += arrays.content(chunk, box, order)
    except (ValueError, OSError) as error:
        raise storage.storage_error(f"array {record.name} cannot be read", record.stored.storage_name, error) from error
    return total


def _comparison(
    export: Export, other: str, here: dict[_Key, _Held], there: dict[_Key, _Held], same_files: bool | None = None
) -> Comparison:
    keys = list(dict.fromkeys((*here, *there)))
    differences = tuple(
        ArrayDifference(*key, expected=_shown(here.get(key)), found=_shown(there.get(key)))
        for key in keys
        if here.get(key) != there.get(key)
    )
    nbytes = export.parameter_set().nbytes
    return Comparison(export.uri, other, len(keys), nbytes, differences, same_files)


def _shown(held: _Held | None) -> str:
    if held is None:
        return "nothing"
    shape, dtype, content = held
    return f"{dtype}{list(shape)}, content {content.hex()[:16]}"
