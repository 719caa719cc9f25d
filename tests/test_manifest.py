"""The records of an export as JSON: equal bytes for equal records, and typed errors for everything else."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import pytest

from migrate.errors import NotAnExportError
from migrate.manifest import (
    COMMIT,
    FORMAT_VERSION,
    MANIFEST,
    PARAMETER_SET,
    ArrayRecord,
    Commit,
    FileRecord,
    Manifest,
    ParameterSet,
    ProgramRecord,
    SourceRecord,
)
from migrate.orbax_metadata import tree_metadata
from migrate.signature import Fingerprint
from migrate.zarr import StoredArray, array_digest

ARRAY = ArrayRecord(
    tree="params",
    path=("layers", "0", "kernel"),
    sequence_levels=(False, True, False),
    stored=StoredArray("layers.0.kernel", (4, 6), "bfloat16", (4, 3), (1, 0), "zstd"),
    source_name="params/layers/0/kernel",
    chunk_digests=("aa" * 32, "bb" * 32),
)
SCALAR = ArrayRecord(
    "params", ("step",), (False,), StoredArray("step", (), "int32", (), (), "none"), "step", ("cc" * 32,)
)
FINGERPRINT = Fingerprint("ab" * 32, "cpu:8", (("data", 8),), "0.10.2", "0.10.2", "", (("flag", "1"),), "auto")
RECORDS = {
    "parameter set": (PARAMETER_SET, ParameterSet(FORMAT_VERSION, "set", (ARRAY, SCALAR))),
    "manifest": (
        MANIFEST,
        Manifest(
            format_version=FORMAT_VERSION,
            export="e",
            parameter_set="set",
            parameters=FileRecord.of(b"{}"),
            source=SourceRecord("s3://bucket/run", "orbax", "0.5", "id", None, "default"),
            programs=(ProgramRecord("main", "model:step", FINGERPRINT, {"signature.json": FileRecord("aa", 1)}),),
            dropped=(("opt/mu", "drop: opt/.*"),),
            tools={"jax": "0.10.2"},
            created="2026-01-01T00:00:00+00:00",
            timings={"plan": 0.1},
            bytes_written=0,
        ),
    ),
    "commit": (COMMIT, Commit(FORMAT_VERSION, "e", "aa" * 32)),
}
each = pytest.mark.parametrize(("codec", "record"), RECORDS.values(), ids=RECORDS)


@each
def test_round_trip(codec: Any, record: Any) -> None:
    data = codec.dump(record)
    assert codec.load(data, "x") == record
    assert codec.dump(codec.load(data, "x")) == data
    assert isinstance(json.loads(data), dict)  # plain JSON: other tools read it


@each
def test_a_newer_version_is_called_newer_whatever_else_it_holds(codec: Any, record: Any) -> None:
    newer = {**json.loads(codec.dump(record)), "format_version": FORMAT_VERSION + 1}
    for document in (newer, {"format_version": FORMAT_VERSION + 1, "everything": "differs"}):
        with pytest.raises(NotAnExportError, match="newer reexport") as caught:
            codec.load(json.dumps(document).encode(), "out/manifest.json")
        assert caught.value.found == str(FORMAT_VERSION + 1)
        assert caught.value.remedy == "upgrade reexport"


DAMAGED = {
    "empty": b"",
    "no JSON": b"\xff\x00",
    "half": None,
    "another kind": b"[]",
    "null": b"null",
    "no fields": b"{}",
    "version of the wrong kind": b'{"format_version": "one"}',
    "only the version": b'{"format_version": 1}',
    "nested too deeply": b"[" * 100_000,
}


@each
@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_damage_names_the_file(codec: Any, record: Any, data: bytes | None) -> None:
    if data is None:
        whole = codec.dump(record)
        data = whole[: len(whole) // 2]
    with pytest.raises(NotAnExportError, match=r"out/x\.json is damaged") as caught:
        codec.load(data, "out/x.json")
    assert caught.value.where == "out/x.json"
    assert caught.value.found


def test_digests_form_a_chain() -> None:
    assert FileRecord.of(b"abc") == FileRecord(hashlib.sha256(b"abc").hexdigest(), 3)
    assert ARRAY.digest == array_digest(ARRAY.chunk_digests)
    swapped = dataclasses.replace(ARRAY, chunk_digests=ARRAY.chunk_digests[::-1])
    assert swapped.digest != ARRAY.digest  # a chunk in another's place is a different array


def test_names_and_bytes() -> None:
    assert (ARRAY.name, SCALAR.name) == ("layers/0/kernel", "step")
    assert ParameterSet(1, "set", (ARRAY, SCALAR)).nbytes == 4 * 6 * 2 + 4


def test_tree_metadata_tells_lists_from_mappings() -> None:
    document = json.loads(tree_metadata([ARRAY, SCALAR]))
    leaf = document["tree_metadata"]["('layers', '0', 'kernel')"]
    assert [(key["key"], key["key_type"]) for key in leaf["key_metadata"]] == [("layers", 2), ("0", 1), ("kernel", 2)]
    assert set(document["tree_metadata"]) == {"('layers', '0', 'kernel')", "('step',)"}
    assert (document["use_zarr3"], document["use_ocdbt"], document["store_array_data_equal_to_fill_value"]) == (
        True,
        True,
        True,
    )
