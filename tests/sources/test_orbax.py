"""Every Orbax fixture: every leaf's bytes, kinds, placeholders, and that opening reads no array."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from migrate.box import Box
from migrate.errors import AmbiguousCheckpointError
from migrate.sources import SourceCheckpoint, open_checkpoint

WITHOUT_ARRAY = {"none", "empty_dict", "empty_list", "empty_tuple", "py_str"}


def open_items(path: Any, **arguments: Any) -> dict[tuple[str, ...], SourceCheckpoint]:
    """Every item that holds arrays, by the path its tree had in the tree that was saved."""
    try:
        return {(): open_checkpoint(str(path), **arguments)}
    except AmbiguousCheckpointError:
        return {
            ("params",): open_checkpoint(str(path), item="params", **arguments),
            (): open_checkpoint(str(path), item="state", **arguments),
        }


def test_every_leaf_has_the_saved_bytes(
    orbax_name: str, fixture: Callable[[str], Any], check_leaf: Callable[..., None]
) -> None:
    saved = fixture(orbax_name)
    items = open_items(saved.path, missing_chunks="zeros")
    leaves = {prefix + leaf.path: leaf for prefix, item in items.items() for leaf in item.leaves}
    expected = {path: leaf for path, leaf in saved.leaves.items() if leaf["kind"] not in WITHOUT_ARRAY}
    assert leaves.keys() == expected.keys()
    for path, leaf in leaves.items():
        check_leaf(pickle.loads(pickle.dumps(leaf)), expected[path])


def test_kinds_are_what_was_recorded(orbax_name: str, fixture: Callable[[str], Any]) -> None:
    saved = fixture(orbax_name)
    for prefix, item in open_items(saved.path).items():
        has_types = "_METADATA" in item.details["tree"]
        for leaf in item.leaves:
            kind = saved.leaves[prefix + leaf.path]["kind"]
            if kind == "prng_key":
                assert (leaf.kind, leaf.prng_impl) == ("prng_key", "threefry2x32")
            elif kind in ("jax", "np"):
                assert leaf.kind == "array"
            elif kind == "np_scalar":
                assert leaf.kind in ("scalar", "array")  # StandardCheckpointHandler makes an array of it
            elif has_types or item.format == "orbax-msgpack":
                assert leaf.kind == "scalar"
        for leaf in item.leaves:
            containers = [kind for kind, _ in saved.leaves[prefix + leaf.path]["keypath"]][len(prefix) :]
            # Until 0.1.6 lists were written as mappings.
            if item.version not in ("orbax 0.1.0 to 0.1.5", "orbax 0.1 to 0.3"):
                assert leaf.sequence_levels == tuple(kind in ("list", "tuple") for kind in containers)


def test_placeholders_are_what_was_recorded(orbax_name: str, fixture: Callable[[str], Any]) -> None:
    saved = fixture(orbax_name)
    items = open_items(saved.path)
    found = {prefix + entry.path: entry for prefix, item in items.items() for entry in item.placeholders}
    expected = {path: leaf for path, leaf in saved.leaves.items() if leaf["kind"] in WITHOUT_ARRAY}
    assert found.keys() == expected.keys()
    version = items[()].version
    for path, entry in found.items():
        kind = expected[path]["kind"]
        allowed = {"py_str": {"string"}, "none": {"none"}}.get(kind, {kind})
        if version in ("orbax 0.1.0 to 0.1.5", "orbax 0.1 to 0.3") and kind.startswith("empty"):
            allowed = {"empty"}  # `{}` stood for every container
        if kind == "empty_tuple" and not version.startswith(("orbax 0.7", "orbax 0.11", "orbax 0.12")):
            allowed |= {"none"}  # these versions wrote None for it
        assert entry.kind in allowed
        assert entry.value == expected[path].get("value")


def test_version_range_holds_the_writers_version(orbax_name: str, fixture: Callable[[str], Any]) -> None:
    saved = fixture(orbax_name)
    wrote = tuple(map(int, saved.described["versions"]["orbax-checkpoint"].split(".")))
    for item in open_items(saved.path).values():
        first, _, last = item.version.removeprefix("orbax ").replace("or newer", "to 99").partition(" to ")
        low, high = (tuple(map(int, text.split("."))) for text in (first, last or first))
        assert low <= wrote[: len(low)]
        assert wrote[: len(high)] <= high


def test_opening_again_gives_the_same(orbax_name: str, fixture: Callable[[str], Any]) -> None:
    saved = fixture(orbax_name)
    assert open_items(saved.path) == open_items(saved.path)


def test_absent_chunks_are_an_error_until_they_are_accepted(orbax_name: str, fixture: Callable[[str], Any]) -> None:
    saved = fixture(orbax_name)
    absent = {path for path, leaf in saved.leaves.items() if leaf["on_disk"].get("absent_chunks")}
    for prefix, item in open_items(saved.path).items():
        for leaf in item.leaves:
            if prefix + leaf.path not in absent:
                leaf.read()
                continue
            with pytest.raises(Exception, match=f"array {leaf.name} has absent chunks") as caught:
                leaf.read()
            assert "missing_chunks: zeros" in caught.value.remedy
            assert "absent: c/" in caught.value.found


def test_readers_tell_where_they_read(orbax_name: str, fixture: Callable[[str], Any]) -> None:
    saved = fixture(orbax_name)
    for item in open_items(saved.path).values():
        assert json.loads(json.dumps(item.to_json()))["uri"] == item.uri
        for leaf in item.leaves:
            told = leaf.reader.to_json()
            assert told["reader"] in ("tensorstore", "raw", "value")
            if told["reader"] != "value":
                assert str(saved.path) in str(told)


def test_a_read_of_nothing(fixture: Callable[[str], Any]) -> None:
    for name in ("orbax_0128_zarr3", "orbax_018_aggregate"):
        leaf = open_checkpoint(str(fixture(name).path)).leaf("params/embed/table")
        assert leaf.read(Box((3, 2), (3, 5))).shape == (0, 3)
