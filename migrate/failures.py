"""Failures of a run, kept with the run so that the driver, wherever the pipeline ran, can report them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from migrate import errors, storage
from migrate.receipt import Destination

FAILURES_KEY = "failures.json"


def save(found: Sequence[errors.ReexportError], destination: Destination) -> None:
    """Record what went wrong. A full disk must not hide the reason, so failing to write it is not an error."""
    data = json.dumps([error.to_json() for error in found]).encode()
    try:
        storage.write(destination.run_uri, FAILURES_KEY, data)
    except errors.StorageError:
        _unwritten[destination.run_uri] = data


def take(destination: Destination) -> list[errors.ReexportError]:
    """The recorded failures, which are forgotten; empty if there are none."""
    data = _unwritten.pop(destination.run_uri, None)
    if data is None:
        data = storage.read(destination.run_uri, FAILURES_KEY)
        if data is None:
            return []
        storage.delete(destination.run_uri, FAILURES_KEY)
    return [errors.from_json(fields) for fields in json.loads(data)]


_unwritten: dict[str, bytes] = {}
"""Failures of runs whose storage refused them; reaches the driver where both are one process."""
