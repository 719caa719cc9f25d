"""Flax msgpack files: every fixture, the choice among files, and damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from migrate.box import Box
from migrate.errors import (
    AmbiguousCheckpointError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    UncommittedCheckpointError,
    UnknownFormatError,
)
from migrate.sources import open_checkpoint

WITHOUT_ARRAY = {"none", "empty_dict", "empty_list", "empty_tuple", "py_str"}


def test_every_leaf_has_the_saved_bytes(
    flax_name: str, fixture: Callable[[str], Any], check_leaf: Callable[..., None]
) -> None:
    saved = fixture(flax_name)
    opened = open_checkpoint(str(saved.path))
    expected = {path: leaf for path, leaf in saved.leaves.items() if leaf["kind"] not in WITHOUT_ARRAY}
    assert {leaf.path for leaf in opened.leaves} == expected.keys()
    assert opened.step == 10
    for leaf in opened.leaves:
        check_leaf(leaf, expected[leaf.path])
        scalar = expected[leaf.path]["kind"].startswith(("py_", "np_scalar"))
        assert leaf.kind == ("scalar" if scalar else "array")


def test_placeholders_are_what_was_recorded(flax_name: str, fixture: Callable[[str], Any]) -> None:
    saved = fixture(flax_name)
    kinds = {"none": "none", "py_str": "string"}
    expected = {
        path: (kinds.get(leaf["kind"], "empty"), leaf.get("value"))
        for path, leaf in saved.leaves.items()
        if leaf["kind"] in WITHOUT_ARRAY
    }
    opened = open_checkpoint(str(saved.path))
    assert {entry.path: (entry.kind, entry.value) for entry in opened.placeholders} == expected


def test_the_file_itself_can_be_the_path(fixture: Callable[[str], Any], tmp_path: Path) -> None:
    path = fixture("flax_085_msgpack").path
    assert open_checkpoint(f"{path}/checkpoint_10") == open_checkpoint(str(path))
    shutil.copy(path / "checkpoint_10", tmp_path / "anything")
    opened = open_checkpoint(str(tmp_path / "anything"))
    assert (opened.step, len(opened.leaves)) == (None, 44)
    with pytest.raises(CheckpointNotFoundError):
        open_checkpoint(str(tmp_path / "anything"), item="params")


def test_steps(fixture: Callable[[str], Any], tmp_path: Path) -> None:
    file = fixture("flax_085_msgpack").path / "checkpoint_10"
    for name in ("checkpoint_9", "checkpoint_100", "checkpoint_tmp", "checkpoint_200.tmp"):
        shutil.copy(file, tmp_path / name)
    (tmp_path / "notes.txt").write_text("not a checkpoint")
    assert open_checkpoint(str(tmp_path)).step == 100
    assert open_checkpoint(str(tmp_path), step=9).uri.endswith("/checkpoint_9")
    with pytest.raises(CheckpointNotFoundError, match="steps 9, 100"):
        open_checkpoint(str(tmp_path), step=10)
    with pytest.raises(CheckpointNotFoundError, match="without items"):
        open_checkpoint(str(tmp_path), item="params")


def test_files_without_a_step(fixture: Callable[[str], Any], tmp_path: Path) -> None:
    file = fixture("flax_085_msgpack").path / "checkpoint_10"
    shutil.copy(file, tmp_path / "checkpoint_tmp")
    with pytest.raises(UncommittedCheckpointError, match="checkpoint_tmp"):
        open_checkpoint(str(tmp_path))
    shutil.copy(file, tmp_path / "a.msgpack")
    assert open_checkpoint(str(tmp_path)).uri.endswith("/a.msgpack")
    shutil.copy(file, tmp_path / "b.msgpack")
    with pytest.raises(AmbiguousCheckpointError, match=r"a\.msgpack, b\.msgpack"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "file"),
    [("orbax_027_zarr", "checkpoint"), ("t5x_style_v3", "checkpoint_1000/checkpoint")],
)
def test_the_tree_file_of_another_format_is_not_taken(fixture: Callable[[str], Any], name: str, file: str) -> None:
    with pytest.raises(UnknownFormatError, match="give the path of the directory"):
        open_checkpoint(f"{fixture(name).path}/{file}")


def test_a_truncated_file(copy_of: Callable[[str], Path]) -> None:
    root = copy_of("flax_085_msgpack")
    content = (root / "checkpoint_10").read_bytes()
    for length in (len(content) - 1, len(content) // 2, 100):
        (root / "checkpoint_10").write_bytes(content[:length])
        with pytest.raises(CorruptCheckpointError, match="checkpoint_10 is not a whole msgpack tree"):
            open_checkpoint(str(root))


def test_arrays_beside_the_file_that_are_lost(copy_of: Callable[[str], Path]) -> None:
    root = copy_of("flax_064_msgpack_gda")
    (root / "checkpoint_10_gda/params/embed/table/1.0").unlink()
    with pytest.raises(CorruptCheckpointError, match=r"params/embed/table has absent chunks[\s\S]*1 absent: 1\.0"):
        open_checkpoint(str(root)).leaf("params/embed/table").read()
    shutil.rmtree(root / "checkpoint_10_gda/params")
    with pytest.raises(CorruptCheckpointError, match=r"params/embed/table/\.zarray"):
        open_checkpoint(str(root))


def test_identity_covers_the_arrays_beside_the_file(copy_of: Callable[[str], Path]) -> None:
    root = copy_of("flax_064_msgpack_gda")
    before = open_checkpoint(str(root)).identity
    chunk = root / "checkpoint_10_gda/params/embed/table/1.0"
    chunk.write_bytes(chunk.read_bytes())
    assert open_checkpoint(str(root)).identity != before


PIECE = msgpack.ExtType(1, msgpack.packb(((2,), "float32", bytes(8))))
HALF = msgpack.ExtType(1, msgpack.packb(((2,), "float16", bytes(4))))


@pytest.mark.parametrize(
    "chunked",
    [
        {"shape": {"0": 5}, "chunks": {"0": PIECE, "1": PIECE}},
        {"shape": {"0": 4}, "chunks": {"0": PIECE, "1": HALF}},
        {"shape": {"0": 4}, "chunks": {"0": PIECE, "2": PIECE}},
        {"shape": {"0": 4}, "chunks": {"0": PIECE, "1": 7}},
        {"shape": {"0": 4}},
        {"shape": {"0": 0}, "chunks": {}},
    ],
)
def test_pieces_that_do_not_make_an_array(tmp_path: Path, chunked: dict[str, Any]) -> None:
    (tmp_path / "file").write_bytes(msgpack.packb({"w": {"__msgpack_chunked_array__": True, **chunked}}))
    with pytest.raises(CorruptCheckpointError, match=r"w in .*/file"):
        open_checkpoint(str(tmp_path / "file"))


def test_a_large_file_is_not_loaded(tmp_path: Path) -> None:
    """A sparse file of 16 GiB opens at once, and a box across two of its pieces is read."""
    pieces, count = 16, 1 << 28
    head = b"\x93\x91" + msgpack.packb(count) + msgpack.packb("float32") + b"\xc6" + (4 * count).to_bytes(4, "big")
    with (tmp_path / "file").open("wb") as file:
        file.write(b"\x81\xa1w\x83" + msgpack.packb("__msgpack_chunked_array__") + b"\xc3")
        file.write(msgpack.packb("shape") + msgpack.packb({"0": pieces, "1": count}))
        file.write(msgpack.packb("chunks") + b"\xde" + pieces.to_bytes(2, "big"))
        for index in range(pieces):
            file.write(
                msgpack.packb(str(index)) + b"\xc9" + (len(head) + 4 * count).to_bytes(4, "big") + b"\x01" + head
            )
            file.seek(4 * count - 4, 1)
            file.write(np.float32(index).tobytes())
    (leaf,) = open_checkpoint(str(tmp_path / "file")).leaves
    assert (leaf.shape, leaf.nbytes) == ((pieces, count), 16 << 30)
    assert leaf.read(Box((2, count - 1), (5, count))).ravel().tolist() == [2, 3, 4]
