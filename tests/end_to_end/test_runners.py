"""Where the pipeline runs: by name, with options, on real processes; and the graph that would go elsewhere."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
import yaml
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

import migrate
from migrate.config import job_from_mapping, load_job
from migrate.errors import ConfigError, CorruptCheckpointError
from migrate.preparation import compile_directory, prepare
from migrate.session import Session
from pipelines import batch, runners

from .conftest import reexport, small_job, write_job
from .dask_cluster import dask_cluster
from .test_batch import damage


class Twice(FnApiRunner):  # type: ignore[misc] # Beam publishes no types
    """Runs every bundle twice, as a runner may."""

    def __init__(self) -> None:
        super().__init__(bundle_repeat=1)


@pytest.fixture
def job(old_checkpoint: Path, tmp_path: Path) -> dict[str, Any]:
    return {**small_job(old_checkpoint, tmp_path / "out", "cpu:8"), "rewrite": {"max_item_bytes": 128}}


@pytest.fixture
def undisturbed(job: dict[str, Any], tmp_path: Path) -> migrate.Export:
    return migrate.run({**job, "output": str(tmp_path / "undisturbed")}).export


def on(job: dict[str, Any], runner: str, *options: str, **more: Any) -> dict[str, Any]:
    rewrite = {"max_item_bytes": 128, "runner": runner, "runner_options": list(options), **more}
    return {**job, "rewrite": rewrite}


UNUSABLE: dict[str, tuple[str, tuple[str, ...], dict[str, Any], str]] = {
    "no such runner": ("FlinkRuner", (), {}, "did you mean FlinkRunner"),
    "no such class": ("migrate.errors.Runner", (), {}, "rewrite.runner"),
    "no such module": ("no_such_module.Runner", (), {}, "not installed"),
    "an option of no runner": ("dask", ("--dask_client_adress=tcp://x",), {}, "did you mean --dask_client_address"),
    "an option of local": ("local", ("--no_such_option=1",), {}, "--no_such_option"),
    "a value of the wrong kind": ("dask", ("--dask_connection_limit=many",), {}, "invalid int value"),
    "options that exclude each other": ("dask", ("--dask_npartitions=2", "--dask_partition_size=1"), {}, "not allowed"),
    "a word that is no option": ("FlinkRunner", ("flink:8081",), {}, "no option"),
    "a runner among the options": ("local", ("--runner=FlinkRunner",), {}, "rewrite.runner"),
    "workers of a cluster": ("dask", ("--dask_client_address=tcp://x:1",), {"workers": 3}, "rewrite.workers"),
    "Dataflow without a project": ("DataflowRunner", (), {}, "project"),
}


@pytest.mark.parametrize(("runner", "options", "more", "said"), UNUSABLE.values(), ids=UNUSABLE)
def test_what_cannot_run_is_refused_before_anything_is_written(
    runner: str, options: tuple[str, ...], more: dict[str, Any], said: str, job: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        migrate.run(on(job, runner, *options, **more))
    assert said in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("example", ["dataflow", "flink"])
def test_the_examples_are_jobs_whose_runners_know_their_options(example: str, repository: Path) -> None:
    folder = repository / "configs/runners" / example
    job = load_job(folder / "job.yaml")
    engine = runners.resolve(job.rewrite.runner, job.rewrite.runner_options, job.rewrite.workers)
    assert engine.name == job.rewrite.runner
    every = engine.options.get_all_options(drop_default=True)
    # each of the options is one that Beam read, by its own name
    assert len(every) >= len(job.rewrite.runner_options)
    for compose in folder.glob("compose.yaml"):
        services = yaml.safe_load(compose.read_text())["services"]
        address = next(o for o in job.rewrite.runner_options if o.startswith("--job_endpoint=")).split("=")[1]
        assert address.split(":")[0] in services
        beam_version = services["jobserver"]["image"].rsplit(":", 1)[1]
        assert f"apache-beam=={beam_version}" in (repository / "configs/constraints.txt").read_text()


def test_dataflow_does_not_see_local_files(job: dict[str, Any], tmp_path: Path) -> None:
    options = ("--project=my-project", "--region=us-central1", "--temp_location=gs://bucket/tmp")
    with pytest.raises(ConfigError, match="do not see the files of this machine") as caught:
        migrate.run(on(job, "DataflowRunner", *options))
    assert caught.value.where == "source.path"
    job["source"]["path"] = "gs://bucket/checkpoint"
    with pytest.raises(ConfigError, match="do not see") as caught:
        migrate.run(on(job, "dataflow", *options))
    assert caught.value.where == "output"
    assert not (tmp_path / "out").exists()


def test_the_command_line_chooses_the_runner(job: dict[str, Any], tmp_path: Path) -> None:
    path = write_job(on(job, "local"), tmp_path)
    ended = reexport("run", path, "--runner", "dask", "--", "--dask_client_adress=tcp://x")
    assert ended.returncode == 2
    assert "did you mean --dask_client_address" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("runner", ["BundleBasedDirectRunner", f"{__name__}.Twice"])
def test_other_runners_by_their_names(runner: str, job: dict[str, Any], undisturbed: migrate.Export) -> None:
    """One that runs every bundle twice changes nothing."""
    sys.modules.setdefault(__name__, sys.modules[Twice.__module__])
    result = migrate.run(on(job, runner))
    assert result.export.parameter_set() == undisturbed.parameter_set()
    migrate.verify_export(result.export)
    assert not list(Path(job["output"]).glob("runs/*"))


def databases(output: Path) -> set[str]:
    return {path.name for path in output.glob("params/*/ocdbt.process_*")}


def test_on_dask_worker_processes_of_its_own(
    job: dict[str, Any], tmp_path: Path, undisturbed: migrate.Export, old_checkpoint: Path
) -> None:
    """Two processes share the work. A job that fails does so with the source's own error, and nothing to see."""
    result = migrate.run(on(job, "dask", workers=2))
    assert result.export.parameter_set() == undisturbed.parameter_set()
    migrate.verify_export(result.export)
    assert len(databases(tmp_path / "out")) == 2
    assert result.items_done == len(result.plan.items)


def test_on_a_dask_scheduler(
    job: dict[str, Any], tmp_path: Path, undisturbed: migrate.Export, old_checkpoint: Path
) -> None:
    """A cluster outlives its jobs: one that failed there is taken up again by the same workers."""
    source = Path(shutil.copytree(old_checkpoint, tmp_path / "source"))
    job["source"]["path"] = str(source)
    damage(source)
    with dask_cluster(tmp_path / "cluster") as cluster:
        elsewhere = on(job, "dask", *cluster.options)
        with pytest.raises(CorruptCheckpointError, match="kernel"):
            migrate.run(elsewhere)
        assert not list((tmp_path / "out").rglob("COMMIT.json"))
        shutil.rmtree(source)
        shutil.copytree(old_checkpoint, source)
        result = migrate.run(elsewhere)
        assert [(a.path, a.content) for a in result.export.parameter_set().arrays] == [
            (a.path, a.content) for a in undisturbed.parameter_set().arrays
        ]
        migrate.verify_export(result.export)
        (cluster_log,) = (tmp_path / "cluster").glob("*.log")
        assert "Traceback" not in cluster_log.read_text()


def lives(group: int) -> bool:
    """Whether a process of the group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_ctrl_c_ends_workers_too(job: dict[str, Any], tmp_path: Path) -> None:
    path = write_job(on(job, "dask", workers=2) | {"rewrite": {"max_item_bytes": 16, "runner": "dask"}}, tmp_path)
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from migrate.cli import main; main()"
    )
    command = [sys.executable, "-c", code, "run", str(path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if list((tmp_path / "out").glob("runs/*/receipts/*.json")):
            os.kill(process.pid, signal.SIGINT)
            break
        time.sleep(0.005)
    _, stderr = process.communicate(timeout=100)
    assert process.returncode == 130, stderr
    assert "interrupted: nothing was committed" in stderr
    assert "Traceback" not in stderr
    while lives(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not lives(process.pid)


def test_the_graph_goes_to_other_runners(job: dict[str, Any], tmp_path: Path, undisturbed: migrate.Export) -> None:
    """As Dataflow and Flink get it: bytes without this process's objects. What comes out of them runs."""
    chosen = job_from_mapping(job)
    with compile_directory() as directory, Session(prepare(chosen, directory)) as session:
        assert session.work is not None
        pipeline = beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([]))
        batch.build(pipeline, {"job": session.work})
        proto = pipeline.to_runner_api()
        data = proto.SerializeToString()
        assert len(data) < 100_000
        steps = [transform.unique_name for transform in proto.components.transforms.values()]
        assert {"Rewrite", "Verify", "Receipts", "Commit"} <= set(steps)
        # one chain: every step but the first reads what another one makes, and no step has two readers
        made = [name for step in leaves(proto) for name in step.outputs.values()]
        read = [name for step in leaves(proto) for name in step.inputs.values()]
        assert len(read) == len(set(read))
        assert set(read) <= set(made)
        assert len(set(made) - set(read)) == 1

        received = beam_runner_api_pb2.Pipeline.FromString(data)
        engine = runners.resolve("local", workers=2)
        again = beam.Pipeline.from_runner_api(received, engine.runner, engine.options)
        again.run().wait_until_finish()
    assert migrate.open_export(job["output"]).parameter_set() == undisturbed.parameter_set()


def leaves(proto: Any) -> list[Any]:
    return [step for step in proto.components.transforms.values() if not step.subtransforms]
