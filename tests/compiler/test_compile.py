"""Real compiles: the signature of the tiny decoder, its executable, its export."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from migrate.compiler import CompileResult, compile_program
from migrate.config import Job, ProgramConfig
from migrate.demo.model import Sizes
from migrate.signature import HOST_MEMORY_SPACE, ParameterSpec, Signature, diff

MakeJob = Callable[..., Job]


def by_name(signature: Signature) -> dict[str, ParameterSpec]:
    return {"/".join((p.argument, *p.path)): p for p in signature.parameters}


def test_importing_the_package_does_not_import_jax() -> None:
    code = "import sys, migrate.compiler; assert not {'jax', 'jaxlib', 'libtpu'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["auto", "default", "cpu"])
def test_signature_covers_every_parameter(decoders: dict[str, CompileResult], name: str) -> None:
    signature = decoders[name].signature
    assert [p.number for p in signature.parameters] == list(range(len(signature.parameters)))
    groups = Sizes().parameter_shapes()
    weights = {f"{group}/{leaf}" for group, members in groups.items() for leaf in members}
    assert {p.name for p in signature.weights} == weights
    others = ["cache/keys", "cache/values", "tokens", "position"]
    assert [n for n, p in by_name(signature).items() if not p.is_weight] == others
    assert signature.device_bytes == signature.memory.argument_bytes
    assert signature.device_count == 8
    assert all(p.memory_kind == "device" and p.layout.memory_space == 0 for p in signature.parameters)


def test_shapes_partitions_and_shards(decoders: dict[str, CompileResult]) -> None:
    parameters = by_name(decoders["auto"].signature)
    wq = parameters["params/attention/wq"]
    assert (wq.shape, wq.shard_shape) == ((2, 64, 4, 40), (2, 64, 1, 40))
    assert wq.partition == ((), (), ("model",), ())
    assert wq.dtype == "bfloat16"
    assert wq.tiles == ((8, 128), (2, 1))
    assert parameters["position"].partition == ()
    assert parameters["position"].device_bytes == 512  # scalars tile too
    assert all(not p.tiles for p in decoders["cpu"].signature.parameters)


def test_policies_differ_and_the_fingerprint_says_so(decoders: dict[str, CompileResult]) -> None:
    changes = diff(decoders["default"].signature, decoders["auto"].signature)
    assert {c.field for c in changes if c.where == "fingerprint"} == {"stablehlo_sha256", "layout_policy"}
    assert any(c.where.startswith("cache/") and c.field == "major_to_minor" for c in changes)


def test_signature_survives_json(decoders: dict[str, CompileResult]) -> None:
    for result in decoders.values():
        assert Signature.from_json(result.signature.to_json()) == result.signature


def test_artifacts_and_log(decoders: dict[str, CompileResult]) -> None:
    for result in decoders.values():
        assert result.executable.stat().st_size > 10_000
        assert result.exported.stat().st_size > 1_000
        assert "reexport: compiled" in result.log.read_text()
        assert "Warning" not in result.log.read_text()
        assert 0 < result.seconds < 120


def test_fingerprint_names_the_toolchain(decoders: dict[str, CompileResult]) -> None:
    tpu, cpu = decoders["auto"].signature.fingerprint, decoders["cpu"].signature.fingerprint
    assert (tpu.topology, tpu.mesh, tpu.layout_policy) == ("v5e:2x4", (("data", 2), ("model", 4)), "auto")
    assert tpu.libtpu
    assert cpu.libtpu == ""
    assert tpu.stablehlo_sha256 == cpu.stablehlo_sha256  # the program is the same, the target is not


def test_loaded_executable_and_export_compute_what_jit_does(
    decoders: dict[str, CompileResult], run_script: Callable[..., Any], make_job: MakeJob
) -> None:
    result, program = decoders["cpu"], make_job().program
    artifacts = [str(result.executable), str(result.exported)]
    found = run_script("run_executable.py", program.entry, json.dumps(program.arguments), *artifacts)
    assert found["scale"] > 0.1
    tolerance = found["scale"] * 2**-6  # bfloat16 has 8 bits; partitioned sums round in another order
    assert found["executable"] < tolerance
    assert found["export"] < tolerance
    assert found["donated"] == [True, True]


def test_executable_is_loaded_in_the_order_of_its_mesh(run_script: Callable[..., Any]) -> None:
    assert run_script("permuted_mesh.py") == 0.0


def test_tree_paths_of_every_node_kind(make_job: MakeJob, tmp_path: Path) -> None:
    signature = compile_program(make_job("trees"), tmp_path).signature
    found = [(p.argument, p.path, p.sequence_levels, p.partition) for p in signature.parameters]
    assert found == [
        ("scale", (), (), ()),
        ("weights", ("layers", "0"), (False, True), (("data",), ())),
        ("weights", ("layers", "1"), (False, True), ((), ("data", "model"))),
        ("weights", ("pair", "left"), (False, False), ((),)),
        ("weights", ("pair", "right", "0"), (False, False, True), ((), ())),
        ("weights", ("scalar",), (False,), ()),
        ("arg3", (), (), ((),)),  # unused, and kept; the empty argument before it has no leaf
    ]
    assert [p.is_weight for p in signature.parameters] == [False, True, True, True, True, True, False]
    assert signature.parameters[4].element_bits == 4
    assert signature.device_bytes == signature.memory.argument_bytes


@pytest.mark.parametrize("layout", ["auto", "default"])
def test_pinned_layout_is_kept(make_job: MakeJob, tmp_path: Path, layout: str) -> None:
    parameters = by_name(compile_program(make_job("pinned", layout=layout), tmp_path).signature)
    assert parameters["w/pinned"].major_to_minor == (1, 0)
    assert parameters["w/row_major"].major_to_minor == (0, 1)


def test_sharding_constraints_find_the_mesh(make_job: MakeJob, tmp_path: Path) -> None:
    assert compile_program(make_job("constrained"), tmp_path).signature.parameters[0].partition == (("data",), ())


def test_host_memory_is_told_apart(make_job: MakeJob, tmp_path: Path) -> None:
    parameters = by_name(compile_program(make_job("on_host"), tmp_path).signature)
    assert parameters["w/w"].layout.memory_space == HOST_MEMORY_SPACE
    assert parameters["x"].layout.memory_space == 0


@pytest.mark.parametrize("cache_layout", ["auto", "default", "stated"])
def test_donated_cache_is_updated_in_place(run_script: Callable[..., Any], cache_layout: str) -> None:
    found = run_script("donation.py", "v5e:2x4", cache_layout)
    assert found["inputs"] == found["outputs"]
    assert found["aliased_bytes"] >= found["cache_bytes"] > 0


def test_trees_of_a_model_library_become_plain_in_the_export(make_job: MakeJob, tmp_path: Path) -> None:
    result = compile_program(make_job("library_tree", topology="cpu:8"), tmp_path / "code")
    job = make_job(topology="cpu:8").only(ProgramConfig(exported=str(result.exported)))
    again = compile_program(job, tmp_path / "saved")
    assert [(p.path, p.sequence_levels, p.shard) for p in again.signature.parameters] == [
        (p.path, p.sequence_levels, p.shard) for p in result.signature.parameters
    ]
    assert result.signature.parameters[2].path == ("layers", "2", "w")


@pytest.mark.parametrize("entry", ["trees", "pallas"])
def test_moving_source_lines_changes_neither_fingerprint_nor_export(
    make_job: MakeJob, tmp_path: Path, entry: str
) -> None:
    source = (Path(__file__).parent / "programs.py").read_text()
    results = []
    for name, text in {"before": source, "after": "\n\n" + source}.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "programs.py").write_text(text)
        results.append(compile_program(make_job(entry, base=folder), folder / "compile"))
    assert results[0].signature == results[1].signature
    exports = [result.exported.read_bytes() for result in results]
    assert exports[0] == exports[1]
    assert str(tmp_path).encode() not in exports[0]


def test_flags_reach_the_compiler_and_the_fingerprint(make_job: MakeJob, tmp_path: Path) -> None:
    flags = {"xla_tpu_scoped_vmem_limit_kib": 65536, "xla_tpu_enable_layout_hints": True}
    signature = compile_program(make_job("pinned", flags=flags), tmp_path).signature
    assert signature.fingerprint.flags == (
        ("xla_tpu_enable_layout_hints", "true"),
        ("xla_tpu_scoped_vmem_limit_kib", "65536"),
    )


def test_the_callers_settings_do_not_leak_in(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag_would_end_the_process=1")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--no_such_flag_would_end_the_process=1")
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    before = dict(os.environ)
    signature = compile_program(make_job("trees"), tmp_path).signature
    assert signature.device_count == 8
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("topology", "mesh"),
    [
        ("v4:2x2x1", {"x": 8}),  # two cores a chip
        ("v4:2x2x1+megacore", {"x": 4}),  # as jax runs on v4
        ("v5e:1x1", {"x": 1}),  # libtpu alone takes 2x2 for the smallest slice
        ("v6e:2x2", {"a": 2, "b": 2}),
        ("tpu7x:2x2x1", {"a": 2, "b": 2, "c": 2}),
        ("cpu:3", {"x": 3}),
    ],
)
def test_topologies(make_job: MakeJob, tmp_path: Path, topology: str, mesh: dict[str, int]) -> None:
    job = make_job("migrate.demo.tiny:next_token_step", topology=topology, mesh=mesh, arguments={"batch": 4})
    signature = compile_program(job, tmp_path).signature
    assert signature.fingerprint.mesh == tuple(mesh.items())
    assert signature.device_bytes == signature.memory.argument_bytes
    assert len(signature.weights) == 10
