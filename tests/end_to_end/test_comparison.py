"""Exports beside their source and beside each other, by content."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorstore as ts

import migrate
from migrate.comparison import compare_exports, compare_with_source
from migrate.errors import NotAnExportError, SourceError
from migrate.export import open_export

from .conftest import reexport, small_job
from .test_mapping import changed_model

__all__ = ["changed_model"]  # a fixture

Exports = Callable[[str, str], migrate.Export]


def test_an_export_and_its_source(exports: Exports) -> None:
    export = exports("decoder", "v5e:2x4")
    found = compare_with_source(export)
    assert found.differences == ()
    assert found.same_files
    assert (found.arrays, found.nbytes) == (len(export.parameter_set().arrays), export.parameter_set().nbytes)


def test_two_exports_of_different_layout(exports: Exports) -> None:
    """A TPU's order of dimensions and shards against a CPU's."""
    one, other = exports("decoder", "v5e:2x4"), exports("decoder", "cpu:8")
    orders = [
        {record.name: (record.stored.major_to_minor, record.stored.chunk_shape) for record in e.parameter_set().arrays}
        for e in (one, other)
    ]
    assert orders[0] != orders[1]
    assert compare_exports(one, other.uri).differences == ()


def test_every_mapping_rule_is_read_again(changed_model: dict[str, Any]) -> None:
    export = migrate.run(changed_model).export
    assert {record.tree for record in export.parameter_set().arrays} == {"params", "carried"}
    assert compare_with_source(export.uri, workers=3).differences == ()
    reading = export.manifest.source.reading
    assert reading["mapping"] == [*changed_model["mapping"]]
    assert reading["carry"] is True


def test_a_changed_source_is_found(old_checkpoint: Path, tmp_path: Path) -> None:
    """One element, of one array; the checkpoint stays readable."""
    source = shutil.copytree(old_checkpoint, tmp_path / "checkpoint")
    export = migrate.run(small_job(source, tmp_path / "out", "cpu:8")).export
    database = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{source}/"}}
    array = ts.open({"driver": "zarr", "kvstore": {**database, "path": "params.dense.kernel/"}}).result()
    array[0, 0] = array[0, 0].read().result() + 1

    found = compare_with_source(export)
    assert [difference.name for difference in found.differences] == ["dense/kernel"]
    assert not found.same_files

    ended = reexport("verify", tmp_path / "out", "--source")
    assert ended.returncode == 3
    assert "dense/kernel" in ended.stdout
    assert "not, file by file" in ended.stdout.replace("\n", " ")

    # where the intact one lies now
    ended = reexport("verify", tmp_path / "out", "--source-path", old_checkpoint, "--json")
    assert ended.returncode == 0, ended.stdout
    assert json.loads(ended.stdout)["compared"][0]["differences"] == []


def test_another_models_export_differs(exports: Exports) -> None:
    ended = reexport("verify", exports("small", "v5e:2x4").uri, "--against", exports("decoder", "cpu:8").uri, "--json")
    assert ended.returncode == 3
    differences = json.loads(ended.stdout)["compared"][0]["differences"]
    assert {"nothing"} <= {d["found"] for d in differences} & {d["expected"] for d in differences}


def test_what_cannot_be_compared(exports: Exports, tmp_path: Path) -> None:
    export = exports("small", "v5e:2x4")
    with pytest.raises(SourceError):
        compare_with_source(export, source=str(tmp_path / "nothing"))
    with pytest.raises(NotAnExportError):
        compare_exports(export, str(tmp_path))


def test_records_without_content_digests(exports: Exports, tmp_path: Path) -> None:
    """An export from before there were any: its arrays are read, its source cannot be."""
    output = shutil.copytree(exports("small", "cpu:8").paths.output, tmp_path / "out")
    rewrite_records(output)
    old = open_export(output)
    assert {record.content for record in old.parameter_set().arrays} == {""}
    assert compare_exports(old, exports("small", "v5e:2x4")).differences == ()
    with pytest.raises(NotAnExportError, match="how its source was read"):
        compare_with_source(old)


def rewrite_records(output: Path) -> None:
    """Take out of the records what older versions did not write."""
    import hashlib

    def store(path: Path, document: dict[str, Any]) -> dict[str, Any]:
        data = json.dumps(document).encode()
        path.write_bytes(data)
        return {"sha256": hashlib.sha256(data).hexdigest(), "nbytes": len(data)}

    (parameters,) = output.rglob("parameters.json")
    document = json.loads(parameters.read_bytes())
    for record in document["arrays"]:
        del record["content"]
    (manifest,) = output.rglob("manifest.json")
    changed = {**json.loads(manifest.read_bytes()), "parameters": store(parameters, document)}
    del changed["source"]["reading"]
    digest = store(manifest, changed)["sha256"]
    (committed,) = output.rglob("COMMIT.json")
    store(committed, {**json.loads(committed.read_bytes()), "manifest_sha256": digest})
