"""What importing and opening costs, and the identity of a checkpoint."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from migrate.errors import AmbiguousCheckpointError
from migrate.sources import open_checkpoint


def test_importing_is_cheap() -> None:
    code = (
        "import sys, migrate.sources; "
        "print([m for m in ('jax', 'orbax', 'flax', 'apache_beam', 'tensorstore', 'msgpack') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_opening_and_reading_needs_neither_jax_nor_orbax(fixture: Callable[[str], Any]) -> None:
    code = (
        "import sys; from migrate.sources import open_checkpoint; "
        "print(sum(leaf.read().nbytes for leaf in open_checkpoint(sys.argv[1]).leaves) > 0, "
        "[m for m in ('jax', 'orbax', 'flax', 'pickle5') if m in sys.modules])"
    )
    path = str(fixture("orbax_0128_ocdbt").path)
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert done.stdout == "True []\n"


def test_opening_opens_no_array(
    orbax_name: str, fixture: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many arrays a checkpoint has, it opens from its metadata documents alone."""
    import tensorstore as ts

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an array was opened")

    monkeypatch.setattr(ts, "open", refuse)
    with contextlib.suppress(AmbiguousCheckpointError):
        open_checkpoint(str(fixture(orbax_name).path))


def rewrite(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("orbax_0128_zarr", "params.embed.table/1.0"),
        ("orbax_0128_zarr3", "x.zeros/c/0/0"),
        ("orbax_0128_ocdbt", "ocdbt.process_0/manifest.ocdbt"),
        ("orbax_018_aggregate", "checkpoint"),
    ],
)
def test_identity_changes_with_any_rewrite(copy_of: Callable[[str], Path], name: str, file: str) -> None:
    root = copy_of(name)
    before = open_checkpoint(str(root)).identity
    assert open_checkpoint(str(root)).identity == before
    rewrite(root / file)
    assert open_checkpoint(str(root)).identity != before


def test_identity_sees_metadata_that_kept_its_size_and_time(copy_of: Callable[[str], Path]) -> None:
    root = copy_of("orbax_0128_zarr")
    before = open_checkpoint(str(root)).identity
    document = root / "params.quant.mask" / ".zarray"
    status = document.stat()
    document.write_text(document.read_text().replace('"level":1', '"level":2'))
    os.utime(document, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert open_checkpoint(str(root)).identity != before


def test_the_identity_follows_no_link_back(copy_of: Callable[[str], Path]) -> None:
    root = copy_of("orbax_0128_zarr")
    before = open_checkpoint(str(root)).identity
    (root / "loop").symlink_to(root)
    assert open_checkpoint(str(root)).identity == before


def test_stamps_are_the_same_in_one_pass(fixture: Callable[[str], Any]) -> None:
    """The identity of a checkpoint is kept in manifests: a faster way to it must not change it."""
    from migrate import storage
    from migrate.sources import identity

    for name in ("orbax_0128_zarr3", "orbax_0128_mp2_ocdbt", "flax_064_msgpack_gda"):
        path = str(fixture(name).path)
        keys = storage.list_keys(path)
        assert identity.identity_of(path, {"a": b"b"}) == identity.identity_of(path, {"a": b"b"}, keys=keys)


def test_the_source_is_never_written(fixture: Callable[[str], Any]) -> None:
    path: Path = fixture("orbax_0128_mp2_ocdbt").path
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    for leaf in open_checkpoint(str(path)).leaves:
        leaf.read()
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before
