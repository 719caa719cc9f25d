"""Prints the layouts of the tiny decoder's donated cache going in and coming out, and how much of it is aliased."""

from __future__ import annotations

import json
import sys

import jax
from jax.experimental.layout import Format, Layout

from migrate.compiler import aot, describe
from migrate.compiler.arguments import abstract_leaves
from migrate.compiler.mesh import build_mesh
from migrate.compiler.topology import open_devices
from migrate.demo.model import decode_step


def main(topology: str, cache_layout: str) -> None:
    mesh = build_mesh(open_devices(topology), {"data": 2, "model": 4})
    program = decode_step(mesh, layers=2, d_model=64, heads=4, head_dim=40, d_ff=96, vocab=256, batch=4, sequence=32)
    leaves = abstract_leaves(program, mesh)
    of_cache = {"auto": Layout.AUTO, "default": None, "stated": Layout((1, 0, 2, 3, 4))}[cache_layout]
    layouts = [of_cache if leaf.argument == "cache" else Layout.AUTO for leaf in leaves]
    compiled = aot.compile_lowered(aot.lower(program, mesh, leaves, layouts, free_results=True), {}, topology)
    cache = [spec for spec in describe.parameter_specs(leaves, compiled) if spec.argument == "cache"]
    outputs = jax.tree.leaves(compiled.output_formats[1], is_leaf=lambda node: isinstance(node, Format))
    sys.stdout.write(
        json.dumps(
            {
                "inputs": [[spec.major_to_minor, spec.tiles] for spec in cache],
                "outputs": [[f.layout.major_to_minor, f.layout.tiling] for f in outputs],
                "cache_bytes": sum(spec.device_bytes for spec in cache),
                "aliased_bytes": compiled.memory_analysis().alias_size_in_bytes,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
