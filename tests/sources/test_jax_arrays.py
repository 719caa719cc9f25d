"""The three forms of jax's array serialization, and its tree file against jax itself."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from migrate.errors import CheckpointNotFoundError, CorruptCheckpointError
from migrate.sources import open_checkpoint
from migrate.sources.jax_pytreedef import read_tree

WITHOUT_ARRAY = {"none", "empty_dict", "empty_list", "empty_tuple", "py_str"}


def stored_path(saved: dict[str, Any]) -> str:
    """Path of a saved leaf on storage, below the checkpoint or in its database."""
    kvstore = saved["on_disk"]["spec"]["kvstore"]
    return str(kvstore["path"]).removeprefix("{ckpt}/").rstrip("/")


def test_every_leaf_has_the_saved_bytes(
    jax_name: str, fixture: Callable[[str], Any], check_leaf: Callable[..., None]
) -> None:
    saved = fixture(jax_name)
    opened = open_checkpoint(str(saved.path), missing_chunks="zeros")
    expected = {path: leaf for path, leaf in saved.leaves.items() if leaf["kind"] not in WITHOUT_ARRAY}
    if opened.format != "jax-pytree":  # only the names of the arrays are known, joined as the writer chose
        expected = {tuple(stored_path(leaf).split("/")): leaf for leaf in expected.values()}
    assert {leaf.path for leaf in opened.leaves} == expected.keys()
    for leaf in opened.leaves:
        check_leaf(leaf, expected[leaf.path])


def test_the_tree_file_keeps_containers(fixture: Callable[[str], Any]) -> None:
    saved = fixture("jax_0120_pytree")
    opened = open_checkpoint(str(saved.path))
    assert {entry.path: entry.kind for entry in opened.placeholders} == {
        path: leaf["kind"] for path, leaf in saved.leaves.items() if leaf["kind"] in WITHOUT_ARRAY
    }
    for leaf in opened.leaves:
        kinds = [kind for kind, _ in saved.leaves[leaf.path]["keypath"]]
        assert leaf.sequence_levels == tuple(kind in ("list", "tuple") for kind in kinds)


def test_absent_chunks_are_an_error_until_they_are_accepted(fixture: Callable[[str], Any]) -> None:
    saved = fixture("jax_0120_pytree")
    absent = {path for path, leaf in saved.leaves.items() if leaf["on_disk"].get("absent_chunks")}
    assert absent
    opened = open_checkpoint(str(saved.path))
    for path in absent:
        with pytest.raises(CorruptCheckpointError, match="missing_chunks: zeros"):
            opened.leaf("/".join(path)).read()


def test_a_database_is_an_item(fixture: Callable[[str], Any]) -> None:
    path = fixture("jax_0120_gacm_ocdbt").path
    assert open_checkpoint(str(path)).item == "db"
    assert open_checkpoint(str(path), item="db").leaves == open_checkpoint(f"{path}/db").leaves


def test_a_key_with_a_slash_has_a_database_of_its_own(tmp_path: Path) -> None:
    """``get_tensorstore_spec(".../db/a/b/key", ocdbt=True)`` makes ``a/b`` a database; no array may go missing."""
    import tensorstore as ts
    from jax.experimental.array_serialization.serialization import get_tensorstore_spec

    for number, name in enumerate(("w", "a.b", "a.b/c", "a/b/c/w")):
        spec = get_tensorstore_spec(str(tmp_path / "db" / name), ocdbt=True)
        array = ts.open({**spec, "dtype": "float32"}, create=True, shape=[3]).result()
        array.write(np.full(3, number, np.float32)).result()
    opened = open_checkpoint(str(tmp_path))
    assert {leaf.name: leaf.read().tolist() for leaf in opened.leaves} == {
        "w": [0, 0, 0],
        "a.b": [1, 1, 1],
        "a.b/c": [2, 2, 2],
        "a/b/c/w": [3, 3, 3],
    }


def test_a_tree_of_directories_has_no_steps(fixture: Callable[[str], Any]) -> None:
    path = str(fixture("jax_081_gacm").path)
    for arguments in ({"step": 0}, {"item": "params"}):
        with pytest.raises(CheckpointNotFoundError):
            open_checkpoint(path, **arguments)


def test_steps_of_trees(fixture: Callable[[str], Any], tmp_path: Path) -> None:
    for step in (3, 12):
        shutil.copytree(fixture("jax_0120_pytree").path, tmp_path / f"step_{step:05}")
    assert open_checkpoint(str(tmp_path)).step == 12
    assert open_checkpoint(str(tmp_path), step=3).step == 3


DAMAGE: list[tuple[str, Callable[[Path], object], str]] = [
    ("no store", lambda root: shutil.rmtree(root / "array_store"), "array_store/manifest.ocdbt is missing"),
    ("tree cut", lambda root: cut(root / "pytreedef.json"), "pytreedef.json is not valid JSON"),
    ("tree emptied", lambda root: (root / "pytreedef.json").write_text("{}"), "pytreedef.json does not hold a tree"),
    ("leaf lost", lambda root: edit(root, lambda tree: tree["__jax_leaf_ids"].pop()), "does not hold a tree"),
    ("leaf added", lambda root: edit(root, lambda tree: tree["__jax_leaf_ids"].append("x")), "34 leaves|35 leaves"),
    ("None an array", lambda root: edit(root, none_becomes_array), "array 26 is missing"),
]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def edit(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    tree = json.loads((root / "pytreedef.json").read_text())
    change(tree)
    (root / "pytreedef.json").write_text(json.dumps(tree))


def none_becomes_array(tree: dict[str, Any]) -> None:
    assert tree["__jax_leaf_ids"][26] is None
    tree["__jax_leaf_ids"][26] = "Array(float32[1])"


@pytest.mark.parametrize(("damage", "said"), [case[1:] for case in DAMAGE], ids=[case[0] for case in DAMAGE])
def test_damage_is_named(copy_of: Callable[[str], Path], damage: Callable[[Path], object], said: str) -> None:
    root = copy_of("jax_0120_pytree")
    damage(root)
    with pytest.raises(CorruptCheckpointError, match=said):
        open_checkpoint(str(root))


keys = st.text(max_size=5)
trees = st.recursive(
    st.none() | st.just(0.5),
    lambda children: (
        st.lists(children, max_size=4)
        | st.lists(children, max_size=4).map(tuple)
        | st.dictionaries(keys, children, max_size=4)
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(trees)
def test_trees_are_what_jax_wrote(tree: Any) -> None:
    import jax
    from jax.experimental.array_serialization import pytree_serialization_utils

    flat, structure = jax.tree.flatten_with_path(tree, is_leaf=lambda value: value is None)
    document = dict(pytree_serialization_utils.serialize_pytreedef(structure))
    document["__jax_leaf_ids"] = [None if leaf is None else "Array(float32[])" for _, leaf in flat]
    leaves, placeholders = read_tree(json.dumps(document).encode(), "pytreedef.json")

    def spelled(path: tuple[Any, ...]) -> tuple[str, ...]:
        return tuple(str(getattr(key, "key", getattr(key, "idx", None))) for key in path)

    expected = [(spelled(path), str(i)) for i, (path, leaf) in enumerate(flat) if leaf is not None]
    assert [(leaf.path, leaf.name) for leaf in leaves] == expected
    assert {entry.path for entry in placeholders if entry.kind == "none"} == {
        spelled(path) for path, leaf in flat if leaf is None
    }
    for entry in placeholders:
        value = tree
        for key in entry.path:
            value = value[int(key)] if isinstance(value, (list, tuple)) else value[key]
        assert entry.kind == ("none" if value is None else f"empty_{type(value).__name__}")
        assert not value


@settings(deadline=None)
@given(st.data())
def test_a_damaged_tree_is_refused_or_read(fixture: Callable[[str], Any], data: st.DataObject) -> None:
    document = json.loads((fixture("jax_0120_pytree").path / "pytreedef.json").read_text())
    content = bytearray(base64.b64decode(document["__jax_pytreedef_repr"]))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    document["__jax_pytreedef_repr"] = base64.b64encode(bytes(content)).decode()
    try:
        leaves, _ = read_tree(json.dumps(document).encode(), "x/pytreedef.json")
    except CorruptCheckpointError:
        return
    assert len(leaves) <= len(document["__jax_leaf_ids"])


def test_directories_that_hold_no_array_are_not_one(tmp_path: Path) -> None:
    from migrate.errors import UnknownFormatError

    (tmp_path / "a" / "b").mkdir(parents=True)
    np.save(tmp_path / "a" / "b" / "array.npy", np.zeros(3))
    with pytest.raises(UnknownFormatError):
        open_checkpoint(str(tmp_path))
