"""What a run keeps about itself: receipts, the progress ledger, failures."""

from __future__ import annotations

import dataclasses
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from migrate import failures, ledger, receipt, storage
from migrate.errors import ConfigError, ReexportError, StorageError
from migrate.receipt import Destination, Receipt

DONE = Receipt("item-1", "writer", (("aa", "bb"), ("cc",)), ("0f" * 16, "1e" * 16), 4096, 0.25)


@pytest.fixture
def destination(tmp_path: Path) -> Destination:
    return Destination(str(tmp_path / "params"), str(tmp_path / "carried"), str(tmp_path / "run"))


def test_receipts_come_back_as_they_were(destination: Destination) -> None:
    other = dataclasses.replace(DONE, item="item-2", digests=())
    for one in (DONE, other):
        receipt.save(one, destination)
    assert receipt.load_all(destination, ["item-1", "item-2", "item-3"]) == {"item-1": DONE, "item-2": other}


def test_only_the_wanted_receipts_are_read(destination: Destination) -> None:
    """Another plan's receipts (other bounds, other items) may lie in the same run."""
    receipt.save(DONE, destination)
    assert receipt.load_all(destination, ["item-2"]) == {}


def test_no_run_yet_has_no_receipts(destination: Destination) -> None:
    assert receipt.load_all(destination, ["item-1"]) == {}


def test_the_first_receipt_of_an_item_stays(destination: Destination) -> None:
    receipt.save(DONE, destination)
    receipt.save(dataclasses.replace(DONE, writer="another"), destination)
    assert receipt.load_all(destination, ["item-1"]) == {"item-1": DONE}


WHOLE = json.dumps(dataclasses.asdict(DONE)).encode()
TORN = {
    "empty": b"",
    "half": WHOLE[: len(WHOLE) // 2],
    "not an object": b"[]",
    "null": b"null",
    "a field is missing": WHOLE.replace(b'"writer": "writer", ', b""),
    "no digests": WHOLE.replace(b'"digests"', b'"digest"'),
    "digests of the wrong kind": WHOLE.replace(b'[["aa", "bb"], ["cc"]]', b"7"),
    "a field too many": WHOLE.replace(b'"writer"', b'"surprise": 1, "writer"', 1),
    "zeros": bytes(len(WHOLE)),  # what some file systems leave after a power loss
}


@pytest.mark.parametrize("content", TORN.values(), ids=TORN)
def test_torn_receipts_count_as_absent(destination: Destination, content: bytes) -> None:
    receipt.save(dataclasses.replace(DONE, item="good"), destination)
    storage.write(receipt.receipts_uri(destination), "item-1.json", content)
    assert set(receipt.load_all(destination, ["item-1", "good"])) == {"good"}
    receipt.save(DONE, destination)  # the item is done again, and this time its receipt counts
    assert receipt.load_all(destination, ["item-1"]) == {"item-1": DONE}


def test_unwritable_receipt_is_a_storage_error(destination: Destination) -> None:
    Path(destination.run_uri).write_text("a file where the directory should be")
    with pytest.raises(StorageError):
        receipt.save(DONE, destination)


def test_ledger_sums_threads_and_processes(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda nbytes: ledger.record(str(tmp_path), nbytes), range(100)))
    assert ledger.read(str(tmp_path)) == (100, sum(range(100)))
    (tmp_path / "another-process").write_bytes((tmp_path / str(os.getpid())).read_bytes())
    assert ledger.read(str(tmp_path)) == (200, 2 * sum(range(100)))


def test_ledger_ignores_a_record_that_is_being_written(tmp_path: Path) -> None:
    ledger.record(str(tmp_path), 7)
    with (tmp_path / str(os.getpid())).open("ab") as file:
        file.write(b"\1\2\3")
    assert ledger.read(str(tmp_path)) == (1, 7)


def test_ledger_is_optional(tmp_path: Path) -> None:
    ledger.record(None, 7)
    assert ledger.read(str(tmp_path)) == (0, 0)


def test_an_item_does_not_fail_because_its_progress_cannot_be_noted(tmp_path: Path) -> None:
    """A worker on another machine has no such directory; an interrupted driver has deleted it."""
    ledger.record(str(tmp_path / "gone"), 7)
    assert not (tmp_path / "gone").exists()


def test_failures_are_taken_once(destination: Destination) -> None:
    failures.save([ConfigError("first", where="a"), ReexportError("second")], destination)
    found = failures.take(destination)
    assert [(type(error), error.what, error.where) for error in found] == [
        (ConfigError, "first", "a"),
        (ReexportError, "second", None),
    ]
    assert failures.take(destination) == []


def test_failures_survive_a_storage_that_takes_no_more(destination: Destination) -> None:
    """The disk being full is the reason, so the reason cannot be written to it."""
    Path(destination.run_uri).write_text("a file where the directory should be")
    failures.save([StorageError("disk full")], destination)
    assert [error.what for error in failures.take(destination)] == ["disk full"]


def test_failures_of_runs_do_not_mix(destination: Destination) -> None:
    other = dataclasses.replace(destination, run_uri=destination.run_uri + "-2")
    failures.save([ReexportError("mine")], destination)
    assert failures.take(other) == []
    assert [error.what for error in failures.take(destination)] == ["mine"]
