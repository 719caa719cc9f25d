"""The known checkpoint formats, and how one is chosen."""

from __future__ import annotations

import os
from dataclasses import replace

from migrate import storage
from migrate.errors import CheckpointNotFoundError, CorruptCheckpointError, UnknownFormatError
from migrate.sources import steps
from migrate.sources.base import MissingChunks, SourceCheckpoint, SourceFormat
from migrate.sources.flax_msgpack import FlaxFormat
from migrate.sources.jax_arrays import JaxArraysFormat
from migrate.sources.orbax import OrbaxFormat
from migrate.sources.place import Place
from migrate.sources.readers import forget_opened
from migrate.sources.safetensors import SafetensorsFormat
from migrate.sources.t5x import T5xFormat

# T5X comes before Orbax, whose tree file has the same name; jax's arrays come last, having the fewest marks.
FORMATS: tuple[SourceFormat, ...] = (
    T5xFormat(),
    OrbaxFormat(),
    FlaxFormat(),
    SafetensorsFormat(),
    JaxArraysFormat(),
)
"""Every known format, in the order they are asked."""


def open_checkpoint(
    uri: str | os.PathLike[str],
    *,
    step: int | None = None,
    item: str | None = None,
    missing_chunks: MissingChunks = "error",
) -> SourceCheckpoint:
    """Open the checkpoint at ``uri``: its tree, shapes and dtypes. No array is read, nothing is written.

    ``uri`` may be a directory of steps, one step, one item of a step, or a single file. ``step`` defaults to the
    latest finished one, ``item`` to the only one that holds arrays.

    Raises :class:`CheckpointNotFoundError`, :class:`UnknownFormatError`,
    :class:`migrate.errors.AmbiguousCheckpointError`, :class:`migrate.errors.UncommittedCheckpointError`,
    :class:`migrate.errors.CorruptCheckpointError`, :class:`migrate.errors.UnsupportedLeafError`, and
    :class:`migrate.errors.StorageError` if the store cannot be read.
    """
    forget_opened()
    place = Place(os.fspath(uri))
    for known in FORMATS:
        if known.recognises(place):
            owners = _owners(place) if known.steps_in(place) is not None else {}
            if set(owners.values()) - {known}:
                opened = _open_mixed(place, owners, step=step, item=item, missing_chunks=missing_chunks)
            else:
                opened = known.open(place, step=step, item=item, missing_chunks=missing_chunks)
            _require_distinct(opened)
            return opened
    if not place.exists:
        raise CheckpointNotFoundError(
            "nothing lies at this path",
            where=place.uri,
            remedy="check the path; for an object store also the bucket and the credentials",
        )
    raise UnknownFormatError(
        "no known checkpoint format is recognised",
        where=place.uri,
        expected="; ".join(f"{known.name}: {known.looks_for}" for known in FORMATS),
        found="a file" if place.is_file else place.looked_at(),
        remedy="this is an output of reexport: `reexport inspect` shows it, and the directories in its params/ are "
        "checkpoints"
        if storage.exists(place.uri, "LATEST")
        else "give the path of the checkpoint itself, or of the directory that holds its steps",
    )


def _require_distinct(opened: SourceCheckpoint) -> None:
    """Refuse two values with one path, as keys 1 and "1" of a mapping have."""
    seen: set[tuple[str, ...]] = set()
    for path in [leaf.path for leaf in opened.leaves] + [place.path for place in opened.placeholders]:
        if path in seen:
            raise CorruptCheckpointError(
                f"two values have the path {'/'.join(path)}",
                where=opened.uri,
                remedy="rename one of the keys in the model and save again",
            )
        seen.add(path)


def _owners(place: Place) -> dict[str, SourceFormat]:
    """The format of each step in ``place``, by the name of its directory or file."""
    owners: dict[str, SourceFormat] = {}
    for known in FORMATS:
        for name in known.steps_in(place) or ():
            if name not in owners and (name in place.files or known.recognises(place.child(name))):
                owners[name] = known
    return owners


def _open_mixed(
    place: Place,
    owners: dict[str, SourceFormat],
    *,
    step: int | None,
    item: str | None,
    missing_chunks: MissingChunks,
) -> SourceCheckpoint:
    """Open a step of a directory whose steps are of several formats, as when a library changed its own."""
    name = steps.choose_step(place, sorted(owners), step)
    number = steps.step_number(name)
    opened = owners[name].open(place, step=number, item=item, missing_chunks=missing_chunks)
    return replace(opened, details={**opened.details, "steps": steps.listed(map(steps.step_number, owners))})
