"""An HTTP server before another that fails on purpose: what an object store does on a bad day."""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

Fault = Literal["500", "503", "403", "401", "slow", "reset", "lost answer"]

_XML = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'
_ANSWERS = {
    "500": (500, _XML.format(code="InternalError", message="We encountered an internal error. Please try again.")),
    "503": (503, _XML.format(code="SlowDown", message="Please reduce your request rate.")),
    "403": (403, _XML.format(code="ExpiredToken", message="The provided token has expired.")),
    "401": (401, '{"error": {"code": 401, "message": "Invalid Credentials"}}'),
}
SLOW_SECONDS = 0.3


class FaultyProxy(ThreadingHTTPServer):
    """Passes requests on to ``port``, or does to them what ``fault`` says of (number of the request, verb, path)."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = port
        self.fault: Callable[[int, str, str], Fault | None] = lambda number, verb, path: None
        self.requests = 0
        self.faults = 0
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def begin(self, fault: Callable[[int, str, str], Fault | None]) -> None:
        """Count from zero, and fail as ``fault`` says from now on."""
        self.requests = self.faults = 0
        self.fault = fault

    def next_fault(self, verb: str, path: str) -> Fault | None:
        with self._lock:
            self.requests += 1
            chosen = self.fault(self.requests, verb, path)
            self.faults += chosen is not None
            return chosen


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyProxy

    def _handle(self) -> None:
        body = self._body()
        fault = self.server.next_fault(self.command, self.path)
        if fault == "reset":
            self._reset()
        elif fault in _ANSWERS:
            status, text = _ANSWERS[fault]
            self._answer(status, [("Content-Type", "application/xml")], text.encode())
        else:
            if fault == "slow":
                time.sleep(SLOW_SECONDS)
            upstream = http.client.HTTPConnection("127.0.0.1", self.server.upstream, timeout=60)
            upstream.request(self.command, self.path, body, dict(self.headers))
            response = upstream.getresponse()
            data = response.read()
            upstream.close()
            if fault == "lost answer":
                self._reset()
            else:
                self._answer(response.status, response.getheaders(), data, response.getheader("Content-Length"))

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while length := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(length))
                self.rfile.readline()
            self.rfile.readline()
            del self.headers["Transfer-Encoding"]
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes, length: str | None = None) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in {"content-length", "transfer-encoding", "connection"}:
                self.send_header(name, value)
        self.send_header("Content-Length", length if self.command == "HEAD" and length else str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _reset(self) -> None:
        # no FIN but RST, as from a machine that has died
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def log_message(self, *_: object) -> None:
        pass

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError, ValueError, OSError):  # a client that has gone, or our own reset
            super().handle()

    def finish(self) -> None:
        with contextlib.suppress(ConnectionError, ValueError, OSError):
            super().finish()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle  # noqa: N815 -- http.server's names


@contextlib.contextmanager
def faulty_proxy(port: int) -> Iterator[FaultyProxy]:
    """A proxy before 127.0.0.1:``port`` that serves until the block ends."""
    with FaultyProxy(port) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()
