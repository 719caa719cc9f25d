"""The scripts that made the fixtures, run with the installed versions: what they make is read."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from migrate.errors import AmbiguousCheckpointError
from migrate.sources import Leaf, open_checkpoint

SCRIPTS = Path(__file__).parent.parent / "data" / "generate"
WITHOUT_ARRAY = {"none", "empty_dict", "empty_list", "empty_tuple", "py_str"}
VARIANTS: list[tuple[str, list[str]]] = [
    # script, variants: not all of them, for time; the others differ in a setting
    ("orbax", ["ocdbt_zarr3", "items"]),
    ("flax", ["msgpack_chunked", "steps"]),
    ("jax_arrays", ["directories", "database", "pytree"]),
    ("t5x", ["v2", "v3"]),
    ("safetensors", ["single", "sharded", "dtypes"]),
    ("orbax_processes", ["processes"]),
]


def leaves_of(path: Path) -> dict[tuple[str, ...], Leaf]:
    """Every leaf of every item, by path; items of one tree have its first keys for names."""
    try:
        return {leaf.path: leaf for leaf in open_checkpoint(str(path), missing_chunks="zeros").leaves}
    except AmbiguousCheckpointError:
        (step,) = sorted(path.iterdir())[-1:]
    found = {}
    for item in sorted(entry.name for entry in step.iterdir() if entry.is_dir()):
        if item != "extra":  # JSON
            first = () if item == "state" else (item,)
            leaves = open_checkpoint(str(path), item=item).leaves
            found.update({(*first, *leaf.path): leaf for leaf in leaves})
    return found


@pytest.mark.parametrize(("script", "variants"), VARIANTS, ids=[script for script, _ in VARIANTS])
def test_what_a_script_makes_is_read(
    tmp_path: Path, script: str, variants: list[str], check_leaf: Callable[[Leaf, dict[str, Any]], None]
) -> None:
    if script == "safetensors" and importlib.util.find_spec("safetensors") is None:
        pytest.skip("the package safetensors is not installed; its files are in tests/data too")
    command = [sys.executable, "-W", "ignore", str(SCRIPTS / f"{script}.py"), str(tmp_path), *variants]
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for variant in variants:
        described = json.loads((tmp_path / variant / "leaves.json").read_text())
        expected = {tuple(str(key) for _, key in leaf["keypath"]): leaf for leaf in described["leaves"]}
        expected = {path: leaf for path, leaf in expected.items() if leaf["kind"] not in WITHOUT_ARRAY}
        if variant in ("database", "directories"):  # only the names of the arrays are kept, as the script joined them
            joint = "." if variant == "database" else "/"
            expected = {tuple(joint.join(path).split("/")): leaf for path, leaf in expected.items()}
        found = leaves_of(tmp_path / variant / "ckpt")
        assert found.keys() == expected.keys()
        assert len(found) > 3
        for path, leaf in found.items():
            check_leaf(leaf, expected[path])


def test_every_script_is_run_and_says_what_it_needs() -> None:
    scripts = {path.stem: path.read_text() for path in SCRIPTS.glob("*.py")}
    assert set(scripts) == {script for script, _ in VARIANTS}
    for text in scripts.values():
        assert text.startswith("# /// script\n# requires-python = ")
        assert "# dependencies = [" in text
