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
DECODE = "migrate.demo.model:decode_step"
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

    def write(entry: str, topology: str, arguments: dict[str, Any] | None = None, **mesh: int) -> str:
        decoder = ":" in entry
        own = arguments or {}
        job = {
            "source": {"path": "unused"},
            "program": {
                "entry": entry if decoder else f"models:{entry}",
                "arguments": {**DECODER, **own} if decoder else own,
            },
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
    job = write_job(DECODE, "v4:2x2x1+megacore", data=2, model=2)
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


def test_mesh_changes_the_order_of_the_dimensions(write_job: WriteJob) -> None:
    """The layout is chosen for the shard: 48 columns of one device or 96 of it, on the same chips."""
    small = {"d_model": 64, "d_ff": 96, "vocab": 256, "sequence": 32}
    job = write_job(DECODE, "v5e:2x2", small, data=2, model=2)
    code, document = diff_json(job, job, "--b", "mesh={data: 4, model: 1}")
    assert (code, document["verdict"]) == (3, "rewrite")
    assert changed(document)["params/mlp/down"] == ["sharding", "dimension order"]
    shards = {change["parameter"]: change["after"]["shard"] for change in document["parameters"]}
    assert shards["params/mlp/down"] == "bf16[2,96,64]{1,2,0:T(8,128)(2,1)}"


def test_policy_changes_the_order_of_a_weight(write_job: WriteJob) -> None:
    job = write_job("projection", "v5e:2x2", data=4, model=1)
    code, document = diff_json(job, job, "--b-layout", "default")
    assert (code, document["verdict"]) == (3, "rewrite")
    assert changed(document) == {"params/wq": ["dimension order"]}
    assert document["rewrite"]["arrays"] == ["wq"]
    assert document["parameters"][0]["before"]["shard"] == "bf16[2048,16,128]{2,0,1:T(8,128)(2,1)}"
    assert document["parameters"][0]["after"]["shard"] == "bf16[2048,16,128]{2,1,0:T(8,128)(2,1)}"


def test_the_program_changes_a_cache_and_no_weight(write_job: WriteJob, tmp_path: Path) -> None:
    job = write_job(DECODE, "v5e:2x2", data=2, model=2)
    small = (tmp_path / "small.yaml").write_text(Path(job).read_text()) and str(tmp_path / "small.yaml")
    larger = write_job(DECODE, "v5e:2x2", {"batch": 32}, data=2, model=2)
    code, document = diff_json(small, larger)
    assert (code, document["verdict"]) == (3, "recompile only")
    assert changed(document)["cache/keys"] == ["shape", "tiling"]
    assert not [name for name in changed(document) if name.startswith("params/")]


@pytest.mark.parametrize(
    ("dtype", "before", "after"),
    [
        ("int4", "s4[512,256]{1,0:T(8,128)(8,1)E(4)}", "s4[512,256]{1,0:T(64,128)(8,1)E(4)}"),
        ("float8_e4m3fn", "f8e4m3fn[512,256]{1,0:T(8,128)(4,1)}", "f8e4m3fn[512,256]{1,0:T(32,128)(4,1)}"),
    ],
)
def test_a_flag_changes_the_tiling_of_narrow_types(write_job: WriteJob, dtype: str, before: str, after: str) -> None:
    """The flag is set for both sides, and then taken away from one of them."""
    job = write_job("quantised", "v5p:2x2x1", {"dtype": dtype}, model=4)
    flag = "flags.xla_tpu_enable_layout_hints"
    code, document = diff_json(job, job, "--target", f"{flag}=true", "--b", f"{flag}=")
    assert code == 3
    (change,) = document["parameters"]
    assert (change["parameter"], change["aspects"]) == ("params/w", ["tiling"])
    assert (change["before"]["shard"], change["after"]["shard"]) == (before, after)


def test_a_flag_changes_the_tiling_of_int8(write_job: WriteJob) -> None:
    job = write_job("quantised", "v5e:2x2", model=4)
    done = diff(job, job, "--a", "flags.xla_tpu_enable_layout_hints=true")
    assert done.returncode == 3, done.stderr
    assert "s8[512,256]{1,0:T(8,128)(4,1)}" in done.stdout
    assert "-> s8[512,256]{1,0:T(32,128)(4,1)}" in done.stdout
    assert "flags: xla_tpu_enable_layout_hints=true -> none" in done.stdout
    assert "recompile only: 1 parameter changed, but no stored array does" in done.stdout


def test_another_chip_with_other_tiles(write_job: WriteJob) -> None:
    """Nothing but the chip differs: as many devices, the same mesh."""
    small = {"d_model": 64, "heads": 8, "d_ff": 96, "vocab": 256, "batch": 16, "sequence": 32}
    job = write_job(DECODE, "v5e:2x4", small, data=2, model=4)
    code, document = diff_json(job, job, "--b-topology", "v2:2x2")
    assert (code, document["verdict"]) == (3, "recompile only")
    assert list(document["fingerprint"]) == ["topology"]
    assert changed(document)["params/final_norm/scale"] == ["tiling"]
    assert document["after"]["device_bytes"] > document["before"]["device_bytes"]


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
    assert "a signature is what it is" in refused.stderr


def test_nothing_to_compare(tmp_path: Path) -> None:
    done = diff(str(tmp_path), str(tmp_path))
    assert done.returncode == 2
    assert "neither an export nor a signature nor a job" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["A"], "give B, or --libtpu"),
        (["A", "A", "--libtpu", "0.0.52"], "not a range of versions"),
        (["A", "--libtpu", "0.0.52..0.0.37"], "not a range of versions"),
        (["A", "--libtpu", "0.0.37..0.0.40", "--b-libtpu", "0.0.3"], "leave out --b-libtpu"),
        (["A", "B", "--libtpu", "0.0.37..0.0.40"], "leave out B"),
        (["signature.json", "--libtpu", "0.0.37..0.0.40"], "only a job or an export can be compiled"),
        (["signature.json", "signature.json", "--target", "layout=auto"], "neither A nor B is a job"),
        (["A", "A", "--target", "topolgy=v5e:2x2"], "did you mean topology"),
    ],
)
def test_wrong_usage(write_job: WriteJob, arguments: list[str], message: str) -> None:
    job = write_job("head", "v5e:2x2", data=2, model=2)
    done = diff(*(job if argument == "A" else argument for argument in arguments))
    assert done.returncode == 2
    assert message in done.stderr
