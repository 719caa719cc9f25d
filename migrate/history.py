"""What reconciles did: an event a line in ``history.jsonl``, and what is known of each output in its ``status.json``.

On a local disk an event is appended under a lock. An object store cannot append: there each event is an object of its
own, ``history/<time>-<id>.json``, so that no writer ever replaces what another one wrote.
"""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from migrate import storage

HISTORY_FILE = "history.jsonl"
HISTORY_FOLDER = "history"
STATUS_KEY = "status.json"


def now() -> str:
    """The time, ISO 8601, UTC, with milliseconds."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def append(root: str, event: Mapping[str, Any]) -> None:
    """Add an event to the history below a fleet's root. Raises :class:`migrate.errors.StorageError`."""
    line = json.dumps(event).encode()
    if not storage.is_local(root):
        stamp = str(event.get("time", now())).replace(":", "").replace("-", "")
        storage.create(storage.join(root, HISTORY_FOLDER), f"{stamp}-{uuid.uuid4().hex[:8]}.json", line)
        return
    path = storage.local_path(root) / HISTORY_FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # a writer that died in the middle of its line must not spoil ours
            file.seek(0, os.SEEK_END)
            if file.tell() and not _ends_with_newline(file):
                line = b"\n" + line
            file.write(line + b"\n")
    except OSError as error:
        raise storage.storage_error("the history cannot be written", str(path), error) from error


def _ends_with_newline(file: Any) -> bool:
    file.seek(-1, os.SEEK_END)
    return bool(file.read(1) == b"\n")


def read(root: str) -> list[dict[str, Any]]:
    """Every event of the history below a fleet's root, oldest first; what is no JSON object is left out."""
    if storage.is_local(root):
        lines = (storage.read(root, HISTORY_FILE) or b"").splitlines()
    else:
        folder = storage.join(root, HISTORY_FOLDER)
        lines = [storage.read(folder, key) or b"" for key in storage.list_keys(folder)]
    events = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            events.append(event)
    return sorted(events, key=lambda event: str(event.get("time", "")))


@dataclass(frozen=True, slots=True)
class Status:
    """What the last reconcile that had something to do made of an output."""

    time: str
    """ISO 8601, UTC."""
    outcome: str
    """``published`` or ``failed``."""
    export: str | None
    """The export it wanted."""
    failures: int
    """How often in a row it failed."""
    error: dict[str, str] | None = None
    """The error, as :meth:`migrate.errors.ReexportError.to_json` gives it."""


def read_status(output: str) -> Status | None:
    """The status of an output; None if there is none, or it cannot be understood."""
    data = storage.read(output, STATUS_KEY, max_bytes=1 << 20)
    try:
        return None if data is None else Status(**json.loads(data))
    except (ValueError, TypeError):
        return None


def write_status(output: str, status: Status) -> None:
    """Replace the status of an output. Raises :class:`migrate.errors.StorageError`."""
    storage.write(output, STATUS_KEY, json.dumps(asdict(status)).encode())
