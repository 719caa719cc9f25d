"""Damaged checkpoints: each is refused with the right type, and the message names the file or array."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import tensorstore as ts

from migrate.errors import CorruptCheckpointError, ReexportError, StorageError, UnsupportedLeafError
from migrate.sources import open_checkpoint

Damage = Callable[[Path], object]


def remove(pattern: str) -> Damage:
    def damage(root: Path) -> None:
        found = list(root.glob(pattern))
        assert found
        for path in found:
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


def cut(pattern: str, fraction: float = 0.5) -> Damage:
    def damage(root: Path) -> None:
        for path in root.glob(pattern):
            content = path.read_bytes()
            path.write_bytes(content[: int(len(content) * fraction)])

    return damage


def put(name: str, content: bytes) -> Damage:
    return lambda root: (root / name).write_bytes(content)


def edit(name: str, change: Callable[[dict[str, Any]], object]) -> Damage:
    def damage(root: Path) -> None:
        document = json.loads((root / name).read_text())
        change(document)
        (root / name).write_text(json.dumps(document))

    return damage


def share_a_name(document: dict[str, Any]) -> None:
    """What Orbax writes for {'a.b': X, 'a': {'b': Y}}."""
    value = {"value_type": "jax.Array", "skip_deserialize": False}
    document["tree_metadata"]["('x.zeros',)"] = {
        "key_metadata": [{"key": "x.zeros", "key_type": 2}],
        "value_metadata": value,
    }


def set_type(value_type: str) -> Callable[[dict[str, Any]], object]:
    def change(document: dict[str, Any]) -> None:
        document["tree_metadata"]["('custom',)"] = {
            "key_metadata": [{"key": "custom", "key_type": 2}],
            "value_metadata": {"value_type": value_type, "skip_deserialize": False},
        }

    return change


def become_an_array(document: dict[str, Any]) -> None:
    """What Orbax writes for a tree that is an array."""
    value = {"value_type": "jax.Array", "skip_deserialize": False}
    document["tree_metadata"] = {"()": {"key_metadata": [], "value_metadata": value}}


TABLE = "params.embed.table"
CASES: list[tuple[str, Damage, type[ReexportError], list[str]]] = [
    # fixture, damage, error, what its message holds
    ("orbax_0128_ocdbt", remove("_METADATA"), CorruptCheckpointError, ["no tree", "_METADATA"]),
    ("orbax_0128_ocdbt", cut("_METADATA"), CorruptCheckpointError, ["_METADATA", "not valid JSON", "5,861 bytes"]),
    ("orbax_0128_ocdbt", put("_METADATA", b""), CorruptCheckpointError, ["_METADATA", "not valid JSON"]),
    (
        "orbax_0128_ocdbt",
        put("_METADATA", b"[]"),
        CorruptCheckpointError,
        ["_METADATA", "not hold a JSON object", "list"],
    ),
    ("orbax_0128_ocdbt", put("_METADATA", b"{}"), CorruptCheckpointError, ["_METADATA", "tree_metadata"]),
    ("orbax_0128_ocdbt", put("_METADATA", b"\xff\xfe"), CorruptCheckpointError, ["_METADATA", "not valid JSON"]),
    ("orbax_0128_ocdbt", put("_METADATA", b"[" * 100_000), CorruptCheckpointError, ["_METADATA", "not valid JSON"]),
    ("orbax_0128_ocdbt", edit("_METADATA", share_a_name), CorruptCheckpointError, ["['x']['zeros']", "['x.zeros']"]),
    ("orbax_0128_ocdbt", edit("_METADATA", set_type("jax.Array")), CorruptCheckpointError, ["custom", ".zarray"]),
    ("orbax_0128_ocdbt", edit("_METADATA", set_type("my.Type")), UnsupportedLeafError, ["my.Type", "custom"]),
    ("orbax_0128_ocdbt", edit("_METADATA", become_an_array), UnsupportedLeafError, ["one array", "under a key"]),
    ("orbax_0128_ocdbt", edit("_METADATA", set_type("string")), CorruptCheckpointError, ["custom", "_strings.json"]),
    ("orbax_0128_ocdbt", remove("manifest.ocdbt"), CorruptCheckpointError, ["manifest.ocdbt is missing"]),
    ("orbax_0128_ocdbt", cut("manifest.ocdbt"), CorruptCheckpointError, ["manifest.ocdbt", "actual length (57)"]),
    ("orbax_0128_ocdbt", cut("manifest.ocdbt", 0), CorruptCheckpointError, ["manifest.ocdbt"]),
    ("orbax_0128_ocdbt", remove("d"), CorruptCheckpointError, ["/d/4cc668598985457d79ca8f842edce832"]),
    ("orbax_0128_ocdbt", cut("d/*"), CorruptCheckpointError, ["/d/4cc668598985457d79ca8f842edce832"]),
    ("orbax_0128_zarr", remove("_strings.json"), CorruptCheckpointError, ["_strings.json", "x.py_str"]),
    ("orbax_0128_zarr", remove(f"{TABLE}/.zarray"), CorruptCheckpointError, [TABLE, f"{TABLE}/.zarray"]),
    ("orbax_0128_zarr", cut(f"{TABLE}/.zarray"), CorruptCheckpointError, ["params/embed/table", f"{TABLE}/.zarray"]),
    ("orbax_0128_zarr", put(f"{TABLE}/.zarray", b"{}"), CorruptCheckpointError, [f"{TABLE}/.zarray", "KeyError"]),
    (
        "orbax_0128_zarr",
        edit(f"{TABLE}/.zarray", lambda document: document.update(chunks=[0, 4])),
        CorruptCheckpointError,
        [f"{TABLE}/.zarray", "[0, 4]"],
    ),
    (
        "orbax_0128_zarr",
        edit(f"{TABLE}/.zarray", lambda document: document.update(dtype=[["a", "<f4"]])),
        UnsupportedLeafError,
        ["params/embed/table", "<f4"],
    ),
    ("orbax_0128_zarr", remove(f"{TABLE}/1.0"), CorruptCheckpointError, ["params/embed/table", "1 absent: 1.0"]),
    ("orbax_0128_zarr", cut(f"{TABLE}/1.0"), CorruptCheckpointError, ["params/embed/table", f"{TABLE}/1.0"]),
    ("orbax_0128_zarr", remove(f"{TABLE}/?.?"), CorruptCheckpointError, ["8 absent: 0.0, 0.1, 1.0, 1.1, 2.0, ..."]),
    ("orbax_0128_zarr3", cut(f"{TABLE}/zarr.json"), CorruptCheckpointError, [f"{TABLE}/zarr.json", "not valid JSON"]),
    ("orbax_0128_zarr3", remove(f"{TABLE}/c/1"), CorruptCheckpointError, ["2 absent: c/1/0, c/1/1", "8 chunks"]),
    ("orbax_0128_zarr3", cut(f"{TABLE}/c/1/0"), CorruptCheckpointError, [f"{TABLE}/c/1/0", "[0:16, 0:8]"]),
    ("orbax_0128_zarr3", remove("count/c"), CorruptCheckpointError, ["array count", "1 absent: c"]),
    ("orbax_0128_zarr", cut("array_metadatas/process_0"), CorruptCheckpointError, ["process_0", "not valid JSON"]),
    (
        "orbax_0128_zarr",
        put("array_metadatas/process_0", b'{"array_metadatas": {"a": 1}}'),
        CorruptCheckpointError,
        ["array_metadatas/process_0", "TypeError"],
    ),
    ("orbax_027_zarr", cut("checkpoint"), CorruptCheckpointError, ["checkpoint", "whole msgpack tree"]),
    ("orbax_027_zarr", put("checkpoint", b"model_path: 1"), CorruptCheckpointError, ["checkpoint", "byte 1"]),
    ("orbax_027_zarr", put("checkpoint", b"\xdf\xff\xff\xff\xff"), CorruptCheckpointError, ["checkpoint"]),
    ("orbax_027_zarr", put("checkpoint", b"\x81\xa1a" * 1000), CorruptCheckpointError, ["nested deeper"]),
    ("orbax_027_zarr", put("checkpoint", b"\x82\xa1a\x01\xa1a\x02"), CorruptCheckpointError, ["a key twice"]),
    ("orbax_027_zarr", put("checkpoint", b"\x81\xa1a\xc1"), CorruptCheckpointError, ["0xc1"]),
    ("orbax_027_zarr", put("checkpoint", b"\x81\xa1a\xd4\x07x"), CorruptCheckpointError, ["no known kind", "a in"]),
    (
        "orbax_027_zarr",
        put("checkpoint", msgpack.packb({"a.b": "PLACEHOLDER://a.b", "a": {"b": "PLACEHOLDER://a.b"}})),
        CorruptCheckpointError,
        ["'a.b'", "['a']['b']", "['a.b'] and"],
    ),
    ("orbax_018_aggregate", cut("checkpoint"), CorruptCheckpointError, ["checkpoint", "the file ends before byte"]),
    ("orbax_048_ocdbt", remove("_METADATA"), CorruptCheckpointError, []),
    ("flax_075_orbax", remove("*/checkpoint"), CorruptCheckpointError, ["missing", "checkpoint"]),
]


def read_all(root: Path) -> None:
    for leaf in open_checkpoint(str(root)).leaves:
        leaf.read()


@pytest.mark.parametrize(("name", "damage", "kind", "said"), CASES)
def test_damage_is_named(
    copy_of: Callable[[str], Path], name: str, damage: Damage, kind: type[ReexportError], said: list[str]
) -> None:
    root = copy_of(name)
    damage(root)
    if not said:  # not damage: the other tree file is enough
        assert open_checkpoint(str(root)).leaves
        return
    with pytest.raises(kind) as caught:
        read_all(root)
    for text in said:
        assert text in str(caught.value)
    assert caught.value.remedy or caught.value.expected


def test_two_tree_files_that_disagree(copy_of: Callable[[str], Path]) -> None:
    root = copy_of("orbax_048_ocdbt")
    edit("_METADATA", set_type("jax.Array"))(root)
    with pytest.raises(CorruptCheckpointError, match="custom"):
        open_checkpoint(str(root))


def test_an_oversized_metadata_file_is_not_read(copy_of: Callable[[str], Path], monkeypatch: Any) -> None:
    root = copy_of("orbax_0128_ocdbt")
    monkeypatch.setattr("migrate.sources.place.Place.read.__kwdefaults__", {"max_bytes": 100})
    with pytest.raises(StorageError, match=r"_METADATA is too large"):
        open_checkpoint(str(root))


@pytest.fixture
def two_processes(tmp_path: Path) -> Path:
    """A checkpoint whose array chunks lie in the databases of two writer processes."""
    root = tmp_path / "two"
    context = ts.Context()

    def database(path: Path) -> ts.KvStore:
        spec = {"driver": "ocdbt", "base": f"file://{path}/", "config": {"max_inline_value_bytes": 0}}
        return ts.KvStore.open(spec, context=context).result()

    for process in range(2):
        child = root / f"ocdbt.process_{process}"
        array = ts.open(
            {"driver": "zarr", "kvstore": database(child).spec(), "path": "w/"},
            context=context,
            create=True,
            open=True,
            dtype=ts.float32,
            shape=[8, 64],
            chunk_layout=ts.ChunkLayout(chunk_shape=[4, 64]),
        ).result()
        array[4 * process : 4 * process + 4].write(np.full((4, 64), process + 1, np.float32)).result()
        database(child).experimental_copy_range_to(database(root)).result()
    tree = {"('w',)": {"key_metadata": [{"key": "w", "key_type": 2}], "value_metadata": {"value_type": "jax.Array"}}}
    (root / "_METADATA").write_text(json.dumps({"tree_metadata": tree, "use_zarr3": False}))
    return root


def test_a_missing_process_database_is_named(two_processes: Path) -> None:
    (leaf,) = open_checkpoint(str(two_processes)).leaves
    assert leaf.read().sum() == 4 * 64 * 3
    shutil.copytree(two_processes, two_processes.parent / "without")
    shutil.rmtree(two_processes.parent / "without" / "ocdbt.process_0")
    with pytest.raises(CorruptCheckpointError, match=r"ocdbt\.process_0/d/"):
        open_checkpoint(str(two_processes.parent / "without")).leaf("w").read()
