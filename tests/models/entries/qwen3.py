"""Qwen3 0.6B of the package ``google-tunix`` (Flax NNX): its decode step, and a checkpoint of random weights.

python qwen3.py DIRECTORY LAYERS    writes the checkpoint of the NNX state, as Orbax's PyTreeCheckpointer does
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tunix.models.qwen3.model import ModelConfig, Qwen3

import migrate


def config(layers: int) -> ModelConfig:
    """The published configuration in bfloat16, with fewer layers if a test wants it faster."""
    published = ModelConfig.qwen3_0p6b()
    return dataclasses.replace(published, num_layers=layers, dtype=jnp.bfloat16, param_dtype=jnp.bfloat16)


def split(layers: int) -> tuple[Any, Any]:
    """(graph definition, abstract state) of the model."""
    return nnx.split(nnx.eval_shape(lambda: Qwen3(config(layers), rngs=nnx.Rngs(params=0))))


def decode_step(mesh: Mesh, *, layers: int = 28, batch: int = 4, length: int = 256) -> migrate.Program:
    """One token for each of ``batch`` sequences; shardings are the model's own, over ``fsdp`` and ``tp``."""
    graph, state = split(layers)
    shardings = nnx.get_named_sharding(state, mesh)
    state = jax.tree.map(_struct, state, shardings)
    model = nnx.merge(graph, state)
    cache = jax.eval_shape(lambda: model.init_cache(batch, length, jnp.bfloat16))
    rows = NamedSharding(mesh, PartitionSpec("fsdp"))
    cache = jax.tree.map(lambda leaf: _struct(leaf, rows), cache)

    def step(state: Any, cache: Any, tokens: Any, positions: Any, mask: Any) -> Any:
        return nnx.merge(graph, state)(tokens, positions, cache, mask)

    tokens = jax.ShapeDtypeStruct((batch, 1), jnp.int32, sharding=rows)
    mask = jax.ShapeDtypeStruct((batch, 1, length), jnp.bool_, sharding=rows)
    return migrate.Program(step, (state, cache, tokens, tokens, mask), donated=(1,))


def _struct(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


if __name__ == "__main__":
    import orbax.checkpoint as ocp

    leaves, tree = jax.tree.flatten(split(int(sys.argv[2]))[1])
    block = np.random.default_rng(0).standard_normal(1 << 20, np.float32) * 0.02
    arrays = [
        np.resize(np.roll(block, n).astype(leaf.dtype), int(np.prod(leaf.shape))).reshape(leaf.shape)
        for n, leaf in enumerate(leaves)
    ]
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(Path(sys.argv[1]).absolute(), jax.tree.unflatten(tree, arrays))
