"""Faults put into a run on purpose: each ends in a typed error or in full recovery, never in an export that differs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorstore as ts
import yaml

import migrate
from migrate import lease, receipt
from migrate.errors import (
    CorruptCheckpointError,
    ReexportError,
    RewriteVerificationError,
    SourceError,
    StorageError,
)
from migrate.preparation import Prepared, Silent
from pipelines import transforms

from .conftest import small_job, tree_digest

ITEMS = 16
"""Of the small job, at 128 bytes each."""


@pytest.fixture
def source(old_checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the old checkpoint, to do harm to."""
    return Path(shutil.copytree(old_checkpoint, tmp_path / "source"))


@pytest.fixture
def job(source: Path, tmp_path: Path) -> dict[str, Any]:
    return {**small_job(source, tmp_path / "out", "cpu:8"), "rewrite": {"max_item_bytes": 128, "workers": 2}}


@pytest.fixture(scope="module")
def undisturbed(old_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, ...]]:
    result = migrate.run(small_job(old_checkpoint, tmp_path_factory.mktemp("undisturbed") / "out", "cpu:8"))
    return digests(result.export)


def digests(export: migrate.Export) -> list[tuple[str, ...]]:
    migrate.verify_export(export)
    return [(*array.path, array.content) for array in export.parameter_set().arrays]


def is_committed(output: Path) -> bool:
    return bool([*output.rglob("COMMIT.json"), *output.glob("LATEST")])


class AfterPlan(Silent):
    """Does something once, between the plan and the first item."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action

    def planned(self, prepared: Prepared) -> None:
        self._action()


@pytest.fixture
def after_receipts(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], object]], None]:
    """(count, action): do something once, when that many receipts lie on storage."""

    def install(count: int, action: Callable[[], object]) -> None:
        save, done, lock = receipt.save, [0], threading.Lock()

        def counted(*arguments: Any) -> None:
            save(*arguments)
            with lock:
                done[0] += 1
                now = done[0] == count
            if now:  # the other threads go on meanwhile
                action()

        monkeypatch.setattr(receipt, "save", counted)

    return install


# the source


def unreadable(source: Path) -> None:
    database = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{source}/"}}
    ts.KvStore.open(database).result().write("params.dense.kernel/0.1", b"no chunk").result()


def cut_short(source: Path) -> None:
    for file in (source / "d").iterdir():
        os.truncate(file, file.stat().st_size // 2)


def absent(source: Path) -> None:
    shutil.rmtree(source / "d")


def other_values(source: Path) -> None:
    """A valid chunk with other elements: no checksum of the format tells."""
    database = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{source}/"}}
    store = ts.KvStore.open(database).result()
    key = next(key for key in store.list().result() if key.startswith(b"params.quant.mask/"))
    store.write(key, store[b"params.quant.mask/1" if key.endswith(b"/0") else b"params.quant.mask/0"]).result()


def same_again(source: Path) -> None:
    """The same checkpoint, written again in place by somebody: which one was read cannot be told."""
    for file in source.rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes())


SOURCE_FAULTS: dict[str, tuple[Callable[[Path], None], type[ReexportError]]] = {
    "chunk unreadable": (unreadable, CorruptCheckpointError),
    "data files cut short": (cut_short, SourceError),
    "data files gone": (absent, SourceError),
    "a chunk replaced by another": (other_values, SourceError),
    "written again": (same_again, SourceError),
}


@pytest.mark.parametrize("receipts", [0, ITEMS])
@pytest.mark.parametrize(("harm", "expected"), SOURCE_FAULTS.values(), ids=SOURCE_FAULTS)
def test_source_changes_after_the_plan(
    harm: Callable[[Path], None],
    expected: type[ReexportError],
    receipts: int,
    job: dict[str, Any],
    source: Path,
    tmp_path: Path,
    after_receipts: Callable[..., None],
    undisturbed: list[tuple[str, ...]],
    old_checkpoint: Path,
) -> None:
    """Before the first item, and after the last one, when only the commit is left to notice."""
    reporter = AfterPlan(lambda: harm(source)) if receipts == 0 else None
    if receipts:
        after_receipts(receipts, lambda: harm(source))
    with pytest.raises(expected if receipts == 0 else SourceError) as caught:
        migrate.run(job, reporter=reporter)
    assert str(source) in str(caught.value)
    assert not is_committed(tmp_path / "out")
    # restored from a copy with its times, it is the checkpoint that was planned, and the run goes on
    shutil.rmtree(source)
    shutil.copytree(old_checkpoint, source)
    assert digests(migrate.run(job).export) == undisturbed


# the output


def writer_files(output: Path) -> list[Path]:
    return sorted(output.glob("params/*/ocdbt.process_*/d/*"))


@pytest.mark.parametrize("position", [0.05, 0.5, 0.95])
def test_target_chunk_flipped_before_it_is_verified(
    position: float,
    job: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: list[tuple[str, ...]],
) -> None:
    job["rewrite"]["max_item_bytes"] = "64MiB"  # one item, so that every byte of the data file belongs to it
    verify = transforms.verify_item

    def flipped(*arguments: Any) -> Any:
        for file in writer_files(tmp_path / "out"):
            data = bytearray(file.read_bytes())
            data[int(position * len(data))] ^= 4
            file.write_bytes(data)
        return verify(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(transforms, "verify_item", flipped)
        try:
            migrate.run(job)
        except ReexportError as error:
            assert isinstance(error, RewriteVerificationError | StorageError)  # noqa: PT017 -- or none at all
            assert not is_committed(tmp_path / "out")
    assert digests(migrate.run(job).export) == undisturbed


@pytest.mark.parametrize("left", [0.0, 0.5, 0.99])
def test_data_file_cut_short_after_it_was_verified(
    left: float,
    job: dict[str, Any],
    tmp_path: Path,
    after_receipts: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: list[tuple[str, ...]],
) -> None:
    def cut() -> None:
        for file in writer_files(tmp_path / "out"):
            os.truncate(file, int(file.stat().st_size * left))

    after_receipts(ITEMS, cut)
    try:
        result = migrate.run(job)
    except StorageError as error:
        assert "after they had been verified" in error.what  # noqa: PT017 -- or none at all
        assert "same command" in str(error.remedy)  # noqa: PT017
        assert not is_committed(tmp_path / "out")
        monkeypatch.undo()
        result = migrate.run(job)
        assert result.items_done > 0
    else:
        assert left == 0.99  # only then can what is lost be nodes of a tree that nobody reads any more
    migrate.verify_export(result.export)
    assert digests(result.export) == undisturbed


@contextlib.contextmanager
def small_disk(directory: Path, nbytes: int) -> Iterator[Callable[[int], None]]:
    """A file system of that size at ``directory``, and what makes it larger; skips where it cannot be had."""
    directory.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "tmpfs", str(directory)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield lambda larger: subprocess.run(["mount", "-o", f"remount,size={larger}", str(directory)], check=True)
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def test_disk_full_at_every_stage(
    job: dict[str, Any], tmp_path: Path, undisturbed: list[tuple[str, ...]], source: Path
) -> None:
    """A disk that holds one page more at every attempt, until it holds the export: it fills up everywhere once."""
    before, stages = tree_digest(source), set()
    with small_disk(tmp_path / "disk", 8192) as grow:
        job["output"] = str(tmp_path / "disk" / "out")
        for pages in range(2, 400):
            grow(4096 * pages)
            try:
                result = migrate.run(job)
            except StorageError as error:
                assert "disk full" in error.what or "disk full" in str(error.found), error  # noqa: PT017 -- if at all
                stages.add(error.what)
                assert not list((tmp_path / "disk").rglob("LATEST"))
            else:
                break
        assert digests(result.export) == undisturbed
    assert len(stages) > 3, stages
    assert tree_digest(source) == before


PERMISSIONS = """
import json, os, sys, threading
import migrate
from migrate import receipt
job, folder, count = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
save, done, lock = receipt.save, [0], threading.Lock()
def counted(*arguments):
    save(*arguments)
    with lock:
        done[0] += 1
        now = done[0] == count
    if now:
        for path, _, _ in list(os.walk(folder)):
            os.chmod(path, 0o555)
receipt.save = counted
try:
    migrate.run(job)
except migrate.errors.ReexportError as error:
    print(json.dumps(error.to_json()))
"""


@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root may write anywhere")
@pytest.mark.parametrize("receipts", [1, ITEMS // 2, ITEMS])
def test_permission_lost_midway(
    receipts: int, job: dict[str, Any], tmp_path: Path, undisturbed: list[tuple[str, ...]]
) -> None:
    """The folders of the output become read-only."""
    output = tmp_path / "out"
    # what else would let root write into read-only folders
    drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    command = [*drop, sys.executable, "-c", PERMISSIONS, json.dumps(job), str(output), str(receipts)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stdout, ended.stderr
    error = json.loads(ended.stdout)
    assert error["error"] == "StorageError"
    assert "Permission denied" in error["found"]
    assert not is_committed(output)
    for path in (output, *output.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    assert digests(migrate.run(job).export) == undisturbed


# time


HANGS = """
import os, sys
from pathlib import Path
from migrate.report import progress
source, planned = Path(sys.argv.pop(1)), progress.ConsoleReporter.planned
def hang(self, prepared):
    for file in (source / "d").iterdir():
        file.unlink()
        os.mkfifo(file)  # whoever opens it waits for a writer
    planned(self, prepared)
progress.ConsoleReporter.planned = hang
from migrate.cli import main
main()
"""


def test_a_read_that_hangs(
    job: dict[str, Any], source: Path, tmp_path: Path, undisturbed: list[tuple[str, ...]], old_checkpoint: Path
) -> None:
    job["rewrite"]["item_timeout_seconds"] = 2
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    command = [sys.executable, "-c", HANGS, str(source), "run", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 1, ended.stderr
    assert "an item of work was not finished in time" in ended.stderr
    assert "at most 2 s" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not is_committed(tmp_path / "out")
    shutil.rmtree(source)
    shutil.copytree(old_checkpoint, source)
    del job["rewrite"]["item_timeout_seconds"]
    assert digests(migrate.run(job).export) == undisturbed


@pytest.mark.parametrize("jump_seconds", [86_400, -86_400])
def test_the_clock_jumps_midway(
    jump_seconds: int,
    job: dict[str, Any],
    tmp_path: Path,
    after_receipts: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: list[tuple[str, ...]],
) -> None:
    """A day ahead, a lease looks expired, and another driver may take the output over: both write, one export."""
    others: list[Exception | migrate.Result] = []

    def another_driver() -> None:
        try:
            others.append(migrate.run(job))
        except ReexportError as error:
            others.append(error)

    def jump() -> None:
        monkeypatch.setattr(
            lease, "time", SimpleNamespace(time=lambda: time.time() + jump_seconds, monotonic=time.monotonic)
        )
        other = threading.Thread(target=another_driver)
        other.start()
        other.join()

    after_receipts(ITEMS // 2, jump)
    try:
        first: Exception | migrate.Result = migrate.run(job)
    except ReexportError as error:
        first = error
    monkeypatch.undo()
    found = [first, *others]
    assert any(isinstance(one, migrate.Result) for one in found), found
    if jump_seconds < 0:  # the lease holds all the longer
        assert isinstance(others[0], migrate.errors.OutputConflictError)
    assert digests(migrate.open_export(str(tmp_path / "out"))) == undisturbed
    assert migrate.run(job).already_committed
