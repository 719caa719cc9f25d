"""What a compile costs here, over the bare ``jit(...).lower(...).compile()`` it stands on.

Both run in a fresh process with the same environment, in turns, in one run; only the ratio means anything on a shared
machine. Ours does more: it checks the arguments, writes signature, executable and ``jax.export`` artifact.

    python benchmarks/compile.py [--repeats 5] [--topology v5e:2x4]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from migrate.compiler import compile_program
from migrate.compiler.driver import worker_environment
from migrate.config import Job, job_from_mapping

MESH = {"data": 2, "model": 4}
PROGRAMS = {
    "tiny decoder": {"layers": 2, "d_model": 64, "heads": 4, "head_dim": 40, "d_ff": 96, "vocab": 256},
    "170M decoder": {},
}
BARE = """
import json, sys
import jax
from jax.experimental import topologies
from jax.experimental.layout import Format, Layout
from migrate.demo.model import decode_step
name, sizes = sys.argv[1], json.loads(sys.argv[2])
if name.startswith("cpu:"):
    devices = jax.devices()
else:
    devices = topologies.get_topology_desc(platform="tpu", topology_name=name).devices
mesh = jax.make_mesh((2, 4), ("data", "model"), devices=devices, axis_types=(jax.sharding.AxisType.Auto,) * 2)
program = decode_step(mesh, **sizes)
formats = jax.tree.map(lambda leaf: Format(Layout.AUTO, leaf.sharding), program.arguments)
structs = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), program.arguments)
jitted = jax.jit(program.function, in_shardings=formats, out_shardings=Format(Layout.AUTO), donate_argnums=(1,))
jitted.lower(*structs).compile()
"""


def _job(topology: str, sizes: dict[str, int]) -> Job:
    return job_from_mapping(
        {
            "source": {"path": "unused"},
            "program": {"entry": "migrate.demo.model:decode_step", "arguments": sizes},
            "target": {"topology": topology, "mesh": MESH},
            "output": "unused",
        }
    )


def _bare_seconds(topology: str, sizes: dict[str, int]) -> float:
    started = time.monotonic()
    subprocess.run(
        [sys.executable, "-c", BARE, topology, json.dumps(sizes)],
        env=worker_environment(topology),
        capture_output=True,
        check=True,
    )
    return time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--topology", default="v5e:2x4", help="eight devices")
    options = parser.parse_args()
    print(f"{'program':14} {'bare s':>8} {'ours s':>8} {'ratio':>6}   on {options.topology}, {options.repeats} turns")
    for name, sizes in PROGRAMS.items():
        bare, ours = [], []
        for _ in range(options.repeats):
            bare.append(_bare_seconds(options.topology, sizes))
            with tempfile.TemporaryDirectory() as directory:
                ours.append(compile_program(_job(options.topology, sizes), Path(directory)).seconds)
        ratio = statistics.median(o / b for o, b in zip(ours, bare, strict=True))
        print(f"{name:14} {statistics.median(bare):8.2f} {statistics.median(ours):8.2f} {ratio:6.2f}")


if __name__ == "__main__":
    main()
