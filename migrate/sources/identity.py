"""A digest that changes when anything in a checkpoint is rewritten."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence

from migrate import storage


def identity_of(uri: str, contents: Mapping[str, bytes], *, keys: Sequence[str] | None = None) -> str:
    """Hex SHA-256 of the stamps of ``keys`` (default: every key below ``uri``) and of small metadata files.

    ``contents`` maps names of metadata files to what was read from them: there a rewrite is seen even if it keeps
    byte count and time.
    """
    if keys is not None:
        stamps = storage.stamps_of(uri, sorted(keys))
    elif storage.is_local(uri):
        stamps = iter(sorted(_local_stamps(uri)))
    else:
        stamps = storage.stamps(uri)
    digest = hashlib.sha256()
    for key, stamp in stamps:
        digest.update(f"{key}\0{stamp}\n".encode())
    for name in sorted(contents):
        digest.update(f"{name}\0{hashlib.sha256(contents[name]).hexdigest()}\n".encode())
    return digest.hexdigest()


def _local_stamps(uri: str) -> Iterator[tuple[str, str]]:
    """What :func:`migrate.storage.stamps` gives, unsorted, in one pass over the directories.

    Raises :class:`migrate.errors.StorageError` if a directory cannot be listed.
    """
    pending = [(os.fspath(storage.local_path(uri)), "")]
    while pending:
        folder, prefix = pending.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    key = prefix + entry.name
                    if entry.is_dir():
                        # As listings do elsewhere, follow no link to a directory: it may lead back here.
                        if not entry.is_symlink():
                            pending.append((entry.path, f"{key}/"))
                        continue
                    status = entry.stat()
                    yield key, f"{status.st_size}.{status.st_mtime_ns}"
        except OSError as error:
            raise storage.storage_error("the directory cannot be read", folder, error) from error
