"""Keys and values under a uri: one code path for every store, conditional writes that one writer wins."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from migrate import storage
from migrate.errors import StorageError

THREADS = 8

NORMALISED = [
    ("/a/b/", "/a/b"),
    ("/a/../b", "/b"),
    ("file:///a/b/", "/a/b"),
    ("file:///a%20b", "/a b"),  # a url is quoted, a path is not
    ("/a%20b", "/a%20b"),
    ("~/x", str(Path.home() / "x")),
    ("rel", str(Path.cwd() / "rel")),
    ("s3://bucket/a/", "s3://bucket/a"),
    ("gs://bucket", "gs://bucket"),
]


@pytest.mark.parametrize(("uri", "expected"), NORMALISED)
def test_normalise(uri: str, expected: str) -> None:
    assert storage.normalise(uri) == expected
    assert storage.normalise(expected) == expected


JOINED = [
    (("/a", "b"), "/a/b"),
    (("/a/", "/b/", "c"), "/a/b/c"),
    (("s3://bucket", "a"), "s3://bucket/a"),
    (("/", "a"), "/a"),
]


@pytest.mark.parametrize(("parts", "expected"), JOINED)
def test_join(parts: tuple[str, ...], expected: str) -> None:
    assert storage.join(*parts) == expected


SPECS = [
    ("/a/b", {"driver": "file", "path": "/a/b/"}),
    ("file:///a/b/", {"driver": "file", "path": "/a/b/"}),
    ("s3://bucket/a/b/", {"driver": "s3", "bucket": "bucket", "path": "a/b/"}),
    # the root of a bucket has no path; "/" would be a key that begins with a slash
    ("s3://bucket", {"driver": "s3", "bucket": "bucket", "path": ""}),
    ("s3://bucket/", {"driver": "s3", "bucket": "bucket", "path": ""}),
    ("gs://bucket/a", {"driver": "gcs", "bucket": "bucket", "path": "a/"}),
]
AWS = ("AWS_ACCESS_KEY_ID", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION")


@pytest.fixture(autouse=True)
def no_aws_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in AWS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("uri", "expected"), SPECS)
def test_kvstore_spec(uri: str, expected: dict[str, Any]) -> None:
    assert storage.kvstore_spec(uri) == expected


def test_s3_spec_takes_endpoint_and_region_but_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://general")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9000")  # the more specific one wins
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "hidden")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    spec = storage.kvstore_spec("s3://bucket/a")
    assert (spec["endpoint"], spec["aws_region"]) == ("http://127.0.0.1:9000", "eu-1")
    assert spec["aws_credentials"] == {"type": "environment"}
    assert "hidden" not in str(spec)


@pytest.mark.parametrize("uri", ["ftp://host/a", "http://host/a", "S3://bucket/a"])
def test_other_schemes_are_refused_and_never_taken_for_local_paths(uri: str) -> None:
    assert not storage.is_local(uri)
    with pytest.raises(StorageError, match="is not supported") as caught:
        storage.kvstore_spec(uri)
    assert caught.value.where == uri


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "root")


def test_write_read_delete(uri: str) -> None:
    assert storage.read(uri, "a/b") is None
    assert not storage.exists(uri, "a/b")
    for value in (b"one", b"", b"three"):  # an empty value exists
        storage.write(uri, "a/b", value)
        assert storage.read(uri, "a/b") == value
        assert storage.exists(uri, "a/b")
    storage.delete(uri, "a/b")
    storage.delete(uri, "a/b")
    assert storage.read(uri, "a/b") is None


def test_read_refuses_what_is_too_large_and_takes_what_just_fits(uri: str) -> None:
    storage.write(uri, "a", bytes(100))
    assert storage.read(uri, "a", max_bytes=100) == bytes(100)
    with pytest.raises(StorageError, match="too large") as caught:
        storage.read(uri, "a", max_bytes=99)
    assert (caught.value.expected, caught.value.found) == ("at most 99 bytes", "100 bytes")


RANGES = [
    (0, 3, b"abc"),
    (2, 10, b"cdef"),  # past the end: what there is
    (6, 8, b""),
    (9, 12, b""),
    (3, 3, b""),
    (4, 2, b""),
]


@pytest.mark.parametrize(("start", "stop", "expected"), RANGES)
def test_read_range(uri: str, start: int, stop: int, expected: bytes) -> None:
    storage.write(uri, "a", b"abcdef")
    assert storage.read_range(uri, "a", start, stop) == expected
    assert storage.read_range(uri, "missing", start, stop) == b""


def test_listings(uri: str) -> None:
    assert storage.list_keys(uri) == storage.list_directory(uri) == []
    for key in ("b", "a/x", "a/y/z", "c/x"):
        storage.write(uri, key, b"")
    assert storage.list_keys(uri) == ["a/x", "a/y/z", "b", "c/x"]
    assert storage.list_directory(uri) == ["a/", "b", "c/"]
    assert storage.list_directory(storage.join(uri, "a")) == ["x", "y/"]
    storage.delete_directory(storage.join(uri, "a"))
    storage.delete_directory(storage.join(uri, "a"))
    assert storage.list_directory(uri) == ["b", "c/"]


def test_stamps_change_when_a_key_is_rewritten(uri: str) -> None:
    storage.write(uri, "a", b"x")
    storage.write(uri, "b", b"x")
    before = dict(storage.stamps(uri))
    storage.write(uri, "a", b"longer")
    after = dict(storage.stamps(uri))
    assert list(before) == list(after) == ["a", "b"]
    assert [key for key in after if after[key] != before[key]] == ["a"]


def in_threads(action: Callable[[int], Any]) -> list[Any]:
    """What ``action`` gives in threads that begin together."""
    barrier = threading.Barrier(THREADS)

    def wait_and_act(number: int) -> Any:
        barrier.wait(10)
        return action(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(wait_and_act, range(THREADS)))


@pytest.mark.parametrize("attempt", range(5))
def test_exactly_one_of_many_creates(uri: str, attempt: int) -> None:
    found = in_threads(lambda number: storage.create(uri, "key", str(number).encode()))
    assert sorted(set(found)) == ["created", "exists"]
    assert found.count("created") == 1
    assert storage.read(uri, "key") == str(found.index("created")).encode()


@pytest.mark.parametrize("present", [None, b"old"])
def test_exactly_one_of_many_replaces(uri: str, present: bytes | None) -> None:
    if present is not None:
        storage.write(uri, "key", present)
    found = in_threads(lambda number: storage.replace(uri, "key", str(number).encode(), expected=present))
    assert found.count(True) == 1
    assert storage.read(uri, "key") == str(found.index(True)).encode()


def test_create_keeps_what_is_there(uri: str) -> None:
    storage.write(uri, "key", b"")
    assert storage.create(uri, "key", b"new") == "exists"
    assert storage.read(uri, "key") == b""


UNEXPECTED = [(b"a", b"b"), (b"a", None), (None, b"a"), (b"", None)]


@pytest.mark.parametrize(("present", "expected"), UNEXPECTED)
def test_replace_refuses_what_it_does_not_expect(uri: str, present: bytes | None, expected: bytes | None) -> None:
    if present is not None:
        storage.write(uri, "key", present)
    assert not storage.replace(uri, "key", b"new", expected=expected)
    assert storage.read(uri, "key") == present


def test_lock_files_are_deleted_and_nothing_else(uri: str) -> None:
    storage.write(uri, "d/value", b"x")
    for lock in ("d/value.__lock", "manifest.__lock"):
        (Path(uri) / lock).touch()
    storage.delete_unfinished(uri)
    assert storage.list_keys(uri) == ["d/value"]


def test_flush_takes_any_directory(uri: str) -> None:
    storage.flush(uri)  # nothing there
    storage.write(uri, "a/b", b"x")
    (Path(uri) / "empty").mkdir()
    storage.flush(uri)
    assert storage.list_keys(uri) == ["a/b"]


WRITES: dict[str, Callable[[str], Any]] = {
    "write": lambda uri: storage.write(uri, "a", b""),
    "create": lambda uri: storage.create(uri, "a", b""),
    "replace": lambda uri: storage.replace(uri, "a", b"", expected=None),
    "delete": lambda uri: storage.delete(uri, "a"),
}


@pytest.mark.parametrize("action", WRITES.values(), ids=WRITES)
def test_local_failures_are_storage_errors(uri: str, action: Callable[[str], Any]) -> None:
    Path(uri).write_text("a file where the directory should be")
    with pytest.raises(StorageError) as caught:
        action(uri)
    assert caught.value.where == uri
    assert "tensorstore_spec" not in str(caught.value)
    assert "source locations" not in str(caught.value)


READS: dict[str, Callable[[str], Any]] = {
    "read": lambda uri: storage.read(uri, "a"),
    "read_range": lambda uri: storage.read_range(uri, "a", 0, 1),
    "exists": lambda uri: storage.exists(uri, "a"),
    "list_keys": storage.list_keys,
    "list_directory": storage.list_directory,
    "stamps": lambda uri: list(storage.stamps(uri)),
    "delete_directory": storage.delete_directory,
}


class Forbidding(http.server.BaseHTTPRequestHandler):
    """An object store that knows nobody."""

    def answer(self) -> None:
        self.send_response(403)
        self.send_header("Content-Length", "0")
        self.send_header("x-amz-bucket-region", "us-east-1")
        self.end_headers()

    do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = answer  # noqa: N815 -- names of the base class

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def forbidding_endpoint() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Forbidding)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("action", [*WRITES.values(), *READS.values()], ids=[*WRITES, *READS])
def test_object_store_that_refuses_is_a_storage_error(
    action: Callable[[str], Any], forbidding_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", forbidding_endpoint)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "hidden")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    with pytest.raises(StorageError) as caught:
        action("s3://bucket/a")
    assert caught.value.where == "s3://bucket/a"
    assert "hidden" not in str(caught.value)


FULL = [
    "RESOURCE_EXHAUSTED: write failed [os_error_code='28']",
    "[Errno 28] No space left on device: 'x'",
    "Disk quota exceeded",
]


@pytest.mark.parametrize("text", FULL)
def test_a_full_disk_is_called_one(text: str) -> None:
    error = storage.storage_error("a cannot be written", "/out", OSError(text))
    assert error.what == "disk full: a cannot be written"
    assert "resumes" in error.remedy


def test_other_failures_are_not_called_a_full_disk() -> None:
    error = storage.storage_error("a cannot be written", "/out", OSError("Permission denied"))
    assert error.what == "a cannot be written"
    assert "permissions" in error.remedy


def test_contexts_are_shared_by_cache_size() -> None:
    """OCDBT copies between databases only inside one context."""
    assert storage.context(7) is storage.context(7)
    assert storage.context(7) is not storage.context(8)
