"""What is around a reconcile: history, status, smoke commands, the webhook, metrics."""

from __future__ import annotations

import base64
import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from migrate import history, notify, storage
from migrate.errors import ReexportError, SmokeTestError
from migrate.history import Status
from migrate.smoke import run_smoke

from .conftest import Output


def test_history_of_many_writers(output: Output) -> None:
    def write(writer: int) -> None:
        for number in range(5):
            history.append(output.uri, {"time": history.now(), "writer": writer, "number": number, "text": "x" * 9000})

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = history.read(output.uri)
    assert len(events) == 20
    for writer in range(4):
        assert [event["number"] for event in events if event["writer"] == writer] == list(range(5))


def test_a_line_that_a_killed_writer_left_spoils_no_other(tmp_path: Path) -> None:
    history.append(str(tmp_path), {"time": "1"})
    with (tmp_path / "history.jsonl").open("ab") as file:
        file.write(b'{"time": "2", "ev')
    history.append(str(tmp_path), {"time": "3"})
    assert [event["time"] for event in history.read(str(tmp_path))] == ["1", "3"]


def test_status(output: Output) -> None:
    assert history.read_status(output.uri) is None
    status = Status("2026-11-30T00:00:00Z", "failed", "a1", 2, {"error": "CompileError", "what": "no"})
    history.write_status(output.uri, status)
    assert history.read_status(output.uri) == status
    storage.write(output.uri, history.STATUS_KEY, b'{"surprise": 1}')
    assert history.read_status(output.uri) is None


PRINT = "import os, sys; print(sys.argv[-1], os.environ['REEXPORT_EXPORT'], file=open('{}', 'w'))"


def test_smoke_command_gets_the_export(tmp_path: Path) -> None:
    for name, command in {
        "words": ["python", "-c", PRINT.format(tmp_path / "words")],
        "shell": f"echo $1 $REEXPORT_EXPORT > {tmp_path}/shell",
    }.items():
        run_smoke(command, "/out/exports/a1", 60)
        assert (tmp_path / name).read_text() == "/out/exports/a1 /out/exports/a1\n"


FAILING: dict[str, tuple[Any, float, list[str]]] = {
    "exit code": ("echo one; echo two >&2; exit 7", 60, ["exit code 7", "one", "two"]),
    "signal": ("kill -SEGV $$", 60, ["signal 11", "printed nothing"]),
    "too slow": ("echo begun; sleep 100", 0.5, ["longer than 0.5 seconds", "begun"]),
    "no such program": (["no-such-program"], 60, ["cannot be started", "no-such-program"]),
    "reads its input": ("read x", 60, ["exit code 1"]),
}


@pytest.mark.parametrize("name", FAILING)
def test_smoke_commands_that_fail(name: str) -> None:
    command, seconds, words = FAILING[name]
    with pytest.raises(SmokeTestError) as caught:
        run_smoke(command, "/out/exports/a1", seconds)
    for word in words:
        assert word in str(caught.value)


def test_what_a_smoke_command_started_is_ended(tmp_path: Path) -> None:
    mark = tmp_path / "alive"
    with pytest.raises(SmokeTestError):
        run_smoke(f"(while :; do date +%N > {mark}; sleep 0.05; done) & sleep 60", "/x", 1)
    assert mark.exists()
    time.sleep(0.3)
    before = mark.read_text()
    time.sleep(0.5)
    assert mark.read_text() == before


class Hook(http.server.BaseHTTPRequestHandler):
    """Answers with the statuses it was given, one a request, and keeps what it received."""

    def do_POST(self) -> None:
        server: Any = self.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server.received.append((self.path, self.headers["Content-Type"], json.loads(body)))
        server.authorizations.append(self.headers["Authorization"])
        status = server.statuses.pop(0) if server.statuses else 200
        if status == 0:
            time.sleep(3)
        self.send_response(status or 200)
        if status == 302:
            self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hook() -> Iterator[Any]:
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    server.received, server.statuses, server.authorizations = [], [], []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{server.server_port}/secret-path?token=secret"
    yield server
    server.shutdown()
    server.server_close()


def test_webhook(hook: Any) -> None:
    notify.post(hook.url, {"text": "done"}, timeout_seconds=10)
    assert hook.received == [("/secret-path?token=secret", "application/json", {"text": "done"})]


def test_webhook_with_a_password(hook: Any) -> None:
    notify.post(hook.url.replace("://", "://us%40er:pass@"), {}, timeout_seconds=10)
    assert hook.authorizations == ["Basic " + base64.b64encode(b"us@er:pass").decode()]


def test_webhook_is_tried_twice(hook: Any) -> None:
    hook.statuses = [503, 200]
    notify.post(hook.url, {"text": "done"}, timeout_seconds=10)
    assert len(hook.received) == 2


@pytest.mark.parametrize(("statuses", "words"), [([500, 404], "404"), ([0, 0], "timed out"), ([302, 302], "302")])
def test_webhook_that_fails(hook: Any, statuses: list[int], words: str) -> None:
    hook.statuses = list(statuses)
    with pytest.raises(ReexportError) as caught:
        notify.post(hook.url, {"text": "done"}, timeout_seconds=0.5)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)
    assert len(hook.received) == 2
    assert {path for path, _, _ in hook.received} == {"/secret-path?token=secret"}  # no redirect is followed


def test_webhook_that_is_not_there() -> None:
    for url in ("http://user:secret@127.0.0.1:9/secret", "http://127.0.0.1:x/secret"):
        with pytest.raises(ReexportError) as caught:
            notify.post(url, {}, timeout_seconds=1)
        assert "secret" not in str(caught.value)
