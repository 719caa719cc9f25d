"""Compiles many programs of one parameter each and prints what the compiler says; runs in the worker's environment.

Standard output: one JSON object a case with the spec's text and the two byte counts.
"""

from __future__ import annotations

import json
import sys

import jax
import jax.numpy as jnp
from jax.experimental.layout import Format, Layout
from jax.sharding import NamedSharding, PartitionSpec

from migrate.compiler import aot, describe
from migrate.compiler.arguments import abstract_leaves
from migrate.compiler.mesh import build_mesh
from migrate.compiler.topology import open_devices
from migrate.program import Program

DTYPES = [
    "bool",
    "int4",
    "uint4",
    "int8",
    "uint8",
    "int16",
    "int32",
    "uint32",
    "float16",
    "bfloat16",
    "float32",
    "complex64",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3b11fnuz",
]
# Ranks 0 to 4; extents below, at and above tiles; none; rows the mesh shards (divisible by 8) and rows it cannot.
SHAPES = [(), (0, 4), (5,), (1000,), (3, 5), (40, 1280), (16, 1280, 40), (2, 3, 7, 130)]


def _no_results(x: jax.Array) -> tuple[()]:
    return ()


def main(topologies: list[str]) -> None:
    number = 0
    for topology in topologies:
        devices = open_devices(topology)
        mesh = build_mesh(devices, {"x": len(devices)})
        for dtype in DTYPES:
            for shape in SHAPES:
                number += 1
                sharded = bool(shape) and shape[0] % len(devices) == 0
                sharding = NamedSharding(mesh, PartitionSpec("x") if sharded else PartitionSpec())
                # Every third case demands the reverse order of dimensions, which no policy would choose by itself.
                pinned = Format(Layout(tuple(range(len(shape)))[::-1]), sharding)
                struct = jax.ShapeDtypeStruct(
                    shape, jnp.dtype(dtype), sharding=pinned if shape and number % 3 == 0 else sharding
                )
                program = Program(_no_results, (struct,))
                leaves = abstract_leaves(program, mesh)
                case = f"{topology} {dtype}{list(shape)}"
                free = bool(number % 2)
                layouts = [leaf.pinned or (Layout.AUTO if free else None) for leaf in leaves]
                lowered = aot.lower(program, mesh, leaves, layouts, free_results=free)
                compiled = aot.compile_lowered(lowered, {}, case)
                (spec,) = describe.parameter_specs(leaves, compiled)
                found = describe.device_memory(compiled).argument_bytes
                line = {"case": case, "spec": str(spec.shard), "computed": spec.device_bytes, "compiler": found}
                sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
