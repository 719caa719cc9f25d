"""The figures of docs/formats.md are those of the fixtures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import fixture_names

# row of the table: how its fixtures are called
FAMILIES: dict[str, Callable[[str], bool]] = {
    "Orbax": lambda name: name.startswith(("orbax_", "items_orbax", "processes_orbax")),
    "Orbax, through Flax": lambda name: name.startswith("flax_") and name.endswith("_orbax"),
    "Flax msgpack": lambda name: name.startswith("flax_") and "_msgpack" in name,
    "jax array serialization": lambda name: name.startswith("jax_"),
    "T5X": lambda name: name.startswith("t5x_"),
    "safetensors": lambda name: name.startswith("safetensors_"),
}
PACKAGES = {"Orbax": "orbax-checkpoint", "jax array serialization": "jax", "safetensors": "safetensors"}


def rows(repository: Path) -> dict[str, list[str]]:
    lines = (repository / "docs" / "formats.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return {row[0]: row[1:] for row in cells if len(row) == 4 and row[0] in FAMILIES}


@pytest.mark.parametrize("family", FAMILIES)
def test_checkpoints_and_leaves(repository: Path, fixture: Callable[[str], Any], family: str) -> None:
    versions, checkpoints, leaves = rows(repository)[family]
    found = [fixture(name) for name in fixture_names() if FAMILIES[family](name)]
    assert (checkpoints, leaves) == (f"{len(found):,}", f"{sum(len(one.leaves) for one in found):,}")
    package = PACKAGES.get(family, "flax" if "Flax" in family else "")
    if package:
        listed = versions.removeprefix("Flax ").removeprefix("jax ").removeprefix("safetensors ").split(", ")
        assert sorted(listed) == sorted({one.described["versions"][package] for one in found})


def test_every_fixture_is_in_a_row() -> None:
    for name in fixture_names():
        assert sum(belongs(name) for belongs in FAMILIES.values()) == 1, name


def test_which_need_zeros_for_absent_chunks(repository: Path, fixture: Callable[[str], Any]) -> None:
    text = (repository / "docs" / "formats.md").read_text()
    for name in fixture_names():
        absent = any(leaf["on_disk"].get("absent_chunks") for leaf in fixture(name).leaves.values())
        assert (f"`{name}`" in text) == absent
