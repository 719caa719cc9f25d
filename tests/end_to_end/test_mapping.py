"""A model whose code has changed since its checkpoint was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest

import migrate

from .conftest import reexport, small_job, write_job
from .test_load import assert_equal_trees, checkpoint_tree

MODEL = """
import jax, jax.numpy as jnp, migrate
from jax.sharding import NamedSharding, PartitionSpec as P


def step(mesh):
    def struct(shape, dtype, *axes):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*axes)))

    params = {
        "blocks": {"w": struct((3, 4, 4), jnp.bfloat16, None, "model")},
        "vocab": struct((20, 8), jnp.float32, "model"),
        "head": struct((8, 20), jnp.float32, None, "model"),
        "heads": struct((8, 3, 4), jnp.bfloat16),
        "adapter": struct((4,), jnp.float32),
    }
    tokens = struct((8,), jnp.int32, "data")
    return migrate.Program(lambda params, tokens: params["vocab"][tokens] @ params["head"], (params, tokens))
"""
MAPPING = [
    {"stack": r"layers/(?P<layer>\d+)/w", "to": "blocks/w"},
    {"cast": "blocks/.*", "dtype": "bfloat16", "overflow": "saturate"},
    {"rename": "params/embed/table", "to": "vocab"},
    {"pad": "vocab", "axis": 0, "length": 20, "fill": 0},
    {"tie": "vocab", "to": ["vocab", "head"]},
    {"transpose": "head", "axes": [1, 0]},
    {"rename": "params/dense/kernel", "to": "heads"},
    {"reshape": "heads", "shape": [8, 3, 4]},
    {"init": "adapter", "value": 1},
]


@pytest.fixture
def changed_model(old_checkpoint: Path, tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "model.py").write_text(MODEL)
    job = small_job(old_checkpoint, tmp_path / "out", "cpu:8")
    job["source"] = {"path": str(old_checkpoint), "carry": True}
    # small items, so that boxes of views are read and not whole arrays
    job["python_path"] = [str(tmp_path)]
    return {**job, "program": {"entry": "model:step"}, "mapping": MAPPING, "rewrite": {"max_item_bytes": 64}}


def test_changed_model(changed_model: dict[str, Any], old_checkpoint: Path, tmp_path: Path) -> None:
    job = write_job(changed_model, tmp_path)
    plan = json.loads(reexport("plan", job, "--json").stdout)
    sources = {"/".join(array["path"]): array["source"] for array in plan["arrays"]}
    assert sources["blocks/w"] == "layers/0/w and 2 more | stack 0 | cast bfloat16 (saturate)"
    assert sources["head"] == "params/embed/table | pad 0 to 20 with 0 | transpose 1,0"
    assert sources["adapter"] == "init 1"
    assert not plan["idle_rules"]

    done = reexport("run", job)
    assert done.returncode == 0, done.stderr
    assert "carried along unchanged" in done.stdout
    assert reexport("verify", tmp_path / "out").returncode == 0

    params = checkpoint_tree(old_checkpoint, "params")
    layers = checkpoint_tree(old_checkpoint, "layers")
    table = np.concatenate([params["embed"]["table"], np.zeros((4, 8), np.float32)])
    expected = {
        "adapter": np.ones(4, np.float32),
        "blocks": {"w": np.stack([layers[n]["w"] for n in "012"]).astype(ml_dtypes.bfloat16)},
        "head": np.ascontiguousarray(table.T),
        "heads": params["dense"]["kernel"].reshape(8, 3, 4),
        "vocab": table,
    }
    loaded = migrate.load(str(tmp_path / "out"))
    assert_equal_trees(loaded.params, expected)

    # everything else lies beside it, as Orbax and we read it
    carried = ocp.StandardCheckpointer().restore(loaded.export.carried_uri)
    used = {"params/embed/table", "params/dense/kernel", "layers/0/w", "layers/1/w", "layers/2/w"}
    rest = {leaf.name: leaf for leaf in migrate.open_checkpoint(str(old_checkpoint)).leaves if leaf.name not in used}
    again = {leaf.name: leaf for leaf in migrate.open_checkpoint(loaded.export.carried_uri).leaves}
    assert set(again) == set(rest)
    assert len(jax.tree.leaves(carried)) == len(rest)
    for name, leaf in rest.items():
        assert again[name].dtype == leaf.dtype
        assert again[name].read().tobytes() == leaf.read().tobytes()
    np.testing.assert_array_equal(carried["x"]["namedtuple"]["mu"]["w"], rest["x/namedtuple/mu/w"].read())


def test_a_cast_that_overflows_ends_the_run(changed_model: dict[str, Any], tmp_path: Path) -> None:
    """Found while elements are read, in a worker: typed, with array and box, and nothing is committed."""
    changed_model["mapping"] = [
        *(rule for rule in MAPPING if "cast" not in rule),
        {"pad": "blocks/.*", "axis": 0, "length": 4, "fill": 1e39},
        {"slice": "blocks/.*", "axis": 0, "start": 1, "stop": 4},
        {"cast": "blocks/.*", "dtype": "float64"},
        {"rename": "x/np_f64", "to": "unused"},
        {"drop": "unused"},
        {"cast": "blocks/.*", "dtype": "bfloat16"},
    ]
    changed_model["mapping"].insert(1, {"cast": "blocks/.*", "dtype": "float64"})
    with pytest.raises(migrate.errors.CastOverflowError) as caught:
        migrate.run(changed_model)
    assert "16 of 16 elements do not fit into bfloat16" in caught.value.what or "do not fit" in caught.value.what
    assert "layers/0/w and 2 more" in str(caught.value.where)
    assert not list(tmp_path.rglob("COMMIT.json"))


def test_carried_random_keys_stay_keys(tmp_path: Path) -> None:
    state = {"w": np.ones((4,), np.float32), "rng": jax.random.key(42), "keys": jax.random.split(jax.random.key(7), 3)}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "checkpoint", state)
    (tmp_path / "keyless.py").write_text(
        "import jax, migrate\n"
        "def step(mesh):\n"
        "    return migrate.Program(lambda p: p['w'], ({'w': jax.ShapeDtypeStruct((4,), 'float32')},))\n"
    )
    job = small_job(tmp_path / "checkpoint", tmp_path / "out", "cpu:8")
    job["source"] = {"path": str(tmp_path / "checkpoint"), "carry": True}
    export = migrate.run({**job, "program": {"entry": "keyless:step"}, "python_path": [str(tmp_path)]}).export

    kinds = {leaf.name: leaf.prng_impl for leaf in migrate.open_checkpoint(export.carried_uri).leaves}
    assert kinds == {"rng": "threefry2x32", "keys": "threefry2x32"}
    one_device = ocp.ArrayRestoreArgs(
        restore_type=jax.Array, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0])
    )
    restored = ocp.PyTreeCheckpointer().restore(
        export.carried_uri, restore_args={"rng": one_device, "keys": one_device}
    )
    for name in ("rng", "keys"):
        assert jax.dtypes.issubdtype(restored[name].dtype, jax.dtypes.prng_key)
        np.testing.assert_array_equal(jax.random.key_data(restored[name]), jax.random.key_data(state[name]))
