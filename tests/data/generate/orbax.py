# /// script
# requires-python = ">=3.11"
# dependencies = ["jax==0.10.2", "orbax-checkpoint==0.12.8", "ml_dtypes", "numpy"]
# ///
"""Make a family of Orbax checkpoints like the old ones in this directory, with the installed versions.

    python orbax.py OUTPUT_DIR VARIANT [VARIANT ...]

Each variant becomes ``OUTPUT_DIR/<variant>/ckpt`` and ``OUTPUT_DIR/<variant>/leaves.json``, which lists every leaf:
key path, kind, dtype, shape and SHA-256 of its C-order bytes. Eight CPU devices are forced, so that most arrays are
sharded. What the installed version refuses to save is left out and listed under ``rejected_leaves``.

Variants, and the versions each was tried with (``pip install jax==X jaxlib==X orbax-checkpoint==Y``):

- ``new``: jax 0.10.2, orbax 0.12.8, numpy 2;
- ``old``: jax 0.4.30, orbax 0.5.23, tensorstore 0.1.64, numpy 1.26. Here ``zarr3`` and ``ocdbt_zarr3`` leave out chunks
  that hold only zeros, and random keys are refused.

===========  =========================================================  ========
variant      what is written                                            versions
===========  =========================================================  ========
zarr         Zarr v2, a directory an array                              new, old
ocdbt        Zarr v2 in one OCDBT database                              new, old
zarr3        Zarr v3, a directory an array                              new, old
ocdbt_zarr3  Zarr v3 in one OCDBT database                              new, old
manager      steps 1 and 2 with items params, state and extra (JSON)    new, old
standard     StandardCheckpointer                                       new, old
items        a step of single arrays and random keys, each an item      new, old
v1           orbax.checkpoint.v1 or experimental.v1                     new
===========  =========================================================  ========

Versions before 0.4 (a msgpack tree file, with ``PLACEHOLDER://`` strings or the arrays themselves) have other
constructors; their checkpoints are kept in ``orbax.tar.xz`` and are not remade.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Python puts this file's directory first, where the file itself would be taken for the package `orbax`.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

SHAPES: dict[str, tuple[tuple[int, ...], Any, tuple[Any, ...]]] = {
    # name: shape, dtype, partition
    "embed": ((16, 8), jnp.float32, ("data", "model")),
    "kernel": ((8, 12), jnp.bfloat16, (None, "data")),
    "bias": ((12,), jnp.float32, ()),
    "rows": ((16, 6), jnp.float32, (("data", "model"), None)),
    "quantised": ((8, 8), jnp.int8, ("model", "data")),
    "mask": ((8,), jnp.bool_, ("data",)),
    "cube": ((4, 6, 2), jnp.float16, ("data", None, "model")),
}


def make_tree() -> dict[str, Any]:
    """A tree with every kind of leaf and container that a training state has."""
    devices = np.array(jax.devices()).reshape(4, 2)
    mesh = Mesh(devices, ("data", "model"))
    random = np.random.default_rng(7)

    def array(shape: tuple[int, ...], dtype: Any, partition: tuple[Any, ...]) -> jax.Array:
        # Cast by NumPy: the compilers of old versions die on some of these dtypes.
        values = np.asarray(random.normal(size=shape) * 8).astype(np.dtype(dtype))
        return jax.device_put(values, NamedSharding(mesh, PartitionSpec(*partition)))

    return {
        "params": {name: array(*spec) for name, spec in SHAPES.items()},
        "layers": [{"w": array((4, 4), jnp.float32, ("data",))} for _ in range(2)],
        "pair": (array((4,), jnp.float32, ()), array((2, 3), jnp.int32, ())),
        "count": array((), jnp.int32, ()),
        "x": {
            "zeros": jax.device_put(jnp.zeros((8, 2)), NamedSharding(mesh, PartitionSpec("data"))),
            "f8": array((4, 4), ml_dtypes.float8_e4m3fn, ("data",)),
            "int4": array((8, 2), jnp.int4, ("data",)),
            "complex": array((4,), jnp.complex64, ()),
            "prng_key": jax.random.key(3),
            "numpy": np.arange(3, dtype=np.int64),
            "py_int": 7,
            "py_float": 0.001,
            "py_str": "hello",
            "none": None,
            "empty_dict": {},
            "empty_list": [],
            "dot.key": array((3,), jnp.float32, ()),
            "slash/key": array((3,), jnp.float32, ()),
            "space key%41": array((3,), jnp.float32, ()),
        },
    }


def walk(tree: Any, path: tuple[list[Any], ...] = ()) -> Iterator[tuple[tuple[list[Any], ...], Any]]:
    """(key path, leaf) of everything that is not a filled container."""
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from walk(value, (*path, ["dict", key]))
    elif isinstance(tree, (list, tuple)) and tree:
        for index, value in enumerate(tree):
            yield from walk(value, (*path, [type(tree).__name__, index]))
    else:
        yield path, tree


def describe(leaf: Any) -> dict[str, Any]:
    """What leaves.json says of one leaf."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return {"kind": "prng_key", "impl": str(jax.random.key_impl(leaf)), **describe_array(jax.random.key_data(leaf))}
    if isinstance(leaf, (jax.Array, np.ndarray)):
        return {"kind": "jax" if isinstance(leaf, jax.Array) else "np", **describe_array(leaf)}
    if leaf is None or leaf in ({}, [], ()):
        return {"kind": "none" if leaf is None else f"empty_{type(leaf).__name__}"}
    return {"kind": f"py_{type(leaf).__name__}", "value": leaf}


def describe_array(array: Any) -> dict[str, Any]:
    """dtype, shape and digest of the C-order bytes."""
    values = np.asarray(array)
    digest = hashlib.sha256(values.tobytes()).hexdigest()
    return {"dtype": str(values.dtype), "shape": list(values.shape), "nbytes": values.nbytes, "sha256": digest}


def save_pytree(path: Path, tree: Any, *, ocdbt: bool, zarr3: bool) -> None:
    """One item, in files or in a database."""
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=ocdbt, use_zarr3=zarr3)
    ocp.Checkpointer(handler).save(path, args=ocp.args.PyTreeSave(tree))


def save_standard(path: Path, tree: Any) -> None:
    """One item through the checkpointer most examples use."""
    checkpointer = ocp.StandardCheckpointer()
    checkpointer.save(path, tree)
    if hasattr(checkpointer, "wait_until_finished"):  # newer versions save in the background
        checkpointer.wait_until_finished()


def save_manager(path: Path, tree: Any) -> None:
    """Two steps of three items."""
    # Not closed: in 0.12 that also shuts down a thread which the next manager of the process needs.
    manager = ocp.CheckpointManager(path, item_names=("params", "state", "extra"))
    for step in (1, 2):
        items = ocp.args.Composite(
            params=ocp.args.PyTreeSave(tree["params"]),
            state=ocp.args.StandardSave({key: value for key, value in tree.items() if key != "params"}),
            extra=ocp.args.JsonSave({"epoch": step}),
        )
        manager.save(step, args=items)
        manager.wait_until_finished()


def save_v1(path: Path, tree: Any) -> None:
    """The newer interface, whose module moved."""
    for name in ("orbax.checkpoint.v1", "orbax.checkpoint.experimental.v1"):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        # The name of the function changed too.
        save = getattr(module, "save", None) or module.save_pytree
        save(path, tree)
        return
    raise ImportError("this Orbax has no v1 interface")


def make_items() -> dict[str, Any]:
    """What each item of the variant ``items`` holds, by the names its arrays get."""
    tree = make_tree()
    numpy_key = np.random.RandomState(5).get_state(legacy=False)
    return {
        "params": tree["params"],
        "table": {"checkpoint": tree["params"]["embed"]},
        "numbers": {"checkpoint": np.arange(5, dtype=np.int16)},
        "number": {"checkpoint": 3},
        "jax_key": {"checkpoint": jax.random.key(7)},
        "jax_words": {"checkpoint": jax.random.PRNGKey(7)},
        "numpy_tuple": (numpy_key["bit_generator"], numpy_key["state"]["key"], numpy_key["state"]["pos"], 0, 0.0),
        "numpy_mapping": {**numpy_key, "gauss": 0.0},
    }


def save_items(path: Path, tree: Any) -> None:
    """Items that are no trees: arrays and random keys."""
    handlers = {"params": ocp.args.StandardSave, "jax": ocp.args.JaxRandomKeySave, "numpy": ocp.args.NumpyRandomKeySave}
    items = {}
    for name, value in tree.items():
        handler = handlers.get(name.split("_")[0], ocp.args.ArraySave)
        whole = name == "params" or name.startswith("numpy_")
        items[name] = handler(value if whole else value["checkpoint"])
    manager = ocp.CheckpointManager(path, item_names=tuple(items))
    manager.save(4, args=ocp.args.Composite(**items))
    manager.wait_until_finished()


VARIANTS: dict[str, Callable[[Path, Any], None]] = {
    "zarr": lambda path, tree: save_pytree(path, tree, ocdbt=False, zarr3=False),
    "ocdbt": lambda path, tree: save_pytree(path, tree, ocdbt=True, zarr3=False),
    "zarr3": lambda path, tree: save_pytree(path, tree, ocdbt=False, zarr3=True),
    "ocdbt_zarr3": lambda path, tree: save_pytree(path, tree, ocdbt=True, zarr3=True),
    "manager": save_manager,
    "standard": save_standard,
    "v1": save_v1,
    "items": save_items,
}


def save_what_is_accepted(save: Callable[[Path, Any], None], folder: Path) -> tuple[Any, dict[str, str]]:
    """(the tree that was saved, what each leaf that was refused alone was refused for)."""
    if save is save_items:
        tree = make_items()
        save(folder / "ckpt", tree)
        return tree, {}
    tree, rejected = make_tree(), {}
    for name in list(tree["x"]):
        trial = {"params": {"w": tree["params"]["bias"]}, "x": {name: tree["x"][name]}}
        try:
            save(folder / "trials" / name.replace("/", "_"), trial)
        except Exception as error:  # versions differ in what they raise
            rejected[name] = f"{type(error).__name__}: {error}"[:200]
            del tree["x"][name]
    shutil.rmtree(folder / "trials")
    save(folder / "ckpt", tree)
    return tree, rejected


def main(output: Path, variants: list[str]) -> None:
    """Make each variant."""
    for variant in variants:
        folder = (output / variant).absolute()
        folder.mkdir(parents=True)
        tree, rejected = save_what_is_accepted(VARIANTS[variant], folder)
        leaves = [
            {"path": "/".join(str(key) for _, key in path), "keypath": path, **describe(leaf), "on_disk": {}}
            for path, leaf in walk(tree)
        ]
        versions = {"jax": jax.__version__, "orbax-checkpoint": ocp.__version__, "numpy": np.__version__}
        described = {"name": variant, "versions": versions, "rejected_leaves": rejected, "leaves": leaves}
        (folder / "leaves.json").write_text(json.dumps(described, indent=1))
        sys.stdout.write(f"{variant}: {len(leaves)} leaves, {len(rejected)} rejected\n")


if __name__ == "__main__":
    if len(sys.argv) < 3 or set(sys.argv[2:]) - set(VARIANTS):
        raise SystemExit(f"usage: {sys.argv[0]} OUTPUT_DIR VARIANT...; variants: {', '.join(VARIANTS)}")
    main(Path(sys.argv[1]), sys.argv[2:])
