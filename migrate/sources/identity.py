"""A digest that changes when anything in a checkpoint is rewritten."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from migrate import storage


def identity_of(uri: str, contents: Mapping[str, bytes], *, within: Iterable[str] = ("",)) -> str:
    """Hex SHA-256 of the stamps of every key below ``uri`` and of the content of its small metadata files.

    ``contents`` maps file names to what was read from them: a rewrite that keeps byte count and time is seen where
    it matters most. ``within`` limits the stamps to keys that start with one of these prefixes.
    """
    prefixes = tuple(within)
    digest = hashlib.sha256()
    for key, stamp in storage.stamps(uri):
        if key.startswith(prefixes):
            digest.update(f"{key}\0{stamp}\n".encode())
    for name in sorted(contents):
        digest.update(f"{name}\0{hashlib.sha256(contents[name]).hexdigest()}\n".encode())
    return digest.hexdigest()
