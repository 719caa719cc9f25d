"""Records that someone changed and gave matching digests: read, or refused with a typed error, never anything else."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from migrate import commit, receipt, storage
from migrate.audit import verify_export
from migrate.errors import ReexportError
from migrate.export import Export, open_export
from migrate.lease import Lease
from migrate.manifest import SIGNATURE_FILE, FileRecord, ProgramRecord
from migrate.signature import DeviceMemory, Signature

from .conftest import FINGERPRINT, make_run, parameter, random_array

ODD_NUMBERS = [None, True, -1, 0, 1, 2**31, 2**63, 2**200, 1.5, math.inf, math.nan]
ODD_TEXTS = ["", "x", "<f4", "../../../../etc", "/etc", "a/../..", "\0", "main\n"]
ODD_TREES = [[], [1], [[]], [0] * 50, {}, {"a": 1}]
ODD = st.sampled_from([*ODD_NUMBERS, *ODD_TEXTS, *ODD_TREES])


@dataclasses.dataclass(frozen=True)
class Forgery:
    """An export whose records can be replaced, with digests that fit."""

    export: Export
    documents: dict[str, Any]

    def write(self, documents: dict[str, Any]) -> None:
        here, parameters = Path(self.export.uri), Path(self.export.parameters_uri)
        data = {name: json.dumps(document).encode() for name, document in documents.items()}
        manifest = documents["manifest"]
        if isinstance(manifest, dict):
            manifest = copy.deepcopy(manifest)
            manifest["parameters"] = dataclasses.asdict(FileRecord.of(data["parameters"]))
            match manifest.get("programs"):
                case [{**fields}, *others]:
                    files = {SIGNATURE_FILE: dataclasses.asdict(FileRecord.of(data["signature"]))}
                    manifest["programs"] = [{**fields, "files": files}, *others]
            data["manifest"] = json.dumps(manifest).encode()
        record = documents["commit"]
        if isinstance(record, dict):
            digest = hashlib.sha256(data["manifest"]).hexdigest()
            data["commit"] = json.dumps({**record, "manifest_sha256": digest}).encode()
        (here / "COMMIT.json").write_bytes(data["commit"])
        (here / "manifest.json").write_bytes(data["manifest"])
        (here / "programs" / "main" / SIGNATURE_FILE).write_bytes(data["signature"])
        (parameters / "parameters.json").write_bytes(data["parameters"])


@pytest.fixture(scope="module")
def forgery(tmp_path_factory: pytest.TempPathFactory) -> Forgery:
    run = make_run(
        tmp_path_factory.mktemp("forgery"),
        {("kernel",): random_array((40, 12), "bfloat16"), ("bias",): random_array((60,), "float32")},
        shards={("kernel",): (40, 3)},
        orders={("kernel",): (1, 0)},
    )
    kernel = dataclasses.replace(parameter(("kernel",), (40, 12), shard_shape=(40, 3)), dtype="bfloat16")
    signature = Signature("main", (kernel,), FINGERPRINT, DeviceMemory(kernel.device_bytes, 64, 2048, 4096))
    data = signature.to_json().encode()
    storage.write(run.paths.program(run.request.export_id, "main"), SIGNATURE_FILE, data)
    for item in run.plan.items:
        run.do(item)
    program = ProgramRecord("main", "model:step", FINGERPRINT, {SIGNATURE_FILE: FileRecord.of(data)})
    export = commit.commit(dataclasses.replace(run.request, programs=(program,)), run.destination)
    here = Path(export.uri)
    files = {
        "commit": here / "COMMIT.json",
        "manifest": here / "manifest.json",
        "signature": here / "programs" / "main" / SIGNATURE_FILE,
        "parameters": Path(export.parameters_uri) / "parameters.json",
    }
    return Forgery(export, {name: json.loads(path.read_bytes()) for name, path in files.items()})


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in a JSON document."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(path for key, child in children for path in places(child, (*at, key)))]


def use(export: Export) -> None:
    """Everything that reads the records, short of running what they hold."""
    opened = open_export(export.uri)
    for program in opened.manifest.programs:
        for spec in opened.signature(program.name).parameters:
            assert spec.device_bytes >= 0
            assert str(spec.shard)
    verify_export(opened)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_changed_records(forgery: Forgery, data: st.DataObject) -> None:
    documents = copy.deepcopy(forgery.documents)
    name = data.draw(st.sampled_from(sorted(documents)))
    path = data.draw(st.sampled_from(places(documents[name])))
    value = data.draw(ODD)
    if path:
        parent = documents[name]
        for key in path[:-1]:
            parent = parent[key]
        parent[path[-1]] = value
    else:
        documents[name] = value
    forgery.write(documents)
    try:
        use(forgery.export)
    except ReexportError:
        return


def test_what_was_not_changed_is_read(forgery: Forgery) -> None:
    forgery.write(forgery.documents)
    use(forgery.export)


@pytest.mark.parametrize(
    ("document", "path", "value"),
    [
        ("manifest", ("parameter_set",), "../../elsewhere"),
        ("manifest", ("programs", 0, "name"), "../../../elsewhere"),
        ("manifest", ("programs", 0, "name"), "/elsewhere"),
        ("parameters", ("arrays", 0, "stored", "storage_name"), "../../../elsewhere"),
        ("signature", ("parameters", 0, "shard_shape"), [40]),
        ("signature", ("parameters", 0, "major_to_minor"), [0, 0]),
        ("signature", ("parameters", 0, "tiles"), [[0, 128]]),
        ("signature", ("parameters", 0, "dtype"), "float3"),
    ],
    ids=str,
)
def test_records_that_cannot_be(forgery: Forgery, document: str, path: tuple[Any, ...], value: Any) -> None:
    documents = copy.deepcopy(forgery.documents)
    parent = documents[document]
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    forgery.write(documents)
    with pytest.raises(ReexportError):
        use(forgery.export)


@given(st.binary(max_size=200) | st.text(max_size=60).map(str.encode) | ODD.map(lambda odd: json.dumps(odd).encode()))
@settings(max_examples=60, deadline=None)
def test_other_files_of_a_run(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """LATEST, a lease and a receipt: what is no such thing counts as absent or is refused."""
    root = tmp_path_factory.mktemp("run")
    (root / "LATEST").write_bytes(content)
    with pytest.raises(ReexportError):
        open_export(str(root))
    destination = receipt.Destination(str(root / "params"), str(root / "carried"), str(root / "runs"))
    storage.write(receipt.receipts_uri(destination), "item.json", content)
    assert receipt.load_all(destination, ["item"]) == {}
    storage.write(str(root / "runs"), "LEASE.json", content)
    Lease(str(root / "runs")).release()
