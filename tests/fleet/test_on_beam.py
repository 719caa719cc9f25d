"""A fleet in an object store, its fleet file too, reconciled by the pipeline that schedulers of Beam run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import migrate
from migrate import history, publication, storage
from migrate.collector import collect
from migrate.errors import ConfigError
from migrate.fleet import load_fleet
from pipelines.reconcile import main, run


def test_reconcile_on_beam_in_an_object_store(bucket: str, repository: Path) -> None:
    root = f"{bucket}/on-beam"
    document: dict[str, Any] = {
        "output": f"{root}/out",
        "defaults": {
            "source": {"path": str(repository / "tests/data/orbax_0.2.7"), "select": "params"},
            "program": {"entry": "migrate.demo.tiny:next_token_step", "arguments": {"batch": 8}},
        },
        "targets": {"cpu": {"topology": "cpu:8", "mesh": {"data": 2, "model": 4}}},
        "models": {"one": {}, "two": {}, "broken": {"mapping": [{"drop": "embed/.*"}]}},
    }
    uri = f"{root}/fleet.yaml"
    storage.write(root, "fleet.yaml", yaml.safe_dump(document).encode())

    with pytest.raises(Exception, match="1 models x targets failed"):
        run(uri)
    for model in ("one", "two"):
        export = migrate.open_export(f"{root}/out/{model}/cpu")
        assert migrate.verify_export(export).arrays == 10
    main(["--fleet", uri, "--models", "one,two"])

    events = history.read(f"{root}/out")
    results = [(e["model"], e["result"]) for e in events if e["event"] == "cell"]
    assert sorted(results)[-2:] == [("one", "published"), ("two", "published")]
    assert {result for model, result in results if model == "broken"} == {"failed"}
    assert sum(e["event"] == "reconcile" and e["results"]["unchanged"] for e in events) == 2
    # another program, the same arrays
    document["defaults"]["program"]["arguments"]["batch"] = 4
    storage.write(root, "fleet.yaml", yaml.safe_dump(document).encode())
    main(["--fleet", uri, "--models", "one"])
    output = f"{root}/out/one/cpu"
    assert [listed.state for listed in publication.list_exports(output)] == ["current", "previous"]
    assert collect(output, keep=1, grace_seconds=0).decision.delete_sets == ()
    assert migrate.verify_export(output).arrays == 10


def test_a_fleet_file_that_is_not_there(bucket: str) -> None:
    with pytest.raises(ConfigError, match="there is no fleet file"):
        load_fleet(f"{bucket}/nothing.yaml")
