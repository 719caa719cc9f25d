"""The demo decoder with a learnt prefix (prefix tuning), whose keys and values are weights.

With head_dim 40 they are laid out like a key/value cache, and libtpu 0.0.52 lays those out in another dimension order.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import Mesh

from migrate.demo import model
from migrate.program import Program


def decode_step(mesh: Mesh, *, batch: int, sequence: int, **sizes: int) -> Program:
    decoder = model.decode_step(mesh, batch=batch, sequence=sequence, **sizes)
    params, cache, tokens, position = decoder.arguments
    return Program(_logits, ({"decoder": params, "prefix": cache}, tokens, position), parameters=0)


def _logits(params: Any, tokens: jax.Array, position: jax.Array) -> jax.Array:
    return model.decode(params["decoder"], params["prefix"], tokens, position)[0]
