"""What lies at a uri: one listing, asked many questions.

Object stores cannot list a single directory, so there the keys below the root are listed once and shared by every
place below it; on a local disk each directory is listed when it is first asked about.
"""

from __future__ import annotations

import bisect
import functools
import json
import os
import posixpath
from typing import Any

from migrate import storage
from migrate.errors import CorruptCheckpointError

_START_BYTES = 16


class Place:
    """A directory or file of a store, listed lazily; reads only."""

    def __init__(self, uri: str, *, keys: tuple[str, ...] | None = None) -> None:
        self.uri = storage.normalise(uri)
        self._keys = keys
        self._children: dict[str, Place] = {}
        self._starts: dict[str, bytes] = {}

    @property
    def name(self) -> str:
        """The last component of the uri."""
        return posixpath.basename(self.uri)

    @property
    def parent(self) -> str:
        """The uri without its last component."""
        return posixpath.dirname(self.uri)

    @functools.cached_property
    def is_file(self) -> bool:
        """Whether the uri is a single file or object."""
        if storage.is_local(self.uri):
            return storage.local_path(self.uri).is_file()
        return not self.keys and bool(self.name) and storage.exists(self.parent, self.name)

    @property
    def exists(self) -> bool:
        """Whether anything lies here; an empty local directory does."""
        if storage.is_local(self.uri):
            return storage.local_path(self.uri).exists()
        return bool(self.keys) or self.is_file

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key below, sorted; only object stores are listed this way."""
        if self._keys is None:
            self._keys = tuple(storage.list_keys(self.uri))
        return self._keys

    @functools.cached_property
    def _entries(self) -> tuple[frozenset[str], frozenset[str]]:
        if not storage.is_local(self.uri):
            files = frozenset(key for key in self.keys if "/" not in key)
            return files, frozenset(key.split("/", 1)[0] for key in self.keys if "/" in key)
        path = storage.local_path(self.uri)
        if not path.is_dir():
            return frozenset(), frozenset()
        try:
            with os.scandir(path) as found:
                entries = [(entry.name, entry.is_dir()) for entry in found]
        except OSError as error:
            raise storage.storage_error("the directory cannot be listed", self.uri, error) from error
        return (
            frozenset(name for name, is_dir in entries if not is_dir),
            frozenset(name for name, is_dir in entries if is_dir),
        )

    @property
    def files(self) -> frozenset[str]:
        """Names of the files directly below."""
        return self._entries[0]

    @property
    def folders(self) -> frozenset[str]:
        """Names of the directories directly below."""
        return self._entries[1]

    def child(self, name: str) -> Place:
        """The place called ``name`` directly or further below; the same object each time, so listed once."""
        if name not in self._children:
            self._children[name] = self._below(name)
        return self._children[name]

    def _below(self, name: str) -> Place:
        uri = storage.join(self.uri, name)
        if storage.is_local(self.uri):
            return Place(uri)
        prefix = name + "/"
        first = bisect.bisect_left(self.keys, prefix)
        last = bisect.bisect_left(self.keys, name + "0")  # "0" is the character after "/"
        return Place(uri, keys=tuple(key[len(prefix) :] for key in self.keys[first:last]))

    def read(self, name: str, *, max_bytes: int = storage.MAX_METADATA_BYTES) -> bytes:
        """The content of file ``name``; raises :class:`CorruptCheckpointError` if it is missing.

        Raises :class:`migrate.errors.StorageError` if it is larger than ``max_bytes`` or cannot be read.
        """
        value = storage.read(self.uri, name, max_bytes=max_bytes)
        if value is None:
            raise CorruptCheckpointError(
                f"{name} is missing",
                where=storage.join(self.uri, name),
                remedy="restore the file from a copy of the checkpoint",
            )
        return value

    def start(self, name: str) -> bytes:
        """The first 16 bytes of file ``name``, or all if it has fewer; every format asks for them, one read is made."""
        if name not in self._starts:
            self._starts[name] = storage.read_range(self.uri, name, 0, _START_BYTES)
        return self._starts[name]

    def read_json(self, name: str) -> dict[str, Any]:
        """The JSON object in file ``name``; raises :class:`CorruptCheckpointError` if it is none."""
        return parse_json(self.read(name), storage.join(self.uri, name))

    def looked_at(self) -> str:
        """What lies directly here, shortened, for messages."""
        names = sorted(self.files) + sorted(name + "/" for name in self.folders)
        shown = ", ".join(names[:8])
        return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown or "an empty directory"


def parse_json(text: bytes, where: str, *, unique_keys: bool = False) -> dict[str, Any]:
    """The JSON object in ``text``; raises :class:`CorruptCheckpointError` naming ``where`` if it is none.

    With ``unique_keys`` a key that an object has twice is damage too; otherwise the last one counts.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique if unique_keys else None)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(
            f"{posixpath.basename(where)} is not valid JSON",
            where=where,
            found=f"{error} (the file has {len(text):,} bytes)",
            remedy="restore the file from a copy of the checkpoint",
        ) from error
    if not isinstance(value, dict):
        raise CorruptCheckpointError(
            f"{posixpath.basename(where)} does not hold a JSON object",
            where=where,
            found=type(value).__name__,
            remedy="restore the file from a copy of the checkpoint",
        )
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        twice = next(key for i, (key, _) in enumerate(pairs) if any(key == other for other, _ in pairs[:i]))
        raise ValueError(f"key {twice!r} occurs twice")
    return value
