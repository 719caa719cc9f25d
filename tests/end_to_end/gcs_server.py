"""Google Cloud Storage on this machine: the part of its JSON API that TensorStore uses, with generations enforced.

The emulators on PyPI ignore ``ifGenerationMatch``, on which every commit rests.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_OBJECT = re.compile(r"^/storage/v1/b/([^/]+)/o/(.+)$")
_BUCKET = re.compile(r"^/storage/v1/b/([^/]+)/o$")
_UPLOAD = re.compile(r"^/upload/storage/v1/b/([^/]+)/o$")
_PAGE = 100


class GcsServer(ThreadingHTTPServer):
    """Objects in memory."""

    daemon_threads = True

    def __init__(self, buckets: tuple[str, ...]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, dict[str, tuple[int, bytes]]] = {bucket: {} for bucket in buckets}
        """By bucket and name: (generation, value)."""
        self.generations = itertools.count(1_700_000_000_000_000)
        self.lock = threading.Lock()
        self.tokens: set[str] = set()
        """Every Authorization header that was sent."""
        self.refused = 0
        """Conditional writes that were refused."""

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: GcsServer

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.tokens.add(self.headers.get("Authorization", ""))
        path, _, text = self.path.partition("?")
        query = dict(urllib.parse.parse_qsl(text))
        for verb, pattern, action in (
            ("GET", _OBJECT, self._read),
            ("DELETE", _OBJECT, self._delete),
            ("GET", _BUCKET, self._list),
            ("POST", _UPLOAD, self._write),
        ):
            match = pattern.match(path)
            if verb == self.command and match:
                bucket = self.server.objects.get(match.group(1))
                if bucket is None:
                    return self._answer(404, {"error": {"code": 404, "message": "The bucket does not exist."}})
                name = urllib.parse.unquote(match.group(2)) if match.lastindex == 2 else query.get("name", "")
                with self.server.lock:
                    return action(bucket, name, query, body)
        return self._answer(404, {"error": {"code": 404, "message": f"{self.command} {path} is not served here"}})

    def _holds(self, bucket: dict[str, Any], name: str, query: dict[str, str]) -> bool:
        """Whether the request's condition on the generation holds; else it is answered."""
        present = bucket[name][0] if name in bucket else 0
        if "ifGenerationMatch" in query and int(query["ifGenerationMatch"]) != present:
            self.server.refused += 1
            self._answer(412, {"error": {"code": 412, "message": "conditionNotMet"}})
            return False
        if "ifGenerationNotMatch" in query and int(query["ifGenerationNotMatch"]) == present:
            self._answer(304, b"")
            return False
        return True

    def _read(self, bucket: dict[str, Any], name: str, query: dict[str, str], _body: bytes) -> None:
        if not self._holds(bucket, name, query):
            return None
        if name not in bucket:
            return self._answer(404, {"error": {"code": 404, "message": f"No such object: {name}"}})
        generation, value = bucket[name]
        headers = {"x-goog-generation": str(generation)}
        if query.get("alt") != "media":
            return self._answer(200, {"name": name, "generation": str(generation), "size": str(len(value))}, headers)
        match = re.match(r"bytes=(\d+)-(\d*)$", self.headers.get("Range", ""))
        if match is None:
            return self._answer(200, value, headers)
        start, stop = int(match.group(1)), int(match.group(2) or len(value) - 1) + 1
        if start >= len(value):
            return self._answer(416, b"", headers)
        found = f"bytes {start}-{min(stop, len(value)) - 1}/{len(value)}"
        return self._answer(206, value[start:stop], {**headers, "Content-Range": found})

    def _write(self, bucket: dict[str, Any], name: str, query: dict[str, str], body: bytes) -> None:
        if self._holds(bucket, name, query):
            generation = next(self.server.generations)
            bucket[name] = (generation, body)
            self._answer(200, {"name": name, "generation": str(generation), "size": str(len(body))})

    def _delete(self, bucket: dict[str, Any], name: str, query: dict[str, str], _body: bytes) -> None:
        if not self._holds(bucket, name, query):
            return
        found = bucket.pop(name, None)
        self._answer(204 if found else 404, b"")

    def _list(self, bucket: dict[str, Any], _name: str, query: dict[str, str], _body: bytes) -> None:
        first = max(query.get("startOffset", ""), query.get("pageToken", ""))
        last = query.get("endOffset")
        names = [n for n in sorted(bucket) if n >= first and n.startswith(query.get("prefix", ""))]
        names = [n for n in names if last is None or n < last]
        page = {"items": [{"name": n, "generation": str(bucket[n][0])} for n in names[:_PAGE]]}
        if len(names) > _PAGE:
            page["nextPageToken"] = names[_PAGE]  # type: ignore[assignment] # a text beside a list
        self._answer(200, page)

    def _answer(self, status: int, body: bytes | dict[str, Any], headers: dict[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response_only(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass

    do_GET = do_POST = do_DELETE = _handle  # noqa: N815 -- http.server's names


@contextlib.contextmanager
def gcs_server(*buckets: str) -> Iterator[GcsServer]:
    """A server with these buckets that serves until the block ends."""
    with GcsServer(buckets) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
