"""Orbax items that are no trees: single arrays and random keys, made by real versions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from migrate.errors import AmbiguousCheckpointError, CheckpointNotFoundError, CorruptCheckpointError
from migrate.sources import open_checkpoint

NEW, OLD = "items_orbax_0128", "items_orbax_0523"
LISTED = (
    "jax_key (random key), jax_words (random key), number, numbers, numpy_mapping (random key), "
    "numpy_tuple (random key), params, table"
)
ITEMS = ("params", "table", "numbers", "number", "jax_key", "jax_words", "numpy_tuple", "numpy_mapping")


@pytest.mark.parametrize("item", ITEMS)
@pytest.mark.parametrize("name", [NEW, OLD])
def test_every_leaf_has_the_saved_bytes(
    name: str, item: str, fixture: Callable[[str], Any], check_leaf: Callable[..., None]
) -> None:
    saved = fixture(name)
    expected = {path[1:]: leaf for path, leaf in saved.leaves.items() if path[0] == item}
    texts = {path: leaf["value"] for path, leaf in expected.items() if leaf["kind"] == "py_str"}
    by_name = open_checkpoint(str(saved.path), item=item)
    by_path = open_checkpoint(f"{saved.path}/4/{item}")
    assert (by_name.step, by_name.item, by_name.uri) == (4, item, f"{saved.path}/4/{item}")
    assert (by_path.leaves, by_path.identity) == (by_name.leaves, by_name.identity)
    assert {leaf.path for leaf in by_name.leaves} == expected.keys() - texts.keys()
    assert {entry.path: entry.value for entry in by_name.placeholders} == texts
    for leaf in by_name.leaves:
        check_leaf(leaf, expected[leaf.path])


@pytest.mark.parametrize(
    ("item", "kind", "impl", "told"),
    [
        ("jax_key", "prng_key", "threefry2x32", "JAX"),  # a typed key
        ("jax_words", "array", None, "JAX, as plain integers"),
        ("numpy_tuple", None, None, "NumPy, a tuple"),
        ("numpy_mapping", None, None, "NumPy, a mapping"),
        ("table", "array", None, None),  # no random key
    ],
)
@pytest.mark.parametrize("name", [NEW, OLD])
def test_what_a_random_key_was(
    name: str, item: str, kind: str | None, impl: str | None, told: str | None, fixture: Callable[[str], Any]
) -> None:
    opened = open_checkpoint(str(fixture(name).path), item=item)
    assert opened.details.get("random key") == told
    if kind is not None:
        (leaf,) = opened.leaves
        assert (leaf.path, leaf.kind, leaf.prng_impl) == (("checkpoint",), kind, impl)


@pytest.mark.parametrize("name", [NEW, OLD])
def test_items_are_listed(name: str, fixture: Callable[[str], Any]) -> None:
    with pytest.raises(AmbiguousCheckpointError, match="4 items hold arrays") as caught:
        open_checkpoint(str(fixture(name).path))
    assert caught.value.found == LISTED
    with pytest.raises(CheckpointNotFoundError, match="'rng' with arrays") as missing:
        open_checkpoint(str(fixture(name).path), item="rng")
    assert missing.value.found == LISTED


@pytest.mark.parametrize("name", [NEW, OLD])
def test_a_random_key_beside_the_only_tree_is_not_meant(name: str, copy_of: Callable[[str], Path]) -> None:
    root = copy_of(name)
    for item in ("table", "numbers", "number"):
        shutil.rmtree(root / "4" / item)
    opened = open_checkpoint(str(root))
    assert (opened.item, len(opened.leaves)) == ("params", 7)
    assert "jax_key (random key)" in opened.details["items"]
    for item in set(ITEMS) - {"jax_key"}:
        shutil.rmtree(root / "4" / item, ignore_errors=True)
    assert open_checkpoint(str(root)).item == "jax_key"  # now the only one


def test_two_items_named_like_a_random_key_are_items(copy_of: Callable[[str], Path]) -> None:
    root = copy_of("orbax_011_manager_items") / "2"  # old: nothing marks a step
    (root / "state").rename(root / "params_metadata")
    assert open_checkpoint(str(root), item="params").item == "params"
    shutil.rmtree(root / "params_metadata")
    (root / "params_metadata").mkdir()
    (root / "params_metadata" / "metadata").write_text(json.dumps({"typed": "yes"}))  # JSON, but not a key's
    assert open_checkpoint(str(root)).item == "params"


def test_the_version_of_a_single_array(fixture: Callable[[str], Any]) -> None:
    assert open_checkpoint(str(fixture(NEW).path), item="table").version == "orbax 0.12 or newer"
    old = open_checkpoint(str(fixture(OLD).path), item="table")
    assert (old.version, old.details["tree"]) == ("orbax 0.11 or older", "none: a single array")


@pytest.mark.parametrize(
    ("item", "lost", "said"),
    [
        ("table", "checkpoint/.zarray", "checkpoint"),  # the array's document
        ("jax_key", "jax_random_key/checkpoint/.zarray", "checkpoint"),
    ],
)
def test_damage_is_named(item: str, lost: str, said: str, copy_of: Callable[[str], Path]) -> None:
    root = copy_of(NEW)
    (root / "4" / item / lost).unlink()
    with pytest.raises(CorruptCheckpointError, match=f"the array {said} is missing"):
        open_checkpoint(str(root), item=item)


def test_the_identity_covers_what_a_key_was(copy_of: Callable[[str], Path]) -> None:
    root = copy_of(NEW)
    before = open_checkpoint(str(root), item="jax_key").identity
    about = root / "4/jax_key/jax_random_key_metadata/metadata"
    about.write_text('{"typed": false}')
    opened = open_checkpoint(str(root), item="jax_key")
    assert (opened.leaves[0].kind, opened.identity == before) == ("array", False)
