"""The scanner against the msgpack package as the oracle, and Flax's extension types."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from migrate.errors import CorruptCheckpointError, UnsupportedLeafError
from migrate.sources.msgpack_tree import MsgpackFile, Packed, PackedArray

# Sizes around each step of the format's length fields: fix, 8, 16 and 32 bits.
numbers = st.integers(-(2**63), 2**64 - 1) | st.sampled_from([-33, -32, -129, -32769, 127, 128, 256, 65536, 2**32])
texts = st.text(max_size=40) | st.sampled_from(["a" * n for n in (31, 32, 255, 256, 65535, 65536)])
trees = st.recursive(
    st.none() | st.booleans() | numbers | st.floats(allow_nan=False) | texts,
    lambda children: st.lists(children, max_size=20) | st.dictionaries(texts | numbers, children, max_size=20),
    max_leaves=30,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("msgpack")


def scan(folder: Path, content: bytes) -> Any:
    (folder / "file").write_bytes(content)
    return MsgpackFile(str(folder), "file").tree()


@settings(deadline=None)
@given(trees)
def test_trees_are_what_msgpack_reads(folder: Path, tree: Any) -> None:
    content = msgpack.packb(tree)
    assert scan(folder, content) == msgpack.unpackb(content, strict_map_key=False)


@settings(deadline=None)
@given(trees, st.data())
def test_no_proper_prefix_is_a_tree(folder: Path, tree: Any, data: st.DataObject) -> None:
    content = msgpack.packb(tree)
    length = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(CorruptCheckpointError, match="file is not a whole msgpack tree"):
        scan(folder, content[:length])


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_noise_never_crashes(folder: Path, content: bytes) -> None:
    with contextlib.suppress(CorruptCheckpointError):
        scan(folder, content)


@pytest.mark.parametrize("count", [0, 1, 2, 4, 8, 16, 17, 255, 256, 65536])
def test_plain_bytes_are_left_in_the_file(folder: Path, count: int) -> None:
    content = msgpack.packb([bytes(count), msgpack.ExtType(42, bytes(count))])
    plain, extension = scan(folder, content)
    assert isinstance(plain, Packed)
    assert (plain.code, plain.size, extension.code, extension.size) == (None, count, 42, count)
    assert extension.start + count == len(content)


def array_ext(array: np.ndarray, code: int = 1, *, old: bool = False) -> msgpack.ExtType:
    triple = (array.shape, array.dtype.name, array.tobytes())
    return msgpack.ExtType(code, msgpack.packb(triple, use_bin_type=not old))


@pytest.mark.parametrize("old", [False, True])
def test_arrays_are_left_in_the_file_and_read_from_it(folder: Path, old: bool) -> None:
    array = np.arange(12, dtype=np.int16).reshape(3, 4)
    tree = scan(folder, msgpack.packb({"w": array_ext(array, old=old), "s": array_ext(np.float32(2.5), 3)}))
    file = MsgpackFile(str(folder), "file")
    leaf = file.leaf(tree["w"], ("w",), (False,))
    assert (leaf.shape, leaf.dtype, leaf.kind, leaf.read().tolist()) == ((3, 4), np.int16, "array", array.tolist())
    scalar = file.leaf(tree["s"], ("s",), (False,))
    assert (scalar.kind, scalar.dtype, scalar.read()) == ("scalar", np.float32, 2.5)


def test_python_complex(folder: Path) -> None:
    assert scan(folder, msgpack.packb([msgpack.ExtType(2, msgpack.packb((1.5, -2.0)))])) == [1.5 - 2j]


@pytest.mark.parametrize(
    "payload",
    [
        msgpack.packb(((2, 2), "float32", bytes(15))),
        msgpack.packb(((2, 2), "float32")),
        msgpack.packb((("a",), "float32", b"")),
        msgpack.packb(7),
        b"",
    ],
)
def test_broken_arrays(folder: Path, payload: bytes) -> None:
    with pytest.raises(CorruptCheckpointError):
        scan(folder, msgpack.packb({"w": msgpack.ExtType(1, payload)}))


def test_dtypes_that_cannot_be_carried(folder: Path) -> None:
    tree = scan(folder, msgpack.packb({"w": msgpack.ExtType(1, msgpack.packb(((1,), "object", bytes(8))))}))
    assert isinstance(tree["w"], PackedArray)
    with pytest.raises(UnsupportedLeafError, match="'object'"):
        MsgpackFile(str(folder), "file").leaf(tree["w"], ("w",), (False,))
