"""Writes the demo decoder's weights with stock Orbax, sharded as a training run would have them.

``python -m migrate.demo.checkpoint DIRECTORY [--layers 8 ...]``, or :func:`write_checkpoint` from a process whose JAX
already runs with other devices.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from migrate.demo.model import Sizes
from migrate.errors import ReexportError

STEP = 1000
"""The training step it is saved as."""
_DEVICES = 8
_MESH = {"data": 2, "model": 4}


def write_checkpoint(directory: str | Path, *, seed: int = 0, **sizes: int) -> Path:
    """Write the checkpoint in a subprocess with eight CPU devices; gives the directory of its one step.

    ``sizes`` are the fields of :class:`migrate.demo.model.Sizes`. The tree is ``params/...`` beside a scalar ``step``,
    as a training state is, so that a job says ``select: params``. Equal seed and sizes give equal values.

    Raises :class:`ReexportError` if it exists already, or with the last lines the subprocess printed.
    """
    target = Path(directory).absolute()
    if (target / str(STEP)).exists():  # Orbax would skip a step that exists without a word
        raise ReexportError("the demo checkpoint exists already", where=str(target), remedy="give another directory")
    options = [f"--{name}={value}" for name, value in {"seed": seed, **dataclasses.asdict(Sizes(**sizes))}.items()]
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={_DEVICES}",
    }
    command = [sys.executable, "-m", "migrate.demo.checkpoint", str(target), *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReexportError(
            "the demo checkpoint cannot be written",
            where=str(target),
            found="\n    ".join(done.stderr.strip().splitlines()[-5:]),
            remedy="give a directory that can be written, on a disk with room for it",
        )
    return target / str(STEP)


def _write(directory: Path, sizes: Sizes, seed: int) -> None:
    import jax
    import orbax.checkpoint as ocp

    mesh = jax.make_mesh(tuple(_MESH.values()), tuple(_MESH), axis_types=(jax.sharding.AxisType.Auto,) * len(_MESH))
    state = {"params": _parameters(mesh, sizes, seed), "step": np.asarray(STEP, np.int32)}
    with ocp.CheckpointManager(directory) as manager:
        manager.save(STEP, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()


def _parameters(mesh: Any, sizes: Sizes, seed: int) -> dict[str, dict[str, Any]]:
    """Weights made one leaf at a time: beyond the tree itself, memory holds one leaf in float32."""
    import jax
    import jax.numpy as jnp

    tree: dict[str, dict[str, Any]] = {}
    for group, members in sizes.parameter_shapes().items():
        tree[group] = {}
        for name, shape in members.items():
            if name == "norm" or group == "final_norm":
                value = np.ones(shape, jnp.bfloat16)
            else:
                # A generator a leaf: adding a leaf does not change the others.
                generator = np.random.default_rng([seed, zlib.crc32(f"{group}/{name}".encode())])
                value = generator.standard_normal(shape, np.float32)
                value *= sizes.d_model**-0.5
                value = value.astype(jnp.bfloat16)
            tree[group][name] = jax.device_put(value, _training_sharding(mesh, shape))
    return tree


def _training_sharding(mesh: Any, shape: tuple[int, ...]) -> Any:
    """Fully sharded data parallelism: the first dimension that all devices divide is cut over both axes."""
    from jax.sharding import NamedSharding, PartitionSpec

    axes: list[Any] = [None] * len(shape)
    divisible = [dimension for dimension, extent in enumerate(shape) if extent and extent % _DEVICES == 0]
    if divisible:
        axes[divisible[0]] = tuple(_MESH)
    return NamedSharding(mesh, PartitionSpec(*axes))


def main(arguments: list[str] | None = None) -> None:
    """The subprocess of :func:`write_checkpoint`."""
    parser = argparse.ArgumentParser(description="Write the demo decoder's weights as an Orbax checkpoint.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    for field in dataclasses.fields(Sizes):
        parser.add_argument(f"--{field.name}", type=int, default=field.default)
    options = vars(parser.parse_args(arguments))
    directory, seed = options.pop("directory"), options.pop("seed")
    _write(directory.absolute(), Sizes(**options), seed)


if __name__ == "__main__":
    main()
