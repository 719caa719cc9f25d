"""What other versions of libtpu change, with the versions themselves: they are downloaded, 135 to 230 MB each.

The longest tests run where ``REEXPORT_TEST_DOWNLOADS`` names a directory, which keeps the versions for the next run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from migrate.compiler import releases
from migrate.compiler.toolchains import numbers, provide
from migrate.errors import ConfigError

from .test_diff_command import DECODE, changed, diff, diff_json, write_job

__all__ = ["write_job"]
WriteJob = Callable[..., str]
DOWNLOADS = os.environ.get("REEXPORT_TEST_DOWNLOADS")


@pytest.fixture
def kept_downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    if DOWNLOADS is None:
        pytest.skip("REEXPORT_TEST_DOWNLOADS names no directory for downloads of 2 GB")
    monkeypatch.setenv("REEXPORT_CACHE_DIR", DOWNLOADS)


def test_what_pip_publishes() -> None:
    found = releases.released()
    assert {"0.0.37", "0.0.42.1", "0.0.50"} <= set(found)
    assert list(found) == sorted(found, key=numbers)
    usable, left_out = releases.in_range("0.0.20..0.0.27")
    assert (usable[0], usable[-1], left_out[0]) == ("0.0.24", "0.0.27", "0.0.20")
    assert "0.0.42.1" in releases.in_range("0.0.42..0.0.46")[0]
    with pytest.raises(ConfigError, match="fewer than two"):
        releases.in_range("0.0.1..0.0.2")


def test_an_index_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = file://{tmp_path}/none\n")
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(releases.ToolchainError, match="pip cannot say") as caught:
        releases.released()
    assert "libtpu" in str(caught.value.found)


@pytest.mark.slow
def test_the_version_that_changed_int8_is_found(write_job: WriteJob) -> None:
    job = write_job("quantised", "v5e:2x2", model=4)
    done = diff(job, "--libtpu", "0.0.37..0.0.40", "--json")
    assert done.returncode == 3, done.stderr
    document = json.loads(done.stdout)
    assert document["versions"] == ["0.0.37", "0.0.38", "0.0.39", "0.0.40"]
    assert document["change"] == {"before": "0.0.37", "after": "0.0.38", "skipped": [], "changes_again": False}
    assert changed(document) == {"params/w": ["tiling"]}
    assert "4 versions from 0.0.37 to 0.0.40" in done.stderr
    assert "libtpu 0.0.40: differs from 0.0.37" in done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("kept_downloads")
def test_ranges_whose_ends_are_alike(write_job: WriteJob) -> None:
    job = write_job("quantised", "v5e:2x2", model=4)
    alike = diff(job, "--libtpu", "0.0.38..0.0.39")
    assert alike.returncode == 0, alike.stderr
    assert "0.0.38 and 0.0.39 expect every parameter alike" in alike.stdout
    # there and back: 0.0.35 and 0.0.36 differ, 0.0.37 does not
    back = diff(job, "--libtpu", "0.0.34..0.0.37")
    assert back.returncode == 0, back.stderr
    assert "A change between them that was taken back would not be seen" in back.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("kept_downloads")
def test_a_version_that_cannot_compile_is_skipped(
    write_job: WriteJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("0.0.34", "0.0.36"):
        library = provide(version).library
        (tmp_path / "cache/libtpu" / version).mkdir(parents=True)
        (tmp_path / "cache/libtpu" / version / library.name).symlink_to(library)
    damaged = tmp_path / "cache/libtpu/0.0.35/libtpu.so"
    damaged.parent.mkdir()
    damaged.write_bytes(b"not a library")
    monkeypatch.setenv("REEXPORT_CACHE_DIR", str(tmp_path / "cache"))
    job = write_job("quantised", "v5e:2x2", model=4)
    done = diff(job, "--libtpu", "0.0.34..0.0.36")
    assert done.returncode == 3, done.stderr
    assert "changed after libtpu 0.0.34, with 0.0.36 at the latest; could not be used: 0.0.35" in done.stdout
    assert "libtpu 0.0.35: skipped: " in done.stderr
    failed = diff(job, "--libtpu", "0.0.34..0.0.35")
    assert failed.returncode == 1
    assert "0.0.35 does not work with this jax" in failed.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("kept_downloads")
def test_an_upgrade_changes_the_order_of_a_cache(write_job: WriteJob) -> None:
    job = write_job(DECODE, "tpu7x:2x2x1", data=2, model=4)
    code, document = diff_json(job, job, "--a-libtpu", "0.0.50", "--b-libtpu", "0.0.52")
    assert (code, document["verdict"]) == (3, "recompile only")
    assert changed(document) == {
        "cache/keys": ["dimension order", "tiling"],
        "cache/values": ["dimension order", "tiling"],
    }
    assert document["fingerprint"]["libtpu"] == {"before": "0.0.50", "after": "0.0.52"}


@pytest.mark.slow
@pytest.mark.usefixtures("kept_downloads")
def test_chips_differ_with_an_old_version_and_not_today(write_job: WriteJob) -> None:
    """bfloat16 had tiles of 16 rows on tpu7x alone, up to 0.0.34."""
    job = write_job("rank2", "tpu7x:2x2x1", data=2, model=4)
    old = ["--target", "libtpu=0.0.34"]
    code, document = diff_json(job, job, *old, "--b-topology", "v5e:2x4")
    assert code == 3
    assert changed(document)["params/w"] == ["tiling"]
    assert document["parameters"][0]["before"]["shard"] == "bf16[512,256]{1,0:T(16,128)(2,1)}"
    code, document = diff_json(job, job, "--b-topology", "v5e:2x4")
    assert (code, changed(document)) == (0, {})
