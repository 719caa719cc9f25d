"""Outputs that hold nothing but records, on a local disk and in an S3 server on this machine."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import boto3
import pytest

from migrate import pointer, storage
from migrate.export import Paths
from migrate.manifest import (
    COMMIT,
    COMMIT_KEY,
    FORMAT_VERSION,
    MANIFEST,
    MANIFEST_KEY,
    PARAMETER_SET,
    PARAMETERS_KEY,
    Commit,
    FileRecord,
    Manifest,
    ParameterSet,
    ProgramRecord,
    SourceRecord,
)
from migrate.signature import Fingerprint

FINGERPRINT = Fingerprint("ab" * 32, "v5e:2x2", (("model", 4),), "0.10.2", "0.10.2", "0.0.42.1", (), "auto")


@dataclass
class Output:
    """An output root whose exports a test makes one after the other."""

    uri: str
    exports: list[str] = field(default_factory=list)

    @property
    def paths(self) -> Paths:
        return Paths(self.uri)

    def add(self, export_id: str, parameter_set: str, *, publish: bool = True) -> str:
        """Commit an export, newer than those before; its set is written if it is not there."""
        paths = self.paths
        parameters = PARAMETER_SET.dump(ParameterSet(FORMAT_VERSION, parameter_set, ()))
        storage.write(paths.parameters(parameter_set), "manifest.ocdbt", b"root of the database")
        storage.write(paths.parameters(parameter_set), "d/data", b"chunks")
        storage.write(paths.parameters(parameter_set), PARAMETERS_KEY, parameters)
        self.exports.append(export_id)
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            export=export_id,
            parameter_set=parameter_set,
            parameters=FileRecord.of(parameters),
            source=SourceRecord("/checkpoint", "orbax", "", "1" * 16, 1, None),
            programs=(ProgramRecord("main", "model:step", FINGERPRINT, {}),),
            dropped=(),
            tools={},
            created=f"2026-11-{len(self.exports):02}T00:00:00+00:00",
            timings={},
            bytes_written=0,
        )
        data = MANIFEST.dump(manifest)
        storage.write(paths.export(export_id), MANIFEST_KEY, data)
        commit = COMMIT.dump(Commit(FORMAT_VERSION, export_id, FileRecord.of(data).sha256))
        storage.write(paths.export(export_id), COMMIT_KEY, commit)
        if publish:
            pointer.move(self.uri, export_id)
        return export_id

    def listing(self) -> list[str]:
        return storage.list_keys(self.uri)

    def visible(self) -> list[str]:
        return sorted(key.split("/")[1] for key in self.listing() if key.endswith(COMMIT_KEY))

    def sets(self) -> list[str]:
        return sorted({key.split("/")[1] for key in self.listing() if key.startswith("params/")})


def _answers(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="package")
def bucket() -> Iterator[str]:
    """A bucket of moto's server, found through this process's environment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    endpoint = f"http://127.0.0.1:{port}"
    settings = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
    try:
        deadline = time.monotonic() + 60
        while not _answers(port) and time.monotonic() < deadline:
            time.sleep(0.05)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {**settings, "AWS_ENDPOINT_URL": endpoint}.items():
                patch.setenv(name, value)
            client = boto3.client(
                "s3",
                endpoint_url=endpoint,
                aws_access_key_id="key",
                aws_secret_access_key="secret",
                region_name="us-east-1",
            )
            client.create_bucket(Bucket="fleet")
            yield "s3://fleet"
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(params=["disk", "s3"])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> Output:
    """An empty output, on a local disk and in an object store."""
    if request.param == "disk":
        return Output(str(tmp_path / "out"))
    return Output(f"{request.getfixturevalue('bucket')}/{tmp_path.name}")
