"""Loads a serialized executable on eight CPU devices, runs it, and compares it with plain ``jax.jit`` and the export.

Arguments: entry, its keyword arguments as JSON, executable, export. Prints the largest differences as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Format

from migrate.compiler.executable import load
from migrate.compiler.mesh import build_mesh
from migrate.program import resolve


def _random(generator: np.random.Generator, struct: jax.ShapeDtypeStruct) -> np.ndarray:
    if jnp.issubdtype(struct.dtype, jnp.integer):
        return generator.integers(0, 4, struct.shape).astype(struct.dtype)
    if struct.dtype == bool:
        return generator.integers(0, 2, struct.shape).astype(bool)
    return (generator.standard_normal(struct.shape) / 8).astype(struct.dtype)


def _difference(one: Any, other: Any) -> float:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(np.asarray(a, np.float32) - np.asarray(b, np.float32)).max()) for a, b in pairs)


def main(entry: str, arguments: str, executable: str, exported: str) -> None:
    mesh = build_mesh(jax.devices(), {"data": 2, "model": 4})
    program = resolve(entry, mesh, json.loads(arguments))
    generator = np.random.default_rng(0)
    host = jax.tree.map(lambda struct: _random(generator, struct), program.arguments)
    compiled = load(Path(executable).read_bytes(), jax.devices())
    formats = compiled.input_formats[0]
    placed = jax.tree.map(jax.device_put, host, formats, is_leaf=lambda node: isinstance(node, Format))
    result = compiled(*placed)
    donated = [leaf.is_deleted() for leaf in jax.tree.leaves(placed[1])]
    plain = jax.jit(program.function)(*host)
    artifact = jax.export.deserialize(bytearray(Path(exported).read_bytes()))
    shardings = artifact.in_shardings_jax(mesh)
    flat, tree = jax.tree.flatten(host)
    portable = artifact.call(*tree.unflatten([jax.device_put(x, s) for x, s in zip(flat, shardings, strict=True)]))
    sys.stdout.write(
        json.dumps(
            {
                "executable": _difference(result, plain),
                "export": _difference(portable, plain),
                "donated": donated,
                "scale": float(np.abs(np.asarray(plain[0], np.float32)).max()),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
