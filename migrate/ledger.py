"""Live progress across threads and processes of this machine.

Each process appends one fixed-width record a finished item to a file of its own; the driver sums them. Beam offers no
metrics while a local run goes.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from pathlib import Path

_RECORD = struct.Struct("<Q")
_lock = threading.Lock()


def record(directory: str | None, nbytes: int) -> None:
    """Note one finished item of ``nbytes`` logical bytes; does nothing without a ``directory``.

    Nor where it is missing or full, as on another machine: an item does not fail because its progress is not shown.
    """
    if directory is None:
        return
    # one small append is atomic between processes; the lock keeps threads of this one in order
    with contextlib.suppress(OSError), _lock, (Path(directory) / str(os.getpid())).open("ab") as file:
        file.write(_RECORD.pack(nbytes))


def read(directory: str) -> tuple[int, int]:
    """(items, bytes) finished so far."""
    items = total = 0
    for path in Path(directory).iterdir():
        data = path.read_bytes()
        whole = len(data) // _RECORD.size * _RECORD.size
        sizes = [value for (value,) in _RECORD.iter_unpack(data[:whole])]
        items += len(sizes)
        total += sum(sizes)
    return items, total
