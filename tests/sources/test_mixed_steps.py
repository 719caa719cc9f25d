"""Directories whose steps are of several formats, and unfinished steps beside finished ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from migrate.errors import AmbiguousCheckpointError, CheckpointNotFoundError, UncommittedCheckpointError
from migrate.sources import open_checkpoint

SOURCES = {
    "flax": "flax_085_msgpack",  # a file
    "orbax": "orbax_0128_ocdbt",
    "orbax-old": "orbax_027_zarr",
    "t5x": "t5x_style_v3",
    "jax": "jax_0120_pytree",
}
FORMATS = {
    "flax": "flax-msgpack",
    "orbax": "orbax-zarr2-ocdbt",
    "orbax-old": "orbax-zarr2",
    "t5x": "t5x",
    "jax": "jax-pytree",
}


@pytest.fixture
def root_of(fixture: Callable[[str], Any], tmp_path: Path) -> Callable[[dict[str, str]], Path]:
    """A directory of the named entries, each a copy of a checkpoint of the named kind."""

    def make(entries: dict[str, str]) -> Path:
        root = tmp_path / "root"
        root.mkdir()
        for name, kind in entries.items():
            path: Path = fixture(SOURCES[kind]).path
            if kind == "flax":
                shutil.copy(path / "checkpoint_10", root / name)
            else:
                shutil.copytree(path / "checkpoint_1000" if kind == "t5x" else path, root / name)
        return root

    return make


FLAX_THEN_ORBAX = {"checkpoint_10": "flax", "checkpoint_20": "flax", "checkpoint_30": "orbax"}
TEMPORARY = "checkpoint_40.orbax-checkpoint-tmp-7"
CHOSEN: list[tuple[dict[str, str], int | None, int, str]] = [
    # what lies there, the step asked for, the step and kind that is opened
    (FLAX_THEN_ORBAX, None, 30, "orbax"),
    (FLAX_THEN_ORBAX, 10, 10, "flax"),
    (FLAX_THEN_ORBAX, 20, 20, "flax"),
    ({"checkpoint_30": "flax", "checkpoint_20": "orbax"}, None, 30, "flax"),  # the later one is the file
    ({"checkpoint_30": "flax", "checkpoint_20": "orbax-old"}, 20, 20, "orbax-old"),
    ({"checkpoint_30": "flax", TEMPORARY: "orbax"}, None, 30, "flax"),  # nothing else of Orbax's is finished
    ({"checkpoint_30": "orbax", TEMPORARY: "orbax"}, None, 30, "orbax"),
    ({"checkpoint_30": "flax", "checkpoint_40tmp": "flax"}, None, 30, "flax"),
    ({"checkpoint_1": "t5x", "checkpoint_2": "orbax"}, None, 2, "orbax"),
    ({"checkpoint_1": "t5x", "checkpoint_2": "orbax-old"}, 1, 1, "t5x"),
    ({"checkpoint_2": "t5x", "checkpoint_1": "orbax-old", "checkpoint_3": "flax"}, None, 3, "flax"),
    ({"step_1": "jax", "step_2": "orbax"}, 1, 1, "jax"),
    ({"step_3": "jax", "step_2": "orbax"}, None, 3, "jax"),
]


@pytest.mark.parametrize(("entries", "step", "opened_step", "kind"), CHOSEN)
def test_the_step_is_chosen_among_all_formats(
    root_of: Callable[[dict[str, str]], Path], entries: dict[str, str], step: int | None, opened_step: int, kind: str
) -> None:
    opened = open_checkpoint(str(root_of(entries)), step=step, missing_chunks="zeros")
    assert (opened.step, opened.format) == (opened_step, FORMATS[kind])
    assert all(leaf.read().nbytes == leaf.nbytes for leaf in opened.leaves)


def test_all_steps_are_told(root_of: Callable[[dict[str, str]], Path]) -> None:
    root = root_of(FLAX_THEN_ORBAX)
    assert open_checkpoint(str(root), step=10).details["steps"] == "10, 20, 30"
    with pytest.raises(CheckpointNotFoundError, match="steps 10, 20, 30"):
        open_checkpoint(str(root), step=5)


REFUSED: list[tuple[dict[str, str], int, type[Exception], str]] = [
    # what lies there, the step asked for, error, what its message holds
    ({"checkpoint_30": "flax", TEMPORARY: "orbax"}, 40, UncommittedCheckpointError, "step 40 is not finished"),
    ({"checkpoint_30": "orbax", TEMPORARY: "orbax"}, 40, UncommittedCheckpointError, "step 40 is not finished"),
    ({"checkpoint_3": "flax", "ckpt_3": "orbax"}, 3, AmbiguousCheckpointError, "checkpoint_3, ckpt_3"),
    ({"checkpoint_3": "flax", "checkpoint_4tmp": "flax"}, 4, CheckpointNotFoundError, "steps 3"),
]


@pytest.mark.parametrize(("entries", "step", "kind", "said"), REFUSED)
def test_a_step_that_is_unfinished_or_twice_there_is_refused(
    root_of: Callable[[dict[str, str]], Path], entries: dict[str, str], step: int, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        open_checkpoint(str(root_of(entries)), step=step)


def test_an_unfinished_step_beside_good_ones(copy_of: Callable[[str], Path]) -> None:
    """As a writer that died leaves it: the directory is there, its tree file is not."""
    root = copy_of("orbax_0128_manager_items")
    shutil.copytree(root / "2", root / "3.orbax-checkpoint-tmp")
    for file in (root / "3.orbax-checkpoint-tmp").rglob("_METADATA"):
        file.unlink()
    assert open_checkpoint(str(root), item="params").step == 2
    with pytest.raises(UncommittedCheckpointError, match="step 3 is not finished"):
        open_checkpoint(str(root), step=3, item="params")


def test_flax_files_of_several_steps(fixture: Callable[[str], Any], tmp_path: Path) -> None:
    """As ``save_checkpoint`` with ``keep`` leaves them, and files it was writing when it died."""
    file = fixture("flax_085_msgpack").path / "checkpoint_10"
    for name in ("checkpoint_2", "checkpoint_10", "checkpoint_9.5", "checkpoint_tmp", "checkpoint_11_tmp"):
        shutil.copy(file, tmp_path / name)
    assert open_checkpoint(str(tmp_path)).step == 10
    assert open_checkpoint(str(tmp_path), step=2).uri.endswith("/checkpoint_2")
    with pytest.raises(CheckpointNotFoundError, match="steps 2, 10"):
        open_checkpoint(str(tmp_path), step=11)


def test_each_step_is_asked_once(root_of: Callable[[dict[str, str]], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every format looks at every step, which must not mean a read of each on an object store."""
    from migrate import storage

    root = root_of({f"checkpoint_{step}": "orbax-old" for step in range(8)} | {"checkpoint_9": "flax"})
    reads: list[str] = []
    original = storage.read_range

    def read_range(uri: str, key: str, start: int, stop: int) -> bytes:
        if stop <= 16:
            reads.append(f"{uri}/{key}")
        return original(uri, key, start, stop)

    monkeypatch.setattr(storage, "read_range", read_range)
    assert open_checkpoint(str(root), step=3).step == 3
    assert sum(read.endswith("/checkpoint") for read in reads) == 8
