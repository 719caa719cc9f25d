"""A server that places weights itself, and fails: ``python examples/embedding/own_placement.py out/embedding-cpu``."""

from __future__ import annotations

import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"  # before jax starts

import jax
import numpy as np
import orbax.checkpoint as ocp

import migrate

program = migrate.load(sys.argv[1])
restored = ocp.StandardCheckpointer().restore(program.export.parameters_uri)
# the right values on the right devices, in the layouts that jax.device_put gives
params = jax.tree.map(lambda leaf, like: jax.device_put(np.asarray(leaf), like.sharding), restored, program.params)
tokens, mask = (
    jax.device_put(np.zeros((8, 64), np.int32), format_) for format_ in program.compiled.input_formats[0][1:]
)
program.compiled(params, tokens, mask)
