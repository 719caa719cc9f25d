"""Where the demo's arrays lie on a mesh."""

from __future__ import annotations

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike


def named_sharding(mesh: Mesh, shape: tuple[int, ...], axes: tuple[str | None, ...]) -> NamedSharding:
    """Dimension i sharded over mesh axis ``axes[i]``; trailing dimensions are not sharded.

    An axis that the mesh lacks, or whose size does not divide the dimension, is left out: the same model runs on
    every mesh.
    """
    kept = [
        axis if axis in mesh.shape and extent % mesh.shape[axis] == 0 else None
        for extent, axis in zip(shape, axes, strict=False)
    ]
    return NamedSharding(mesh, PartitionSpec(*kept))


def struct(mesh: Mesh, shape: tuple[int, ...], dtype: DTypeLike, *axes: str | None) -> jax.ShapeDtypeStruct:
    """An abstract array placed by :func:`named_sharding`."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=named_sharding(mesh, shape, axes))
