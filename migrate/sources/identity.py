"""A digest that changes when anything in a checkpoint is rewritten."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from migrate import storage


def identity_of(uri: str, contents: Mapping[str, bytes], *, keys: Sequence[str] | None = None) -> str:
    """Hex SHA-256 of the stamps of ``keys`` (default: every key below ``uri``) and of small metadata files.

    ``contents`` maps names of metadata files to what was read from them: there a rewrite is seen even if it keeps
    byte count and time.
    """
    stamps = storage.stamps(uri) if keys is None else storage.stamps_of(uri, sorted(keys))
    digest = hashlib.sha256()
    for key, stamp in stamps:
        digest.update(f"{key}\0{stamp}\n".encode())
    for name in sorted(contents):
        digest.update(f"{name}\0{hashlib.sha256(contents[name]).hexdigest()}\n".encode())
    return digest.hexdigest()
