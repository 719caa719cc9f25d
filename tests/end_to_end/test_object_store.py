"""The whole main job from S3 to S3 and from GCS to GCS, against servers on this machine, on good days and bad ones."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest

import migrate
from migrate import storage
from migrate.errors import NotAnExportError, StorageError

from .conftest import Stages, small_job, write_job
from .faulty_proxy import Fault, FaultyProxy, faulty_proxy
from .gcs_server import GcsServer, gcs_server

SECRETS = {
    "AWS_ACCESS_KEY_ID": "AKIA-an-id-that-must-not-appear",
    "AWS_SECRET_ACCESS_KEY": "a-secret-that-must-not-appear",
    "AWS_SESSION_TOKEN": "a-token-that-must-not-appear",
}
GCS_TOKEN = "another-token-that-must-not-appear"
LOAD = """
import sys, numpy, migrate
call, params = migrate.load(sys.argv[1])
print(int(call(params, numpy.arange(8, dtype=numpy.int32))[0][0]), params["rows"]["w"].shape)
"""


def answers(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


@dataclass
class Store:
    """An S3 server with the old checkpoint in ``s3://bucket/checkpoint``."""

    port: int

    @property
    def environment(self) -> dict[str, str]:
        """In which it is found."""
        return {**SECRETS, "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}"}

    @property
    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.environment["AWS_ENDPOINT_URL"],
            aws_access_key_id=SECRETS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=SECRETS["AWS_SECRET_ACCESS_KEY"],
            region_name="us-east-1",
        )

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        """Every object's bytes."""
        found = self.client.get_paginator("list_objects_v2").paginate(Bucket="bucket", Prefix=prefix)
        keys = [entry["Key"] for page in found for entry in page.get("Contents", [])]
        return {key: self.client.get_object(Bucket="bucket", Key=key)["Body"].read() for key in keys}


@pytest.fixture(scope="module")
def store(old_checkpoint: Path) -> Iterator[Store]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found = Store(free.getsockname()[1])
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(found.port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not answers(found.port) and time.monotonic() < deadline:
            time.sleep(0.05)
        found.client.create_bucket(Bucket="bucket")
        for file in old_checkpoint.rglob("*"):
            if file.is_file():
                found.client.upload_file(str(file), "bucket", f"checkpoint/{file.relative_to(old_checkpoint)}")
        yield found
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(scope="module")
def proxy(store: Store) -> Iterator[FaultyProxy]:
    with faulty_proxy(store.port) as proxy:
        yield proxy


@pytest.fixture
def through_proxy(store: Store, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> FaultyProxy:
    """This process reaches the store through the proxy."""
    for name, value in {**store.environment, "AWS_ENDPOINT_URL": proxy.url}.items():
        monkeypatch.setenv(name, value)
    proxy.begin(lambda number, verb, path: None)
    return proxy


@pytest.fixture(scope="module")
def undisturbed(old_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, ...]]:
    """Digests of every array, from a run on local files."""
    result = migrate.run(small_job(old_checkpoint, tmp_path_factory.mktemp("undisturbed") / "out", "cpu:8"))
    return digests(result.export)


def digests(export: migrate.Export) -> list[tuple[str, ...]]:
    return [(*array.path, array.content) for array in export.parameter_set().arrays]


def bucket_job(scheme: str, output: str) -> dict[str, Any]:
    job = small_job(Path("unused"), Path("unused"), "cpu:8")
    job["source"]["path"], job["output"] = f"{scheme}://bucket/checkpoint", f"{scheme}://bucket/{output}"
    return {**job, "rewrite": {"max_item_bytes": 512}}


def in_environment(environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, check=False, env={**os.environ, **environment}
        )

    return run


def error_of(job: dict[str, Any]) -> migrate.errors.ReexportError | None:
    try:
        migrate.run(job)
    except migrate.errors.ReexportError as error:
        return error
    return None


def holds_a_secret(text: str | bytes) -> bool:
    data = text.encode() if isinstance(text, str) else text
    return any(secret.encode() in data for secret in (*SECRETS.values(), GCS_TOKEN))


def test_from_s3_to_s3(store: Store, undisturbed: list[tuple[str, ...]], tmp_path: Path) -> None:
    path, run = write_job(bucket_job("s3", "out"), tmp_path), in_environment(store.environment)
    done = run("-m", "migrate.cli", "run", str(path), "--log-format", "json")
    assert done.returncode == 0, done.stderr
    again = run("-m", "migrate.cli", "run", str(path), "--json")
    assert json.loads(again.stdout)["already_committed"]
    verified = run("-m", "migrate.cli", "verify", "s3://bucket/out", "--source")
    assert verified.returncode == 0, verified.stderr
    loaded = run("-c", LOAD, "s3://bucket/out")
    assert loaded.stdout.strip() == "9 (16, 6)", loaded.stderr
    shown = run("-m", "migrate.cli", "inspect", "s3://bucket/out", "--json")
    for output in (done, again, verified, loaded, shown):
        assert not holds_a_secret(output.stdout + output.stderr)
    records = {key: value for key, value in store.objects("out").items() if key.endswith((".json", "LATEST"))}
    assert len(records) >= 3
    assert "out/LATEST" in records


def test_a_bucket_that_is_not_there(store: Store, tmp_path: Path) -> None:
    job = bucket_job("s3", "other")
    job["source"]["path"] = "s3://no-such-bucket/checkpoint"
    done = in_environment(store.environment)("-m", "migrate.cli", "run", str(write_job(job, tmp_path)))
    assert done.returncode == 1
    assert "error: " in done.stderr
    assert "s3://no-such-bucket/checkpoint" in done.stderr
    assert "Traceback" not in done.stderr


EVERYTHING: tuple[Fault, ...] = ("500", "slow", "503", "reset", "lost answer")


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(EVERYTHING, id="everything at once"),
        pytest.param(("500",), id="internal errors", marks=pytest.mark.slow),
        pytest.param(("503",), id="throttled", marks=pytest.mark.slow),
        pytest.param(("reset",), id="connections that break", marks=pytest.mark.slow),
        pytest.param(("lost answer",), id="answers that are lost", marks=pytest.mark.slow),
    ],
)
def test_what_passes_is_survived(
    faults: tuple[Fault, ...],
    through_proxy: FaultyProxy,
    undisturbed: list[tuple[str, ...]],
    request: pytest.FixtureRequest,
) -> None:
    through_proxy.begin(lambda number, verb, path: faults[number // 11 % len(faults)] if number % 11 == 0 else None)
    result = migrate.run(bucket_job("s3", f"transient-{request.node.callspec.id.replace(' ', '-')}"))
    assert through_proxy.faults > 10
    through_proxy.begin(lambda number, verb, path: None)
    assert digests(result.export) == undisturbed
    migrate.verify_export(result.export)


@pytest.mark.parametrize(("verb", "step"), [("GET", 19), ("PUT", 4)])
def test_credentials_that_expire_midway(
    verb: str, step: int, store: Store, through_proxy: FaultyProxy, undisturbed: list[tuple[str, ...]]
) -> None:
    """At any request: a typed error that names the reason, and nothing to see; with new ones the run goes on."""
    output = f"expired-{verb}"
    job = bucket_job("s3", output)
    failures = 0
    for after in itertools.count(1, step):
        left = [after]

        def expire(number: int, of: str, path: str, left: list[int] = left) -> Fault | None:
            left[0] -= of == verb
            return "403" if left[0] < 0 else None

        through_proxy.begin(expire)
        error = error_of(job)
        if error is None:
            break
        assert isinstance(error, StorageError)
        assert "ExpiredToken" in str(error) or "'403'" in str(error)  # the answer to a HEAD has no body
        assert not holds_a_secret(str(error))
        failures += 1
        if not any(key.endswith("COMMIT.json") for key in store.objects(output)):
            assert f"{output}/LATEST" not in store.objects(output)
    assert failures >= 3
    through_proxy.begin(lambda number, verb, path: None)
    result = migrate.run(job)
    assert digests(result.export) == undisturbed
    migrate.verify_export(result.export)


def test_credentials_appear_nowhere(store: Store, proxy: FaultyProxy, tmp_path: Path) -> None:
    """Good and failing runs, in all forms of output; what they store, cache and log."""
    cache, scratch = tmp_path / "cache", tmp_path / "scratch"
    scratch.mkdir()
    own = {"REEXPORT_CACHE_DIR": str(cache), "TMPDIR": str(scratch)}
    run = in_environment({**store.environment, **own, "AWS_ENDPOINT_URL": proxy.url})
    proxy.begin(lambda number, verb, path: None)
    path = str(write_job(bucket_job("s3", "secret"), tmp_path))
    plan = run("-m", "migrate.cli", "plan", path)
    proxy.begin(lambda number, verb, path: "403" if verb == "PUT" and number > 60 else None)
    ended = [plan, run("-m", "migrate.cli", "run", path, "--log-format", "json")]
    assert [one.returncode for one in ended] == [0, 1], ended[1].stderr
    proxy.begin(lambda number, verb, path: None)
    ended.append(run("-m", "migrate.cli", "run", path, "--json"))
    assert ended[-1].returncode == 0, ended[-1].stderr
    for one in ended:
        assert not holds_a_secret(one.stdout + one.stderr)
    stored = store.objects()
    assert stored
    assert [key for key, value in stored.items() if holds_a_secret(value) or holds_a_secret(key)] == []
    files = [file for folder in (cache, scratch) for file in folder.rglob("*") if file.is_file()]
    assert files
    assert [file for file in files if holds_a_secret(file.read_bytes())] == []


@pytest.fixture
def gcs(old_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    """A server with the old checkpoint in ``gs://bucket/checkpoint``, which this process and its children find."""
    with gcs_server("bucket") as server:
        for file in old_checkpoint.rglob("*"):
            if file.is_file():
                key = f"checkpoint/{file.relative_to(old_checkpoint)}"
                server.objects["bucket"][key] = (next(server.generations), file.read_bytes())
        # Orbax writes it where a store renames no directories
        server.objects["bucket"]["checkpoint/commit_success.txt"] = (next(server.generations), b"")
        monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", server.url)
        monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", GCS_TOKEN)
        yield server


def test_from_gcs_to_gcs(gcs: GcsServer, undisturbed: list[tuple[str, ...]], tmp_path: Path) -> None:
    # the driver of gs:// reads its settings once a process
    path, run = str(write_job(bucket_job("gs", "out"), tmp_path)), in_environment({})
    done = run("-m", "migrate.cli", "run", path)
    assert done.returncode == 0, done.stderr
    again = run("-m", "migrate.cli", "run", path, "--json")
    assert json.loads(again.stdout)["already_committed"]
    verified = run("-m", "migrate.cli", "verify", "gs://bucket/out", "--source")
    assert verified.returncode == 0, verified.stderr
    loaded = run("-c", LOAD, "gs://bucket/out")
    assert loaded.stdout.strip() == "9 (16, 6)", loaded.stderr
    assert gcs.tokens == {f"Bearer {GCS_TOKEN}"}
    for output in (done, again, verified, loaded):
        assert not holds_a_secret(output.stdout + output.stderr)
    assert [key for key, (_, value) in gcs.objects["bucket"].items() if holds_a_secret(value)] == []

    copy = tmp_path / "copy"  # what lies in the bucket is an export like any other
    for key, (_, value) in gcs.objects["bucket"].items():
        if key.startswith("out/"):
            (copy / key).parent.mkdir(parents=True, exist_ok=True)
            (copy / key).write_bytes(value)
    assert digests(migrate.open_export(str(copy / "out"))) == undisturbed
    shutil.rmtree(copy)


CONDITIONS = """
import sys
from concurrent.futures import ThreadPoolExecutor
from migrate import storage
uri = sys.argv[1]
with ThreadPoolExecutor(8) as pool:
    made = list(pool.map(lambda n: storage.create(uri, "COMMIT.json", b"%d" % n), range(8)))
print(made.count("created"), storage.replace(uri, "COMMIT.json", b"new", expected=b"old"))
present = storage.read(uri, "COMMIT.json")
with ThreadPoolExecutor(8) as pool:
    replaced = list(pool.map(lambda n: storage.replace(uri, "COMMIT.json", b"%d new" % n, expected=present), range(8)))
print(replaced.count(True))
"""


def test_of_eight_writers_one_commits(store: Store, gcs: GcsServer) -> None:
    for uri, environment in (("s3://bucket/conditions", store.environment), ("gs://bucket/conditions", {})):
        done = in_environment(environment)("-c", CONDITIONS, uri)
        assert done.stdout.split() == ["1", "False", "1"], (uri, done.stderr)
    assert gcs.refused > 0


def test_a_write_whose_answer_is_lost_is_no_conflict(through_proxy: FaultyProxy) -> None:
    """TensorStore asks again, and is told that the key has another generation by now: its own."""

    def lose(number: int, verb: str, path: str) -> Fault | None:
        return "lost answer" if verb == "PUT" and through_proxy.faults == 0 else None

    through_proxy.begin(lose)
    assert storage.create("s3://bucket/lost", "LEASE.json", b"mine") == "created"
    through_proxy.begin(lose)
    assert storage.replace("s3://bucket/lost", "LEASE.json", b"renewed", expected=b"mine")
    assert through_proxy.faults == 1
    assert storage.create("s3://bucket/lost", "LEASE.json", b"another's") == "exists"
    assert not storage.replace("s3://bucket/lost", "LEASE.json", b"another's", expected=b"mine")
    assert storage.read("s3://bucket/lost", "LEASE.json") == b"renewed"


def test_refused_credentials_are_a_storage_error(through_proxy: FaultyProxy) -> None:
    through_proxy.begin(lambda number, verb, path: "403")
    with pytest.raises(StorageError, match="credentials") as caught:
        storage.read("s3://bucket/checkpoint", "key")
    assert not holds_a_secret(str(caught.value))


def test_an_output_that_cannot_be_used_is_found_before_the_compile(
    store: Store, through_proxy: FaultyProxy, old_checkpoint: Path, tmp_path: Path
) -> None:
    store.client.put_object(Bucket="bucket", Key="damaged/LATEST", Body=b"damaged")
    stages = Stages()
    with pytest.raises(NotAnExportError, match="LATEST is damaged"):
        migrate.run(small_job(old_checkpoint, tmp_path) | {"output": "s3://bucket/damaged"}, reporter=stages)
    assert stages.seen == ["looking at"]
