"""Checkpoints that lost their tree file, or the database of a writer process."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from migrate.errors import CheckpointNotFoundError, CorruptCheckpointError, ReexportError
from migrate.sources import open_checkpoint

TREE_FILES = ("_METADATA", "checkpoint")
SIDE_FILES = ("_sharding", "_strings.json", "array_metadatas", "commit_success.txt", "_CHECKPOINT_METADATA")
Fixture = Callable[[str], Any]


def lose(root: Path, names: tuple[str, ...]) -> None:
    for name in names:
        for path in list(root.rglob(name)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


LOST: list[tuple[str, str, tuple[str, ...], str]] = [
    # fixture, path below it, what else is lost beside the tree file, what the message holds
    ("orbax_0128_zarr", "", (), "a file _METADATA or checkpoint"),  # _sharding and others are left
    ("orbax_0128_zarr", "", SIDE_FILES, "keys joined with dots"),
    ("orbax_0128_zarr", "", SIDE_FILES[:-1], "a file _METADATA or checkpoint"),  # the time of the commit is left
    ("orbax_0128_zarr3", "", SIDE_FILES, "keys joined with dots"),
    ("orbax_0128_ocdbt", "", SIDE_FILES, "a file _METADATA or checkpoint"),  # ocdbt.process_0 is left
    ("orbax_0523_zarr", "", SIDE_FILES, "keys joined with dots"),
    ("orbax_035_zarr", "", (), "keys joined with dots"),  # that version wrote no other file
    ("orbax_027_zarr", "", (), "keys joined with dots"),
    ("orbax_011_zarr", "", (), "keys joined with dots"),
    ("orbax_01130_mp2_zarr", "", SIDE_FILES, "keys joined with dots"),
    ("orbax_0128_manager_items", "2/params", SIDE_FILES[:-1], "a file _METADATA or checkpoint"),
    ("t5x_style_v3", "", (), "keys joined with dots"),
    ("t5x_style_v2", "checkpoint_1000", (), "keys joined with dots"),
]


@pytest.mark.parametrize(("name", "below", "also", "said"), LOST)
def test_a_lost_tree_file_is_named(
    copy_of: Callable[[str], Path], name: str, below: str, also: tuple[str, ...], said: str
) -> None:
    root = copy_of(name)
    lose(root, TREE_FILES + also)
    with pytest.raises(CorruptCheckpointError) as caught:
        open_checkpoint(str(root / below))
    assert said in str(caught.value)
    assert "_METADATA" in (caught.value.expected or "")
    assert caught.value.remedy


def test_an_item_of_a_step_that_lost_its_tree_file(copy_of: Callable[[str], Path]) -> None:
    root = copy_of("orbax_0128_manager_items")
    (root / "2/params/_METADATA").unlink()
    with pytest.raises(CorruptCheckpointError, match="the checkpoint has no tree"):
        open_checkpoint(str(root), item="params")
    lose(root / "2/params", SIDE_FILES)
    with pytest.raises(CorruptCheckpointError, match="the checkpoint has no tree"):
        open_checkpoint(str(root), item="params")


@pytest.mark.parametrize("name", ["jax_0413_gacm", "jax_081_gacm", "jax_0120_gacm"])
def test_what_jax_wrote_itself_is_opened(fixture: Fixture, name: str) -> None:
    assert open_checkpoint(str(fixture(name).path)).details["tree"].endswith("are not recorded")


def test_a_zarr_group_has_its_names_as_they_are(copy_of: Callable[[str], Path]) -> None:
    root = copy_of("orbax_027_zarr")
    lose(root, TREE_FILES)
    (root / ".zgroup").write_text('{"zarr_format": 2}')
    opened = open_checkpoint(str(root))
    assert opened.format == "jax-arrays"
    assert opened.leaf("params.embed.table").shape == (16, 8)


def test_a_database_cannot_be_told_apart_but_says_what_it_may_be(copy_of: Callable[[str], Path]) -> None:
    root = copy_of("orbax_027_ocdbt_clean")
    lose(root, TREE_FILES)
    opened = open_checkpoint(str(root))
    assert opened.format == "jax-arrays-ocdbt"
    assert "if Orbax wrote them, its tree file is lost" in opened.details["tree"]


TWO_PROCESSES = ("orbax_0128_mp2_ocdbt", "orbax_0128_mp2_ocdbt_zarr3")
LARGE = ("processes_orbax_0128", "processes_orbax_0128_zarr3")


@pytest.mark.parametrize("name", [*TWO_PROCESSES, *LARGE, "orbax_01130_mp2_zarr"])
def test_what_two_processes_wrote(fixture: Fixture, check_leaf: Callable[..., None], name: str) -> None:
    saved = fixture(name)
    opened = open_checkpoint(str(saved.path))
    assert opened.details.get("writer processes") == (None if name.endswith("zarr") else "2")
    for leaf in opened.leaves:
        check_leaf(leaf, saved.leaves[leaf.path])


@pytest.mark.parametrize("lost", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("name", [*TWO_PROCESSES, *LARGE])
def test_lost_databases_of_processes(
    fixture: Fixture, copy_of: Callable[[str], Path], check_leaf: Callable[..., None], name: str, lost: tuple[int, ...]
) -> None:
    """A leaf reads as it was saved, or the error names the folder that is gone; never anything else."""
    root = copy_of(name)
    for process in lost:
        shutil.rmtree(root / f"ocdbt.process_{process}")
    errors = []
    for leaf in open_checkpoint(str(root)).leaves:
        try:
            check_leaf(leaf, fixture(name).leaves[leaf.path])
        except CorruptCheckpointError as error:
            errors.append(error)
    assert all("data files of its database are missing" in error.what for error in errors)
    named = {int(process) for error in errors for process in re.findall(r"ocdbt\.process_(\d)/d/", error.found or "")}
    # The values of the small checkpoints all lie in the nodes of the joined database.
    assert named == (set(lost) if name in LARGE else set())


@pytest.mark.parametrize("name", TWO_PROCESSES)
def test_only_the_joined_database_is_needed(
    fixture: Fixture, copy_of: Callable[[str], Path], check_leaf: Callable[..., None], name: str
) -> None:
    root = copy_of(name)
    for process in (0, 1):
        (root / f"ocdbt.process_{process}" / "manifest.ocdbt").unlink()
    for leaf in open_checkpoint(str(root)).leaves:
        check_leaf(leaf, fixture(name).leaves[leaf.path])
    (root / "manifest.ocdbt").unlink()
    with pytest.raises(CorruptCheckpointError, match=r"manifest\.ocdbt is missing"):
        open_checkpoint(str(root))


def test_a_chunk_of_the_second_process_that_is_lost(copy_of: Callable[[str], Path]) -> None:
    root = copy_of("orbax_01130_mp2_zarr")
    opened = open_checkpoint(str(root))
    leaf = max(opened.leaves, key=lambda leaf: leaf.nbytes)
    chunks = [path for path in root.glob(f"{'.'.join(leaf.path)}/*") if not path.name.startswith(".")]
    assert len(chunks) > 1
    max(chunks).unlink()
    with pytest.raises(CorruptCheckpointError, match=f"1 absent: {re.escape(max(chunks).name)}"):
        leaf.read()


def test_no_item_with_a_tree(copy_of: Callable[[str], Path]) -> None:
    root = copy_of("orbax_0128_manager_items")
    for item in ("params", "state"):
        shutil.rmtree(root / "2" / item)
    with pytest.raises(CheckpointNotFoundError, match="no item holds arrays") as caught:
        open_checkpoint(str(root), step=2)
    assert isinstance(caught.value, ReexportError)
