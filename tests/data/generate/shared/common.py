"""What the scripts above share: the tree that is saved, and ``leaves.json``, which lists its leaves.

It lies apart from them, where none of them can be taken for the package it is named after.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
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


def save_what_is_accepted(save: Callable[[Path, Any], None], folder: Path) -> tuple[Any, dict[str, str]]:
    """(the tree that was saved, what each leaf that was refused alone was refused for)."""
    tree, rejected = make_tree(), {}
    (folder / "trials").mkdir()
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


def write_leaves(folder: Path, tree: Any, packages: tuple[str, ...], rejected: dict[str, str] | None = None) -> None:
    """Write ``leaves.json`` for a tree that was saved in ``folder``, with the versions of ``packages``."""
    leaves = [
        {"path": "/".join(str(key) for _, key in path), "keypath": path, **describe(leaf), "on_disk": {}}
        for path, leaf in walk(tree)
    ]
    described = {
        "name": folder.name,
        "versions": {package: version(package) for package in packages},
        "rejected_leaves": rejected or {},
        "leaves": leaves,
    }
    (folder / "leaves.json").write_text(json.dumps(described, indent=1))
    sys.stdout.write(f"{folder.name}: {len(leaves)} leaves, {len(rejected or {})} rejected\n")


def run(make: Callable[[str, Path], None], variants: list[str]) -> None:
    """The command line of a script: an output directory, then names of variants."""
    if len(sys.argv) < 3 or set(sys.argv[2:]) - set(variants):
        raise SystemExit(f"usage: {sys.argv[0]} OUTPUT_DIR VARIANT...; variants: {', '.join(variants)}")
    for variant in sys.argv[2:]:
        folder = (Path(sys.argv[1]) / variant).absolute()
        folder.mkdir(parents=True)
        make(variant, folder)
