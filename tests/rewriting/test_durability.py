"""What a power loss may take: never chunks that a receipt speaks of."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from migrate import local_files, receipt, rewrite, verify
from migrate.errors import StorageError

from .conftest import Run


class Disk:
    """Knows of each file and folder the state in which it was last flushed, as fsync and rename really happened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._flushed: dict[int, int] = {}
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._observe)

    def _observe(self, descriptor: int) -> None:
        modified = os.fstat(descriptor).st_mtime_ns
        self._fsync(descriptor)
        self._flushed[os.fstat(descriptor).st_ino] = modified

    def unflushed(self, root: Path) -> list[Path]:
        """Files and folders below ``root``, and itself, that a power loss may take or empty."""
        paths = [root, *(path for path in root.rglob("*") if path.suffix != local_files.LOCK_SUFFIX)]
        return [path for path in paths if self._flushed.get(path.stat().st_ino) != path.stat().st_mtime_ns]


def test_chunks_are_on_the_disk_before_their_receipt(two_arrays: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    destination = two_arrays.destination
    database = Path(destination.parameters_uri, f"ocdbt.process_{rewrite.writer_id()}")
    seen: list[list[Path]] = []
    link = os.link

    def observe(source: Any, target: Any) -> None:
        assert Path(target).parent == Path(receipt.receipts_uri(destination))
        assert list(database.glob("d/*"))
        seen.append(disk.unflushed(database))
        link(source, target)

    for item in two_arrays.plan.items:
        written = rewrite.rewrite_item(item, destination)
        assert disk.unflushed(database), "the test would see nothing"
        with monkeypatch.context() as patched:
            patched.setattr(os, "link", observe)
            verify.verify_item(item, written, destination)
    assert seen == [[]] * len(two_arrays.plan.items)
    receipts = Path(receipt.receipts_uri(destination))
    # the folder is flushed after the receipt has its name, and before the temporary name goes
    assert disk.unflushed(receipts) in ([], [receipts])


def test_chunks_that_cannot_be_flushed_get_no_receipt(two_arrays: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    destination = two_arrays.destination
    item = two_arrays.plan.items[0]
    written = rewrite.rewrite_item(item, destination)

    def failing(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing)
        with pytest.raises(StorageError, match="flushed"):
            verify.verify_item(item, written, destination)
    assert receipt.load_all(destination, [item.id]) == {}
    # nor are its files taken for flushed the next time
    disk = Disk(monkeypatch)
    verify.verify_item(item, written, destination)
    database = Path(destination.parameters_uri, f"ocdbt.process_{rewrite.writer_id()}")
    assert not disk.unflushed(database)
