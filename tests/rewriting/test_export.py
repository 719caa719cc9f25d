"""Opening and checking an export that was damaged after its commit."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from migrate import commit, storage
from migrate.audit import verify_export
from migrate.commit import CommitRequest
from migrate.compiler import CompileResult
from migrate.config import job_from_mapping
from migrate.errors import ExitCode, NotAnExportError, VerificationError
from migrate.export import Export, is_export, latest, open_export, set_latest
from migrate.manifest import FileRecord, ProgramRecord
from migrate.preparation import Prepared
from migrate.session import Session
from migrate.signature import Signature

from .conftest import FINGERPRINT, Run


def with_signature(run: Run, signature: Signature) -> CommitRequest:
    """A commit of one program that has one file."""
    data = signature.to_json().encode()
    request = run.request
    storage.write(run.paths.program(request.export_id, "main"), "signature.json", data)
    files = {"signature.json": FileRecord.of(data)}
    return dataclasses.replace(request, programs=(ProgramRecord("main", "model:step", FINGERPRINT, files),))


@pytest.fixture
def committed(two_arrays: Run, signature: Signature) -> Export:
    for item in two_arrays.plan.items:
        two_arrays.do(item)
    return commit.commit(with_signature(two_arrays, signature), two_arrays.destination)


def test_an_intact_export_gives_its_signature_back(committed: Export, signature: Signature) -> None:
    assert committed.signature() == committed.signature("main") == signature
    assert verify_export(committed).files == 3
    with pytest.raises(NotAnExportError, match="no program 'other'") as caught:
        committed.program("other")
    assert caught.value.expected == "one of main"


def test_every_array_is_heard_of_once(committed: Export) -> None:
    heard: list[str] = []
    verify_export(committed, workers=4, on_array=lambda record: heard.append(record.name))
    assert sorted(heard) == ["layer/bias", "layer/kernel"]


def overwrite(path: str, content: bytes) -> Callable[[Export], None]:
    """Damages the files whose names match below the output."""

    def damage(export: Export) -> None:
        found = [p for p in Path(export.paths.output).glob(path) if p.is_file()]
        assert found, path
        for file in found:
            file.write_bytes(content)

    return damage


def delete(path: str) -> Callable[[Export], None]:
    def damage(export: Export) -> None:
        found = list(Path(export.paths.output).glob(path))
        assert found, path
        for file in found:
            file.unlink()

    return damage


def other_document(export: Export) -> None:
    """A valid zarr.json of another shape: no checksum of Zarr or OCDBT notices."""
    import tensorstore as ts

    base = {"driver": "file", "path": f"{export.parameters_uri}/"}
    database = ts.KvStore.open({"driver": "ocdbt", "base": base}).result()
    document = json.loads(bytes(database.read("layer.bias/zarr.json").result().value))
    database.write("layer.bias/zarr.json", json.dumps({**document, "shape": [3]}).encode()).result()


DAMAGE = {
    "database overwritten": overwrite("params/*/manifest.ocdbt", b"garbage"),
    "database empty": overwrite("params/*/manifest.ocdbt", b""),
    "database gone": delete("params/*/manifest.ocdbt"),
    "data overwritten": overwrite("params/*/ocdbt.process_*/d/*", bytes(4096)),
    "data cut short": overwrite("params/*/ocdbt.process_*/d/*", b"\1"),
    "data gone": delete("params/*/ocdbt.process_*/d/*"),
    "nodes gone": delete("params/*/d/*"),
    "array record changed": overwrite("params/*/parameters.json", b"{}"),
    "array record gone": delete("params/*/parameters.json"),
    "program file changed": overwrite("exports/*/programs/main/signature.json", b"{}"),
    "program file gone": delete("exports/*/programs/main/signature.json"),
    "another document": other_document,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_a_mismatch(committed: Export, damage: Callable[[Export], None]) -> None:
    damage(committed)
    with pytest.raises(VerificationError) as caught:
        verify_export(committed)
    assert caught.value.exit_code is ExitCode.MISMATCH


def test_every_part_that_differs_is_listed(committed: Export) -> None:
    DAMAGE["data gone"](committed)
    DAMAGE["program file gone"](committed)
    with pytest.raises(VerificationError, match="3 parts of the export differ") as caught:
        verify_export(committed)
    for part in ("layer/kernel", "layer/bias", "a file of the export is missing"):
        assert part in caught.value.found


UNOPENABLE = {
    "manifest changed": (overwrite("exports/*/manifest.json", b"{}"), VerificationError),
    "manifest gone": (delete("exports/*/manifest.json"), VerificationError),
    "commit damaged": (overwrite("exports/*/COMMIT.json", b"{"), NotAnExportError),
    "commit gone": (delete("exports/*/COMMIT.json"), NotAnExportError),
    "latest damaged": (overwrite("LATEST", b"{"), NotAnExportError),
    "latest of another kind": (overwrite("LATEST", b'{"export": 7}'), NotAnExportError),
    # the id becomes part of a path
    "latest leads elsewhere": (overwrite("LATEST", b'{"export": "../../x"}'), NotAnExportError),
    "latest names what is not there": (overwrite("LATEST", b'{"export": "ffff"}'), NotAnExportError),
}


@pytest.mark.parametrize(("damage", "kind"), UNOPENABLE.values(), ids=UNOPENABLE)
def test_exports_that_cannot_be_opened(
    committed: Export, damage: Callable[[Export], None], kind: type[Exception]
) -> None:
    damage(committed)
    with pytest.raises(kind):
        open_export(committed.paths.output)


def test_an_export_under_another_id_is_refused(committed: Export) -> None:
    moved = Path(committed.uri).rename(Path(committed.uri).with_name("ffff"))
    with pytest.raises(VerificationError, match="another id"):
        open_export(str(moved))


@pytest.mark.parametrize("path", ["", "exports", "params", "runs/x", "exports/ffff"])
def test_places_that_are_no_export(two_arrays: Run, path: str) -> None:
    uri = storage.join(two_arrays.paths.output, path)
    assert not is_export(uri)
    with pytest.raises(NotAnExportError):
        open_export(uri)


def test_latest_moves_and_moves_back(tmp_path: Path) -> None:
    output = str(tmp_path)
    assert latest(output) is None
    for export_id in ("a1", "b2", "a1", "a1"):
        set_latest(output, export_id)
        assert latest(output) == export_id


def test_a_driver_that_waited_for_the_lease_leaves_the_others_export_alone(
    two_arrays: Run, signature: Signature, tmp_path: Path
) -> None:
    """It looked before the other one committed; its own executable differs in source locations."""
    files = [tmp_path / name for name in ("executable", "exported", "log")]
    for file in files:
        file.write_bytes(b"compiled once more")
    job = job_from_mapping(
        {
            "source": {"path": two_arrays.checkpoint.uri},
            "program": {"entry": "model:step"},
            "target": {"topology": "v5e:2x2", "mesh": {"data": 1, "model": 4}},
            "output": two_arrays.paths.output,
        }
    )
    prepared = Prepared(job, two_arrays.checkpoint, {"main": CompileResult(signature, *files, 1.0)}, two_arrays.plan)
    for item in two_arrays.plan.items:
        two_arrays.do(item)
    request = dataclasses.replace(two_arrays.request, export_id=prepared.export_id)
    theirs = commit.commit(request, two_arrays.destination)

    with Session(prepared) as session:
        assert session.work is None
        session.check()
    assert open_export(job.output) == theirs
    verify_export(theirs)
