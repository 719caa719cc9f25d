"""Safetensors files: those of the real package, and others written here byte by byte, good and broken."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from migrate.box import Box
from migrate.errors import (
    AmbiguousCheckpointError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    ReexportError,
    UnknownFormatError,
    UnsupportedLeafError,
)
from migrate.sources import open_checkpoint
from migrate.sources.safetensors import _DTYPES

ARRAYS: dict[str, tuple[str, np.ndarray]] = {
    "model.embed.weight": ("F32", np.arange(24, dtype=np.float32).reshape(6, 4)),
    "model.norm.weight": ("BF16", np.arange(5).astype(ml_dtypes.bfloat16)),
    "scale": ("F64", np.array(2.5)),
    "empty": ("I8", np.zeros((0, 3), np.int8)),
    "mask": ("BOOL", np.array([True, False])),
    "fp8": ("F8_E4M3", np.arange(4).astype(ml_dtypes.float8_e4m3fn)),
    "ids": ("U16", np.arange(7, dtype=np.uint16)),
}
Entries = dict[str, tuple[str, np.ndarray]]


def header_of(arrays: Entries) -> tuple[dict[str, Any], bytes]:
    header: dict[str, Any] = {}
    data = b""
    for name, (code, array) in arrays.items():
        start = len(data)
        data += array.tobytes()
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [start, len(data)]}
    return header, data


def write(path: Path, header: dict[str, Any] | bytes, data: bytes) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def save(path: Path, arrays: Entries) -> None:
    header, data = header_of(arrays)
    write(path, {**header, "__metadata__": {"format": "pt"}}, data)


def shard(folder: Path) -> None:
    """Two files and an index."""
    names = sorted(ARRAYS)
    weights = {}
    for part, chosen in enumerate((names[:3], names[3:]), 1):
        file = f"model-0000{part}-of-00002.safetensors"
        save(folder / file, {name: ARRAYS[name] for name in chosen})
        weights.update(dict.fromkeys(chosen, file))
    index = {"metadata": {"total_size": 1}, "weight_map": weights}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def assert_arrays(uri: Path | str, **arguments: Any) -> None:
    opened = open_checkpoint(str(uri), **arguments)
    assert opened.format == "safetensors"
    assert {leaf.path for leaf in opened.leaves} == {(name,) for name in ARRAYS}
    for leaf in opened.leaves:
        _, array = ARRAYS[leaf.path[0]]
        assert (leaf.dtype, leaf.shape) == (array.dtype, array.shape)
        assert leaf.read().tobytes() == array.tobytes()


def test_every_leaf_has_the_saved_bytes(
    safetensors_name: str, fixture: Callable[[str], Any], check_leaf: Callable[..., None]
) -> None:
    saved = fixture(safetensors_name)
    opened = open_checkpoint(str(saved.path))
    assert opened.format == "safetensors"
    assert {leaf.path for leaf in opened.leaves} == saved.leaves.keys()
    for leaf in opened.leaves:
        check_leaf(leaf, saved.leaves[leaf.path])


def test_the_package_writes_every_dtype_that_is_read(fixture: Callable[[str], Any]) -> None:
    saved = fixture("safetensors_080_dtypes")
    dtypes = {leaf["dtype"] for leaf in saved.leaves.values()}
    assert len(dtypes) == 19
    assert dtypes == set(_DTYPES.values())
    assert {tuple(leaf["shape"]) for leaf in saved.leaves.values()} >= {(), (0, 3), (2, 0, 3)}


def test_one_file_under_any_name(tmp_path: Path) -> None:
    save(tmp_path / "weights.bin", ARRAYS)
    assert_arrays(tmp_path / "weights.bin")
    assert open_checkpoint(str(tmp_path / "weights.bin")).details == {"files": "1", "format": "pt"}


def test_a_directory_with_one_file(tmp_path: Path) -> None:
    save(tmp_path / "model.safetensors", ARRAYS)
    assert_arrays(tmp_path)


def test_an_index_and_its_files(tmp_path: Path) -> None:
    shard(tmp_path)
    assert_arrays(tmp_path)
    assert_arrays(tmp_path / "model.safetensors.index.json")


def test_several_files_without_an_index(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        save(tmp_path / name, ARRAYS)
    with pytest.raises(AmbiguousCheckpointError, match=r"a\.safetensors, b\.safetensors"):
        open_checkpoint(str(tmp_path))
    assert_arrays(tmp_path, item="b.safetensors")
    with pytest.raises(CheckpointNotFoundError, match=r"a\.safetensors, b\.safetensors"):
        open_checkpoint(str(tmp_path), item="c.safetensors")


def test_directories_of_steps(tmp_path: Path) -> None:
    for step in (500, 1000):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        save(folder / "model.safetensors", ARRAYS)
    assert open_checkpoint(str(tmp_path)).step == 1000
    assert open_checkpoint(str(tmp_path), step=500).uri.endswith("/checkpoint-500/model.safetensors")
    with pytest.raises(CheckpointNotFoundError, match="500, 1000"):
        open_checkpoint(str(tmp_path), step=2)


def test_a_box_reads_only_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from migrate import storage

    save(tmp_path / "w.safetensors", {"w": ("F32", np.zeros((1000, 100), np.float32))})
    leaf = open_checkpoint(str(tmp_path)).leaf("w")
    reads: list[int] = []
    original = storage.read_range
    monkeypatch.setattr(storage, "read_range", lambda u, k, a, b: (reads.append(b - a), original(u, k, a, b))[1])
    assert leaf.read(Box((10, 0), (20, 50))).shape == (10, 50)
    assert reads == [10 * 100 * 4]


def test_identity_follows_the_files(tmp_path: Path) -> None:
    shard(tmp_path)
    before = open_checkpoint(str(tmp_path)).identity
    (tmp_path / "README.md").write_text("not part of it")
    assert open_checkpoint(str(tmp_path)).identity == before
    save(tmp_path / "model-00001-of-00002.safetensors", {name: ARRAYS[name] for name in sorted(ARRAYS)[:3]})
    assert open_checkpoint(str(tmp_path)).identity != before


HEADER, DATA = header_of(ARRAYS)
EMBED = HEADER["model.embed.weight"]
BROKEN: list[tuple[str, dict[str, Any] | bytes, bytes, type[ReexportError], str]] = [
    ("data cut short", HEADER, DATA[:-1], CorruptCheckpointError, "the file ends before byte"),
    ("no data", HEADER, b"", CorruptCheckpointError, "the file ends before byte"),
    ("header no JSON", b'{"a": ', b"", CorruptCheckpointError, "not valid JSON"),
    ("a name twice", b'{"a": {}, "a": {}}', b"", CorruptCheckpointError, "'a' occurs twice"),
    ("no offsets", {"w": {"dtype": "F32", "shape": [1]}}, b"", CorruptCheckpointError, "w: KeyError"),
    ("backwards", {"w": {**EMBED, "data_offsets": [96, 0]}}, DATA, CorruptCheckpointError, "offsets 96 to 0"),
    ("negative", {"w": {**EMBED, "shape": [-6, -4]}}, DATA, CorruptCheckpointError, "[-6, -4]"),
    ("wrong size", {"w": {**EMBED, "shape": [6, 5]}}, DATA, CorruptCheckpointError, "F32[6, 5] in 96 bytes"),
    ("overlap", {"v": EMBED, "w": EMBED}, DATA, CorruptCheckpointError, "v and w overlap"),
    ("packed dtype", {"w": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}, DATA, UnsupportedLeafError, "'F4'"),
    ("huge header", struct.pack("<Q", 1 << 62), b"{", UnknownFormatError, "a file"),
]


@pytest.mark.parametrize(("header", "data", "kind", "said"), [case[1:] for case in BROKEN], ids=[c[0] for c in BROKEN])
def test_broken_files(
    tmp_path: Path, header: dict[str, Any] | bytes, data: bytes, kind: type[ReexportError], said: str
) -> None:
    path = tmp_path / "w.safetensors"
    if kind is UnknownFormatError:
        assert isinstance(header, bytes)
        path.write_bytes(header + data)
    else:
        write(path, header, data)
    with pytest.raises(kind) as caught:
        open_checkpoint(str(path))
    assert said in str(caught.value)
    assert "w.safetensors" in str(caught.value)


def test_broken_indices(tmp_path: Path) -> None:
    shard(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    good = json.loads(index.read_text())
    first = "model-00001-of-00002.safetensors"

    def refused(said: str) -> None:
        with pytest.raises(CorruptCheckpointError) as caught:
            open_checkpoint(str(tmp_path))
        assert said in str(caught.value)

    index.write_text(json.dumps({"weight_map": {**good["weight_map"], "other": first}}))
    refused(f"other in {first}")
    index.write_text(json.dumps({"weight_map": {"other": "../secret"}}))
    refused("../secret")
    index.write_text(json.dumps(good)[:-10])
    refused("not valid JSON")
    index.write_text(json.dumps(good))
    (tmp_path / first).unlink()
    refused("the file is missing")


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({"w": {**EMBED, "dtype": ["F32"]}}, "dtype ['F32']"),  # no hashable code
        ({"w": {**EMBED, "shape": [6.0, 4]}}, "[6.0, 4] where integers belong"),
        ({"w": {**EMBED, "shape": [True, 24]}}, "where integers belong"),
        ({"w": {**EMBED, "shape": "64"}}, "'64' where integers belong"),
        ({"w": {**EMBED, "data_offsets": [0, 96, 96]}}, "w: ValueError"),
        ({"w": ["F32"]}, "w: TypeError"),
        ({"w": EMBED, "__metadata__": [1]}, "__metadata__ is no mapping"),
        (b'{"w": {"dtype": "F32", "shape": [Infinity], "data_offsets": [0, 1]}}', "where integers belong"),
    ],
)
def test_headers_of_other_types(tmp_path: Path, header: dict[str, Any] | bytes, said: str) -> None:
    write(tmp_path / "w.safetensors", header, DATA)
    with pytest.raises(ReexportError) as caught:
        open_checkpoint(str(tmp_path))
    assert said in str(caught.value)


def test_arrays_that_the_index_does_not_list(tmp_path: Path) -> None:
    shard(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    weights = json.loads(index.read_text())["weight_map"]
    del weights["scale"]
    index.write_text(json.dumps({"weight_map": weights}))
    with pytest.raises(CorruptCheckpointError, match="1 arrays that the index does not list") as caught:
        open_checkpoint(str(tmp_path))
    assert caught.value.found == "scale in model-00002-of-00002.safetensors"
