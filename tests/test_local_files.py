"""Small files on a local disk, beside what killed writers left."""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorstore as ts

from migrate import local_files, storage


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def stale(tmp_path: Path) -> Path:
    """A folder where a writer of ``key`` was killed before it renamed its file."""
    (tmp_path / "key.__lock").write_bytes(b"a longer value than the next one")
    return tmp_path


def test_tensorstore_keeps_the_end_of_a_stale_lock_file(stale: Path) -> None:
    """Why these files are not written through TensorStore. When this fails, it was mended there."""
    ts.KvStore.open({"driver": "file", "path": f"{stale}/"}).result().write("key", b"short").result()
    assert (stale / "key").read_bytes() == b"shortger value than the next one"


def test_stale_files_do_not_reach_what_is_written(stale: Path) -> None:
    uri = str(stale)
    storage.write(uri, "key", b"short")
    assert storage.read(uri, "key") == b"short"
    assert storage.replace(uri, "key", b"s", expected=b"short")
    assert storage.read(uri, "key") == b"s"
    storage.delete(uri, "key")
    assert storage.create(uri, "key", b"new") == "created"
    assert storage.read(uri, "key") == b"new"


def test_unfinished_files_are_deleted_and_nothing_else(stale: Path) -> None:
    (stale / "below").mkdir()
    (stale / "below/other.__lock").touch()
    (stale / "below/value").touch()
    (stale / "key.reexport-tmp-0123").touch()
    local_files.delete_unfinished(stale, below=False)
    assert names(stale) == ["below"]
    assert (stale / "below/other.__lock").exists()
    local_files.delete_unfinished(stale)
    assert names(stale / "below") == ["value"]


def test_nothing_is_left_beside_a_file_that_was_written(tmp_path: Path) -> None:
    local_files.write(tmp_path / "folder/key", b"1", durable=True)
    local_files.create(tmp_path / "folder/key", b"2")
    local_files.replace(tmp_path / "folder/key", b"3", expected=b"1")
    assert names(tmp_path / "folder") == ["key"]
    assert (tmp_path / "folder/key").read_bytes() == b"3"
