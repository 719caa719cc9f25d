"""What a compile costs here, over the bare ``jit(...).lower(...).compile()`` it stands on.

Both run in a fresh process with the same environment, in turns, in one run; only the ratio means anything on a shared
machine. Ours does more: it checks the arguments, writes signature, executable and ``jax.export`` artifact. The memory
is the largest resident memory of the process. A hit is the same compile found in a compile cache.

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
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def _job(topology: str, sizes: dict[str, int], cache: str | bool = False) -> Job:
    return job_from_mapping(
        {
            "source": {"path": "unused"},
            "program": {"entry": "migrate.demo.model:decode_step", "arguments": sizes},
            "target": {"topology": topology, "mesh": MESH},
            "output": "unused",
            "compile": {"cache": cache},
        }
    )


def _bare(topology: str, sizes: dict[str, int]) -> tuple[float, int]:
    """(seconds, peak bytes) of the bare compile."""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", BARE, topology, json.dumps(sizes)],
        env=worker_environment(topology),
        capture_output=True,
        check=True,
        text=True,
    )
    return time.monotonic() - started, int(done.stdout.split()[-1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--topology", default="v5e:2x4", help="eight devices")
    options = parser.parse_args()
    headings = ("bare s", "ours s", "ratio", "hit s", "of ours", "bare MB", "ours MB", "ratio")
    print(f"{'program':14}" + "".join(f"{heading:>9}" for heading in headings), end="")
    print(f"   on {options.topology}, {options.repeats} turns")
    for name, sizes in PROGRAMS.items():
        with tempfile.TemporaryDirectory() as directory:
            bare, ours, hits = [], [], []
            cache = str(Path(directory) / "cache")
            compile_program(_job(options.topology, sizes, cache), Path(directory) / "filled")
            for turn in range(options.repeats):
                bare.append(_bare(options.topology, sizes))
                result = compile_program(_job(options.topology, sizes), Path(directory) / f"compiled{turn}")
                ours.append((result.seconds, result.peak_bytes))
                hit = compile_program(_job(options.topology, sizes, cache), Path(directory) / f"hit{turn}")
                assert hit.cached
                hits.append(hit.seconds)
        median = statistics.median
        ratios = [median(mine[n] / theirs[n] for mine, theirs in zip(ours, bare, strict=True)) for n in (0, 1)]
        of_ours = median(hit / seconds for hit, (seconds, _) in zip(hits, ours, strict=True))
        print(
            f"{name:14}{median(t for t, _ in bare):9.2f}{median(t for t, _ in ours):9.2f}{ratios[0]:9.2f}"
            f"{median(hits):9.3f}{of_ours:9.3f}{median(b for _, b in bare) / 1e6:9.0f}"
            f"{median(b for _, b in ours) / 1e6:9.0f}{ratios[1]:9.2f}"
        )


if __name__ == "__main__":
    main()
