"""Receipts: what an item of work returns, and the failures that come instead. Plain data that travels through Beam."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from migrate import storage
from migrate.errors import ReexportError
from migrate.zarr import Tree


@dataclass(frozen=True, slots=True)
class Destination:
    """Where items write; one parameter set of an output."""

    parameters_uri: str
    """Directory of the parameter set."""
    carried_uri: str
    """Directory of the leaves that are kept beside it."""
    run_uri: str
    """Directory of the run's own state: receipts, lease, outcome."""
    ledger: str | None = None
    """Local directory in which each process appends the bytes it has finished, for the progress display."""
    attempt: str = ""
    """Of the sessions of this run, which one; workers that outlive a session tell it from the next by this."""

    def directory(self, tree: Tree) -> str:
        """Directory of the arrays of one tree."""
        return self.parameters_uri if tree == "params" else self.carried_uri


@dataclass(frozen=True, slots=True)
class Receipt:
    """An item whose chunks are written and verified."""

    item: str
    """Id of the item."""
    writer: str
    """Process whose database holds the chunks."""
    digests: tuple[tuple[str, ...], ...]
    """For each part of the item the hex SHA-256 of its chunks, in C order of the chunk grid."""
    contents: tuple[str, ...]
    """For each part the hex digest of its content, see :mod:`migrate.content`."""
    nbytes: int
    """Logical bytes."""
    seconds: float
    """Wall time of reading, writing and reading back."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An item that could not be finished; data, so that one job's failure is not another's."""

    item: int
    """Its number in the plan."""
    error: ReexportError
    """Why."""


_READS_AT_ONCE = 32


def save(receipt: Receipt, destination: Destination) -> None:
    """Make a receipt durable: a later run does not repeat its item. Raises :class:`migrate.errors.StorageError`.

    The first receipt of an item stays, so that two commits of one run, at once, take every chunk from the same writer:
    else the one would delete what the other has merged.
    """
    uri, key, data = receipts_uri(destination), f"{receipt.item}.json", json.dumps(asdict(receipt)).encode()
    if storage.create(uri, key, data) == "created":
        return
    present = storage.read(uri, key)
    if present is None or _parse(present) is None:
        storage.write(uri, key, data, durable=True)


def load_all(destination: Destination, items: Sequence[str]) -> dict[str, Receipt]:
    """The durable receipts of ``items``, by item id; one that cannot be parsed counts as absent."""
    uri = receipts_uri(destination)
    wanted = set(items)
    keys = {item: key for key in storage.list_keys(uri) if (item := key.removesuffix(".json")) in wanted}
    found: dict[str, Receipt] = {}
    # one after the other they would take longer to read from an object store than their items took to write
    with ThreadPoolExecutor(_READS_AT_ONCE) as pool:
        for item, text in zip(keys, pool.map(functools.partial(storage.read, uri), keys.values()), strict=True):
            if text is not None and (receipt := _parse(text)) is not None:
                found[item] = receipt
    return found


def forget(destination: Destination, items: Iterable[str]) -> None:
    """Have ``items``, by their ids, done again. Raises :class:`migrate.errors.StorageError`."""
    for item in items:
        storage.delete(receipts_uri(destination), f"{item}.json")


def receipts_uri(destination: Destination) -> str:
    """Directory of the durable receipts."""
    return storage.join(destination.run_uri, "receipts")


def _parse(text: bytes) -> Receipt | None:
    try:
        fields: dict[str, Any] = json.loads(text)
        digests = tuple(tuple(part) for part in fields.pop("digests"))
        contents = tuple(fields.pop("contents"))
        return Receipt(digests=digests, contents=contents, **fields)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None  # torn by a crash while it was written: its item is simply redone
