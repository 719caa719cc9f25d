"""An export against this environment and against its job of today; and an error of its program, explained."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import migrate
from migrate.check import Check, effect
from migrate.difference import ParameterChange, compare_signatures
from migrate.environment import check_versions, flag_differences, installed_versions, required_versions
from migrate.errors import EnvironmentMismatchError
from migrate.signature import Fingerprint

from .conftest import reexport, small_job, write_job

Exports = Callable[[str, str], migrate.Export]


def test_this_environment(exports: Exports) -> None:
    done = reexport("check", exports("small", "v5e:2x4").uri, "--no-devices")
    assert done.returncode == 0, done.stderr
    assert "can be loaded as it is" in done.stdout


def test_flags_of_the_environment(exports: Exports, monkeypatch: pytest.MonkeyPatch) -> None:
    export = exports("small", "v5e:2x4").uri
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_enable_layout_hints=true")
    found = migrate.check_export(export, devices=False)
    assert found.flags == ("LIBTPU_INIT_ARGS/xla_tpu_enable_layout_hints=true here, not set at compile time",)
    assert found.fits  # the executable keeps the flags of its compile
    done = reexport("check", export, "--no-devices")
    assert done.returncode == 0
    assert "may want other layouts" in done.stdout
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_no_such_flag=true")
    found = migrate.check_export(export, devices=False)
    assert found.verdict == "refused"
    assert "xla_tpu_no_such_flag" in found.problems[0].what
    assert found.problems[0].where == "LIBTPU_INIT_ARGS"
    assert migrate.check_export(exports("small", "cpu:8").uri, devices=False).flags == ()  # libtpu's alone


def test_flags_of_the_compile() -> None:
    fingerprint = Fingerprint("", "v5e:1x1", (), "", "", "", (("LIBTPU_INIT_ARGS/a", "1"), ("b", "2")), "auto")
    assert flag_differences(fingerprint, {"LIBTPU_INIT_ARGS": "--a=1 --b=2"}) == []
    assert flag_differences(fingerprint, {"LIBTPU_INIT_ARGS": "--a=3 --c"}) == [
        "LIBTPU_INIT_ARGS/a=3 here, 1 at compile time",
        "LIBTPU_INIT_ARGS/c=true here, not set at compile time",
        "b=2 at compile time, not set here",
    ]
    assert flag_differences(fingerprint, {"XLA_FLAGS": "'a"})[0].startswith("XLA_FLAGS/")


def test_another_target_without_the_job(exports: Exports) -> None:
    """The export's own program is compiled again: no model code, no job file."""
    export = exports("decoder", "v5e:2x4").uri
    done = reexport("check", export, "--target", "flags.xla_tpu_scoped_vmem_limit_kib=65536", "--json")
    assert done.returncode == 3, done.stderr
    document = json.loads(done.stdout)
    assert (document["verdict"], document["parameters"]) == ("recompile", [])
    assert list(document["fingerprint"]) == ["flags"]
    done = reexport("check", export, "--target", "layout=default")
    assert done.returncode == 3, done.stderr
    assert "if buffers laid out for the export are passed" in done.stdout
    same = migrate.check_export(export, settings=["layout=auto"])
    assert same.verdict == "loads"


def test_devices_that_are_not_here(exports: Exports) -> None:
    done = reexport("check", exports("small", "v5e:2x4").uri, "--json")
    assert done.returncode == 3, done.stderr
    document = json.loads(done.stdout)
    assert document["verdict"] == "refused"
    assert document["problems"][0]["expected"] == "8 tpu devices"


def test_devices_that_are_here(exports: Exports) -> None:
    found = migrate.check_export(exports("small", "cpu:8").uri, devices=True)  # the tests run on eight CPU devices
    assert found.fits


def test_the_job_of_today_and_of_another_slice(exports: Exports, old_checkpoint: Path, tmp_path: Path) -> None:
    export = exports("small", "v5e:2x4").uri
    job = write_job(small_job(old_checkpoint, tmp_path / "out"), tmp_path)
    assert migrate.check_export(export, job=job).verdict == "loads"

    done = reexport("check", export, "--job", job, "--target", "mesh.data=8", "--target", "mesh.model=1", "--json")
    assert done.returncode == 3, done.stderr
    document = json.loads(done.stdout)
    assert document["verdict"] == "re-export"
    assert {change["effect"] for change in document["parameters"]} <= {"E0102", "silent relayout"}
    assert document["fingerprint"]["mesh"]["after"] == [["data", 8], ["model", 1]]

    done = reexport("check", export, "--job", job, "--target", "topology=v6e:2x4")
    assert done.returncode == 3
    assert "The stored arrays are right" in done.stdout


def test_an_export_is_a_side_of_a_diff(exports: Exports, old_checkpoint: Path, tmp_path: Path) -> None:
    export = exports("small", "v5e:2x4").uri
    job = write_job(small_job(old_checkpoint, tmp_path / "out"), tmp_path)
    done = reexport("diff", export, job)
    assert done.returncode == 0, done.stderr
    assert "nothing to do: the signatures are equal" in done.stdout
    # its saved program for another chip, without the job
    done = reexport("diff", export, export, "--b-topology", "v6e:2x4", "--json")
    assert done.returncode == 0, done.stderr
    assert list(json.loads(done.stdout)["fingerprint"]) == ["topology"]
    refused = reexport("diff", export, export, "--target", "topology=v6e:2x4")
    assert refused.returncode == 2
    assert "neither A nor B is a job" in refused.stderr


def test_wrong_usage(exports: Exports, tmp_path: Path) -> None:
    assert reexport("check", exports("small", "v5e:2x4").uri, "--target", "topolgy=v6e:2x4").returncode == 2
    assert reexport("check", exports("small", "v5e:2x4").uri, "--job", tmp_path / "none.yaml").returncode == 2
    assert reexport("check", tmp_path).returncode == 1


def test_versions(exports: Exports) -> None:
    fingerprint = exports("small", "v5e:2x4").signature().fingerprint
    check_versions(fingerprint)
    assert required_versions(fingerprint) == installed_versions()
    with pytest.raises(EnvironmentMismatchError, match="other versions") as caught:
        check_versions(dataclasses.replace(fingerprint, libtpu="0.0.1"))
    assert "libtpu 0.0.1" in str(caught.value.expected)
    on_cpu = exports("small", "cpu:8").signature().fingerprint
    assert "libtpu" not in required_versions(on_cpu)
    assert installed_versions(("no-such-package-here",)) == {}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"major_to_minor": (0, 2, 1)}, "E0102"),
        ({"memory_kind": "pinned_host"}, "E0102"),
        ({"major_to_minor": (1, 0, 2)}, "silent relayout"),
        ({"dtype": "float32"}, "refused"),
    ],
)
def test_effects(exports: Exports, change: dict[str, Any], expected: str) -> None:
    signature = exports("small", "v5e:2x4").signature()
    before = dataclasses.replace(
        signature.weights[0],
        shape=(8, 1280, 40),
        shard_shape=(8, 1280, 40),
        partition=((), (), ()),
        major_to_minor=(0, 1, 2),
        dtype="bfloat16",
        tiles=((8, 128), (2, 1)),
    )
    old = dataclasses.replace(signature, parameters=(before,))
    new = dataclasses.replace(signature, parameters=(dataclasses.replace(before, **change),))
    difference = compare_signatures(old, new)
    (found,) = difference.parameters
    assert effect(found) == expected
    check = Check("out", "main", (), difference)
    assert check.verdict == ("recompile" if "memory_kind" in change else "re-export")
    assert effect(ParameterChange(before, None, ("removed",), rewrite=False)) == "refused"


def message_about(export: migrate.Export, name: str) -> str:
    """E0102 as libtpu words it, for a buffer with all dimensions in the other order."""
    parameter = next(p for p in export.signature().weights if p.name == name)
    shard = parameter.shard
    found = dataclasses.replace(shard, layout=dataclasses.replace(parameter.layout, minor_to_major=(0, 1, 2)))
    return (
        f"Executable(jit_step) expected parameter {parameter.number} of size {shard.device_bytes} ({shard}) "
        f"but got buffer with incompatible size {found.device_bytes} ({found})"
    )


def test_an_error_of_an_exports_program_is_explained(exports: Exports) -> None:
    export = exports("small", "v5e:2x4")
    message = message_about(export, "rank3/w")
    done = reexport("explain", "--export", export.uri, message)
    assert done.returncode == 0, done.stderr
    assert "rank3/w (argument params" in done.stdout
    assert "the executable is the export's, but the buffer is not" in done.stdout
    document = json.loads(reexport("explain", "--export", export.uri, message, "--json").stdout)
    assert document["mismatches"][0]["parameter"]["path"] == ["rank3", "w"]


def test_an_error_is_explained_by_a_job(exports: Exports, old_checkpoint: Path, tmp_path: Path) -> None:
    export = exports("small", "v5e:2x4")
    message = message_about(export, "rank3/w")
    job = str(write_job(small_job(old_checkpoint, tmp_path / "out"), tmp_path))
    done = reexport("explain", "--job", job, message)
    assert done.returncode == 0, done.stderr
    assert "rank3/w (argument params" in done.stdout
    assert "the executable is the job's, but the buffer is not" in done.stdout
    assert f"reexport run {job}" in done.stdout

    setting = "flags.xla_tpu_scoped_vmem_limit_kib=65536"
    done = reexport("explain", "--export", export.uri, "--job", job, "--target", setting, "--json", message)
    (found,) = json.loads(done.stdout)["mismatches"]
    assert found["today"]["shard"] == found["parameter"]["shard"]
    assert "the executable is the export's" in found["cause"]
    # nothing is compiled for a text that says nothing, and a target needs its job
    assert reexport("explain", "--job", job, "hello").returncode == 2
    assert reexport("explain", "--target", setting, message).returncode == 2
