"""A decoder transformer in plain JAX, and the step that generates one token with it.

Layers are stacked along a leading dimension L and scanned; each has RMSNorm, rotary attention with a key/value cache,
and a gated MLP. Weights and cache are bfloat16; logits are float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from migrate.demo.placement import struct
from migrate.program import Program

_EPSILON = 1e-6
_ROTARY_BASE = 10_000.0


@dataclass(frozen=True)
class Sizes:
    """Extents of the model; the defaults make 170 million parameters, 340 MB."""

    layers: int = 8
    d_model: int = 1024
    heads: int = 16
    head_dim: int = 64
    d_ff: int = 2816
    vocab: int = 32_768

    def parameter_shapes(self) -> dict[str, dict[str, tuple[int, ...]]]:
        """The parameters' tree: group -> name -> shape."""
        stacked, heads = (self.layers, self.d_model), (self.heads, self.head_dim)
        return {
            "embed": {"table": (self.vocab, self.d_model)},
            "attention": {
                "norm": stacked,
                "wq": (*stacked, *heads),
                "wk": (*stacked, *heads),
                "wv": (*stacked, *heads),
                "wo": (self.layers, *heads, self.d_model),
            },
            "mlp": {
                "norm": stacked,
                "gate": (*stacked, self.d_ff),
                "up": (*stacked, self.d_ff),
                "down": (self.layers, self.d_ff, self.d_model),
            },
            "final_norm": {"scale": (self.d_model,)},
            "head": {"kernel": (self.d_model, self.vocab)},
        }


# Tensor parallelism: what one device computes of attention and MLP stays on it until wo and down add up.
_AXES: dict[tuple[str, str], tuple[str | None, ...]] = {
    ("embed", "table"): ("model",),
    ("attention", "wq"): (None, None, "model"),
    ("attention", "wk"): (None, None, "model"),
    ("attention", "wv"): (None, None, "model"),
    ("attention", "wo"): (None, "model"),
    ("mlp", "gate"): (None, None, "model"),
    ("mlp", "up"): (None, None, "model"),
    ("mlp", "down"): (None, "model"),
    ("head", "kernel"): (None, "model"),
}


def decode_step(mesh: Mesh, *, batch: int = 8, sequence: int = 1024, **sizes: int) -> Program:
    """The program that reads one token a sequence and gives the logits of the next one.

    ``sizes`` are the fields of :class:`Sizes`. Weights are sharded over the mesh axis ``model``, the cache
    [L, batch, sequence, heads, head_dim] and the tokens over ``data``; either axis may be absent. The cache is donated.
    """
    extents = Sizes(**sizes)
    parameters = {
        group: {
            name: struct(mesh, shape, jnp.bfloat16, *_AXES.get((group, name), ())) for name, shape in members.items()
        }
        for group, members in extents.parameter_shapes().items()
    }
    cache_shape = (extents.layers, batch, sequence, extents.heads, extents.head_dim)
    cache = {name: struct(mesh, cache_shape, jnp.bfloat16, None, "data", None, "model") for name in ("keys", "values")}
    tokens = struct(mesh, (batch,), jnp.int32, "data")
    position = struct(mesh, (), jnp.int32)
    return Program(decode, (parameters, cache, tokens, position), parameters=0, donated=(1,))


def decode(params: Any, cache: Any, tokens: jax.Array, position: jax.Array) -> tuple[jax.Array, Any]:
    """Logits f32[batch, vocab] of the token after ``tokens`` s32[batch], and the cache with ``position`` filled in."""
    x = params["embed"]["table"][tokens]

    def layer(x: jax.Array, weights: Any) -> tuple[jax.Array, Any]:
        attention, mlp, keys, values = weights
        y, keys, values = _attend(attention, _norm(x, attention["norm"]), keys, values, position)
        x = x + y
        return x + _mlp(mlp, _norm(x, mlp["norm"])), (keys, values)

    x, (keys, values) = jax.lax.scan(layer, x, (params["attention"], params["mlp"], cache["keys"], cache["values"]))
    x = _norm(x, params["final_norm"]["scale"])
    logits = jnp.einsum("bd,dv->bv", x, params["head"]["kernel"], preferred_element_type=jnp.float32)
    return logits, {"keys": keys, "values": values}


def _attend(
    weights: Any, x: jax.Array, keys: jax.Array, values: jax.Array, position: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Attention of one token [batch, d_model] to the cache [batch, sequence, heads, head_dim] up to ``position``."""
    query = _rotate(jnp.einsum("bd,dhk->bhk", x, weights["wq"]), position)
    key = _rotate(jnp.einsum("bd,dhk->bhk", x, weights["wk"]), position)
    value = jnp.einsum("bd,dhk->bhk", x, weights["wv"])
    keys = jax.lax.dynamic_update_slice_in_dim(keys, key[:, None], position, axis=1)
    values = jax.lax.dynamic_update_slice_in_dim(values, value[:, None], position, axis=1)
    scores = jnp.einsum("bhk,bshk->bhs", query, keys, preferred_element_type=jnp.float32)
    scores = scores * query.shape[-1] ** -0.5
    seen = jnp.arange(keys.shape[1]) <= position
    weight = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1).astype(x.dtype)
    return jnp.einsum("bhk,hkd->bd", jnp.einsum("bhs,bshk->bhk", weight, values), weights["wo"]), keys, values


def _mlp(weights: Any, x: jax.Array) -> jax.Array:
    gate = jax.nn.silu(jnp.einsum("bd,df->bf", x, weights["gate"]))
    return jnp.einsum("bf,fd->bd", gate * jnp.einsum("bd,df->bf", x, weights["up"]), weights["down"])


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + _EPSILON)
    return wide.astype(x.dtype) * scale


def _rotate(x: jax.Array, position: jax.Array) -> jax.Array:
    """Rotary position embedding of [batch, heads, head_dim]; head_dim is even."""
    half = x.shape[-1] // 2
    angle = position * _ROTARY_BASE ** (-jnp.arange(half, dtype=jnp.float32) / half)
    sine, cosine = jnp.sin(angle).astype(x.dtype), jnp.cos(angle).astype(x.dtype)
    low, high = x[..., :half], x[..., half:]
    return jnp.concatenate([low * cosine - high * sine, high * cosine + low * sine], axis=-1)
