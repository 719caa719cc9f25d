"""Small files on a local disk, written whole, exclusively and durably.

TensorStore's file driver is not used for these: it writes to ``<key>.__lock`` and renames that, and where a killed
process has left such a file, it writes over its beginning and keeps its end (seen with tensorstore 0.1.86). A receipt,
a lease or COMMIT.json must not come out like that.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal

LOCK_SUFFIX = ".__lock"
"""Of TensorStore's files in the making."""
_TEMPORARY_MARK = ".reexport-tmp-"
"""In the names of ours."""
_ATTEMPTS = 10


def write(path: Path, value: bytes, *, durable: bool) -> None:
    """Replace what ``path`` holds by ``value``, all at once. Raises OSError."""
    with _written(path, value, durable=durable) as temporary:
        temporary.replace(path)
        if durable:
            fsync(path.parent)


def create(path: Path, value: bytes) -> Literal["created", "exists"]:
    """Write ``path`` durably if it does not exist; of several processes exactly one creates it. Raises OSError."""
    if path.exists():
        return "exists"
    with _written(path, value, durable=True) as temporary:
        try:
            os.link(temporary, path)  # fails if the name is taken, also on NFS
        except FileExistsError:
            return "exists"
        fsync(path.parent)
        return "created"


def replace(path: Path, value: bytes, *, expected: bytes | None) -> bool:
    """Write ``path`` durably if it holds ``expected`` (None: does not exist); whether it did. Raises OSError."""
    if expected is None:
        return create(path, value) == "created"
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.parent):
        if not path.is_file() or path.read_bytes() != expected:
            return False
        write(path, value, durable=True)
        return True


def flush(path: Path, *, parents: int) -> None:
    """Make everything below ``path``, and as many folders above it, survive a power loss. Raises OSError."""
    for parent in path.parents[:parents]:
        fsync(parent)
    for folder, _, names in os.walk(path):
        for name in (folder, *(f"{folder}/{name}" for name in names)):
            with contextlib.suppress(FileNotFoundError):  # a file in the making that is gone since it was listed
                fsync(name)


def delete_tree(path: Path) -> None:
    """Delete the folder ``path`` and what is below it; nothing happens if there is none. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def delete_unfinished(path: Path, *, below: bool = True) -> None:
    """Delete files in the making, ours and TensorStore's, which killed writers left in ``path``. Raises OSError.

    Only for folders into which nobody writes at this moment. ``below`` includes the folders in it.
    """
    for folder, folders, names in os.walk(path):
        for name in names:
            if name.endswith(LOCK_SUFFIX) or _TEMPORARY_MARK in name:
                Path(folder, name).unlink(missing_ok=True)
        if not below:
            folders.clear()


def fsync(path: str | Path) -> None:
    """Flush one file or folder to disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _written(path: Path, value: bytes, *, durable: bool) -> Iterator[Path]:
    """A file beside ``path`` that holds ``value``; gone afterwards, unless it was renamed."""
    temporary = path.with_name(f"{path.name}{_TEMPORARY_MARK}{uuid.uuid4().hex}")
    try:
        with _opened(temporary) as file:
            file.write(value)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _opened(temporary: Path) -> BinaryIO:
    """A new file, and the folders above it: another process may delete a folder that it sees empty meanwhile."""
    for _ in range(_ATTEMPTS):
        # mkdir itself says "exists" of a folder that goes while it looks
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            temporary.parent.mkdir(parents=True, exist_ok=True)
            return temporary.open("xb")
    temporary.parent.mkdir(parents=True, exist_ok=True)
    return temporary.open("xb")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other replacements in ``folder`` waiting; the lock leaves no file behind and ends with the process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # some network file systems lock no folders; there the comparison alone has to do
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
