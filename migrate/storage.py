"""Files and objects through TensorStore key-value stores: one code path for local disks, ``s3://`` and ``gs://``.

A *uri* is a local path, ``file://``, ``s3://bucket/path`` or ``gs://bucket/path``. A conditional write is the only
way anything becomes visible (see :func:`create`).
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from migrate import local_files
from migrate.errors import StorageError

if TYPE_CHECKING:
    import tensorstore as ts

MAX_METADATA_BYTES = 1 << 30
"""Upper bound, in bytes, of any JSON or msgpack file that is read whole."""

_URL = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")


def is_local(uri: str) -> bool:
    """Whether ``uri`` lies on a file system of this machine."""
    match = _URL.match(uri)
    return match is None or match.group(1) == "file"


def local_path(uri: str) -> Path:
    """The absolute path of a local ``uri``."""
    path = urllib.parse.unquote(uri.removeprefix("file://")) if uri.startswith("file://") else uri
    return Path(os.path.expanduser(path)).absolute()  # noqa: PTH111 -- Path's own raises for an unknown user


def normalise(uri: str) -> str:
    """The uri without a trailing slash; local ones as an absolute path with ``..`` resolved."""
    if is_local(uri):
        return os.path.normpath(local_path(uri))
    return uri.rstrip("/")


def join(uri: str, *parts: str) -> str:
    """``uri`` extended by relative ``parts``."""
    return "/".join([uri.rstrip("/"), *(part.strip("/") for part in parts)])


def kvstore_spec(uri: str) -> dict[str, Any]:
    """The TensorStore key-value store JSON of the directory at ``uri``; holds no credentials.

    Raises :class:`StorageError` for a scheme this project does not support.
    """
    if is_local(uri):
        return {"driver": "file", "path": normalise(uri) + "/"}
    scheme, rest = uri.split("://", 1)
    bucket, _, path = rest.partition("/")
    prefix = path.rstrip("/") + "/" if path.strip("/") else ""
    if scheme == "gs":
        return {"driver": "gcs", "bucket": bucket, "path": prefix}
    if scheme == "s3":
        spec: dict[str, Any] = {"driver": "s3", "bucket": bucket, "path": prefix}
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        if endpoint:
            spec["endpoint"] = endpoint
        if "AWS_ACCESS_KEY_ID" in os.environ:
            # says where they are, not what they are; else the AWS library complains of every file it does not find
            spec["aws_credentials"] = {"type": "environment"}
        if region := os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
            spec["aws_region"] = region
        return spec
    raise StorageError(
        f"storage scheme {scheme!r} is not supported",
        where=uri,
        expected="a local path, file://, s3:// or gs://",
        remedy="copy the data to a supported store",
    )


_RETRIES = {"max_retries": 8, "initial_delay": "250ms"}
"""Of a request to an object store; the delays double, and are about a minute in all."""
_contexts: dict[int, ts.Context] = {}
_contexts_lock = threading.Lock()


def context(cache_bytes: int = 0) -> ts.Context:
    """The TensorStore context of this process: one a cache size, so that OCDBT parents and children share it.

    Local writes are not flushed to disk one by one: data that no COMMIT.json names need not survive a power loss, and
    a commit calls :func:`flush`.
    """
    import tensorstore as ts

    with _contexts_lock:
        if cache_bytes not in _contexts:
            _contexts[cache_bytes] = ts.Context(
                {
                    "cache_pool": {"total_bytes_limit": cache_bytes},
                    "file_io_sync": False,
                    # TensorStore's 32 retries with up to half a minute between them look like a hang
                    "s3_request_retries": _RETRIES,
                    "gcs_request_retries": _RETRIES,
                }
            )
        return _contexts[cache_bytes]


def open_kvstore(uri: str) -> ts.KvStore:
    """The key-value store of the directory at ``uri``; nothing need exist there."""
    import tensorstore as ts

    return ts.KvStore.open(kvstore_spec(uri), context=context()).result()


def read(uri: str, key: str, *, max_bytes: int = MAX_METADATA_BYTES) -> bytes | None:
    """The value of ``key`` under ``uri``, or None if it does not exist.

    Raises :class:`StorageError` if it is larger than ``max_bytes`` or cannot be read.
    """
    try:
        if is_local(uri):
            path = local_path(uri) / key
            if not path.is_file():
                return None
            try:
                with path.open("rb") as file:
                    _check_bytes(uri, key, os.fstat(file.fileno()).st_size, max_bytes)
                    return file.read()
            except FileNotFoundError:
                return None  # deleted a moment ago
        store = open_kvstore(uri)
        result = store.read(key).result()
    except (ValueError, OSError) as error:
        raise storage_error(f"{key} cannot be read", uri, error) from error
    if result.state != "value":
        return None
    value = bytes(result.value)
    _check_bytes(uri, key, len(value), max_bytes)
    return value


def read_range(uri: str, key: str, start: int, stop: int) -> bytes:
    """Bytes ``start`` to ``stop`` of ``key`` under ``uri``; fewer, or none, where the key ends earlier or is missing.

    Raises :class:`StorageError` if the store cannot be read.
    """
    if start >= stop:
        return b""
    try:
        if is_local(uri):
            with (local_path(uri) / key).open("rb") as file:
                file.seek(start)
                return file.read(stop - start)
        return _read_remote_range(uri, key, start, stop)
    except FileNotFoundError:
        return b""
    except (ValueError, OSError) as error:
        raise storage_error(f"{key} cannot be read", uri, error) from error


def _read_remote_range(uri: str, key: str, start: int, stop: int) -> bytes:
    store = open_kvstore(uri)
    # TensorStore refuses a range that leaves the value instead of shortening it.
    for byte_range in (slice(start, stop), slice(start, None)):
        try:
            return bytes(store.read(key, byte_range=byte_range).result().value)
        except ValueError as error:
            if "OUT_OF_RANGE" not in str(error):
                raise
    return b""


def _check_bytes(uri: str, key: str, found_bytes: int, max_bytes: int) -> None:
    if found_bytes > max_bytes:
        raise StorageError(
            f"{key} is too large to be read as metadata",
            where=join(uri, key),
            expected=f"at most {max_bytes:,} bytes",
            found=f"{found_bytes:,} bytes",
        )


def exists(uri: str, key: str) -> bool:
    """Whether ``key`` exists under ``uri``. Raises :class:`StorageError` if the store does not tell."""
    try:
        if is_local(uri):
            return (local_path(uri) / key).is_file()
        return open_kvstore(uri).read(key, byte_range=slice(0, 0)).result().state == "value"
    except (ValueError, OSError) as error:
        raise storage_error(f"{key} cannot be looked up", uri, error) from error


def list_keys(uri: str) -> list[str]:
    """Every key below ``uri``, relative to it, sorted; empty if nothing is there."""
    if is_local(uri):
        root = os.fspath(local_path(uri))
        # A prefix a folder: taking each path apart would cost more than reading the directories.
        prefixes = ((folder[len(root) :].strip(os.sep), names) for folder, _, names in os.walk(root))
        return sorted(f"{prefix}/{name}" if prefix else name for prefix, names in prefixes for name in names)
    try:
        return sorted(key.decode() for key in open_kvstore(uri).list().result())
    except (ValueError, OSError) as error:
        raise storage_error("the directory cannot be listed", uri, error) from error


def list_directory(uri: str) -> list[str]:
    """Names directly below ``uri``, sorted; names that hold further keys end in ``/``."""
    if is_local(uri):
        root = local_path(uri)
        if not root.is_dir():
            return []
        return sorted(entry.name + ("/" if entry.is_dir() else "") for entry in os.scandir(root))
    names = {key.split("/", 1)[0] + ("/" if "/" in key else "") for key in list_keys(uri)}
    return sorted(names)


def write(uri: str, key: str, value: bytes, *, durable: bool = False) -> None:
    """Write ``key`` whole, replacing what was there. Raises :class:`StorageError`."""
    with _storage_errors(f"{key} cannot be written", uri):
        if is_local(uri):
            local_files.write(local_path(uri) / key, value, durable=durable)
        else:
            open_kvstore(uri).write(key, value).result()


def create(uri: str, key: str, value: bytes) -> Literal["created", "exists"]:
    """Write ``key`` only if it does not exist yet, atomically and durably.

    A lost race does not raise in TensorStore, it returns an empty generation; that is reported as ``exists``.
    Raises :class:`StorageError`.
    """
    with _storage_errors(f"{key} cannot be created", uri):
        if is_local(uri):
            return local_files.create(local_path(uri) / key, value)
        store = open_kvstore(uri)
        missing = store.read(key).result()
        if missing.state == "value":
            return "exists"
        return "created" if _write_if(store, key, value, missing.stamp.generation) else "exists"


def replace(uri: str, key: str, value: bytes, *, expected: bytes | None) -> bool:
    """Write ``key`` only if its present value is ``expected`` (None: missing); whether it was written.

    Raises :class:`StorageError`.
    """
    with _storage_errors(f"{key} cannot be replaced", uri):
        if is_local(uri):
            return local_files.replace(local_path(uri) / key, value, expected=expected)
        store = open_kvstore(uri)
        found = store.read(key).result()
        present = bytes(found.value) if found.state == "value" else None
        if present != expected:
            return False
        return _write_if(store, key, value, found.stamp.generation)


def _write_if(store: ts.KvStore, key: str, value: bytes, generation: bytes) -> bool:
    """Write where the key has this generation; whether ``value`` is what lies there now.

    TensorStore repeats a request whose answer was lost. If that one had been done, the repetition finds another
    generation than it wants: what it made itself.
    """
    if store.write(key, value, if_equal=generation).result().generation:
        return True
    found = store.read(key).result()
    return bool(found.state == "value" and found.value == value)


_OWN_PARENTS = 2
"""Folders above an export or a parameter set that a run itself may have made: ``exports/`` and the output."""


def flush(uri: str) -> None:
    """Make everything below a local ``uri``, and the folders it lies in, survive a power loss.

    Array data is written without fsync, so this is called once before a commit. Object stores need none of it. Raises
    :class:`StorageError`.
    """
    if is_local(uri):
        with _storage_errors("the files cannot be flushed to disk", uri):
            local_files.flush(local_path(uri), parents=_OWN_PARENTS)


def flush_files(uri: str, keys: Sequence[str]) -> None:
    """Make ``keys`` below a local ``uri``, and the folders they lie in, survive a power loss; see :func:`flush`.

    A key that is gone is not an error. Raises :class:`StorageError`.
    """
    if is_local(uri):
        with _storage_errors("the files cannot be flushed to disk", uri):
            root = local_path(uri)
            folders = {(root / key).parent for key in keys} | {root, root.parent}
            for path in (*(root / key for key in keys), *folders):
                with contextlib.suppress(FileNotFoundError):
                    local_files.fsync(path)


def flush_directory(uri: str) -> None:
    """Make what was created or deleted directly in a local ``uri`` survive a power loss; nothing happens elsewhere.

    Raises :class:`StorageError`.
    """
    if is_local(uri) and local_path(uri).is_dir():
        with _storage_errors("the directory cannot be flushed to disk", uri):
            local_files.fsync(local_path(uri))


def delete(uri: str, key: str) -> None:
    """Delete ``key``; nothing happens if it does not exist. Raises :class:`StorageError`."""
    with _storage_errors(f"{key} cannot be deleted", uri):
        if is_local(uri):
            (local_path(uri) / key).unlink(missing_ok=True)
        else:
            open_kvstore(uri).write(key, None).result()


def delete_directory(uri: str) -> None:
    """Delete everything below ``uri``, and on a local disk the empty folders too. Raises :class:`StorageError`."""
    with _storage_errors("the directory cannot be deleted", uri):
        if is_local(uri):
            local_files.delete_tree(local_path(uri))
        else:
            import tensorstore as ts

            open_kvstore(uri).delete_range(ts.KvStore.KeyRange()).result()


def delete_empty_directory(uri: str) -> None:
    """Delete a local folder if nothing is in it; object stores have no folders."""
    if is_local(uri):
        with contextlib.suppress(OSError):
            local_path(uri).rmdir()


def delete_unfinished(uri: str, *, below: bool = True) -> None:
    """Delete files in the making that killed writers left in a local ``uri``; object stores have none.

    TensorStore would put the rest of such a file behind the next value of its key. Only where nobody writes at this
    moment. ``below`` includes the folders in it. Raises :class:`StorageError`.
    """
    if is_local(uri):
        with _storage_errors("unfinished files cannot be deleted", uri):
            local_files.delete_unfinished(local_path(uri), below=below)


def stamps(uri: str) -> Iterator[tuple[str, str]]:
    """(key, stamp) of every key below ``uri`` in sorted order; the stamp changes when the key is rewritten.

    On a local disk it is byte count and modification time, elsewhere the store's own generation.
    """
    return stamps_of(uri, list_keys(uri))


def stamps_of(uri: str, keys: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(key, stamp) of each of ``keys`` below ``uri``, as :func:`stamps` gives them."""
    if is_local(uri):
        root = os.fspath(local_path(uri))
        for key in keys:
            status = os.stat(f"{root}/{key}")  # noqa: PTH116 - a Path a key costs more than the call
            yield key, f"{status.st_size}.{status.st_mtime_ns}"
        return
    store = open_kvstore(uri)
    # TensorStore lists no generations; a zero-byte read fetches one.
    pending = [store.read(key, byte_range=slice(0, 0)) for key in keys]
    for key, future in zip(keys, pending, strict=True):
        yield key, future.result().stamp.generation.hex()


@contextlib.contextmanager
def _storage_errors(what: str, uri: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, OSError) as error:
        raise storage_error(what, uri, error) from error


def storage_error(what: str, uri: str, error: BaseException) -> StorageError:
    """The typed form of a TensorStore or OS failure on ``uri``; a full disk is called one."""
    text = _without_location(str(error))
    remedy = "check that the path exists and that its permissions and credentials allow this"
    if "No space left on device" in text or "RESOURCE_EXHAUSTED" in text or "Disk quota exceeded" in text:
        what = f"disk full: {what}"
        remedy = "free space at the output or choose another one; the same command then resumes the run"
    return StorageError(what, where=uri, found=text, remedy=remedy)


def _without_location(text: str) -> str:
    """A TensorStore message without the ``[source locations='...']`` it carries."""
    return re.sub(r"\s*\[(tensorstore_spec|source locations)=.*", "", text, flags=re.DOTALL).strip()
