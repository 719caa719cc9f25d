"""A small fleet on eight CPU devices: states, least work, smoke test, rollback, one failure among successes."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import migrate
from migrate import history, pointer, publication, storage
from migrate.errors import ConfigError
from migrate.export import Paths
from migrate.fleet import load_fleet
from migrate.lease import Lease
from migrate.metrics import write_metrics
from migrate.outcome import Outcome, Summary
from migrate.reconcile import reconcile


class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server: Any = self.server
        server.received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def hook() -> Iterator[Any]:
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    server.received = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


class Scene:
    """A fleet file that tests change, and what reconciling it gave."""

    def __init__(self, folder: Path, repository: Path, url: str) -> None:
        self.path = folder / "fleet.yaml"
        self.output = folder / "out"
        self.document: dict[str, Any] = {
            "output": "out",
            "defaults": {"source": {"path": str(repository / "tests/data/orbax_0.2.7"), "select": "params"}},
            "targets": {"cpu": {"topology": "cpu:8", "mesh": {"data": 2, "model": 4}}},
            "models": {
                "tiny": {"program": {"entry": "migrate.demo.tiny:next_token_step", "arguments": {"batch": 8}}},
                "broken": {
                    "program": {"entry": "migrate.demo.tiny:next_token_step", "arguments": {"batch": 8}},
                    "mapping": [{"drop": "embed/.*"}],
                },
            },
            "smoke": {"command": f"echo $1 >> {folder}/smoked"},
            "notifications": {"webhook": url},
        }

    def reconcile(self, *models: str, dry_run: bool = False) -> Summary:
        self.path.write_text(yaml.safe_dump(self.document, sort_keys=False))
        fleet = load_fleet(self.path)
        return reconcile(fleet, fleet.select(models), dry_run=dry_run)

    def tiny(self) -> Outcome:
        return self.reconcile("tiny").outcomes[0]

    def set_batch(self, batch: int) -> None:
        self.document["models"]["tiny"]["program"]["arguments"]["batch"] = batch

    @property
    def tiny_output(self) -> str:
        return str(self.output / "tiny/cpu")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, repository: Path, hook: Any) -> Scene:
    """Reconciled once: one model is published, the other one fails."""
    scene = Scene(
        tmp_path_factory.mktemp("fleet"), repository, f"http://127.0.0.1:{hook.server_port}/hook?token=secret"
    )
    dry = scene.reconcile(dry_run=True)
    assert [a.state for a in dry.assessments] == ["missing", "unusable"]
    assert not scene.output.exists()
    assert hook.received == []
    summary = scene.reconcile()
    assert [(o.assessment.cell.model, o.result) for o in summary.outcomes] == [
        ("tiny", "published"),
        ("broken", "failed"),
    ]
    assert summary.warnings == ()
    return scene


def test_the_first_time(scene: Scene, hook: Any, tmp_path: Path) -> None:
    export = migrate.open_export(scene.tiny_output)
    assert migrate.verify_export(export).arrays == 10
    assert (scene.path.parent / "smoked").read_text().splitlines()[0] == export.uri
    events = history.read(str(scene.output))
    assert [(e["event"], e.get("model"), e.get("result")) for e in events[:3]] == [
        ("cell", "tiny", "published"),
        ("cell", "broken", "failed"),
        ("reconcile", None, None),
    ]
    assert events[0]["bytes_written"] == export.parameter_set().nbytes
    assert (events[1]["error"]["error"], events[1]["failures"]) == ("MappingError", 1)
    assert "secret" not in json.dumps(events)
    told = hook.received[0]
    assert "1 published, 1 failed" in told["text"]
    assert [cell["model"] for cell in told["cells"]] == ["tiny", "broken"]


def test_metrics(scene: Scene, tmp_path: Path) -> None:
    summary = scene.reconcile()
    assert [outcome.failures for outcome in summary.outcomes] == [0, 2]
    write_metrics(summary, tmp_path / "reexport.prom")
    text = (tmp_path / "reexport.prom").read_text()
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["reexport_export_state", "tiny", "cpu", "current"] == 1
    assert found["reexport_export_state", "broken", "cpu", "failed"] == 1
    assert found["reexport_export_state", "broken", "cpu", "current"] == 0
    assert 0 < found["reexport_export_age_seconds", "tiny", "cpu"] < 3600
    assert ("reexport_export_age_seconds", "broken", "cpu") not in found
    assert found["reexport_export_bytes", "tiny", "cpu"] == 1616
    assert found["reexport_written_bytes", "tiny", "cpu"] == 0
    assert found["reexport_failures", "broken", "cpu"] == 2
    assert found["reexport_reconcile_failed",] == 1


def test_nothing_to_do(scene: Scene, hook: Any) -> None:
    before = {path: path.stat().st_mtime_ns for path in Path(scene.tiny_output).rglob("*")}
    told = len(hook.received)
    summary = scene.reconcile("tiny")
    assert [outcome.result for outcome in summary.outcomes] == ["unchanged"]
    assert summary.bytes_written == 0
    assert {path: path.stat().st_mtime_ns for path in Path(scene.tiny_output).rglob("*")} == before
    assert len(hook.received) == told


def test_what_a_failed_smoke_command_cost(repository: Path, tmp_path: Path) -> None:
    scene = Scene(tmp_path, repository, "")
    del scene.document["notifications"]
    scene.document["smoke"] = {"command": "false"}
    failed = scene.tiny()
    assert (failed.result, failed.export, failed.bytes_written) == ("failed", None, 1616)
    assert "no current export yet" in str(failed.error)
    assert [e["bytes_written"] for e in history.read(str(scene.output))] == [1616, 1616]


def test_smoke_test_rollback_and_least_work(scene: Scene) -> None:
    first = publication.list_exports(scene.tiny_output)[0].id
    scene.set_batch(4)
    smoke, scene.document["smoke"] = scene.document["smoke"], {"command": "echo numbers are off; false"}
    failed = scene.tiny()
    assert failed.assessment.text == "stale (program changed; 1 of 11 parameters changes layout)"
    assert failed.assessment.cost.work == "recompile"
    assert failed.result == "failed"
    assert "numbers are off" in str(failed.error)
    assert f"export {first} stays current" in str(failed.error)
    assert migrate.open_export(scene.tiny_output).manifest.export == first  # the old one is still current
    assert {e.id: e.state for e in publication.list_exports(scene.tiny_output)}[first] == "current"

    scene.document["smoke"] = smoke
    retried = scene.tiny()
    assert retried.assessment.state == "failed last time"
    assert "smoke command ended with exit code 1" in retried.assessment.text
    assert (retried.assessment.cost.work, retried.result, retried.bytes_written) == ("publish", "published", 0)
    second = retried.export
    assert second != first
    assert len(storage.list_directory(f"{scene.tiny_output}/params")) == 1  # one set, shared

    assert publication.roll_back(scene.tiny_output) == (second, first)
    held = scene.tiny()
    assert (held.assessment.state, held.result, held.export) == ("held", "held", first)
    scene.set_batch(8)  # what was rolled back to is what is wanted
    assert scene.tiny().result == "unchanged"
    scene.set_batch(4)
    publication.roll_back(scene.tiny_output, second)  # a person's word counts
    assert scene.tiny().result == "unchanged"


def test_retention(scene: Scene) -> None:
    """Old exports are hidden after a publication, and deleted by a later reconcile that has nothing else to do."""
    scene.document["retention"] = {"keep": 1, "grace": 0.2}
    scene.set_batch(2)
    assert scene.tiny().result == "published"
    assert [e.state for e in publication.list_exports(scene.tiny_output)] == ["current"]
    threading.Event().wait(0.3)
    assert scene.tiny().result == "unchanged"
    assert len(storage.list_directory(f"{scene.tiny_output}/exports")) == 1


def test_another_reconcile_is_at_work(scene: Scene) -> None:
    scene.set_batch(8)
    before = pointer.read(scene.tiny_output)
    lease = Lease(Paths(scene.tiny_output).run("reconcile"))
    try:
        assert scene.tiny().result == "busy"
    finally:
        lease.release()
    assert pointer.read(scene.tiny_output) == before
    assert scene.tiny().result == "published"


def test_a_webhook_that_is_not_set(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REEXPORT_HOOK", raising=False)
    notifications, scene.document["notifications"] = scene.document["notifications"], {"webhook_env": "REEXPORT_HOOK"}
    try:
        with pytest.raises(ConfigError, match="REEXPORT_HOOK"):
            scene.tiny()
    finally:
        scene.document["notifications"] = notifications


def test_a_source_that_goes_back_is_held(repository: Path, tmp_path: Path) -> None:
    scene = Scene(tmp_path, repository, "")
    del scene.document["notifications"]
    steps = tmp_path / "steps"
    for step in (2, 3):
        shutil.copytree(repository / "tests/data/orbax_0.2.7", steps / str(step))
        for file in filter(Path.is_file, (steps / str(step)).rglob("*")):
            os.utime(file, (step, step))  # written at another time: another checkpoint
    scene.document["defaults"]["source"] = {"latest_under": str(steps), "select": "params"}
    newer = scene.tiny()
    assert (newer.result, migrate.open_export(scene.tiny_output).manifest.source.step) == ("published", 3)

    (steps / "3").rename(tmp_path / "elsewhere")
    (dry,) = scene.reconcile("tiny", dry_run=True).assessments
    assert (dry.text, dry.cost.work) == ("held (source step 3 -> 2 goes back)", "nothing")
    held = scene.tiny()
    assert (held.result, held.export, held.bytes_written) == ("held", newer.export, 0)

    scene.document["models"]["tiny"]["allow_older_source"] = True
    older = scene.tiny()
    assert (older.assessment.text, older.result) == ("stale (source step 3 -> 2)", "published")
    assert migrate.open_export(scene.tiny_output).manifest.source.step == 2

    # forward again, and back by a step that is named
    del scene.document["models"]["tiny"]["allow_older_source"]
    (tmp_path / "elsewhere").rename(steps / "3")
    assert scene.tiny().export == newer.export
    scene.document["models"]["tiny"]["source"] = {"step": 2}
    del scene.document["defaults"]["source"]["latest_under"]
    scene.document["defaults"]["source"]["path"] = str(steps)
    assert (scene.tiny().result, migrate.open_export(scene.tiny_output).manifest.source.step) == ("published", 2)
