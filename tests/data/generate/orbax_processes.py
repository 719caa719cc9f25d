# /// script
# requires-python = ">=3.11"
# dependencies = ["jax==0.10.2", "orbax-checkpoint==0.12.8", "numpy"]
# ///
"""Make Orbax checkpoints that two processes wrote, each holding half of the devices, with the installed versions.

    python orbax_processes.py OUTPUT_DIR VARIANT [VARIANT ...]

Variants: ``processes`` (Zarr v2 in OCDBT), ``processes_zarr3`` (Zarr v3 in OCDBT). Every process leaves a database
``ocdbt.process_N``; the joined database refers to the files in them. The arrays are large enough not to be stored in
the nodes of the joined database itself. Output and ``leaves.json`` are as of ``orbax.py``. Tried with jax 0.10.2 and
orbax 0.12.8.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

# Python puts this file's directory first, where `orbax.py` would be taken for the package `orbax`.
HERE = Path(__file__).resolve().parent
sys.path[:] = [*(entry for entry in sys.path if Path(entry or ".").resolve() != HERE), str(HERE / "shared")]

import numpy as np

PROCESSES = 2
SHAPES: dict[str, tuple[tuple[int, ...], str, tuple[str | None, ...]]] = {
    "rows": ((64, 32), "float32", ("data", None)),
    "columns": ((32, 64), "bfloat16", (None, "data")),
    "whole": ((16, 16), "int32", ()),
    "count": ((), "int32", ()),
}


def make_arrays() -> dict[str, np.ndarray]:
    """The same in every process."""
    import ml_dtypes

    random = np.random.default_rng(11)
    dtypes = {"bfloat16": ml_dtypes.bfloat16}
    return {
        name: np.asarray(random.normal(size=shape) * 100).astype(dtypes.get(dtype, dtype))
        for name, (shape, dtype, _) in SHAPES.items()
    }


def save(path: Path, process: int, port: int, *, zarr3: bool) -> None:
    """What one process does."""
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import orbax.checkpoint as ocp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=PROCESSES, process_id=process)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    tree: dict[str, Any] = {}
    for name, values in make_arrays().items():
        sharding = NamedSharding(mesh, PartitionSpec(*SHAPES[name][2]))
        tree[name] = jax.make_array_from_callback(values.shape, sharding, lambda index, v=values: v[index])
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=zarr3)
    ocp.Checkpointer(handler).save(path, args=ocp.args.PyTreeSave({"params": tree}))
    jax.distributed.shutdown()


def make(variant: str, folder: Path) -> None:
    """Make one variant, in two processes of this script."""
    from common import write_leaves

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, __file__, "--process", str(folder / "ckpt"), str(port), variant]
    running = [subprocess.Popen([*command, str(process)]) for process in range(PROCESSES)]
    codes = [process.wait() for process in running]
    if any(codes):
        raise SystemExit(f"{variant}: a process failed")
    write_leaves(folder, {"params": make_arrays()}, ("jax", "orbax-checkpoint", "numpy"))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--process"]:
        save(Path(sys.argv[2]), int(sys.argv[5]), int(sys.argv[3]), zarr3=sys.argv[4].endswith("zarr3"))
    else:
        from common import run

        run(make, ["processes", "processes_zarr3"])
