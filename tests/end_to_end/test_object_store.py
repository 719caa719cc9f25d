"""The whole main job from S3 to S3, against moto's server on this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from .conftest import small_job, write_job

SECRET = "a-secret-that-must-not-appear"
LOAD = """
import numpy, migrate
call, params = migrate.load("s3://bucket/out")
print(int(call(params, numpy.arange(8, dtype=numpy.int32))[0][0]), params["rows"]["w"].shape)
"""


def answers(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def store(old_checkpoint: Path) -> Iterator[dict[str, str]]:
    """A server with the old checkpoint in ``s3://bucket/checkpoint``; the environment in which it is found."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not answers(port) and time.monotonic() < deadline:
            time.sleep(0.05)
        credentials = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
        environment = {**credentials, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
        client = boto3.client(
            "s3",
            endpoint_url=environment["AWS_ENDPOINT_URL"],
            aws_access_key_id="key",
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )
        client.create_bucket(Bucket="bucket")
        for file in old_checkpoint.rglob("*"):
            if file.is_file():
                client.upload_file(str(file), "bucket", f"checkpoint/{file.relative_to(old_checkpoint)}")
        yield environment
    finally:
        server.terminate()
        server.wait()


def test_from_s3_to_s3(store: dict[str, str], tmp_path: Path) -> None:
    job = small_job(Path("unused"), Path("unused"), "cpu:8")
    job["source"]["path"], job["output"] = "s3://bucket/checkpoint", "s3://bucket/out"
    path = write_job(job, tmp_path)

    def run(*command: str, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **store, **more}
        return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, env=environment)

    done = run("-m", "migrate.cli", "run", str(path))
    assert done.returncode == 0, done.stderr
    assert "Committed export" in done.stdout
    again = run("-m", "migrate.cli", "run", str(path), "--json")
    assert json.loads(again.stdout)["already_committed"]
    verified = run("-m", "migrate.cli", "verify", "s3://bucket/out")
    assert verified.returncode == 0, verified.stderr
    loaded = run("-c", LOAD)
    assert loaded.stdout.strip() == "9 (16, 6)", loaded.stderr
    shown = run("-m", "migrate.cli", "inspect", "s3://bucket/out", "--json")
    for output in (done, again, verified, shown):
        assert SECRET not in output.stdout + output.stderr


def test_a_bucket_that_is_not_there(store: dict[str, str], tmp_path: Path) -> None:
    job = small_job(Path("unused"), Path("unused"), "cpu:8")
    job["source"]["path"], job["output"] = "s3://no-such-bucket/checkpoint", "s3://bucket/other"
    command = [sys.executable, "-m", "migrate.cli", "run", str(write_job(job, tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **store})
    assert done.returncode == 1
    assert "error: " in done.stderr
    assert "s3://no-such-bucket/checkpoint" in done.stderr
    assert "Traceback" not in done.stderr
