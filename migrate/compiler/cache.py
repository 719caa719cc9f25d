"""Compiles that were done before, found again without tracing anything.

Two levels, because what a program is made of is known only after it was traced. The *key* is a digest of the request:
entry, arguments, target, flags, toolchain. Under a key lie records, one a compile, each with everything that this
compile was seen to read (:class:`migrate.compiler.inputs.Inputs`) and the digests of its results. A record whose inputs
are all as they were is a hit.

    records/<key>/<id>.json     written last, by a conditional write: the entry exists from then on
    objects/<sha256>            results, by content

A reader copies the results out and compares digests, so that it never holds on to the cache: an entry that is evicted
or damaged meanwhile is a miss. Nothing here imports jax.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from migrate import storage
from migrate.compiler.digests import FileDigests
from migrate.compiler.inputs import Inputs, Roots
from migrate.signature import canonical_digest

FORMAT = 1
DEFAULT_MAX_BYTES = 10 << 30
_RECORDS = "records"
_OBJECTS = "objects"
# Each edit of a model leaves a record under its key: reading all of a long history would cost more than it saves.
_MOST_CANDIDATES = 64
_UNFINISHED_SECONDS = 3600.0
# The limit is kept with some room, so that not every compile has to evict.
_ROOM = 0.9


@dataclass(frozen=True, slots=True)
class Entry:
    """One cached compile."""

    key: str
    """Digest of its request."""
    id: str
    """Digest of its inputs and results."""
    program: str
    """What was compiled, in words."""
    created: float
    """Unix time of the compile, seconds."""
    used: float
    """Unix time of its last use, seconds; on object stores that of the compile."""
    seconds: float
    """What the compile took."""
    inputs: Inputs
    """What it read."""
    files: Mapping[str, tuple[str, int]]
    """Name of a result -> (hex SHA-256, bytes)."""
    record_bytes: int
    """Size of the record."""

    @property
    def nbytes(self) -> int:
        """Bytes of record and results; results may be shared with other entries."""
        return self.record_bytes + sum(nbytes for _, nbytes in self.files.values())

    def to_json(self) -> dict[str, Any]:
        """A JSON object for the command line: without the inputs, which are many."""
        return {
            "key": self.key,
            "id": self.id,
            "program": self.program,
            "created": self.created,
            "used": self.used,
            "seconds": self.seconds,
            "nbytes": self.nbytes,
            "files": {name: {"sha256": digest, "nbytes": nbytes} for name, (digest, nbytes) in self.files.items()},
            "inputs": {
                "files": len(self.inputs.files),
                "variables": sorted(self.inputs.variables),
                "listings": sorted(self.inputs.listings),
            },
        }


@dataclass(frozen=True)
class CompileCache:
    """A cache in a directory or an object store. Methods raise :class:`StorageError` where the store refuses."""

    uri: str
    """Directory or URI."""

    def find(
        self, key: str, roots: Roots, environment: Mapping[str, str], digests: FileDigests, directory: Path
    ) -> Entry | None:
        """The entry under ``key`` whose inputs are as they were, its results written to ``directory``; None if none.

        Every result is compared with its digest; a damaged entry is removed and counts as absent.
        """
        for entry in self._newest_first(key):
            if entry.inputs.difference(roots, environment, digests) is None and self._take(entry, directory):
                return entry
        return None

    def store(self, key: str, program: str, inputs: Inputs, results: Mapping[str, bytes], seconds: float) -> bool:
        """Publish a compile; whether this process did it first. Equal compiles may do it at once: one record wins."""
        files = {name: (hashlib.sha256(data).hexdigest(), len(data)) for name, data in sorted(results.items())}
        objects, contents = storage.join(self.uri, _OBJECTS), {files[name][0]: data for name, data in results.items()}
        for digest, data in contents.items():
            storage.write(objects, digest, data)
        record = {
            "format": FORMAT,
            "program": program,
            "created": time.time(),
            "seconds": seconds,
            "inputs": inputs.to_json(),
            "files": files,
        }
        # one record for equal inputs: results may differ in their source locations, and the first are as good
        identity = canonical_digest([FORMAT, record["inputs"]])[:32]
        name = f"{_RECORDS}/{key}/{identity}.json"
        created = storage.create(self.uri, name, json.dumps(record).encode()) == "created"
        for digest, _ in files.values():
            # a prune saw results without a record, and took them away
            if not storage.exists(objects, digest):
                storage.write(objects, digest, contents[digest])
        return created

    def entries(self) -> list[Entry]:
        """Every entry, last used first. A record that cannot be read is removed."""
        names = storage.list_keys(storage.join(self.uri, _RECORDS))
        found = (self._read(*name.removesuffix(".json").rsplit("/", 1)) for name in names if name.endswith(".json"))
        return sorted((entry for entry in found if entry is not None), key=lambda entry: -entry.used)

    def remove(self, entry: Entry) -> None:
        """Take away the record: the entry is gone. Its results go with the next :meth:`prune`."""
        storage.delete(self.uri, f"{_RECORDS}/{entry.key}/{entry.id}.json")
        storage.delete_empty_directory(storage.join(self.uri, _RECORDS, entry.key))

    def prune(self, max_bytes: int) -> tuple[int, int]:
        """Evict the least recently used entries above ``max_bytes``; (entries evicted, entries left).

        A process that is just reading an evicted entry gets a whole result or none: it compares digests, and compiles.
        """
        kept: dict[str, int] = {}
        total = evicted = left = 0
        for entry in self.entries():
            new = {digest: nbytes for digest, nbytes in entry.files.values() if digest not in kept}
            nbytes = entry.record_bytes + sum(new.values())
            if total + nbytes > max_bytes:
                self.remove(entry)
                evicted += 1
                continue
            total, left = total + nbytes, left + 1
            kept |= new
        self._delete_objects(set(kept))
        return evicted, left

    def clear(self) -> int:
        """Remove every entry; how many there were."""
        count = len(self.entries())
        storage.delete_directory(storage.join(self.uri, _RECORDS))
        storage.delete_directory(storage.join(self.uri, _OBJECTS))
        return count

    def nbytes(self) -> int:
        """Bytes of everything in the cache; in an object store of what the records name, each result once."""
        if storage.is_local(self.uri):
            root = storage.local_path(self.uri)
            total = 0
            for key in storage.list_keys(self.uri):
                with contextlib.suppress(FileNotFoundError):  # evicted meanwhile
                    total += (root / key).stat().st_size
            return total
        entries = self.entries()
        results = {digest: nbytes for entry in entries for digest, nbytes in entry.files.values()}
        return sum(results.values()) + sum(entry.record_bytes for entry in entries)

    def keep_below(self, max_bytes: int) -> None:
        """On a local disk, evict if the cache holds more than ``max_bytes``; object stores are pruned by hand."""
        if not storage.is_local(self.uri):
            return
        with contextlib.suppress(OSError):  # another process evicts at the same time
            with os.scandir(storage.local_path(self.uri) / _OBJECTS) as objects:
                nbytes = sum(entry.stat().st_size for entry in objects)
            if nbytes > max_bytes:
                self.prune(int(max_bytes * _ROOM))

    def _newest_first(self, key: str) -> Iterator[Entry]:
        """Entries under ``key``, read one by one, since the first is mostly the one; not those of long ago."""
        names = [name for name in storage.list_keys(storage.join(self.uri, _RECORDS, key)) if name.endswith(".json")]
        names.sort(key=lambda name: -self._used(f"{_RECORDS}/{key}/{name}", 0.0))
        for name in names[:_MOST_CANDIDATES]:
            if (entry := self._read(key, name.removesuffix(".json"))) is not None:
                yield entry

    def _read(self, key: str, identity: str) -> Entry | None:
        name = f"{_RECORDS}/{key}/{identity}.json"
        data = storage.read(self.uri, name)
        if data is None:
            return None
        try:
            record = json.loads(data)
            if record["format"] != FORMAT:
                return None
            inputs = Inputs.from_json(record["inputs"])
            if canonical_digest([FORMAT, record["inputs"]])[:32] != identity:
                raise ValueError("the record is not what its name says")
            files = {file: (str(digest), int(nbytes)) for file, (digest, nbytes) in record["files"].items()}
            created, seconds = float(record["created"]), float(record["seconds"])
            return Entry(
                key, identity, record["program"], created, self._used(name, created), seconds, inputs, files, len(data)
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            storage.delete(self.uri, name)
            return None

    def _used(self, name: str, created: float) -> float:
        if storage.is_local(self.uri):
            with contextlib.suppress(OSError):
                return (storage.local_path(self.uri) / name).stat().st_mtime
        return created

    def _take(self, entry: Entry, directory: Path) -> bool:
        """Write the results of ``entry`` to ``directory``, all of them or none."""
        results: dict[str, bytes] = {}
        for name, (digest, nbytes) in entry.files.items():
            data = storage.read(storage.join(self.uri, _OBJECTS), digest, max_bytes=max(nbytes, 1 << 30))
            if data is None or hashlib.sha256(data).hexdigest() != digest:
                if data is not None:
                    storage.delete(storage.join(self.uri, _OBJECTS), digest)
                self.remove(entry)
                return False
            results[name] = data
        for name, data in results.items():
            (directory / name).write_bytes(data)
        if storage.is_local(self.uri):
            with contextlib.suppress(OSError):
                os.utime(storage.local_path(self.uri) / _RECORDS / entry.key / f"{entry.id}.json")
        return True

    def _delete_objects(self, kept: set[str]) -> None:
        """Delete what no record names. A store under way writes again what it misses."""
        uri = storage.join(self.uri, _OBJECTS)
        for name in storage.list_keys(uri):
            if name in kept or (not _is_digest(name) and self._is_recent(name)):
                continue
            storage.delete(uri, name)

    def _is_recent(self, name: str) -> bool:
        """Whether a file in the making was touched of late: its writer may be alive."""
        if not storage.is_local(self.uri):
            return False
        with contextlib.suppress(OSError):
            return time.time() - (storage.local_path(self.uri) / _OBJECTS / name).stat().st_mtime < _UNFINISHED_SECONDS
        return True


def _is_digest(name: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{64}", name) is not None
