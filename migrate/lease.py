"""A lease on a run: two drivers never work on one parameter set at the same time.

The lease is a small file with an expiry, created and replaced by conditional writes only. A holder that died on this
host is recognised by its process id and taken over at once; any other when its lease has expired.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import uuid
from dataclasses import asdict, dataclass

from migrate import storage
from migrate.errors import OutputConflictError, StorageError

LEASE_KEY = "LEASE.json"
LEASE_SECONDS = 120.0
"""Time a lease holds without renewal."""
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class _Holder:
    token: str
    host: str
    pid: int
    expires: float
    """Unix time in seconds."""

    def alive(self) -> bool:
        # process ids are used again, in a restarted container at once: an expired lease has no holder anywhere
        if time.time() >= self.expires:
            return False
        if self.host != socket.gethostname():
            return True
        return self.token in _held if self.pid == os.getpid() else _process_exists(self.pid)


_held: set[str] = set()
"""Tokens of the leases that this process holds: storage may have refused to give one back."""


class Lease:
    """The right to write one run; :meth:`renew` it more often than every :data:`LEASE_SECONDS`."""

    def __init__(self, uri: str) -> None:
        """Take the lease under ``uri``. Raises :class:`OutputConflictError` if a living process holds it."""
        self._uri = uri
        self._token = uuid.uuid4().hex
        found = storage.read(uri, LEASE_KEY, max_bytes=4096)
        holder = _parse(found)
        if holder is not None and holder.alive():
            raise self._conflict(holder)
        self._value = self._new_value()
        self._renewed = time.monotonic()
        # first, since another thread that reads the new lease must find that it is held
        _held.add(self._token)
        try:
            taken = storage.replace(uri, LEASE_KEY, self._value, expected=found)
        except BaseException:
            _held.discard(self._token)
            raise
        if not taken:
            _held.discard(self._token)
            raise self._conflict(_parse(storage.read(uri, LEASE_KEY, max_bytes=4096)))

    def renew(self) -> None:
        """Extend the lease if a third of its time has passed. Raises :class:`OutputConflictError` if it was lost."""
        if time.monotonic() - self._renewed < LEASE_SECONDS / 3:
            return
        value = self._new_value()
        # the commit deletes all of the run's state, this lease too, a moment before the driver hears of it
        if not any(storage.replace(self._uri, LEASE_KEY, value, expected=old) for old in (self._value, None)):
            raise self._conflict(_parse(storage.read(self._uri, LEASE_KEY, max_bytes=4096)))
        self._value = value
        self._renewed = time.monotonic()

    def release(self) -> None:
        """Give the lease back, unless somebody else has taken it; where storage refuses that, it has no holder."""
        _held.discard(self._token)
        with contextlib.suppress(StorageError):
            if storage.read(self._uri, LEASE_KEY, max_bytes=4096) == self._value:
                storage.delete(self._uri, LEASE_KEY)

    def _new_value(self) -> bytes:
        holder = _Holder(self._token, socket.gethostname(), os.getpid(), time.time() + LEASE_SECONDS)
        return json.dumps(asdict(holder)).encode()

    def _conflict(self, holder: _Holder | None) -> OutputConflictError:
        return OutputConflictError(
            "another driver is writing this output",
            where=self._uri,
            expected="one driver at a time",
            found=f"process {holder.pid} on {holder.host}" if holder else "a lease taken at this moment",
            remedy=f"wait for it; if it has died, its lease expires within {LEASE_SECONDS:.0f} seconds",
        )


def is_held(uri: str) -> bool:
    """Whether a living process holds the lease under ``uri``."""
    holder = _parse(storage.read(uri, LEASE_KEY, max_bytes=4096))
    return holder is not None and holder.alive()


def wait_until_free(uri: str, timeout_seconds: float) -> None:
    """Return once nobody holds the lease under ``uri``. Raises :class:`OutputConflictError` after the time-out."""
    deadline = time.monotonic() + timeout_seconds
    while is_held(uri):
        if time.monotonic() > deadline:
            raise OutputConflictError(
                "another process is at work on this output",
                where=uri,
                found=f"its lease is held after {timeout_seconds:.0f} seconds",
                remedy="run the same command again when it has ended",
            )
        time.sleep(_POLL_SECONDS)


def _parse(value: bytes | None) -> _Holder | None:
    if value is None:
        return None
    try:
        fields = json.loads(value)
        return _Holder(str(fields["token"]), str(fields["host"]), int(fields["pid"]), float(fields["expires"]))
    except (ValueError, KeyError, TypeError):
        return None  # torn by a crash: nobody can renew it


def _process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
