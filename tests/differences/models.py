"""Small programs whose layouts are known to change with the target."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from migrate.program import Program


def _struct(mesh: Mesh, shape: tuple[int, ...], dtype: Any, *axes: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec(*axes)))


def quantised(mesh: Mesh, *, rows: int = 512, dtype: str = "int8") -> Program:
    """A weight of eight or four bits, and its scale."""
    weights = {
        "w": _struct(mesh, (rows, 1024), jnp.dtype(dtype), None, "model"),
        "scale": _struct(mesh, (1024,), jnp.float32, "model"),
    }

    def step(params: Any, x: Any) -> Any:
        return x @ params["w"].astype(jnp.bfloat16) * params["scale"].astype(jnp.bfloat16)

    return Program(step, (weights, _struct(mesh, (16, rows), jnp.bfloat16)))


def head(mesh: Mesh) -> Program:
    """A projection to a vocabulary, sharded over it."""
    weights = {"head": _struct(mesh, (256, 2048), jnp.bfloat16, None, "model")}
    return Program(lambda params, x: x @ params["head"], (weights, _struct(mesh, (8, 256), jnp.bfloat16, "data")))


def projection(mesh: Mesh, *, heads: int = 16, head_dim: int = 128) -> Program:
    """Queries of many heads."""
    weights = {"wq": _struct(mesh, (2048, heads, head_dim), jnp.bfloat16, None, "model")}

    def step(params: Any, x: Any) -> Any:
        return jnp.einsum("bd,dhk->bhk", x, params["wq"])

    return Program(step, (weights, _struct(mesh, (8, 2048), jnp.bfloat16, "data")))


def rank2(mesh: Mesh) -> Program:
    """A bfloat16 matrix."""
    weights = {"w": _struct(mesh, (512, 1024), jnp.bfloat16, None, "model")}
    return Program(lambda params, x: x @ params["w"], (weights, _struct(mesh, (16, 512), jnp.bfloat16)))
