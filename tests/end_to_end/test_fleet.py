"""A fleet through the command line: an upgrade of libtpu, a rollback, a kill, two reconciles at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
import yaml

import migrate
from migrate import storage
from migrate.demo.model import Sizes

from .conftest import SIZES, reexport, tree_digest

COMMAND = [sys.executable, "-m", "migrate.cli", "reconcile"]


def write_fleet(document: dict[str, Any], folder: Path) -> Path:
    """All fleet files lie in one folder: it is where modules are searched, so compiles are shared."""
    path = folder.parent / f"{folder.name}.yaml"
    path.write_text(yaml.safe_dump({**document, "output": str(folder / "out")}, sort_keys=False))
    return path


def reconcile(fleet: Path, *options: str, code: int = 0) -> dict[str, Any]:
    """Run it to its end; cells by ``model/target``, and the figures of all."""
    done = reexport("reconcile", fleet, "--json", *options)
    assert done.returncode == code, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return {**document, "cells": {f"{cell['model']}/{cell['target']}": cell for cell in document["cells"]}}


def outputs(folder: Path) -> dict[str, Path]:
    return {f"{latest.parent.parent.name}/{latest.parent.name}": latest.parent for latest in folder.rglob("LATEST")}


@pytest.fixture
def cpu_fleet(decoder_checkpoint: Path, old_checkpoint: Path, tmp_path: Path) -> dict[str, Any]:
    """Three pairs; the decoder's arrays go in many small items, so that a reconcile can be met in its middle."""
    decoder = {"entry": "migrate.demo.model:decode_step", "arguments": {"batch": 4, "sequence": 16, **SIZES}}
    return {
        "defaults": {"source": {"select": "params"}},
        "targets": {
            "wide": {"topology": "cpu:8", "mesh": {"data": 2, "model": 4}},
            "deep": {"topology": "cpu:8", "mesh": {"data": 1, "model": 8}},
        },
        "models": {
            "decoder": {
                "source": {"path": str(decoder_checkpoint)},
                "program": decoder,
                "rewrite": {"max_item_bytes": 2048, "max_chunk_bytes": 2048, "workers": 2},
                "targets": ["wide"],
            },
            "tiny": {
                "source": {"path": str(old_checkpoint)},
                "program": {"entry": "migrate.demo.tiny:next_token_step"},
            },
        },
    }


def test_kill_9_leaves_what_was_current(cpu_fleet: dict[str, Any], tmp_path: Path) -> None:
    del cpu_fleet["models"]["tiny"]
    decoder = cpu_fleet["models"]["decoder"]
    small = dict(decoder["rewrite"])
    decoder["rewrite"] = {}
    first = reconcile(write_fleet(cpu_fleet, tmp_path))
    before = first["cells"]["decoder/wide"]["export"]

    decoder["rewrite"] = small  # other chunks: all arrays are written again
    fleet, output = write_fleet(cpu_fleet, tmp_path), tmp_path / "out/decoder/wide"
    process = subprocess.Popen([*COMMAND, str(fleet)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if len(list(output.glob("runs/*/receipts/*.json"))) >= 20:
            os.kill(process.pid, signal.SIGKILL)
            break
        time.sleep(0.005)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert migrate.open_export(str(output)).manifest.export == before
    assert reexport("verify", output).returncode == 0

    after = reconcile(fleet)
    cell = after["cells"]["decoder/wide"]
    assert (cell["state"], cell["result"]) == ("stale", "published")
    assert 0 < cell["bytes_written"] < cell["bytes"]  # what had receipts was not written again
    assert migrate.open_export(str(output)).manifest.export == cell["export"] != before
    assert reexport("verify", output).returncode == 0
    assert not (output / "runs").exists()
    assert reconcile(fleet)["bytes_written"] == 0


def test_two_reconciles_at_once(cpu_fleet: dict[str, Any], tmp_path: Path) -> None:
    """They share the work: every pair is published by one of them, once, and both end well."""
    fleet = write_fleet(cpu_fleet, tmp_path)
    reconcile(fleet, "--dry-run", code=3)  # compiles
    running = [
        subprocess.Popen([*COMMAND, str(fleet), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    ended = [(process.communicate(timeout=300), process.returncode) for process in running]
    assert [code for _, code in ended] == [0, 0], [text for (_, text), _ in ended]
    cells = [cell for (text, _), _ in ended for cell in json.loads(text)["cells"]]
    for name in ("decoder/wide", "tiny/wide", "tiny/deep"):
        results = [cell["result"] for cell in cells if f"{cell['model']}/{cell['target']}" == name]
        assert results.count("published") == 1
        assert set(results) <= {"published", "busy", "unchanged"}
    for output in outputs(tmp_path / "out").values():
        assert reexport("verify", output).returncode == 0
    again = reconcile(fleet)
    assert {cell["result"] for cell in again["cells"].values()} == {"unchanged"}
    events = [json.loads(line) for line in (tmp_path / "out/history.jsonl").read_text().splitlines()]
    assert sum(event["event"] == "cell" and event["result"] == "published" for event in events) == 3


def test_words_and_exit_codes(cpu_fleet: dict[str, Any], tmp_path: Path) -> None:
    cpu_fleet["models"]["tiny"]["mapping"] = [{"drop": "embed/.*"}]
    fleet = write_fleet(cpu_fleet, tmp_path)
    options = ("--target", "wide", "--log-format", "json", "--metrics", str(tmp_path / "m.prom"))
    done = reexport("reconcile", fleet, *options)
    assert done.returncode == 1
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines if line["event"] != "stage"][-1] == "summary"
    assert {line["level"] for line in lines if line.get("model") == "tiny"} == {"error"}
    assert 'state="failed"} 1' in (tmp_path / "m.prom").read_text()

    dry = reexport("reconcile", fleet, "--model", "decoder", "--dry-run")
    assert (dry.returncode, "current" in dry.stdout) == (0, True), dry.stderr
    shown = reexport("history", fleet, "--model", "decoder")
    assert "published" in shown.stdout
    for wrong in (("--model", "nothing"), ("--dry-run", "--metrics", "x")):
        assert reexport("reconcile", fleet, *wrong).returncode == 2
    assert reexport("rollback", tmp_path / "out/decoder/wide").returncode == 1
    listed = json.loads(reexport("list", tmp_path / "out/decoder/wide", "--json").stdout)
    assert [export["state"] for export in listed["exports"]] == ["current"]
    collected = reexport("gc", tmp_path / "out/decoder/wide", "--keep", "1", "--grace", "30m", "--dry-run")
    assert "0 exports would be hidden" in collected.stdout, collected.stderr
    assert reexport("gc", tmp_path / "out/decoder/wide", "--grace", "soon").returncode == 2


PREFIX = {"layers": 2, "d_model": 256, "heads": 8, "head_dim": 40, "d_ff": 512, "vocab": 1024}
"""With these sizes libtpu 0.0.52 lays the keys and values out in another order on tpu7x than 0.0.37 does."""


@pytest.fixture
def tpu_fleet(decoder_checkpoint: Path, old_checkpoint: Path, repository: Path, tmp_path: Path) -> dict[str, Any]:
    """Three models for two kinds of chips."""
    generator = np.random.default_rng(0)

    def array(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape).astype(ml_dtypes.bfloat16)

    shapes = Sizes(**PREFIX).parameter_shapes()
    tree = {
        "decoder": {group: {name: array(*shape) for name, shape in leaves.items()} for group, leaves in shapes.items()},
        "prefix": {name: array(2, 64, 8, 40)[:, None].repeat(8, axis=1) for name in ("keys", "values")},
    }
    ocp.PyTreeCheckpointer().save(tmp_path / "prefix/7", tree)
    decode = "migrate.demo.model:decode_step"
    return {
        "defaults": {"target": {"libtpu": "0.0.37"}, "python_path": [str(repository / "tests/fleet")]},
        "targets": {
            "v5e": {"topology": "v5e:2x4", "mesh": {"data": 2, "model": 4}},
            "tpu7x": {"topology": "tpu7x:2x2x1", "mesh": {"data": 2, "model": 4}},
        },
        "models": {
            "tiny": {
                "source": {"path": str(old_checkpoint), "select": "params"},
                "program": {"entry": "migrate.demo.tiny:next_token_step"},
            },
            "decoder": {
                "source": {"latest_under": str(decoder_checkpoint), "select": "params"},
                "program": {"entry": decode, "arguments": {"batch": 4, "sequence": 16, **SIZES}},
            },
            "prefix-tuned": {
                "source": {"latest_under": str(tmp_path / "prefix")},
                "program": {
                    "entry": "prefix_tuned:decode_step",
                    "arguments": {"batch": 8, "sequence": 64, **PREFIX},
                },
            },
        },
    }


@pytest.mark.slow
def test_an_upgrade_of_libtpu(tpu_fleet: dict[str, Any], decoder_checkpoint: Path, tmp_path: Path) -> None:
    """Downloads libtpu 0.0.37 and 0.0.52."""
    source = tree_digest(decoder_checkpoint)
    fleet = write_fleet(tpu_fleet, tmp_path)
    first = reconcile(fleet)
    assert {cell["result"] for cell in first["cells"].values()} == {"published"}
    assert len(first["cells"]) == 6
    assert first["bytes_written"] == sum(cell["bytes"] for cell in first["cells"].values())

    assert reconcile(fleet)["bytes_written"] == 0
    assert reexport("reconcile", fleet, "--dry-run").returncode == 0

    tpu_fleet["defaults"]["target"]["libtpu"] = "0.0.52"
    fleet = write_fleet(tpu_fleet, tmp_path)
    dry = reconcile(fleet, "--dry-run", code=3)["cells"]
    for name, cell in dry.items():
        assert cell["state"] == "stale"
        assert cell["reasons"][0] == "libtpu 0.0.37 -> 0.0.52"
        assert cell["work"] == ("rewrite" if name == "prefix-tuned/tpu7x" else "recompile")
    # the decoder's own cache is given at each call: its new layout is no reason to write anything
    assert dry["decoder/tpu7x"]["reasons"][1:] == ["2 of 16 parameters change layout"]
    changed = dry["prefix-tuned/tpu7x"]
    assert changed["reasons"][1:] == ["2 of 16 parameters change layout"]
    assert changed["changed_arrays"] == 2
    assert changed["changed_bytes"] == 2 * (2 * 8 * 64 * 8 * 40) * 2

    upgraded = reconcile(fleet)
    written = {name: cell["bytes_written"] for name, cell in upgraded["cells"].items()}
    assert {name for name, nbytes in written.items() if nbytes} == {"prefix-tuned/tpu7x"}
    rewritten = upgraded["cells"]["prefix-tuned/tpu7x"]
    assert rewritten["bytes_written"] - rewritten["bytes_copied"] == changed["changed_bytes"]
    for name, cell in upgraded["cells"].items():
        exports = [
            migrate.open_export(str(tmp_path / "out" / name / "exports" / cell[key])) for key in ("current", "export")
        ]
        libraries = [export.program().fingerprint.libtpu for export in exports]
        assert libraries == ["0.0.37", "0.0.52"]
        assert (exports[0].parameters_uri == exports[1].parameters_uri) == (name != "prefix-tuned/tpu7x")
        assert reexport("verify", tmp_path / "out" / name).returncode == 0

    output = tmp_path / "out/prefix-tuned/tpu7x"
    assert reexport("rollback", output).returncode == 0
    assert migrate.open_export(str(output)).program().fingerprint.libtpu == "0.0.37"
    held = reconcile(fleet)
    assert held["cells"]["prefix-tuned/tpu7x"]["result"] == "held"
    assert held["bytes_written"] == 0
    assert reexport("gc", output, "--keep", "1", "--grace", "0").returncode == 0
    assert len(storage.list_directory(str(output / "params"))) == 2  # the current export's, and the newest one's
    assert tree_digest(decoder_checkpoint) == source
