"""LATEST: publishing, going back, waiting."""

from __future__ import annotations

import threading
import time

import pytest

from migrate import pointer, publication
from migrate.errors import ConfigError, NotAnExportError, NotPublishedError, OutputConflictError
from migrate.pointer import Pointer

from .conftest import FINGERPRINT, Output

MOVES = [
    # before, export, rolled back, after
    (Pointer("a"), "b", False, Pointer("b", ("a",))),
    (Pointer("b", ("a",)), "a", True, Pointer("a", (), ("b",))),
    (Pointer("a", (), ("b",)), "c", False, Pointer("c", ("a",), ("b",))),
    (Pointer("a", (), ("b",)), "b", False, Pointer("b", ("a",))),  # on purpose: no longer rolled back
    (Pointer("a", (), ("a",)), "a", False, Pointer("a")),
    (Pointer("c", ("b", "a")), "a", False, Pointer("a", ("c", "b"))),
]


@pytest.mark.parametrize(("before", "export", "rolled_back", "after"), MOVES)
def test_moves(before: Pointer, export: str, rolled_back: bool, after: Pointer) -> None:
    assert before.moved_to(export, rolled_back=rolled_back) == after


def test_back_and_forth(output: Output) -> None:
    for name in ("a1", "b1", "c1"):
        output.add(name, "s")
    output.add("d1", "s", publish=False)
    states = {listed.id: listed.state for listed in publication.list_exports(output.uri)}
    assert states == {"d1": "never current", "c1": "current", "b1": "previous", "a1": "previous"}

    assert publication.roll_back(output.uri) == ("c1", "b1")
    assert publication.roll_back(output.uri) == ("b1", "a1")
    with pytest.raises(NotAnExportError, match="no earlier export"):
        publication.roll_back(output.uri)
    assert pointer.read(output.uri) == Pointer("a1", (), ("b1", "c1"))
    assert publication.roll_back(output.uri, "c") == ("a1", "c1")
    assert pointer.read(output.uri) == Pointer("c1", ("a1",), ("b1",))
    assert publication.roll_back(output.uri, "c1") == ("c1", "c1")


def test_names_that_fit_nothing_or_several(output: Output) -> None:
    output.add("a1", "s")
    output.add("a2", "s")
    with pytest.raises(NotAnExportError, match="no committed export b"):
        publication.roll_back(output.uri, "b")
    with pytest.raises(ConfigError, match="several exports"):
        publication.roll_back(output.uri, "a")
    with pytest.raises(NotAnExportError):
        publication.roll_back(output.uri + "-nothing")


def test_publish_only_what_was_expected(output: Output) -> None:
    output.add("a1", "s")
    output.add("b1", "s", publish=False)
    with pytest.raises(OutputConflictError):
        publication.publish(output.uri, "b1", expected=None)
    publication.publish(output.uri, "b1", expected="a1")
    assert pointer.read(output.uri) == Pointer("b1", ("a1",))


def test_of_many_publishers_one_wins(output: Output) -> None:
    output.add("a1", "s")
    for number in range(4):
        output.add(f"b{number}", "s", publish=False)
    won: list[str] = []

    def attempt(name: str) -> None:
        try:
            publication.publish(output.uri, name, expected="a1")
            won.append(name)
        except OutputConflictError:
            pass

    threads = [threading.Thread(target=attempt, args=(f"b{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    now = pointer.read(output.uri)
    assert now is not None
    assert won == [now.export]


def test_wait_for(output: Output) -> None:
    later = threading.Timer(0.3, output.add, ("a1", "s"))
    later.start()
    export = publication.wait_for(output.uri, FINGERPRINT, 30, poll_seconds=0.05)
    assert export.manifest.export == "a1"
    assert publication.wait_for(output.uri, FINGERPRINT.digest[:12], 0).manifest.export == "a1"

    began = time.monotonic()
    with pytest.raises(NotPublishedError) as caught:
        publication.wait_for(output.uri, "0" * 64, 0.2, poll_seconds=0.05)
    assert time.monotonic() - began >= 0.2
    assert isinstance(caught.value, TimeoutError)
    assert FINGERPRINT.digest[:16] in str(caught.value)


@pytest.mark.parametrize("text", ["", "abc", "xyz" * 5])
def test_wait_for_what_is_no_fingerprint(text: str) -> None:
    with pytest.raises(ConfigError):
        publication.wait_for("/nowhere", text, 0)
