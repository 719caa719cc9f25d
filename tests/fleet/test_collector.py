"""Hiding and deleting on storage: what readers see, what a crash leaves, who waits for whom."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from migrate import collector, lease, pointer, publication, storage
from migrate.collector import collect, wait_for_collector
from migrate.errors import NotAnExportError, OutputConflictError, StorageError
from migrate.export import open_export
from migrate.lease import Lease

from .conftest import Output

DAY = 86_400.0


def test_two_steps(output: Output) -> None:
    output.add("a1", "sa")
    output.add("b1", "sb")
    output.add("c1", "sb")
    opened = open_export(output.paths.export("a1"))

    first = collect(output.uri, keep=1, grace_seconds=DAY)
    assert first.decision.hide == ("a1", "b1")
    assert output.visible() == ["c1"]
    assert opened.parameter_set().id == "sa"  # who has opened it goes on reading
    with pytest.raises(NotAnExportError):
        open_export(output.paths.export("a1"))
    assert [listed.id for listed in publication.list_exports(output.uri)] == ["c1"]

    assert collect(output.uri, keep=1, grace_seconds=DAY).decision.waiting_exports == ("a1", "b1")
    time.sleep(0.01)
    last = collect(output.uri, keep=1, grace_seconds=0.001)
    assert (last.decision.delete_exports, last.decision.delete_sets) == (("a1", "b1"), ("sa",))
    assert output.sets() == ["sb"]
    assert open_export(output.uri).parameter_set().id == "sb"
    assert not [key for key in output.listing() if key.startswith(("retired/", "runs/"))]


def test_a_dry_run_changes_nothing(output: Output) -> None:
    output.add("a1", "sa")
    output.add("b1", "sb")
    before = output.listing()
    decision = collect(output.uri, keep=1, grace_seconds=0, dry_run=True).decision
    assert decision.delete_exports == ("a1",)
    assert output.listing() == before


@pytest.mark.parametrize("steps", range(1, 9))
def test_a_crash_leaves_nothing_half_visible(steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends before any of its deletions; what is visible is whole, and the next collection finishes."""
    output = Output(str(tmp_path / "out"))
    output.add("a1", "sa")
    output.add("b1", "sb")
    output.add("c1", "sc")
    done = 0

    def counted(function: Any) -> Any:
        def delete(*arguments: Any) -> None:
            nonlocal done
            done += 1
            if done > steps:
                raise KeyboardInterrupt
            function(*arguments)

        return delete

    with monkeypatch.context() as patch:
        for name in ("delete", "delete_directory"):
            patch.setattr(collector.storage, name, counted(getattr(storage, name)))
        with pytest.raises(KeyboardInterrupt):
            collect(output.uri, keep=1, grace_seconds=0)
    for export_id in output.visible():
        assert open_export(output.paths.export(export_id)).parameter_set()
    # a set without its database counts as absent, also for the job that would share it
    for name in output.sets():
        if not storage.exists(output.paths.parameters(name), "manifest.ocdbt"):
            assert not storage.exists(output.paths.parameters(name), "parameters.json")
    storage.delete_directory(collector.collector_uri(output.uri))  # the lease of the dead process
    collect(output.uri, keep=1, grace_seconds=0)
    assert (output.visible(), output.sets()) == (["c1"], ["sc"])
    assert not storage.list_directory(str(tmp_path / "out/retired"))


def test_what_a_running_job_holds_stays(output: Output) -> None:
    output.add("a1", "sa")
    output.add("b1", "sb")
    storage.write(output.paths.parameters("half"), "ocdbt.process_1/d/x", b"")
    held = [Lease(output.paths.run(name)) for name in ("sa", "half")]
    collected = collect(output.uri, keep=1, grace_seconds=0)
    assert collected.decision.keep["a1"] == "a running job holds its arrays"
    assert output.sets() == ["half", "sa", "sb"]
    for one in held:
        one.release()
    collect(output.uri, keep=1, grace_seconds=0)
    assert output.sets() == ["sb"]


def test_a_job_that_starts_waits_for_the_collector(output: Output) -> None:
    held = Lease(collector.collector_uri(output.uri))
    waited = threading.Thread(target=wait_for_collector, args=(output.uri,))
    waited.start()
    waited.join(0.5)
    assert waited.is_alive()
    held.release()
    waited.join(30)
    assert not waited.is_alive()


def test_a_second_collection_is_refused(output: Output) -> None:
    output.add("a1", "sa")
    held = Lease(collector.collector_uri(output.uri))
    with pytest.raises(OutputConflictError):
        collect(output.uri, keep=1, grace_seconds=0)
    held.release()


def test_published_at_the_moment_it_is_hidden(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollback between the collector's look at LATEST and its deletion: the export comes back."""
    output.add("a1", "sa")
    output.add("b1", "sb")
    real = storage.delete

    def delete(uri: str, key: str) -> None:
        if uri.endswith("/a1") and key == "COMMIT.json":
            pointer.move(output.uri, "a1")
        real(uri, key)

    with monkeypatch.context() as patch:
        patch.setattr(collector.storage, "delete", delete)
        collect(output.uri, keep=1, grace_seconds=0)
    assert open_export(output.uri).manifest.export == "a1"
    assert open_export(output.uri).parameter_set().id == "sa"


def test_hidden_at_the_moment_it_is_published(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    output.add("a1", "sa")
    output.add("b1", "sb")
    real = pointer.move

    def move(*arguments: Any, **options: Any) -> Any:
        before = real(*arguments, **options)
        storage.delete(output.paths.export("a1"), "COMMIT.json")
        return before

    monkeypatch.setattr(pointer, "move", move)
    with pytest.raises(StorageError, match="deleted at the moment"):
        publication.roll_back(output.uri)
    assert open_export(output.uri).manifest.export == "b1"


def test_a_damaged_export_stops_the_collection(output: Output) -> None:
    """Nobody knows what it refers to."""
    output.add("a1", "sa")
    output.add("b1", "sb")
    storage.write(output.paths.export("a1"), "COMMIT.json", b"{}")
    with pytest.raises(NotAnExportError):
        collect(output.uri, keep=1, grace_seconds=0)
    assert output.sets() == ["sa", "sb"]
    assert not lease.is_held(collector.collector_uri(output.uri))


def test_what_is_no_output(tmp_path: Path) -> None:
    with pytest.raises(NotAnExportError):
        collect(str(tmp_path), keep=1, grace_seconds=0)
    assert list(tmp_path.iterdir()) == []
