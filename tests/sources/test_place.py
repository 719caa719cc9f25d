"""Listings and byte ranges, on a local disk and through TensorStore alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from migrate import storage
from migrate.errors import CorruptCheckpointError, StorageError
from migrate.sources.place import Place, parse_json


@pytest.fixture(params=["local", "remote"])
def uri(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A directory with files, read as one of this machine or through TensorStore's listing of whole keys."""
    for name in ("a", "b/c", "b/d/e", "b0/f", "b-/g"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"0123456789")
    if request.param == "local":
        return str(tmp_path)
    original = storage.kvstore_spec

    def spec(uri: str) -> dict[str, Any]:
        return {"driver": "file", "path": uri.removeprefix("s3://") + "/"} if "://" in uri else original(uri)

    monkeypatch.setattr(storage, "kvstore_spec", spec)
    return f"s3://{tmp_path}"


def test_what_lies_where(uri: str) -> None:
    root = Place(uri + "/")
    assert (root.exists, root.is_file) == (True, False)
    assert (root.files, root.folders) == ({"a"}, {"b", "b0", "b-"})
    assert (root.child("b").files, root.child("b").folders) == ({"c"}, {"d"})
    assert root.child("b/d").files == {"e"}
    assert root.child("b").child("d").uri == f"{uri}/b/d"
    assert not root.child("c").exists
    assert root.looked_at() == "a, b-/, b/, b0/"


def test_a_single_file(tmp_path: Path) -> None:
    (tmp_path / "c").touch()
    place = Place(f"{tmp_path}/c")
    assert (place.exists, place.is_file, place.files) == (True, True, frozenset())
    assert (place.parent, place.name) == (str(tmp_path), "c")


def test_byte_ranges(uri: str) -> None:
    for start, stop in ((0, 3), (7, 10), (7, 12), (0, 99), (10, 12), (11, 12), (3, 3), (5, 2)):
        assert storage.read_range(uri, "b/c", start, stop) == b"0123456789"[start:stop]
    assert storage.read_range(uri, "nothing", 0, 5) == b""


def test_reading_whole_files(uri: str) -> None:
    root = Place(uri)
    assert root.read("b/c") == b"0123456789"
    with pytest.raises(StorageError, match="too large"):
        root.read("a", max_bytes=9)
    with pytest.raises(CorruptCheckpointError, match="nothing is missing") as caught:
        root.read("nothing")
    assert caught.value.where == f"{uri}/nothing"


def test_stamps_change_with_a_rewrite(uri: str) -> None:
    before = dict(storage.stamps_of(uri, ["a", "b/c"]))
    storage.write(uri, "a", b"9876543210")
    after = dict(storage.stamps_of(uri, ["a", "b/c"]))
    assert before["a"] != after["a"]
    assert before["b/c"] == after["b/c"]


def test_a_key_twice() -> None:
    text = b'{"a": {"b": 1, "b": 2}}'
    assert parse_json(text, "x") == {"a": {"b": 2}}
    with pytest.raises(CorruptCheckpointError, match="'b' occurs twice"):
        parse_json(text, "x", unique_keys=True)
