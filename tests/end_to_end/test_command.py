"""The commands as a user types them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import migrate

from .conftest import reexport, tree_digest, write_job


def test_run_verify_inspect_and_run_again(job: dict[str, Any], tmp_path: Path, old_checkpoint: Path) -> None:
    before = tree_digest(old_checkpoint)
    path = write_job(job, tmp_path)

    first = reexport("run", path)
    assert first.returncode == 0, first.stderr
    # the plan comes before the writing, with grids, order, bytes and padded bytes of each array
    assert re.search(r"rank3/w +float32 +4,6,2 +8 x 1,6,1 +2 x 2,6,2 +0,2,1 +192 B +2.0 KiB", first.stdout)
    assert "Committed export" in first.stdout
    assert "rewriting 1 item" in first.stderr
    assert "\x1b" not in first.stdout + first.stderr  # no escape codes in a pipe

    written = tree_digest(tmp_path / "out")
    again = reexport("run", path, "--json")
    assert again.returncode == 0
    result = json.loads(again.stdout)
    assert result["already_committed"]
    assert result["bytes_written"] == 0
    assert tree_digest(tmp_path / "out") == written

    assert reexport("verify", tmp_path / "out").returncode == 0
    assert json.loads(reexport("verify", tmp_path / "out", "--json").stdout)["arrays"] == 10
    shown = json.loads(reexport("inspect", tmp_path / "out", "--json").stdout)
    assert shown["kind"] == "export"
    assert shown["export"] in result["export"]
    assert tree_digest(old_checkpoint) == before


def test_plan_writes_nothing(job: dict[str, Any], tmp_path: Path) -> None:
    done = reexport("plan", write_job(job, tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert [array["path"] for array in plan["arrays"]][:2] == [["cols", "w"], ["dense", "bias"]]
    assert len(plan["dropped"]) == 30
    assert not (tmp_path / "out").exists()


def test_compile_keeps_its_files_where_asked(job: dict[str, Any], tmp_path: Path) -> None:
    done = reexport("compile", write_job(job, tmp_path), "--output", tmp_path / "kept")
    assert done.returncode == 0, done.stderr
    assert "s8[4,2]{0,1:T(4,128)(4,1)}" in done.stdout
    assert {"signature.json", "executable.bin", "program.jax_export", "compile.log"} <= {
        file.name for file in (tmp_path / "kept").iterdir()
    }


def test_inspect_a_checkpoint(old_checkpoint: Path) -> None:
    done = reexport("inspect", old_checkpoint)
    assert done.returncode == 0
    assert "orbax-zarr2-ocdbt" in done.stdout
    assert re.search(r"params/dense/kernel +bfloat16 +8,12 +4 x 8,3 +192 B", done.stdout)
    assert json.loads(reexport("inspect", old_checkpoint, "--json").stdout)["kind"] == "checkpoint"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--help"], 0, "130  interrupted"),  # exit codes are documented where one looks for them
        (["run", "--help"], 0, "reexport run configs/demo.yaml"),  # and every command shows an example
        (["run"], 2, "Missing argument 'JOB'"),
        (["rnu"], 2, "No such command 'rnu'"),
        (["run", "nowhere.yaml"], 2, "there is no job file nowhere.yaml"),
        (["verify", "nowhere"], 1, "no committed export lies here"),
        (["inspect", "nowhere"], 1, "nothing lies at this path"),
    ],
)
def test_exit_codes(arguments: list[str], code: int, words: str, tmp_path: Path) -> None:
    done = reexport(*arguments, cwd=tmp_path)
    assert done.returncode == code
    assert words in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_an_error_is_json_too_where_asked(tmp_path: Path) -> None:
    done = reexport("verify", tmp_path, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"] == "NotAnExportError"


def test_verify_finds_a_damaged_export(exports: Callable[[str, str], migrate.Export], tmp_path: Path) -> None:
    output = tmp_path / "copy"
    shutil.copytree(exports("decoder", "v5e:2x4").paths.output, output)
    # larger values lie in the data files of the writers' databases; flip a bit in the middle of the largest file
    data = max((output / "params").rglob("ocdbt.process_*/d/*"), key=lambda file: file.stat().st_size)
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    done = reexport("verify", output)
    assert done.returncode == 3
    assert "1 of 4 chunks of" in done.stderr
    assert "differ from what was committed" in done.stderr
