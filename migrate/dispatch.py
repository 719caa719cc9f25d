"""Work as it travels to the workers: the plan once, through the run's directory, and ranges of item numbers.

A plan of 100,000 arrays takes tens of megabytes; a runner's job graph may not. The file is a pickle, so a worker reads
it only if its digest is the one that the driver put into the graph.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from migrate import rewrite, storage
from migrate.commit import CommitRequest, Work
from migrate.errors import StorageError
from migrate.planner import Item
from migrate.receipt import Destination

_KEY = "work.pickle"
_MAX_RANGES = 4096
"""More work is cut into longer ranges, so that the job graph stays small."""

Range = tuple[str, int, int]
"""(job, first item, one past the last), in the numbers of the plan: what the runner distributes."""
NOTHING: Range = ("", 0, 1)
"""An item of no job: with it in the pipeline, a run that has no items left commits too."""


class PlanGoneError(StorageError):
    """The run was ended, or another driver took it over."""


@dataclass(frozen=True, slots=True)
class Dispatched:
    """The work of one job, small: what a step of the pipeline knows of it."""

    destination: Destination
    export_uri: str
    """Directory of the export that it makes."""
    sha256: str
    """Digest of the file that holds the rest."""
    item_timeout_seconds: float
    """After this time an item that is being written, or read back, has failed."""


def dispatch(name: str, work: Work) -> tuple[Dispatched, list[Range]]:
    """Store what the workers of the job ``name`` need, and cut its items into ranges of about equal bytes.

    Raises :class:`StorageError`.
    """
    data = pickle.dumps(work.request, protocol=pickle.HIGHEST_PROTOCOL)
    storage.write(work.destination.run_uri, _KEY, data)
    export_uri = work.request.paths.export(work.request.export_id)
    sent = Dispatched(work.destination, export_uri, hashlib.sha256(data).hexdigest(), work.item_timeout_seconds)
    wanted = {item.id for item in work.items}
    numbers = [number for number, item in enumerate(work.request.plan.items) if item.id in wanted]
    most = -(-len(numbers) // _MAX_RANGES) or 1
    ranges: list[Range] = []
    for number in numbers:
        if ranges and ranges[-1][2] == number and number - ranges[-1][1] < most:
            ranges[-1] = (name, ranges[-1][1], number + 1)
        else:
            ranges.append((name, number, number + 1))
    return sent, ranges


def item(sent: Dispatched, number: int) -> Item:
    """The item with that number in the job's plan.

    Raises as :func:`request`, and :class:`migrate.rewrite.StoppedError` where the run is being ended.
    """
    rewrite.check_running(sent.destination)
    return request(sent).plan.items[number]


def numbers(chosen: Range) -> Iterator[tuple[str, int]]:
    """(job, item) for each item of a range."""
    job, start, stop = chosen
    return ((job, number) for number in range(start, stop))


def request(sent: Dispatched) -> CommitRequest:
    """What the driver stored; read once a process.

    Raises :class:`PlanGoneError`, or :class:`StorageError` if the file cannot be read.
    """
    with _lock:  # else every thread of a worker would read it
        return _read(sent.destination.run_uri, sent.sha256)


_lock = threading.Lock()


@functools.lru_cache(maxsize=4)
def _read(run_uri: str, sha256: str) -> CommitRequest:
    data = storage.read(run_uri, _KEY)
    if data is None or hashlib.sha256(data).hexdigest() != sha256:
        raise PlanGoneError(
            "the run's plan is not there any more",
            where=storage.join(run_uri, _KEY),
            expected=f"SHA-256 {sha256[:16]}...",
            found="no file" if data is None else "another plan: another driver has taken the run over",
            remedy="run the same command again: it does only items without a receipt",
        )
    found: CommitRequest = pickle.loads(data)  # noqa: S301 - the driver's own, by its digest
    return found
