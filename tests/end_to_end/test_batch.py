"""Many checkpoints for many targets in one run: compiles are shared, and what fails does so alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tensorstore as ts
import yaml

import migrate
from migrate import batch, lease
from migrate.batch import run_batch
from migrate.compiler.cache import CompileCache
from migrate.errors import OutputConflictError
from migrate.export import is_export, open_export
from migrate.fleet import load_fleet

from .conftest import reexport, tree_digest

TARGETS = {
    "wide": {"topology": "cpu:8", "mesh": {"data": 2, "model": 4}},
    "deep": {"topology": "cpu:8", "mesh": {"data": 4, "model": 2}},
}


@pytest.fixture
def fleet_file(old_checkpoint: Path, tmp_path: Path) -> Path:
    """Two copies of a checkpoint, and a third whose chunks are damaged, for two targets."""
    for name in ("one", "two", "damaged"):
        shutil.copytree(old_checkpoint, tmp_path / name)
    damage(tmp_path / "damaged")
    document: dict[str, Any] = {
        "output": "out",
        "defaults": {
            "source": {"select": "params"},
            "program": {"entry": "migrate.demo.tiny:next_token_step"},
            "rewrite": {"max_item_bytes": 128},
            "compile": {"cache": "cache"},
        },
        "targets": TARGETS,
        "models": {name: {"source": {"path": name}} for name in ("one", "two", "damaged")},
    }
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def damage(checkpoint: Path) -> None:
    """Make one chunk unreadable; the database around it stays whole."""
    database = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{checkpoint}/"}}
    ts.KvStore.open(database).result().write("params.dense.kernel/0.1", b"no chunk").result()


def jobs_of(fleet_file: Path) -> dict[str, migrate.Job]:
    return {cell.name: cell.job for cell in load_fleet(fleet_file).cells}


def test_what_fails_fails_alone(fleet_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipelines: list[list[str]] = []
    execute = batch.execute

    def recorded(works: Any, **options: Any) -> None:
        pipelines.append(list(works))
        execute(works, **options)

    monkeypatch.setattr(batch, "execute", recorded)
    jobs = jobs_of(fleet_file)
    before = tree_digest(tmp_path / "one")
    done = run_batch(jobs, failures_uri=str(tmp_path / "out"))

    # one pipeline held the items of all jobs, those of the damaged source among them
    assert [sorted(names) for names in pipelines] == [sorted(jobs)]
    assert set(done.results) == {"one/wide", "one/deep", "two/wide", "two/deep"}
    assert set(done.failures) == {"damaged/wide", "damaged/deep"}
    assert done.exit_code == 1
    assert tree_digest(tmp_path / "one") == before
    for name, result in done.results.items():
        migrate.verify_export(result.export)
        assert result.bytes_written == result.plan.nbytes
        assert open_export(str(tmp_path / "out" / name)).uri == result.export.uri
    for name in done.failures:
        assert not is_export(str(tmp_path / "out" / name))
    told = json.loads((tmp_path / "out" / "failures.json").read_bytes())
    assert set(told) == set(done.failures)
    assert all(error["error"] and error["what"] for error in told.values())

    # programs differ by target alone: two compiles, whatever the number of sources
    assert len(CompileCache(str(tmp_path / "cache")).entries()) == 2


def test_run_takes_the_file_and_goes_on(fleet_file: Path, old_checkpoint: Path, tmp_path: Path) -> None:
    ended = reexport("run", fleet_file, "--json")
    assert ended.returncode == 1, ended.stderr
    first = json.loads(ended.stdout)
    assert len(first["committed"]) == 4
    assert "failed damaged/wide" in ended.stderr

    # the source was restored from a copy: the same command does what is left, and nothing again
    shutil.rmtree(tmp_path / "damaged")
    shutil.copytree(old_checkpoint, tmp_path / "damaged")
    ended = reexport("run", fleet_file)
    assert ended.returncode == 0, ended.stderr
    assert "committed already" in ended.stdout
    assert "6 exports committed, 0 jobs failed" in ended.stdout
    assert not (tmp_path / "out" / "failures.json").exists()
    again = json.loads(reexport("run", fleet_file, "--json").stdout)
    assert all(result["already_committed"] for result in again["committed"].values())


def test_faults_before_the_pipeline_are_the_jobs_own(fleet_file: Path, tmp_path: Path) -> None:
    """A program that does not compile, a source that is not there, an output that holds something else."""
    jobs = jobs_of(fleet_file)
    shutil.rmtree(tmp_path / "damaged")
    other = yaml.safe_load(fleet_file.read_text())
    other["models"]["two"]["program"] = {"entry": "migrate.demo.tiny:no_such_function"}
    fleet_file.write_text(yaml.safe_dump(other))
    migrate.run(jobs["one/deep"].model_copy(update={"output": jobs["one/wide"].output}))
    done = run_batch(jobs_of(fleet_file))
    assert set(done.results) == {"one/deep"}
    kinds = {name: type(error).__name__ for name, error in done.failures.items()}
    assert kinds["one/wide"] == "OutputConflictError"
    assert kinds["two/wide"] == kinds["two/deep"] == "ProgramError"
    assert "damaged" in done.failures["damaged/wide"].where


def test_a_lost_lease_ends_one_job(fleet_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another driver took an output over, as after a long pause: its job stops, the others are committed."""
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.0)  # renewed at every poll
    jobs = {name: job for name, job in jobs_of(fleet_file).items() if "damaged" not in name}

    class Reporter(batch._Quiet):
        def started(self, items: int, nbytes: int, reused_items: int) -> None:
            (held,) = Path(jobs["one/wide"].output).rglob("LEASE.json")
            held.write_bytes(json.dumps({"token": "x", "host": "elsewhere", "pid": 1, "expires": 1e12}).encode())

    done = run_batch(jobs, reporter=Reporter())
    assert set(done.results) == set(jobs) - {"one/wide"}
    assert isinstance(done.failures["one/wide"], OutputConflictError)
    assert done.failures["one/wide"].found == "process 1 on elsewhere"
