"""Real targets that differ: what ``reexport diff`` finds, with real compiles."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).parent
DECODER = {
    "layers": 2,
    "d_model": 256,
    "heads": 4,
    "head_dim": 40,
    "d_ff": 512,
    "vocab": 512,
    "batch": 8,
    "sequence": 128,
}

WriteJob = Callable[..., str]


@pytest.fixture
def write_job(tmp_path: Path) -> WriteJob:
    """A job file for an entry of ``models.py``, or for the decoder of the demo."""

    def write(entry: str, topology: str, **mesh: int) -> str:
        decoder = ":" in entry
        job = {
            "source": {"path": "unused"},
            "program": {"entry": entry if decoder else f"models:{entry}", "arguments": DECODER if decoder else {}},
            "target": {"topology": topology, "mesh": mesh},
            "output": "unused",
            "python_path": [str(HERE)],
        }
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump(job, sort_keys=False))
        return str(path)

    return write


def diff(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "migrate.cli", "diff", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def diff_json(*arguments: str) -> tuple[int, dict[str, Any]]:
    done = diff(*arguments, "--json")
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def changed(document: dict[str, Any]) -> dict[str, list[str]]:
    return {change["parameter"]: change["aspects"] for change in document["parameters"]}


def test_policy_changes_the_cache_and_no_weight(write_job: WriteJob) -> None:
    job = write_job("migrate.demo.model:decode_step", "v4:2x2x1+megacore", data=2, model=2)
    code, document = diff_json(job, job, "--b", "layout=default")
    assert code == 3
    assert document["verdict"] == "recompile only"
    assert changed(document) == {
        "cache/keys": ["dimension order", "tiling"],
        "cache/values": ["dimension order", "tiling"],
    }
    # what auto costs: 40 padded to 128
    assert document["before"]["device_bytes"] > document["after"]["device_bytes"]
    assert document["fingerprint"]["layout_policy"] == {"before": "auto", "after": "default"}


def test_mesh_changes_shards_and_makes_arrays_be_rewritten(write_job: WriteJob) -> None:
    job = write_job("head", "v5e:2x2", data=2, model=2)
    code, document = diff_json(job, job, "--b", "mesh.data=4", "--b", "mesh.model=1")
    assert code == 3
    assert document["verdict"] == "rewrite"
    assert document["rewrite"]["arrays"] == ["head"]
    assert document["rewrite"]["bytes"] == 256 * 2048 * 2
    assert changed(document)["params/head"] == ["sharding"]
    assert document["after"]["device_bytes"] > document["before"]["device_bytes"]


def test_a_flag_changes_the_tiling_of_int8(write_job: WriteJob) -> None:
    job = write_job("quantised", "v5e:2x2", model=4)
    done = diff(job, job, "--a", "flags.xla_tpu_enable_layout_hints=true")
    assert done.returncode == 3, done.stderr
    assert "s8[512,256]{1,0:T(8,128)(4,1)}" in done.stdout
    assert "-> s8[512,256]{1,0:T(32,128)(4,1)}" in done.stdout
    assert "flags: xla_tpu_enable_layout_hints=true -> none" in done.stdout
    assert "recompile only: 1 parameter changed, but no stored array does" in done.stdout


def test_another_chip_with_the_same_layouts(write_job: WriteJob, tmp_path: Path) -> None:
    """Also: a compiled directory and its signature file stand for the job."""
    job = write_job("quantised", "tpu7x:2x2x1", model=8)
    compiled = tmp_path / "compiled"
    command = [sys.executable, "-m", "migrate.cli", "compile", job, "--output", str(compiled)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    code, document = diff_json(str(compiled), job, "--b", "topology=v5e:2x4")
    assert (code, document["verdict"], changed(document)) == (0, "recompile only", {})
    assert document["fingerprint"]["topology"] == {"before": "tpu7x:2x2x1", "after": "v5e:2x4"}
    code, document = diff_json(str(compiled), str(compiled / "signature.json"))
    assert (code, document["verdict"]) == (0, "nothing to do")

    refused = diff(str(compiled), job, "--a", "topology=v5e:2x4")
    assert refused.returncode == 2
    assert "only a job has a target" in refused.stderr


def test_nothing_to_compare(tmp_path: Path) -> None:
    done = diff(str(tmp_path), str(tmp_path))
    assert done.returncode == 2
    assert "nothing to compare" in done.stderr
