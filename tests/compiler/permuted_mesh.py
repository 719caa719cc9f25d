"""Compiles for a mesh whose order is not the devices' own, as on TPU, dumps, loads and runs; prints the error as JSON.

Eight CPU devices. Loaded in another order than the mesh's, the executable ends the process.
"""

from __future__ import annotations

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from migrate.compiler.executable import dump, load

ORDER = [0, 1, 2, 3, 7, 6, 5, 4]


def main() -> None:
    devices = np.array(jax.devices())[ORDER].reshape(2, 4)
    mesh = Mesh(devices, ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    sharding = NamedSharding(mesh, PartitionSpec("data", "model"))
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    jitted = jax.jit(lambda x: jnp.cumsum(x @ x, axis=1), in_shardings=sharding)
    data = dump(jitted.lower(x).compile(), mesh)
    loaded = load(data, jax.devices())
    result = np.asarray(loaded(jax.device_put(x, sharding)))
    sys.stdout.write(json.dumps(float(np.abs(result - np.cumsum(x @ x, axis=1)).max())))


if __name__ == "__main__":
    main()
