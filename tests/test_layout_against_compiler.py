"""The bytes that :mod:`migrate.layout` computes are those the TPU compiler counts, one parameter at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from migrate.compiler.driver import worker_environment

SCRIPT = Path(__file__).parent / "compiler" / "single_parameters.py"
TOPOLOGIES = ["v2:2x2", "v4:2x2x1", "v5e:2x4", "v6e:2x2", "tpu7x:2x2x1"]


@pytest.mark.slow
def test_device_bytes_are_the_compilers() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *TOPOLOGIES],
        env=worker_environment(TOPOLOGIES[0]),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert [case for case in cases if case["computed"] != case["compiler"]] == []
    assert len(cases) == 600
    assert {case["case"].split()[0] for case in cases} == set(TOPOLOGIES)
    texts = " ".join(case["spec"] for case in cases)
    assert all(feature in texts for feature in ("E(4)", "T(8,128)(2,1)", "[]{:T(", "{0,1:", "{0,1,2,3:", "[0,4]"))
