"""Names that would lead out of the checkpoint: refused where a name is a path, kept where it is only a key."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgpack
import numpy as np
import pytest
import tensorstore as ts

from migrate.errors import CorruptCheckpointError
from migrate.sources import open_checkpoint

ESCAPING = [
    "../x",  # out of the directory
    "..",
    "a/../../x",
    "a/../x",  # stays inside, but no writer makes it
    "/x",  # absolute
    "//x",
    "a//b",
    "./x",
    "x/",
    "..\\x",  # a slash for TensorStore
    "x\0y",  # ends early for the operating system
]


def save_array(root: Path, *, ocdbt: bool, key: str) -> None:
    base = {"driver": "file", "path": f"{root}/"}
    kvstore = {"driver": "ocdbt", "base": base} if ocdbt else base
    spec = {"driver": "zarr", "kvstore": {**kvstore, "path": f"{key}/" if ocdbt else f"{root}/{key}/"}}
    array = ts.open(spec, create=True, dtype=ts.float32, shape=[3]).result()
    array.write(np.arange(3, dtype=np.float32)).result()


def orbax(root: Path, name: str) -> None:
    key = {"key_metadata": [{"key": name, "key_type": 2}], "value_metadata": {"value_type": "jax.Array"}}
    (root / "_METADATA").write_text(json.dumps({"tree_metadata": {"x": key}, "use_zarr3": False}))


def orbax_database(root: Path, name: str) -> None:
    save_array(root, ocdbt=True, key="other")
    orbax(root, name)


def orbax_old(root: Path, name: str) -> None:
    (root / "checkpoint").write_bytes(msgpack.packb({"x": f"PLACEHOLDER://{name}"}))


def flax(root: Path, name: str) -> None:
    (root / "checkpoint_1").write_bytes(msgpack.packb({"x": f"//GDAPlaceholder:{name}"}))


def t5x(root: Path, name: str) -> None:
    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": name}}
    tree = {"version": 3, "optimizer": {"target": {"x": spec}}}
    (root / "checkpoint").write_bytes(msgpack.packb(tree))


def safetensors(root: Path, name: str) -> None:
    (root / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))


@pytest.mark.parametrize("name", ESCAPING)
@pytest.mark.parametrize("write", [orbax, orbax_database, orbax_old, flax, t5x, safetensors])
def test_a_name_that_leads_out_is_refused(tmp_path: Path, write: Callable[[Path, str], None], name: str) -> None:
    if write is t5x and name == "x/":
        return  # how T5X writes every path
    save_array(tmp_path, ocdbt=False, key="x")  # what `../x` means
    root = tmp_path / "ckpt"
    root.mkdir()
    write(root, name)
    with pytest.raises(CorruptCheckpointError) as caught:
        open_checkpoint(str(root))
    assert repr(name) in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize("name", ["../x", "/x", "a/../x", "a//b", "..", "a\\b", "a:b", "%2e%2e", "..x", "x..", ".x"])
def test_in_a_database_it_is_only_a_key(tmp_path: Path, name: str) -> None:
    save_array(tmp_path, ocdbt=True, key=name)
    orbax(tmp_path, name)
    (leaf,) = open_checkpoint(str(tmp_path)).leaves
    assert (leaf.path, leaf.read().tolist()) == ((name,), [0, 1, 2])


@pytest.mark.parametrize("name", ["..x", "x..", ".x", "~", "a b", "é", "-x", "*"])
def test_odd_names_that_stay_are_read(tmp_path: Path, name: str) -> None:
    save_array(tmp_path, ocdbt=False, key=name)
    orbax(tmp_path, name)
    (leaf,) = open_checkpoint(str(tmp_path)).leaves
    assert leaf.read().tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", [*ESCAPING, ""])
def test_inside_a_file_it_is_only_a_key(tmp_path: Path, name: str) -> None:
    array = msgpack.ExtType(1, msgpack.packb(((2,), "float32", bytes(8))))
    (tmp_path / "file").write_bytes(msgpack.packb({"a": {name: array}}))
    (leaf,) = open_checkpoint(str(tmp_path / "file")).leaves
    assert (leaf.path, leaf.read().tolist()) == (("a", name), [0, 0])


def test_a_database_of_strings_beside_the_checkpoint_is_not_read(tmp_path: Path) -> None:
    root = tmp_path / "ckpt"
    root.mkdir()
    orbax(root, "../secret")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "_strings.json").write_text(json.dumps({"../secret": "text"}))
    with pytest.raises(CorruptCheckpointError, match=r"'\.\./secret'"):
        open_checkpoint(str(root))
