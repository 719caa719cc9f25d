"""The sentence encoder all-MiniLM-L6-v2 in plain JAX: BERT with six layers, mean pooling, unit length.

``embedding_pipeline_step`` is the entry of the job files beside this module. The layers are one scan over stacked
parameters. Query, key and value keep the size of their heads, 32, as a dimension: arrays whose TPU layouts are of
interest, since a minor dimension of 32 would be padded to 128.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

import migrate

LAYERS, WIDTH, HEADS, INNER, POSITIONS = 6, 384, 12, 1536, 512
VOCABULARY = 30528
"""30,522 tokens, and six rows of zeros, so that the table divides among devices."""
EPSILON = 1e-12


def embedding_pipeline_step(mesh: Mesh, *, batch: int, length: int, dtype: DTypeLike) -> migrate.Program:
    """The encoder of ``batch`` texts of at most ``length`` tokens, with weights of ``dtype``.

    The mesh has the axes ``data``, for the batch, and ``model``, for heads, inner dimension and vocabulary.
    """

    def struct(shape: tuple[int, ...], dtype: DTypeLike, *axes: str | None) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec(*axes)))

    def weight(shape: tuple[int, ...], *axes: str | None) -> jax.ShapeDtypeStruct:
        return struct(shape, dtype, *axes)

    def norm(*shape: int) -> dict[str, Any]:
        return {"weight": weight(shape), "bias": weight(shape)}

    size = WIDTH // HEADS
    projection = {
        "weight": weight((LAYERS, WIDTH, HEADS, size), None, None, "model"),
        "bias": weight((LAYERS, HEADS, size), None, "model"),
    }
    params = {
        "embeddings": {
            "word": weight((VOCABULARY, WIDTH), "model"),
            "position": weight((POSITIONS, WIDTH)),
            "token_type": weight((2, WIDTH)),
            "norm": norm(WIDTH),
        },
        "layers": {
            "query": projection,
            "key": projection,
            "value": projection,
            "out": {
                "weight": weight((LAYERS, HEADS, size, WIDTH), None, "model"),
                "bias": weight((LAYERS, WIDTH)),
            },
            "attention_norm": norm(LAYERS, WIDTH),
            "up": {
                "weight": weight((LAYERS, WIDTH, INNER), None, None, "model"),
                "bias": weight((LAYERS, INNER), None, "model"),
            },
            "down": {"weight": weight((LAYERS, INNER, WIDTH), None, "model"), "bias": weight((LAYERS, WIDTH))},
            "output_norm": norm(LAYERS, WIDTH),
        },
    }
    tokens = struct((batch, length), jnp.int32, "data")
    return migrate.Program(embedding_pipeline_step_fn, (params, tokens, tokens), parameters=0)


def embedding_pipeline_step_fn(params: Any, tokens: jax.Array, mask: jax.Array) -> jax.Array:
    """Embeddings f32[batch, 384] of unit length for ``tokens`` s32[batch, length]; ``mask`` is 1 at tokens, else 0."""
    table = params["embeddings"]
    positions = table["position"][: tokens.shape[1]]
    hidden = _normalise(table["word"][tokens] + positions + table["token_type"][0], table["norm"])
    shut = jnp.where(mask[:, None, None, :] > 0, 0.0, -1e9)

    def layer(hidden: jax.Array, weights: Any) -> tuple[jax.Array, None]:
        query, key, value = (
            jnp.einsum("btd,dhs->bhts", hidden, weights[name]["weight"]) + weights[name]["bias"][:, None]
            for name in ("query", "key", "value")
        )
        scores = jnp.einsum("bhts,bhus->bhtu", query, key, preferred_element_type=jnp.float32)
        attention = jax.nn.softmax(scores * query.shape[-1] ** -0.5 + shut).astype(hidden.dtype)
        mixed = jnp.einsum("bhtu,bhus->bths", attention, value)
        out = jnp.einsum("bths,hsd->btd", mixed, weights["out"]["weight"]) + weights["out"]["bias"]
        hidden = _normalise(hidden + out, weights["attention_norm"])
        inner = jax.nn.gelu(hidden @ weights["up"]["weight"] + weights["up"]["bias"], approximate=False)
        out = inner @ weights["down"]["weight"] + weights["down"]["bias"]
        return _normalise(hidden + out, weights["output_norm"]), None

    hidden, _ = jax.lax.scan(layer, hidden, params["layers"])
    weight = mask[..., None].astype(jnp.float32)
    # a row that pads the batch has no tokens
    mean = (hidden * weight).sum(1) / jnp.maximum(weight.sum(1), 1)
    return mean / jnp.maximum(jnp.linalg.norm(mean, axis=-1, keepdims=True), EPSILON)


def _normalise(hidden: jax.Array, norm: Any) -> jax.Array:
    """Layer normalisation, computed in float32."""
    wide = hidden.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    scaled = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + EPSILON)
    return (scaled * norm["weight"] + norm["bias"]).astype(hidden.dtype)
