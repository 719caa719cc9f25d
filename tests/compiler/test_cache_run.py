"""Whole runs with the compile cache: the same exports as without it, and no subprocess for what is finished."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import migrate


def job(repository: Path, output: Path, cache: Path | bool) -> dict[str, Any]:
    return {
        "source": {"path": str(repository / "tests" / "data" / "orbax_0.2.7"), "select": "params"},
        "program": {"entry": "migrate.demo.tiny:next_token_step", "arguments": {"batch": 8}},
        "target": {"topology": "cpu:8", "mesh": {"data": 2, "model": 4}},
        "output": str(output),
        "compile": {"cache": str(cache) if isinstance(cache, Path) else cache},
    }


def test_exports_are_the_same_with_and_without_the_cache(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    first = migrate.run(job(repository, tmp_path / "first", cache))
    plain = migrate.run(job(repository, tmp_path / "plain", False))
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    again = migrate.run(job(repository, tmp_path / "first", cache))
    assert again.already_committed
    from_cache = migrate.run(job(repository, tmp_path / "from-cache", cache))
    assert not from_cache.already_committed
    for other in (plain, from_cache):
        assert other.export.manifest.export == first.export.manifest.export
        (record,), (expected,) = other.export.manifest.programs, first.export.manifest.programs
        assert record.fingerprint == expected.fingerprint
        differing = {name for name, file in record.files.items() if file != expected.files[name]}
        # XLA:CPU writes the same program in other bytes each time; from the cache it is the first one
        assert differing <= (set() if other is from_cache else {"executable.bin"})
    with pytest.raises(FileNotFoundError, match="nonexistent"):
        migrate.run(job(repository, tmp_path / "first", False))
