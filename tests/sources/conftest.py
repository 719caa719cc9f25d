"""Real old checkpoints, unpacked once a session; see tests/data/README.md for what they are."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

DATA = Path(__file__).parent.parent / "data"
ARCHIVES = ("orbax", "orbax_more", "flax", "jax", "t5x", "safetensors")


@dataclass(frozen=True)
class Fixture:
    """One old checkpoint and the list of what its writer was given."""

    name: str
    path: Path
    described: dict[str, Any]

    @property
    def leaves(self) -> dict[tuple[str, ...], dict[str, Any]]:
        """What was saved, by path."""
        return {tuple(str(key) for _, key in leaf["keypath"]): leaf for leaf in self.described["leaves"]}


@functools.cache
def fixture_names() -> tuple[str, ...]:
    """Every fixture in the archives, from their tables of contents."""
    names = set()
    for archive in ARCHIVES:
        path = DATA / f"{archive}.tar.xz"
        if path.exists():
            with tarfile.open(path) as tar:
                names |= {member.name.split("/")[0] for member in tar.getmembers()}
    return tuple(sorted(names))


def is_orbax(name: str) -> bool:
    return name.startswith("orbax_") or name.endswith("_orbax")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "orbax_name" in metafunc.fixturenames:
        metafunc.parametrize("orbax_name", [name for name in fixture_names() if is_orbax(name)])
    for kind in ("jax", "t5x", "safetensors"):
        if f"{kind}_name" in metafunc.fixturenames:
            names = [name for name in fixture_names() if name.startswith(f"{kind}_")]
            metafunc.parametrize(f"{kind}_name", names)
    if "flax_name" in metafunc.fixturenames:
        metafunc.parametrize("flax_name", [name for name in fixture_names() if "_msgpack" in name])


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("fixtures")
    for archive in ARCHIVES:
        path = DATA / f"{archive}.tar.xz"
        if path.exists():
            with tarfile.open(path) as tar:
                # the argument came with 3.11.4; our own archives need no filter
                tar.extractall(root, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return root


@pytest.fixture(scope="session")
def fixture(unpacked: Path) -> Callable[[str], Fixture]:
    """The fixture of a name; its files are shared, so not to be written."""

    @functools.cache
    def load(name: str) -> Fixture:
        path = unpacked / name
        return Fixture(name, path / "ckpt", json.loads((path / "leaves.json").read_text()))

    return load


@pytest.fixture
def copy_of(fixture: Callable[[str], Fixture], tmp_path: Path) -> Callable[[str], Path]:
    """A writable copy of a fixture's checkpoint."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(fixture(name).path, tmp_path / "copy"))

    return copy


def sha256(array: np.ndarray) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


@pytest.fixture
def check_leaf() -> Callable[[Any, dict[str, Any]], None]:
    """Compare one opened leaf with what its writer was given."""

    def check(leaf: Any, saved: dict[str, Any]) -> None:
        array = leaf.read()
        assert (array.dtype, array.shape) == (leaf.dtype, leaf.shape)
        if "sha256" in saved:
            assert (str(leaf.dtype), list(leaf.shape)) == (saved["dtype"], saved["shape"])
            assert sha256(array) == saved["sha256"]
            assert leaf.nbytes == array.nbytes == saved["nbytes"]
        else:
            assert array[()] == saved["value"]
        read_chunk = saved["on_disk"].get("read_chunk")
        if read_chunk is not None:
            assert leaf.chunk_shape == tuple(max(extent, 1) for extent in read_chunk)
        assert len(leaf.sequence_levels) == len(leaf.path)

    return check
