"""What every checkpoint format offers: leaves that are opened lazily and read box by box."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from migrate.box import Box, Grid
from migrate.sources.place import Place

MissingChunks = Literal["error", "zeros"]
"""What reading an absent chunk does: fail (the default), or give the array's fill value, which is zero unless the
array's metadata says otherwise. Some writers legitimately leave out chunks that hold only the fill value."""


class ArrayReader(Protocol):
    """Reads boxes of one stored array. Frozen, picklable, plain data inside: it travels to Beam workers."""

    def read(self, box: Box, *, storage_order: tuple[int, ...] | None = None) -> np.ndarray:
        """The elements of ``box``.

        With ``storage_order`` (a permutation, major to minor) the result has its dimensions in that order and
        is C-contiguous in it; without, the result is in C order of the box itself.

        Raises :class:`migrate.errors.CorruptCheckpointError` if data is absent or damaged.
        """
        ...

    def to_json(self) -> dict[str, object]:
        """Where the array lies, for plans and manifests; never holds credentials."""
        ...


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value of a checkpoint's tree."""

    path: tuple[str, ...]
    """Keys from the root, each as a string; sequence indices are decimal digits."""
    shape: tuple[int, ...]
    """Logical shape."""
    dtype: np.dtype[np.generic]
    """Logical dtype; ml_dtypes supplies bfloat16, float8 and the sub-byte integers."""
    reader: ArrayReader
    """Reads the stored bytes."""
    chunk_shape: tuple[int, ...]
    """Shape of the unit in which storage is read; every extent at least 1."""
    sequence_levels: tuple[bool, ...] = ()
    """For each key of ``path``: True if its container is a list or tuple, False for a mapping."""
    kind: str = "array"
    """``array``; ``scalar`` for a Python or NumPy number that the checkpoint recorded as such; ``prng_key`` for the
    uint32 data of a JAX random key, whose last dimension is the key's own."""
    prng_impl: str | None = None
    """Name of the random key's implementation, e.g. ``threefry2x32``, where ``kind`` is ``prng_key``."""

    @property
    def name(self) -> str:
        """The path joined with ``/``, as job files and messages write it."""
        return "/".join(self.path)

    @property
    def recipe(self) -> tuple[str, ...]:
        """What :class:`migrate.transforms.Derived` calls the recipe of its elements: these, as they are."""
        return ("leaf", *self.path)

    @property
    def nbytes(self) -> int:
        """Logical bytes: elements times the item size of ``dtype``."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def grid(self) -> Grid:
        """The grid in which storage is read."""
        return Grid(self.shape, self.chunk_shape)

    def read(self, box: Box | None = None) -> np.ndarray:
        """The whole array, or the elements of ``box``, in C order."""
        return self.reader.read(Box.whole(self.shape) if box is None else box)


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A tree position that holds no array: None, an empty container, or a string."""

    path: tuple[str, ...]
    """Keys from the root."""
    kind: str
    """``none``, ``empty_dict``, ``empty_list``, ``empty_tuple``, ``empty`` (type not recorded) or ``string``."""
    value: str | None = None
    """The text, where ``kind`` is ``string``."""


@dataclass(frozen=True, slots=True)
class SourceCheckpoint:
    """An opened checkpoint: its tree is known, no array has been read. Read-only, always."""

    uri: str
    """Where it was found, after the step and item were chosen."""
    format: str
    """Name of the format, e.g. ``orbax-zarr2-ocdbt``."""
    version: str
    """Writer version as far as storage tells it, e.g. ``orbax 0.4 to 0.5``; ``unknown`` otherwise."""
    leaves: tuple[Leaf, ...]
    """Every leaf, sorted by path."""
    identity: str
    """Hex digest that changes when anything in the checkpoint is rewritten."""
    placeholders: tuple[Placeholder, ...] = ()
    """Tree positions without an array."""
    step: int | None = None
    """Training step, where the checkpoint lies in a step directory."""
    item: str | None = None
    """Item (checkpointable) name, where the step holds several."""
    details: dict[str, str] = field(default_factory=dict)
    """Further facts worth showing to a person, in display order."""

    def to_json(self) -> dict[str, object]:
        """A JSON object for ``reexport inspect --json``; byte counts are logical."""
        return {
            "uri": self.uri,
            "format": self.format,
            "version": self.version,
            "step": self.step,
            "item": self.item,
            "identity": self.identity,
            "details": dict(self.details),
            "leaves": [
                {
                    "path": list(leaf.path),
                    "kind": leaf.kind,
                    "shape": list(leaf.shape),
                    "dtype": leaf.dtype.name,
                    "chunk_shape": list(leaf.chunk_shape),
                    "bytes": leaf.nbytes,
                    "stored": leaf.reader.to_json(),
                }
                for leaf in self.leaves
            ],
            "placeholders": [
                {"path": list(place.path), "kind": place.kind, "value": place.value} for place in self.placeholders
            ],
        }

    def leaf(self, name: str) -> Leaf:
        """The leaf whose path joined with ``/`` is ``name``; raises KeyError."""
        for leaf in self.leaves:
            if leaf.name == name:
                return leaf
        raise KeyError(name)


class SourceFormat(Protocol):
    """A checkpoint format. Modules of this package implement it; the registry asks them in order."""

    name: str
    """Name in messages, e.g. ``Orbax``."""
    looks_for: str
    """What on storage makes it recognise a checkpoint; for the message when none does."""

    def recognises(self, place: Place) -> bool:
        """Whether what lies at ``place`` is of this format: judged from content, never from the checkpoint's name."""
        ...

    def steps_in(self, place: Place) -> list[str] | None:
        """Names of the finished steps of this format directly in ``place``; None if it is no directory of steps."""
        ...

    def open(
        self, place: Place, *, step: int | None, item: str | None, missing_chunks: MissingChunks
    ) -> SourceCheckpoint:
        """Open it; raises :class:`migrate.errors.SourceError`."""
        ...
