"""One driver at a time. Other holders are written as the file they would leave; time is set, never waited for."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from migrate import lease, storage
from migrate.errors import OutputConflictError
from migrate.lease import LEASE_KEY, LEASE_SECONDS, Lease


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "run")


def dead_pid() -> int:
    return subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    ).stdout.strip()


def hold(uri: str, **fields: Any) -> None:
    """Leave the lease of somebody else."""
    holder = {"token": "t", "host": socket.gethostname(), "pid": os.getpid(), "expires": time.time() + 60}
    storage.write(uri, LEASE_KEY, json.dumps({**holder, **fields}).encode())


def test_second_holder_is_refused_until_the_first_gives_it_back(uri: str) -> None:
    first = Lease(uri)
    with pytest.raises(OutputConflictError) as caught:
        Lease(uri)
    assert caught.value.found == f"process {os.getpid()} on {socket.gethostname()}"
    assert caught.value.where == uri
    first.release()
    Lease(uri).release()
    assert not storage.exists(uri, LEASE_KEY)


ALIVE = {
    # another process of this host
    "here": {"pid": os.getppid()},
    # nobody can ask another host whether a process lives; its lease has not expired
    "elsewhere": {"host": "another-host", "pid": 1},
}


@pytest.mark.parametrize("fields", ALIVE.values(), ids=ALIVE)
def test_living_holders_are_respected(uri: str, fields: dict[str, Any]) -> None:
    hold(uri, **fields)
    with pytest.raises(OutputConflictError):
        Lease(uri)


GONE = {
    # killed: its process id is free
    "dead here": {"pid": None},
    # this process, which could not delete it when it gave it back: storage refused that
    "not held here": {},
    # killed elsewhere, some time ago
    "expired elsewhere": {"host": "another-host", "expires": 1.0},
    # killed, and its process id is used again: a restarted container's first process has the same one
    "process id reused": {"expires": 1.0},
}


@pytest.mark.parametrize("fields", GONE.values(), ids=GONE)
def test_gone_holders_are_taken_over_at_once(uri: str, fields: dict[str, Any]) -> None:
    hold(uri, **{**fields, **({"pid": int(dead_pid())} if "pid" in fields else {})})
    taken = Lease(uri)
    with pytest.raises(OutputConflictError):
        Lease(uri)
    taken.release()


TORN = [b"", b"{", b"[]", b"null", b'{"token": "t"}', b'{"token": "t", "host": "h", "pid": "x", "expires": 1}']


@pytest.mark.parametrize("content", TORN)
def test_torn_lease_has_no_holder(uri: str, content: bytes) -> None:
    storage.write(uri, LEASE_KEY, content)
    Lease(uri).release()


def test_exactly_one_of_many_wins(uri: str) -> None:
    hold(uri, expires=1.0)

    def attempt(_: int) -> Lease | None:
        try:
            return Lease(uri)
        except OutputConflictError:
            return None

    with ThreadPoolExecutor(8) as pool:
        taken = [found for found in pool.map(attempt, range(8)) if found]
    assert len(taken) == 1
    taken[0].release()


class Clock:
    """Both clocks of the lease, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 1000.0
        monkeypatch.setattr(lease.time, "time", lambda: self.seconds)
        monkeypatch.setattr(lease.time, "monotonic", lambda: self.seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def expires(uri: str) -> float:
    return json.loads(storage.read(uri, LEASE_KEY))["expires"]


def test_renewal_extends_the_lease_after_a_third_of_its_time(uri: str, clock: Clock) -> None:
    held = Lease(uri)
    first = expires(uri)
    assert first == clock.seconds + LEASE_SECONDS
    clock.seconds += LEASE_SECONDS / 3 - 1
    held.renew()
    assert expires(uri) == first  # polled often, written seldom
    clock.seconds += 2
    held.renew()
    assert expires(uri) == clock.seconds + LEASE_SECONDS
    held.release()
    assert not storage.exists(uri, LEASE_KEY)


def test_renewing_a_lease_that_somebody_took_raises_and_leaves_theirs(uri: str, clock: Clock) -> None:
    held = Lease(uri)
    clock.seconds += LEASE_SECONDS + 1  # suspended for too long
    other = Lease(uri)
    theirs = storage.read(uri, LEASE_KEY)
    with pytest.raises(OutputConflictError):
        held.renew()
    held.release()
    assert storage.read(uri, LEASE_KEY) == theirs
    other.release()
    assert not storage.exists(uri, LEASE_KEY)


def test_renewing_after_the_commit_deleted_the_run_is_no_conflict(uri: str, clock: Clock) -> None:
    held = Lease(uri)
    storage.delete_directory(uri)
    clock.seconds += LEASE_SECONDS / 2
    held.renew()
    held.release()
    assert not storage.exists(uri, LEASE_KEY)
