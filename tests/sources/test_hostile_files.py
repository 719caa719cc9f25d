"""Files that were changed at random or made to do harm: read, or refused with a typed error, never anything else."""

from __future__ import annotations

import base64
import json
import math
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from migrate.errors import CorruptCheckpointError, ReexportError, UnsupportedLeafError
from migrate.sources import SourceCheckpoint, msgpack_tree, open_checkpoint
from migrate.sources.jax_pytreedef import read_tree

FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
# Values that Python's JSON reader gives and that are easily taken for others.
ODD = st.sampled_from(
    [None, True, -1, 0, 1, 2**31, 2**63, 2**200, 1.5, math.inf, math.nan, "", "x", "<f4", "|O", [], [1], [[]], {}]
)


def read_all(path: Path) -> SourceCheckpoint | None:
    """The checkpoint, every small leaf read; None if it was refused."""
    try:
        opened = open_checkpoint(str(path), missing_chunks="zeros")
        for leaf in opened.leaves:
            if leaf.nbytes < 1 << 20:
                leaf.read()
    except ReexportError:
        return None
    return opened


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in a JSON document."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(path for key, child in children for path in places(child, (*at, key)))]


def changed(document: Any, data: st.DataObject) -> Any:
    """The document with a value replaced, or dropped."""
    path = data.draw(st.sampled_from(places(document)))
    if not path:
        return data.draw(ODD)
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    if data.draw(st.booleans()):
        parent[path[-1]] = data.draw(ODD)
    else:
        del parent[path[-1]]
    return document


DOCUMENTS = [
    # fixture, JSON file
    ("orbax_0128_zarr", "_METADATA"),
    ("orbax_0128_zarr", "params.embed.table/.zarray"),
    ("orbax_0128_zarr", "array_metadatas/process_0"),
    ("orbax_0128_zarr", "_strings.json"),
    ("orbax_0128_zarr3", "params.embed.table/zarr.json"),
    ("orbax_0128_v1", "state/_METADATA"),
    ("jax_0120_pytree", "pytreedef.json"),
    ("items_orbax_0128", "4/jax_key/jax_random_key_metadata/metadata"),
    ("safetensors_080_sharded", "model.safetensors.index.json"),
]


@pytest.mark.parametrize(("name", "file"), DOCUMENTS)
@FUZZ
@given(data=st.data())
def test_changed_json(shared_copy: Callable[[str], Path], name: str, file: str, data: st.DataObject) -> None:
    path = shared_copy(name) / file
    original = path.read_bytes()
    try:
        path.write_text(json.dumps(changed(json.loads(original), data)))
        read_all(shared_copy(name))
    finally:
        path.write_bytes(original)


BINARIES = [
    # fixture, binary file
    ("orbax_027_zarr", "checkpoint"),
    ("orbax_018_aggregate", "checkpoint"),
    ("orbax_0128_ocdbt", "manifest.ocdbt"),
    ("orbax_0128_ocdbt", "d/4cc668598985457d79ca8f842edce832"),
    ("flax_085_msgpack_chunked", "checkpoint_10"),
    ("t5x_style_v3", "checkpoint_1000/checkpoint"),
    ("safetensors_080_dtypes", "model.safetensors"),
]


@pytest.mark.parametrize(("name", "file"), BINARIES)
@FUZZ
@given(data=st.data())
def test_changed_bytes(shared_copy: Callable[[str], Path], name: str, file: str, data: st.DataObject) -> None:
    path = shared_copy(name) / file
    original = path.read_bytes()
    content = bytearray(original)
    # The first bytes are those that are interpreted.
    bound = data.draw(st.sampled_from([min(200, len(content)), len(content)]))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, bound - 1))] = data.draw(st.integers(0, 255))
    try:
        path.write_bytes(content)
        read_all(shared_copy(name))
    finally:
        path.write_bytes(original)


@pytest.fixture(scope="module")
def shared_copy(fixture: Callable[[str], Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """One writable copy of each fixture, which a test puts back as it was."""
    import shutil

    copies: dict[str, Path] = {}

    def copy(name: str) -> Path:
        if name not in copies:
            copies[name] = Path(shutil.copytree(fixture(name).path, tmp_path_factory.mktemp("hostile") / "copy"))
        return copies[name]

    return copy


ARRAY = msgpack.packb(((2,), "float32", bytes(8)))
TREES: list[tuple[str, bytes, str]] = [
    # what is wrong, a msgpack file, what the message holds
    ("extents below zero", msgpack.packb(((-1, -2), "float32", bytes(8))), "shape [-1, -2]"),
    ("elements outside their value", ARRAY[:-9] + b"\xc6\x00\x00\x00\x08" + bytes(4), "8 bytes"),
    ("an infinite extent", msgpack.packb(((math.inf,), "float32", b"")), "infinity"),
]


@pytest.mark.parametrize(("array", "said"), [case[1:] for case in TREES], ids=[case[0] for case in TREES])
def test_msgpack_arrays(tmp_path: Path, array: bytes, said: str) -> None:
    tree = {"w": msgpack.ExtType(1, array), "z": bytes(64)}
    (tmp_path / "file").write_bytes(msgpack.packb(tree))
    with pytest.raises(CorruptCheckpointError) as caught:
        open_checkpoint(str(tmp_path / "file"))
    assert said in str(caught.value)


def test_a_tree_of_too_many_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(msgpack_tree, "MAX_TREE_VALUES", 10_000)
    (tmp_path / "file").write_bytes(b"\x81\xa1w\xdd" + struct.pack(">I", 1 << 30) + bytes(20_000))
    with pytest.raises(CorruptCheckpointError, match="more than 10,000 values"):
        open_checkpoint(str(tmp_path / "file"))


def test_a_string_larger_than_the_bound_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.write(b"\x81\xa1w\xdb\xf0\x00\x00\x00")
        file.truncate(0xF0000000 + 100)  # sparse
    tracemalloc.start()
    with pytest.raises(CorruptCheckpointError, match="hold more than 268,435,456 bytes"):
        open_checkpoint(str(tmp_path / "file"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20


def test_a_tree_whose_nodes_refer_to_each_other() -> None:
    """Forty levels of tuples, each twice the one below it: 2**40 positions in a few hundred bytes."""
    levels = 40
    tables: list[bytes] = []
    vtable = struct.pack("<HHHH", 8, 12, 4, 8)  # fields 0 and 1 of a table of 12 bytes
    content = bytearray(struct.pack("<I", 0) + vtable)
    size = 12 + 4 + 8
    for level in range(levels):
        at = len(content)
        target = at + size if level < levels - 1 else at
        table = struct.pack("<iB3xI", at - 4, 2, 4)
        vector = struct.pack("<I", 2) + b"".join(struct.pack("<i", target - (at + 16 + 4 * i)) for i in range(2))
        tables.append(table + vector)
        content += tables[-1]
    struct.pack_into("<I", content, 0, 4 + len(vtable))
    document = {"__jax_pytreedef_repr": base64.b64encode(bytes(content)).decode(), "__jax_leaf_ids": []}
    with pytest.raises(CorruptCheckpointError, match="does not hold a tree"):
        read_tree(json.dumps(document).encode(), "pytreedef.json")


def test_an_array_of_endless_chunks_is_named_in_time(copy_of: Callable[[str], Path]) -> None:
    root = copy_of("orbax_0128_zarr")
    path = root / "params.embed.table" / ".zarray"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "shape": [1 << 40, 8], "chunks": [1, 8]}))
    leaf = open_checkpoint(str(root)).leaf("params/embed/table")
    from migrate.box import Box

    with pytest.raises(CorruptCheckpointError, match="has absent chunks") as caught:
        leaf.read(Box((1 << 39, 0), ((1 << 39) + 1, 8)))
    assert f"{1 << 40:,} chunks" in str(caught.value)


def test_a_document_too_large_is_not_parsed(copy_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    root = copy_of("orbax_0128_zarr")
    path = root / "params.embed.table" / ".zarray"
    path.write_bytes(path.read_bytes() + b" " * 5000)
    assert open_checkpoint(str(root)).leaf("params/embed/table").shape == (16, 8)
    monkeypatch.setattr("migrate.sources.zarr_documents.MAX_DOCUMENT_BYTES", 4500)
    with pytest.raises(CorruptCheckpointError, match=r"\.zarray is too large[\s\S]*embed\.table"):
        open_checkpoint(str(root))


@pytest.mark.parametrize(
    ("name", "file", "change", "said"),
    [
        ("orbax_0128_zarr", ".zarray", {"chunks": [1 << 31, 4]}, "chunks [2147483648, 4] of an array [16, 8]"),
        ("orbax_0523_zarr3", "zarr.json", {"shape": [math.inf, 8]}, "extents [inf, 8]"),
    ],
)
def test_a_chunk_that_could_not_be_allocated(
    copy_of: Callable[[str], Path], name: str, file: str, change: dict[str, Any], said: str
) -> None:
    """TensorStore would end the process."""
    root = copy_of(name)
    path = root / "params.embed.table" / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(CorruptCheckpointError) as caught:
        open_checkpoint(str(root))
    assert said in str(caught.value)


def test_keys_that_are_spelled_alike(tmp_path: Path) -> None:
    array = msgpack.ExtType(1, ARRAY)
    (tmp_path / "file").write_bytes(msgpack.packb({"w": {1: array, "1": array}}))
    with pytest.raises(CorruptCheckpointError, match="two values have the path w/1"):
        open_checkpoint(str(tmp_path / "file"))


def test_numbers_of_the_machine_that_wrote_them(tmp_path: Path) -> None:
    array = msgpack.ExtType(1, msgpack.packb(((1,), "longdouble", bytes(16))))
    (tmp_path / "file").write_bytes(msgpack.packb({"w": array}))
    with pytest.raises(UnsupportedLeafError, match="'longdouble'"):
        open_checkpoint(str(tmp_path / "file"))


@pytest.mark.parametrize("name", ["orbax_0128_ocdbt", "orbax_0128_zarr", "orbax_0128_zarr3"])
def test_a_checkpoint_that_was_replaced_is_read_anew(
    fixture: Callable[[str], Any], copy_of: Callable[[str], Path], name: str
) -> None:
    """A process that goes on running keeps nothing of what lay there before."""
    import shutil

    root = copy_of(name)
    for leaf in open_checkpoint(str(root)).leaves:
        leaf.read()
    other = {"orbax_0128_ocdbt": "orbax_01130_ocdbt", "orbax_0128_zarr": "orbax_0523_zarr"}.get(
        name, "orbax_0523_zarr3"
    )
    shutil.rmtree(root)
    shutil.copytree(fixture(other).path, root)
    for leaf in open_checkpoint(str(root), missing_chunks="zeros").leaves:
        assert leaf.read().dtype == leaf.dtype
    table = open_checkpoint(str(root)).leaf("params/embed/table")
    assert np.array_equal(table.read(), open_checkpoint(str(fixture(other).path)).leaf("params/embed/table").read())
