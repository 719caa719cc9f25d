"""SHA-256 of files, remembered between processes: a library of half a gigabyte is read once, not for every question."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from pathlib import Path

from migrate import local_files

_MEMO_FILE = "digests.json"
_MAX_REMEMBERED = 20_000
# A file that changed this recently may change again within one tick of its time stamps, unseen.
_SETTLED_SECONDS = 2.0


class FileDigests:
    """Digests of files by path; kept in ``folder`` with size, inode and both time stamps, which any change moves.

    The status change time cannot be set back by a program, so that a file with the old modification time (``cp -p``,
    ``touch``) is read again.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / _MEMO_FILE
        self._lock = threading.Lock()
        self._known: dict[str, list[object]] = {}
        self._changed = False
        with contextlib.suppress(OSError, ValueError):
            self._known = dict(json.loads(self._file.read_bytes()))

    def digest(self, path: str) -> str | None:
        """Hex SHA-256 of the regular file ``path``; None if there is none that can be read."""
        try:
            status = os.stat(path)  # noqa: PTH116 -- a Path a file costs more than the call
            stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
            known = self._known.get(path)
            if known is not None and known[:4] == stamp:
                return str(known[4])
            if not Path(path).is_file():
                return None
            with open(path, "rb") as file:  # noqa: PTH123
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:
            return None
        if time.time() - max(status.st_mtime, status.st_ctime) > _SETTLED_SECONDS:
            with self._lock:
                self._known[path] = [*stamp, found]
                self._changed = True
        return found

    def save(self) -> None:
        """Remember what was learned. A disk that refuses costs only time."""
        with self._lock:
            if not self._changed:
                return
            newest = dict(list(self._known.items())[-_MAX_REMEMBERED:])
            self._changed = False
        with contextlib.suppress(OSError):
            local_files.write(self._file, json.dumps(newest).encode(), durable=False)
