"""What lies behind a failed read of an OCDBT database.

A database gives an empty value, not an error, where the file that holds a value is gone; the codec then complains
about the bytes. Walking the database's nodes tells which files are meant and which of them are missing.
"""

from __future__ import annotations

import urllib.parse
from typing import Any

from migrate import storage

_MAX_NODES = 4096


def lost_files(base: dict[str, Any], uri: str) -> list[str]:
    """Data files that the database in key-value store ``base`` at ``uri`` refers to and that are missing, sorted.

    Reads the database's nodes, at most 4,096 of them: for messages, not for reading.
    """
    import tensorstore as ts

    store = ts.KvStore.open(base, context=storage.context()).result()
    manifest = ts.ocdbt.dump(store).result()
    pending = [version["root"].get("location") for version in manifest["versions"][-1:]]
    files: set[str] = set()
    nodes = 0
    while pending and nodes < _MAX_NODES:
        location = pending.pop()
        if location is None:
            continue
        file = _file(location)
        files.add(file)
        if not storage.exists(uri, file):
            continue
        nodes += 1
        for entry in ts.ocdbt.dump(store, location).result()["entries"]:
            if "indirect_value" in entry:
                files.add(_file(entry["indirect_value"]))
            elif "location" in entry:
                pending.append(entry["location"])
    return sorted(file for file in files if not storage.exists(uri, file))


def _file(location: str) -> str:
    """The file of a location such as ``value:ocdbt.process_1/:d/9c6e:0:151``, relative to the database."""
    _, folder, name, _, _ = location.split(":")
    return urllib.parse.unquote(folder + name)
