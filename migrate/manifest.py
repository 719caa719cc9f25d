"""The records of an export: what was read, compiled and written, with digests of everything.

``COMMIT.json`` holds the digest of ``manifest.json``, which holds the digests of the program files and of the
parameter set's ``parameters.json``, which holds the digest of every stored chunk: one chain from one small file.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from migrate.errors import NotAnExportError
from migrate.signature import Fingerprint
from migrate.zarr import StoredArray, Tree, array_digest

if TYPE_CHECKING:
    from pydantic import TypeAdapter

FORMAT_VERSION = 1
"""Version of the records; a reader refuses a newer one."""

COMMIT_KEY = "COMMIT.json"
MANIFEST_KEY = "manifest.json"
PARAMETERS_KEY = "parameters.json"
LATEST_KEY = "LATEST"
SIGNATURE_FILE = "signature.json"
EXECUTABLE_FILE = "executable.bin"
EXPORTED_FILE = "program.jax_export"


@dataclass(frozen=True, slots=True)
class ArrayRecord:
    """One stored array."""

    tree: Tree
    """Whether it is one of the program's parameters."""
    path: tuple[str, ...]
    """Tree path in it."""
    sequence_levels: tuple[bool, ...]
    """For each key of ``path``: True if its container is a list or tuple."""
    stored: StoredArray
    """How it lies on storage."""
    source_name: str
    """Where its elements came from: a leaf's path and what the mapping did to it."""
    chunk_digests: tuple[str, ...]
    """Hex SHA-256 of each chunk in storage order, in C order of the chunk grid."""
    prng_impl: str | None = None
    """Implementation of the random keys whose data this is, e.g. ``threefry2x32``."""
    content: str = ""
    """Hex digest of the array's content, whatever its chunks and order; see :mod:`migrate.content`."""
    recipe: str = ""
    """Digest of exactly how its elements come from the source's leaves."""

    @property
    def name(self) -> str:
        """Tree path joined with ``/``."""
        return "/".join(self.path)

    @property
    def digest(self) -> str:
        """Hex SHA-256 of the chunk digests."""
        return array_digest(self.chunk_digests)


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file of the export."""

    sha256: str
    nbytes: int

    @classmethod
    def of(cls, data: bytes) -> FileRecord:
        """The record of ``data``."""
        return cls(hashlib.sha256(data).hexdigest(), len(data))


@dataclass(frozen=True, slots=True)
class ParameterSet:
    """The arrays of one or several exports; lies beside them as ``parameters.json``."""

    format_version: int
    id: str
    """Content address: source identity and storage layout."""
    arrays: tuple[ArrayRecord, ...]
    """In HLO parameter order."""
    files: dict[str, FileRecord] = field(default_factory=dict)
    """What Orbax reads beside the arrays, by tree and name, e.g. ``params/_METADATA``."""

    @property
    def nbytes(self) -> int:
        """Logical bytes of all arrays."""
        return sum(array.stored.nbytes for array in self.arrays)


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """The checkpoint that was read."""

    uri: str
    format: str
    version: str
    identity: str
    step: int | None
    item: str | None
    reading: dict[str, Any] = field(default_factory=dict)
    """How its leaves became the arrays: the job's ``select``, ``carry``, ``missing_chunks`` and ``mapping``."""


@dataclass(frozen=True, slots=True)
class ProgramRecord:
    """One compiled program of the export."""

    name: str
    entry: str
    """Where the model came from: ``package.module:function``."""
    fingerprint: Fingerprint
    files: dict[str, FileRecord]
    """By name relative to ``programs/<name>/``."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything an export consists of."""

    format_version: int
    export: str
    """Content address: parameter set and program fingerprints."""
    parameter_set: str
    """Id of the parameter set; it lies at ``params/<id>`` of the output."""
    parameters: FileRecord
    """Digest of the set's ``parameters.json``."""
    source: SourceRecord
    programs: tuple[ProgramRecord, ...]
    """The primary one first."""
    dropped: tuple[tuple[str, str], ...]
    """(leaf, rule) for every leaf that was left out."""
    tools: dict[str, str]
    """Package versions of the process that ran the job."""
    created: str
    """Time of the commit, ISO 8601, UTC."""
    timings: dict[str, float]
    """Seconds of each stage."""
    bytes_written: int
    """Logical bytes this run wrote; 0 where the parameter set was there already."""
    bytes_copied: int = 0
    """Of these, what the last run copied from the export before, whose layout of these arrays is the same."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The record whose existence makes an export exist."""

    format_version: int
    export: str
    manifest_sha256: str


Record = TypeVar("Record", ParameterSet, Manifest, Commit)


class Codec(Generic[Record]):
    """JSON in and out for one kind of record."""

    def __init__(self, kind: type[Record]) -> None:
        self._kind: type[Any] = kind

    @functools.cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        from pydantic import TypeAdapter

        return TypeAdapter(self._kind)

    def dump(self, record: Record) -> bytes:
        """JSON bytes; equal records give equal bytes."""
        data: bytes = self._adapter.dump_json(record, indent=1)
        return data

    def load(self, data: bytes, where: str) -> Record:
        """The record in ``data``. Raises :class:`NotAnExportError` naming ``where`` if it is damaged or too new."""
        self._check_version(data, where)
        try:
            record: Record = self._adapter.validate_json(data)
        except ValueError as error:
            # pydantic's first line counts problems, others link to its site
            lines = [line.strip() for line in str(error).splitlines()[1:] if "errors.pydantic.dev" not in line]
            raise NotAnExportError(
                f"{where} is damaged",
                where=where,
                expected=f"the JSON of a {self._kind.__name__}",
                found="; ".join(lines[:6]),
                remedy="restore the export from a copy, or run the job again into another output",
            ) from error
        return record

    @staticmethod
    def _check_version(data: bytes, where: str) -> None:
        """A newer format may have other fields, so its version is looked at before anything else."""
        try:
            version = json.loads(data)["format_version"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise NotAnExportError(
                f"{where} was written by a newer reexport",
                where=where,
                expected=f"format version at most {FORMAT_VERSION}",
                found=str(version),
                remedy="upgrade reexport",
            )


MANIFEST: Codec[Manifest] = Codec(Manifest)
PARAMETER_SET: Codec[ParameterSet] = Codec(ParameterSet)
COMMIT: Codec[Commit] = Codec(Commit)
