"""Versions of libtpu: where they are looked for, how they are downloaded, and what they make of a program."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from migrate.compiler import compile_program, toolchains
from migrate.compiler.driver import probe_toolchain, worker_environment
from migrate.config import Job
from migrate.errors import CompileError, ConfigError, ReexportError, TargetError, ToolchainError

MakeJob = Callable[..., Job]
OLDER = "0.0.37"
"""The one version that these tests download."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REEXPORT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def put(cache: Path, version: str, content: bytes = b"not a library") -> Path:
    """A cached version, as a copy from another machine would lie there."""
    library = cache / "libtpu" / version / "libtpu.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(content)
    return library


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "migrate.cli", "toolchains", *arguments], capture_output=True, text=True, check=False
    )


def test_the_installed_version_is_the_default(make_job: MakeJob, cache: Path) -> None:
    here = toolchains.installed()
    assert here is not None
    assert here.nbytes > 100_000_000
    assert toolchains.select(make_job().target) == here
    assert toolchains.select(make_job(libtpu=here.version).target) == here  # not downloaded once more
    assert "TPU_LIBRARY_PATH" not in worker_environment("v5e:2x2", here)
    assert not cache.exists()


def test_a_cached_version_is_selected_by_its_path(make_job: MakeJob, cache: Path) -> None:
    library = put(cache, "0.0.98")
    found = toolchains.select(make_job(libtpu="0.0.98").target)
    assert found == toolchains.Toolchain("0.0.98", library, installed=False)
    assert worker_environment("v5e:2x2", found)["TPU_LIBRARY_PATH"] == str(library)


def test_versions_are_listed_in_their_order(cache: Path) -> None:
    assert toolchains.cached() == []
    for version in ("0.0.98", "0.0.9", "0.0.100"):
        put(cache, version)
    (cache / "libtpu" / "notes").mkdir()
    assert [toolchain.version for toolchain in toolchains.cached()] == ["0.0.9", "0.0.98", "0.0.100"]


def test_the_cache_follows_the_xdg_convention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REEXPORT_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert toolchains.cache_directory() == tmp_path / "reexport"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert toolchains.cache_directory() == tmp_path / ".cache" / "reexport"


@pytest.mark.parametrize("version", ["latest", "0", "../../elsewhere", "0.0.37; true", ""])
def test_what_is_no_version_is_refused(make_job: MakeJob, cache: Path, version: str) -> None:
    with pytest.raises(ConfigError, match=r"target\.libtpu"):
        make_job(libtpu=version)
    with pytest.raises(ToolchainError, match="is not a version"):
        toolchains.provide(version)
    assert not cache.exists()


def test_a_cpu_target_has_no_libtpu(make_job: MakeJob, cache: Path, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="a CPU target has no libtpu"):
        compile_program(make_job("trees", topology="cpu:8", libtpu=OLDER), tmp_path)


def test_a_version_that_does_not_exist(make_job: MakeJob, cache: Path, tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"libtpu 0\.0\.9999 cannot be had") as caught:
        compile_program(make_job("trees", libtpu="0.0.9999"), tmp_path)
    assert "libtpu 0.0.24 to 0.0.52 work with jax" in str(caught.value)
    assert "No matching distribution found" in str(caught.value)  # pip's own words
    assert [path.name for path in (cache / "libtpu").iterdir()] == [".lock"]


def test_a_cache_that_cannot_be_written(make_job: MakeJob, cache: Path) -> None:
    cache.write_text("a file where a directory is needed")
    with pytest.raises(ToolchainError, match="NotADirectoryError"):
        toolchains.provide(OLDER)


def test_a_library_that_does_not_work_is_blamed(make_job: MakeJob, cache: Path, tmp_path: Path) -> None:
    put(cache, "0.0.98")
    with pytest.raises(ToolchainError, match=r"libtpu 0\.0\.98 does not work with this jax") as caught:
        compile_program(make_job("trees", libtpu="0.0.98"), tmp_path)
    assert "Failed to open" in str(caught.value)
    assert "libtpu 0.0.24 to 0.0.52 work with jax" in str(caught.value)


def test_a_program_that_fails_is_not_blamed_on_the_library(make_job: MakeJob, cache: Path, tmp_path: Path) -> None:
    """A compile that fails with a downloaded version is tried with a tiny program; here that works."""
    here = toolchains.installed()
    assert here is not None
    library = put(cache, "0.0.98")
    library.unlink()
    library.symlink_to(here.library)
    with pytest.raises(CompileError, match="killed by SIGABRT") as caught:
        compile_program(make_job("aborts", libtpu="0.0.98"), tmp_path / "aborts")
    assert type(caught.value) is CompileError
    with pytest.raises(CompileError, match="RESOURCE_EXHAUSTED") as caught:
        compile_program(make_job("big", libtpu="0.0.98"), tmp_path / "big")
    assert type(caught.value) is CompileError


def test_what_a_killed_download_left_is_cleaned_up(cache: Path) -> None:
    left = cache / "libtpu" / ".unfinished-abc" / "0.0.98"
    left.mkdir(parents=True)
    (left / "libtpu.so").write_bytes(b"half")
    with pytest.raises(ToolchainError):
        toolchains.provide("0.0.9999")
    assert not left.parent.exists()


def test_remove(cache: Path) -> None:
    put(cache, "0.0.98", b"12345")
    assert toolchains.remove("0.0.98") == 5
    assert toolchains.cached() == []
    put(cache, "0.0.97")
    with pytest.raises(ToolchainError, match=r"downloaded versions: 0\.0\.97"):
        toolchains.remove("0.0.98")


def test_commands(cache: Path) -> None:
    put(cache, "0.0.98", bytes(2048))
    here = toolchains.installed()
    assert here is not None
    listed = command()
    assert listed.returncode == 0, listed.stderr
    assert f"{here.version} " in listed.stdout
    assert "2.0 KiB  downloaded" in listed.stdout
    shown = json.loads(command("--json").stdout)
    assert [(t["version"], t["nbytes"]) for t in shown["toolchains"]] == [(here.version, here.nbytes), ("0.0.98", 2048)]
    failed = command("test", "0.0.98", "--json")
    assert failed.returncode == 1
    assert json.loads(failed.stdout)["error"] == "ToolchainError"
    assert "Traceback" not in failed.stderr
    tested = command("test", here.version)
    assert tested.returncode == 0, tested.stderr
    assert "works with jax" in tested.stdout
    assert json.loads(command("remove", "0.0.98", "--json").stdout) == {"version": "0.0.98", "removed_bytes": 2048}
    assert command("remove", "0.0.98").returncode == 1


@pytest.fixture(scope="module")
def downloaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache into which two threads and another process downloaded the same version at once."""
    cache = tmp_path_factory.mktemp("cache")
    errors: list[ReexportError] = []

    def add() -> None:
        try:
            toolchains.provide(OLDER)
        except ReexportError as error:
            errors.append(error)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REEXPORT_CACHE_DIR", str(cache))
        threads = [threading.Thread(target=add) for _ in range(2)]
        for thread in threads:
            thread.start()
        other = command("add", OLDER)
        for thread in threads:
            thread.join()
    if errors and "No matching distribution" in str(errors[0]):
        pytest.skip(f"pip cannot download libtpu {OLDER} here")
    assert not errors
    assert other.returncode == 0, other.stderr
    yield cache
    shutil.rmtree(cache)  # 0.7 GB; pytest keeps the directories of three sessions


@pytest.mark.slow
def test_an_older_libtpu_has_other_layouts_and_the_fingerprint_names_it(
    make_job: MakeJob, downloaded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sorted(path.name for path in (downloaded / "libtpu").iterdir()) == [".lock", OLDER]
    monkeypatch.setenv("REEXPORT_CACHE_DIR", str(downloaded))
    for libtpu, tiles in {OLDER: ((8, 128), (4, 1)), None: ((32, 128), (4, 1))}.items():
        job = make_job("int8_weights", topology="v5e:2x2", mesh={"data": 2, "model": 2}, libtpu=libtpu)
        signature = compile_program(job, tmp_path / str(libtpu)).signature
        assert signature.weights[0].tiles == tiles
        assert (signature.fingerprint.libtpu == OLDER) is (libtpu == OLDER)
    [toolchain] = toolchains.cached()
    assert toolchain.nbytes > 100_000_000
    assert probe_toolchain(toolchain).signature.fingerprint.libtpu == OLDER
