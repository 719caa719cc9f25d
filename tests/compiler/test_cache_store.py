"""The compile cache as a store: several processes at once, eviction, damage, object stores, the command."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from migrate.compiler.cache import CompileCache
from migrate.compiler.digests import FileDigests
from migrate.compiler.inputs import Inputs, Roots

KEY = "k" * 64


def inputs(number: int = 0) -> Inputs:
    """Of a compile that read a variable; those of other numbers read another value."""
    return Inputs({}, {}, {}, {"NUMBER": hashlib.sha256(str(number).encode()).hexdigest()})


def store(cache: CompileCache, number: int, content: bytes, key: str = KEY) -> bool:
    return cache.store(key, f"program {number}", inputs(number), {"executable.bin": content, "log": b"same"}, 1.0)


def find(cache: CompileCache, number: int, directory: Path, key: str = KEY) -> bytes | None:
    directory.mkdir(exist_ok=True)
    roots, digests = Roots.of(directory, ()), FileDigests(directory)
    if cache.find(key, roots, {"NUMBER": str(number)}, digests, directory) is None:
        return None
    return (directory / "executable.bin").read_bytes()


def test_one_of_several_equal_compiles_is_kept(tmp_path: Path) -> None:
    cache = CompileCache(str(tmp_path / "cache"))
    assert store(cache, 1, b"first")
    assert not store(cache, 1, b"second")  # source locations may differ, what is compiled does not
    assert store(cache, 2, b"another")
    assert find(cache, 1, tmp_path / "out") == b"first"
    assert find(cache, 2, tmp_path / "out") == b"another"
    assert find(cache, 3, tmp_path / "out") is None
    assert find(cache, 1, tmp_path / "out", key="other") is None


def test_processes_at_once_get_whole_results_or_none(tmp_path: Path) -> None:
    uri = str(tmp_path / "cache")
    script = str(Path(__file__).parent / "cache_crowd.py")
    crowd = [
        subprocess.Popen(
            [sys.executable, script, uri, str(tmp_path / f"out{seed}"), str(seed)], stdout=subprocess.PIPE, text=True
        )
        for seed in range(4)
    ]
    hits = [int(process.communicate(timeout=120)[0]) for process in crowd]
    assert all(process.returncode == 0 for process in crowd)
    assert sum(hits) > 20
    cache = CompileCache(uri)
    for entry in cache.entries():  # and what is left is sound
        assert find(cache, int(entry.program.split()[1]), tmp_path / "out") is not None


def test_the_least_recently_used_is_evicted(tmp_path: Path) -> None:
    cache = CompileCache(str(tmp_path / "cache"))
    for number in range(4):
        store(cache, number, bytes([number]) * 100_000)
    for entry in cache.entries():
        number = int(entry.program.split()[1])
        os.utime(tmp_path / "cache" / "records" / KEY / f"{entry.id}.json", (number, number))
    assert find(cache, 0, tmp_path / "out") is not None  # the oldest is used once more
    assert [entry.program for entry in cache.entries()] == ["program 0", "program 3", "program 2", "program 1"]
    assert cache.prune(250_000) == (2, 2)
    assert [entry.program for entry in cache.entries()] == ["program 0", "program 3"]
    assert cache.nbytes() < 250_000
    assert find(cache, 2, tmp_path / "out") is None


def test_a_local_cache_stays_below_its_limit(tmp_path: Path) -> None:
    cache = CompileCache(str(tmp_path / "cache"))
    for number in range(6):
        store(cache, number, bytes([number]) * 100_000)
        cache.keep_below(350_000)
        assert cache.nbytes() < 350_000
    assert find(cache, 5, tmp_path / "out") is not None


def test_a_result_that_several_share_outlives_one_of_them(tmp_path: Path) -> None:
    cache = CompileCache(str(tmp_path / "cache"))
    store(cache, 1, b"x" * 100_000)
    store(cache, 2, b"x" * 100_000)
    cache.remove(cache.entries()[0])
    cache.prune(10**9)
    (left,) = cache.entries()
    assert find(cache, int(left.program.split()[1]), tmp_path / "out") == b"x" * 100_000


@pytest.fixture
def s3_bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket on a server of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        with socket.socket() as connection:
            while connection.connect_ex(("127.0.0.1", port)) and time.monotonic() < deadline:
                time.sleep(0.05)
        settings = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
        for name, value in {**settings, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}.items():
            monkeypatch.setenv(name, value)
        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="bucket")
        yield "bucket"
    finally:
        server.terminate()
        server.wait()


def test_object_stores(s3_bucket: str, tmp_path: Path) -> None:
    cache = CompileCache(f"s3://{s3_bucket}/compiles")
    assert store(cache, 1, b"first")
    assert not store(cache, 1, b"second")
    assert store(cache, 2, b"x" * 10_000)
    assert find(cache, 1, tmp_path / "out") == b"first"
    assert len(cache.entries()) == 2
    cache.keep_below(0)  # only by hand
    assert cache.prune(5_000) == (1, 1)
    assert find(cache, 2, tmp_path / "out") is None
    assert cache.clear() == 1
    assert cache.nbytes() == 0


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "migrate.cli", "cache", *arguments], capture_output=True, text=True, check=False
    )


def answer(*arguments: str) -> dict[str, Any]:
    done = command(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_command(tmp_path: Path) -> None:
    place = str(tmp_path / "cache")
    cache = CompileCache(place)
    assert answer("--cache", place)["entries"] == []
    for number in range(3):
        store(cache, number, bytes([number]) * 100_000)
    listed = answer("--cache", place)
    assert [entry["program"] for entry in listed["entries"]] == ["program 2", "program 1", "program 0"]
    assert listed["nbytes"] == cache.nbytes()
    shown = command("--cache", place).stdout
    assert "program 1" in shown
    assert "3 compiles" in shown
    pruned = answer("prune", "--cache", place, "--max-bytes", "150KB")
    assert (pruned["evicted"], pruned["kept"]) == (2, 1)
    assert pruned["removed_bytes"] > 200_000
    assert answer("clear", "--cache", place)["removed"] == 1
    assert not list(Path(place).rglob("*.json"))


def test_wrong_input(tmp_path: Path) -> None:
    wrong = command("prune", "--cache", str(tmp_path), "--max-bytes", "much")
    assert wrong.returncode == 2
    assert "--max-bytes" in wrong.stderr
    assert command("--cache", "ftp://somewhere").returncode == 1
    assert command("--cache", str(tmp_path), "clear").returncode == 2  # would clear the user's own


def test_a_changed_file_is_read_again_whatever_its_time(tmp_path: Path) -> None:
    file = tmp_path / "weights.json"
    file.write_text("1")
    os.utime(file, (1, 1))
    digests = FileDigests(tmp_path)
    assert digests.digest(str(file)) == hashlib.sha256(b"1").hexdigest()
    file.write_text("2")
    os.utime(file, (1, 1))
    assert digests.digest(str(file)) == hashlib.sha256(b"2").hexdigest()
    assert digests.digest(str(tmp_path)) is None
    assert digests.digest(str(tmp_path / "absent")) is None


def test_digests_are_remembered(tmp_path: Path) -> None:
    installed = sys.executable  # changed long ago
    first = FileDigests(tmp_path)
    digest = first.digest(installed)
    first.save()
    assert json.loads((tmp_path / "digests.json").read_text())[installed][4] == digest
    assert FileDigests(tmp_path).digest(installed) == digest
