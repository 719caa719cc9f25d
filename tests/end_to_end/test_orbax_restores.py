"""Stock Orbax restores an export's parameters, whatever target they were laid out for."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

import migrate

from .test_load import Exports, assert_equal_trees, checkpoint_tree


def as_numpy(path: str) -> Any:
    """PyTreeCheckpointer without arguments: no device of the target is needed."""
    return ocp.PyTreeCheckpointer().restore(path)


def standard(path: str) -> Any:
    return ocp.StandardCheckpointer().restore(path)


def standard_resharded(path: str) -> Any:
    """StandardCheckpointer onto a mesh of this process."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    metadata = ocp.PyTreeCheckpointer().metadata(path).item_metadata.tree

    def target(leaf: Any) -> jax.ShapeDtypeStruct:
        axes = ("x",) if leaf.shape and leaf.shape[0] % 8 == 0 else ()
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return ocp.StandardCheckpointer().restore(path, jax.tree.map(target, metadata))


def v1_load(path: str) -> Any:
    import orbax.checkpoint.experimental.v1 as ocp1

    return ocp1.load(path)


@pytest.mark.parametrize("topology", ["v5e:2x4", "cpu:8"])
@pytest.mark.parametrize("model", ["small", "decoder"])
@pytest.mark.parametrize("restore", [as_numpy, standard, standard_resharded, v1_load])
def test_restore(
    restore: Callable[[str], Any],
    model: str,
    topology: str,
    exports: Exports,
    old_checkpoint: Path,
    decoder_checkpoint: Path,
) -> None:
    export = exports(model, topology)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Orbax about its own API generations
        restored = restore(export.parameters_uri)
    checkpoint = old_checkpoint if model == "small" else decoder_checkpoint
    expected = checkpoint_tree(checkpoint, "params")
    assert_equal_trees(jax.tree.map(np.asarray, restored), expected)


def test_our_own_sources_read_it_too(exports: Exports, old_checkpoint: Path) -> None:
    """An export's parameters are a checkpoint like any other: the next re-export can start from them."""
    again = migrate.open_checkpoint(exports("small", "v5e:2x4").parameters_uri)
    original = {leaf.name: leaf for leaf in migrate.open_checkpoint(str(old_checkpoint)).leaves}
    assert len(again.leaves) == 10
    for leaf in again.leaves:
        assert leaf.read().tobytes() == original[f"params/{leaf.name}"].read().tobytes()
