"""configs/schedules and configs/docker: what a scheduler would make of them, and that their commands exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import kubernetes_validate
import pytest
import yaml

from migrate.cli.fleet import reconcile
from migrate.fleet import load_fleet

SCHEDULES = Path(__file__).parents[2] / "configs/schedules"
DOCKER = SCHEDULES.parent / "docker"


def check_command(words: list[str]) -> None:
    """The options of a ``reconcile`` are options of the command."""
    assert words[0] == "reconcile"
    context = click.Context(reconcile)
    parsed = reconcile.make_parser(context).parse_args(words[1:])
    assert parsed[0]["fleet"]
    assert not parsed[1]


def commands(text: str) -> list[list[str]]:
    """Every reconcile in a shell text, up to what ends a command."""
    return [shlex.split(found) for found in re.findall(r"reexport (reconcile [^;|&>)\n]*?)(?: \d?>|[;|&)\n]|$)", text)]


FIELDS = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 7)]


def check_cron(expression: str) -> None:
    fields = expression.split()
    assert len(fields) == 5, expression
    for text, (low, high) in zip(fields, FIELDS, strict=True):
        for part in text.split(","):
            found = re.fullmatch(r"(?:\*|(\d+)(?:-(\d+))?)(?:/(\d+))?", part)
            assert found, part
            assert all(low <= int(number) <= high for number in found.groups() if number)


def test_crontab() -> None:
    found = 0
    for line in (SCHEDULES / "crontab").read_text().splitlines():
        entry = line.removeprefix("# ")
        if not re.match(r"[\d*]+(?:/\d+)? ", entry):
            assert line.startswith("#") or re.fullmatch(r"[A-Z]+=\S+", line), line
            continue
        check_cron(" ".join(entry.split(maxsplit=5)[:5]))
        assert "%" not in entry  # cron would end the command there
        for words in commands(entry):
            check_command(words)
            found += 1
    assert found == 2


def test_systemd(tmp_path: Path) -> None:
    for name in ("service", "timer"):
        text = (SCHEDULES / f"reexport-reconcile.{name}").read_text()
        if name == "service":
            start = re.search(r"^ExecStart=\S+/reexport (.*)$", text, re.MULTILINE)
            assert start
            check_command(shlex.split(start.group(1)))
            # systemd looks whether the program is there
            text = re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", text, flags=re.MULTILINE)
        (tmp_path / f"reexport-reconcile.{name}").write_text(text)
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    units = [str(tmp_path / f"reexport-reconcile.{name}") for name in ("service", "timer")]
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    timed = subprocess.run(
        ["systemd-analyze", "calendar", "*-*-* 02:30:00"], capture_output=True, text=True, check=False
    )
    assert timed.returncode == 0


def test_kubernetes(tmp_path: Path) -> None:
    resources = list(yaml.safe_load_all((SCHEDULES / "kubernetes-cronjob.yaml").read_text()))
    assert [resource["kind"] for resource in resources] == ["ConfigMap", "CronJob"]
    for resource in resources:
        kubernetes_validate.validate(resource, "1.33", strict=True)
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(resources[0]["data"]["fleet.yaml"])
    assert [cell.name for cell in load_fleet(fleet).cells] == ["decoder/v5e", "decoder/tpu7x"]
    spec = resources[1]["spec"]
    check_cron(spec["schedule"])
    container = spec["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]
    check_command(container["args"])
    spec["schedul"] = spec.pop("schedule")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(resources[1], "1.33", strict=True)


def test_github_actions() -> None:
    path = SCHEDULES / "github-actions.yaml"
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    workflow = yaml.safe_load(path.read_text())
    check_cron(workflow[True]["schedule"][0]["cron"])  # YAML 1.1 reads `on` as true
    found = [words for step in workflow["jobs"]["reconcile"]["steps"] for words in commands(step.get("run", ""))]
    assert len(found) == 2
    for words in found:
        check_command(words)


def test_dataflow_template() -> None:
    """Every parameter is an option of the pipeline or of Beam, and its pattern fits what one would give."""
    from apache_beam.options.pipeline_options import WorkerOptions

    metadata = json.loads((SCHEDULES / "dataflow/metadata.json").read_text())
    assert set(metadata) == {"name", "description", "parameters"}
    shown = subprocess.run(
        [sys.executable, "-m", "pipelines.reconcile", "--help"], capture_output=True, text=True, check=True
    ).stdout
    values = {
        "fleet": "gs://bucket/fleet.yaml",
        "models": "small,large",
        "targets": "v5e",
        "sdk_container_image": "europe-docker.pkg.dev/project/images/reexport-worker:0.1.0",
    }
    for parameter in metadata["parameters"]:
        assert set(parameter) <= {"name", "label", "helpText", "regexes", "isOptional"}
        name = parameter["name"]
        assert f"--{name}" in shown or name in WorkerOptions([f"--{name}=x"]).get_all_options(drop_default=True)
        assert all(re.fullmatch(pattern, values[name]) for pattern in parameter["regexes"])
        assert parameter.get("isOptional", False) == (name in {"models", "targets"})


@pytest.mark.parametrize("name", ["scheduler", "worker"])
def test_dockerfiles(name: str) -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    path = DOCKER / f"{name}.Dockerfile"
    done = subprocess.run([hadolint, "--no-color", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    sources = re.findall(r"^COPY (?!--from)(\S+) ", path.read_text(), re.MULTILINE)
    assert sources
    for source in sources:
        assert (DOCKER.parents[1] / source).exists()
    beam = re.findall(r"apache/beam_python\S*:(\S+) ", path.read_text())
    pinned = re.search(r"^apache-beam==(\S+)$", (DOCKER.parent / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned
    assert set(beam) <= {pinned.group(1)}


def test_the_commands_of_the_airflow_dag() -> None:
    text = (SCHEDULES / "airflow_dag.py").read_text()
    compile(text, "airflow_dag.py", "exec")
    found = commands(text.replace("{COMMAND}", "reexport").replace("{FLEET}", "fleet.yaml").replace('"', ""))
    assert len(found) == 2
    for words in found:
        check_command(words)


RUN_DAG = """
import sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(sys.argv[1])
print("errors", bag.import_errors)
print("tasks", sorted(bag.dags["reexport_reconcile"].task_ids))
"""


@pytest.mark.slow
def test_the_airflow_dag_under_airflow(tmp_path: Path, repository: Path) -> None:
    """Installs Airflow into an environment of its own, and lets it parse and run the DAG on a fleet of one model."""
    environment = tmp_path / "airflow"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin/python"
    subprocess.run([python, "-m", "pip", "install", "-q", "apache-airflow>=3"], check=True)
    dags = tmp_path / "dags"
    dags.mkdir()
    shutil.copy(SCHEDULES / "airflow_dag.py", dags)
    fleet = tmp_path / "fleet.yaml"
    document = {
        "output": "out",
        "targets": {"cpu": {"topology": "cpu:8", "mesh": {"data": 2, "model": 4}}},
        "models": {
            "tiny": {
                "source": {"path": str(repository / "tests/data/orbax_0.2.7"), "select": "params"},
                "program": {"entry": "migrate.demo.tiny:next_token_step"},
            }
        },
    }
    fleet.write_text(yaml.safe_dump(document))
    settings = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "REEXPORT": f"{sys.executable} -m migrate.cli",
        "REEXPORT_FLEET": str(fleet),
    }

    def airflow(*words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*map(str, words)], env=settings, capture_output=True, text=True, check=False)

    migrated = airflow(environment / "bin/airflow", "db", "migrate")
    assert migrated.returncode == 0, migrated.stderr
    parsed = airflow(python, "-c", RUN_DAG, dags)
    assert "errors {}" in parsed.stdout, parsed.stderr
    assert "tasks ['look', 'reconcile']" in parsed.stdout
    for _ in range(2):  # the second time there is nothing to do
        done = airflow(environment / "bin/airflow", "dags", "test", "reexport_reconcile")
        assert done.returncode == 0, done.stdout + done.stderr
    events = [json.loads(line) for line in (tmp_path / "out/history.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["cell", "reconcile"]
