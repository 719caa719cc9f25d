"""A next-token step over ten small arrays of seven dtypes: everything a re-export meets, in a second."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from migrate.demo.placement import struct
from migrate.program import Program


def next_token_step(mesh: Mesh, *, batch: int = 8) -> Program:
    """The program that picks the token after each of ``batch`` tokens.

    Weights are sharded over the mesh axes ``data`` and ``model`` where they divide; either axis may be absent.
    """
    parameters = {
        "embed": {"table": struct(mesh, (16, 8), jnp.float32, "model")},
        "dense": {
            "kernel": struct(mesh, (8, 12), jnp.bfloat16, None, "model"),
            "bias": struct(mesh, (12,), jnp.float32, "model"),
        },
        "rows": {"w": struct(mesh, (16, 6), jnp.float32, "data")},
        "cols": {"w": struct(mesh, (6, 16), jnp.bfloat16, None, "model")},
        "rank3": {"w": struct(mesh, (4, 6, 2), jnp.float32, "data", None, "model")},
        "quant": {
            "w_int8": struct(mesh, (8, 8), jnp.int8, "data", "model"),
            "mask": struct(mesh, (8,), jnp.bool_),
            "scale_f16": struct(mesh, (4,), jnp.float16),
            "ids_u32": struct(mesh, (4,), jnp.uint32),
        },
    }
    return Program(next_token, (parameters, struct(mesh, (batch,), jnp.int32, "data")))


def next_token(params: Any, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The most likely next token s32[batch] and its logit f32[batch] for ``tokens`` s32[batch] below 16."""
    quant = params["quant"]
    embedded = params["embed"]["table"][tokens]
    # Quantised in groups of two rows; masked channels pass through unchanged.
    scale = jnp.repeat(quant["scale_f16"].astype(jnp.float32), 2)[:, None]
    mixed = embedded @ (quant["w_int8"].astype(jnp.float32) * scale)
    hidden = embedded + jnp.where(quant["mask"], mixed, 0.0)
    # The dense layer gives a gate and a value for the token's own six features.
    dense = hidden.astype(jnp.bfloat16) @ params["dense"]["kernel"] + params["dense"]["bias"]
    gate, value = jnp.split(dense.astype(jnp.float32), 2, axis=-1)
    features = params["rows"]["w"][tokens] * jax.nn.sigmoid(gate) + value
    logits = (features.astype(jnp.bfloat16) @ params["cols"]["w"]).astype(jnp.float32)
    # Four special tokens have scores of their own.
    pair = jnp.einsum("bf,sfp->bsp", features, params["rank3"]["w"])
    special = (quant["ids_u32"] % logits.shape[-1]).astype(jnp.int32)
    logits = logits.at[:, special].add(pair[..., 0] * jnp.tanh(pair[..., 1]))
    return jnp.argmax(logits, axis=-1).astype(jnp.int32), jnp.max(logits, axis=-1)
