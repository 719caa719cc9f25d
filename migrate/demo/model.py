"""A decoder transformer in plain JAX, the step that generates one token with it, and the one that reads a prompt.

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
    parameters, cache = _parameters_and_cache(mesh, Sizes(**sizes), batch, sequence)
    tokens = struct(mesh, (batch,), jnp.int32, "data")
    position = struct(mesh, (), jnp.int32)
    return Program(decode, (parameters, cache, tokens, position), parameters=0, donated=(1,))


def prefill_step(mesh: Mesh, *, batch: int = 8, length: int = 512, sequence: int = 1024, **sizes: int) -> Program:
    """The program that reads prompts of ``length`` tokens and fills the cache that :func:`decode_step` goes on with.

    Weights and cache are those of :func:`decode_step` of the same sizes, batch and sequence.
    """
    parameters, cache = _parameters_and_cache(mesh, Sizes(**sizes), batch, sequence)
    tokens = struct(mesh, (batch, length), jnp.int32, "data")
    return Program(prefill, (parameters, cache, tokens), parameters=0, donated=(1,))


def _parameters_and_cache(mesh: Mesh, extents: Sizes, batch: int, sequence: int) -> tuple[Any, Any]:
    parameters = {
        group: {
            name: struct(mesh, shape, jnp.bfloat16, *_AXES.get((group, name), ())) for name, shape in members.items()
        }
        for group, members in extents.parameter_shapes().items()
    }
    cache_shape = (extents.layers, batch, sequence, extents.heads, extents.head_dim)
    cache = {name: struct(mesh, cache_shape, jnp.bfloat16, None, "data", None, "model") for name in ("keys", "values")}
    return parameters, cache


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


def prefill(params: Any, cache: Any, tokens: jax.Array) -> tuple[jax.Array, Any]:
    """Logits f32[batch, vocab] of the token after ``tokens`` s32[batch, length], and the cache with their positions,
    from 0, filled in.
    """
    x = params["embed"]["table"][tokens]

    def layer(x: jax.Array, weights: Any) -> tuple[jax.Array, Any]:
        attention, mlp, keys, values = weights
        y, key, value = _attend_to_prompt(attention, _norm(x, attention["norm"]))
        x = x + y
        filled = (keys.at[:, : key.shape[1]].set(key), values.at[:, : value.shape[1]].set(value))
        return x + _mlp(mlp, _norm(x, mlp["norm"])), filled

    x, (keys, values) = jax.lax.scan(layer, x, (params["attention"], params["mlp"], cache["keys"], cache["values"]))
    x = _norm(x[:, -1], params["final_norm"]["scale"])
    logits = jnp.einsum("bd,dv->bv", x, params["head"]["kernel"], preferred_element_type=jnp.float32)
    return logits, {"keys": keys, "values": values}


def _attend_to_prompt(weights: Any, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Attention of each token of [batch, length, d_model] to itself and those before it; keys and values of all."""
    positions = jnp.arange(x.shape[1])
    query = _rotate(jnp.einsum("btd,dhk->bthk", x, weights["wq"]), positions[:, None, None])
    key = _rotate(jnp.einsum("btd,dhk->bthk", x, weights["wk"]), positions[:, None, None])
    value = jnp.einsum("btd,dhk->bthk", x, weights["wv"])
    scores = jnp.einsum("bthk,bshk->bhts", query, key, preferred_element_type=jnp.float32)
    scores = scores * query.shape[-1] ** -0.5
    seen = positions[:, None] >= positions
    weight = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1).astype(x.dtype)
    return jnp.einsum("bthk,hkd->btd", jnp.einsum("bhts,bshk->bthk", weight, value), weights["wo"]), key, value


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
    gate = jax.nn.silu(jnp.einsum("...d,df->...f", x, weights["gate"]))
    return jnp.einsum("...f,fd->...d", gate * jnp.einsum("...d,df->...f", x, weights["up"]), weights["down"])


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + _EPSILON)
    return wide.astype(x.dtype) * scale


def _rotate(x: jax.Array, position: jax.Array) -> jax.Array:
    """Rotary position embedding of [..., heads, head_dim]; head_dim is even.

    ``position`` is a scalar, or [length, 1, 1] for x [batch, length, heads, head_dim].
    """
    half = x.shape[-1] // 2
    angle = position * _ROTARY_BASE ** (-jnp.arange(half, dtype=jnp.float32) / half)
    sine, cosine = jnp.sin(angle).astype(x.dtype), jnp.cos(angle).astype(x.dtype)
    low, high = x[..., :half], x[..., half:]
    return jnp.concatenate([low * cosine - high * sine, high * cosine + low * sine], axis=-1)
