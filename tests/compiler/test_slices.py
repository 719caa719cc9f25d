"""Named slices against libtpu, and compiles for large and for several slices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from migrate.compiler import compile_program
from migrate.config import Job
from migrate.errors import TargetError
from migrate.topologies import describe

MakeJob = Callable[..., Job]
TINY = "migrate.demo.tiny:next_token_step"


def test_libtpu_agrees_on_every_named_slice(run_script: Callable[..., Any]) -> None:
    found = run_script("slices.py")
    assert len(found) > 60
    for name, (devices, chips, slices, *usable) in found.items():
        topology = describe(name)
        assert (devices, chips, slices) == (topology.devices, topology.chips, topology.slices), name
        if usable:
            assert usable == [topology.device_gib], name
    assert sum(len(facts) == 4 for facts in found.values()) >= 9  # each family's memory was asked for


def test_both_spellings_are_one_fingerprint(make_job: MakeJob, tmp_path: Path) -> None:
    mesh = {"data": 4, "model": 4}
    signatures = [
        compile_program(make_job(TINY, topology=name, mesh=mesh, arguments={}), tmp_path / name).signature
        for name in ("v5e:4x4", "v5litepod-16")
    ]
    assert signatures[0] == signatures[1]
    assert signatures[0].fingerprint.topology == "v5e:4x4"


def test_a_size_that_does_not_exist(make_job: MakeJob, tmp_path: Path) -> None:
    # found before the libtpu that does not exist is asked for
    with pytest.raises(TargetError, match="there is no v5e-24"):
        compile_program(make_job(TINY, topology="v5e-24", libtpu="0.0.9999"), tmp_path)


@pytest.mark.parametrize(
    ("topology", "mesh"),
    [
        ("v4-32", {"data": 4, "model": 4}),
        ("tpu7x-8", {"data": 2, "model": 4}),
        ("2xv5e-16", {"data": 8, "model": 4}),
        ("2xv4-8", {"model": 8}),
        # the first axis does not divide into slices: devices in their own order
        ("2xv5e-4", {"pipeline": 1, "data": 2, "model": 4}),
    ],
)
def test_named_and_several_slices_compile(
    make_job: MakeJob, tmp_path: Path, topology: str, mesh: dict[str, int]
) -> None:
    signature = compile_program(make_job(TINY, topology=topology, mesh=mesh, arguments={}), tmp_path).signature
    assert signature.device_count == describe(topology).devices
    assert signature.device_bytes == signature.memory.argument_bytes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "mesh"),
    [
        ("v5e:16x16", {"data": 16, "model": 16}),
        ("v4:4x4x4", {"data": 8, "model": 16}),
        ("v4-128", {"data": 4, "model": 16}),
        ("v5p-128", {"data": 4, "model": 16}),
    ],
)
def test_large_slices_compile(make_job: MakeJob, tmp_path: Path, topology: str, mesh: dict[str, int]) -> None:
    job = make_job("migrate.demo.model:decode_step", topology=topology, mesh=mesh, arguments={"batch": 32})
    signature = compile_program(job, tmp_path).signature
    assert signature.device_count == describe(topology).devices
    assert signature.device_bytes == signature.memory.argument_bytes
