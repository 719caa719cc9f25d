"""Gemma 3 270M of the package ``gemma`` (Flax Linen): its decode step, and a checkpoint of random weights.

python gemma3.py DIRECTORY    writes the checkpoint, as Orbax's StandardCheckpointer does
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gemma import gm
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import migrate

_BLOCK = 1 << 20


def abstract_parameters() -> Any:
    """The parameters as the model itself makes them, in bfloat16."""
    tokens = jnp.zeros((1, 8), jnp.int32)
    variables = jax.eval_shape(lambda: gm.nn.Gemma3_270M().init(jax.random.key(0), tokens))
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16), variables["params"])


def decode_step(mesh: Mesh, *, batch: int = 4, length: int = 256) -> migrate.Program:
    """One token for each of ``batch`` sequences, with a cache of ``length``; feed-forward weights over ``model``."""
    model = gm.nn.Gemma3_270M()

    def place(leaf: Any, *axes: str | None) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, PartitionSpec(*axes)))

    def axes_of(path: tuple[Any, ...]) -> tuple[str | None, ...]:
        names = [str(key.key) for key in path]
        if "mlp" in names:
            return ("model", None) if "linear" in names else (None, "model", None)
        return ("model", None) if "input_embedding" in names else ()

    params = jax.tree_util.tree_map_with_path(lambda path, leaf: place(leaf, *axes_of(path)), abstract_parameters())
    cache = jax.eval_shape(lambda: model.init_cache(batch_size=batch, dtype=jnp.bfloat16, cache_length=length))
    cache = jax.tree.map(lambda leaf: place(leaf, "data"), cache)

    def step(params: Any, cache: Any, tokens: Any, positions: Any, mask: Any) -> Any:
        out = model.apply(
            {"params": params}, tokens, cache=cache, positions=positions, attention_mask=mask, return_last_only=True
        )
        return out.logits, out.cache

    tokens = place(jax.ShapeDtypeStruct((batch, 1), jnp.int32), "data")
    mask = place(jax.ShapeDtypeStruct((batch, 1, length), jnp.bool_), "data")
    return migrate.Program(step, (params, cache, tokens, tokens, mask), donated=(1,))


def random_array(leaf: Any, seed: int) -> np.ndarray[Any, Any]:
    """Random elements of any float dtype; the same for the same seed."""
    block = np.random.default_rng(seed).standard_normal(_BLOCK, np.float32) * 0.02
    count = int(np.prod(leaf.shape))
    return np.resize(block.astype(leaf.dtype), count).reshape(leaf.shape)


if __name__ == "__main__":
    import orbax.checkpoint as ocp

    leaves, tree = jax.tree.flatten(abstract_parameters())
    arrays = [random_array(leaf, seed) for seed, leaf in enumerate(leaves)]
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(Path(sys.argv[1]).absolute(), jax.tree.unflatten(tree, arrays))
