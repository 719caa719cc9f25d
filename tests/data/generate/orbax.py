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

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Python puts this file's directory first, where the file itself would be taken for the package `orbax`.
HERE = Path(__file__).resolve().parent
sys.path[:] = [*(entry for entry in sys.path if Path(entry or ".").resolve() != HERE), str(HERE / "shared")]
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
import orbax.checkpoint as ocp
from common import make_tree, run, save_what_is_accepted, write_leaves


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


def make(variant: str, folder: Path) -> None:
    """Make one variant."""
    packages = ("jax", "orbax-checkpoint", "numpy")
    if variant == "items":
        tree = make_items()
        save_items(folder / "ckpt", tree)
        write_leaves(folder, tree, packages)
    else:
        tree, rejected = save_what_is_accepted(VARIANTS[variant], folder)
        write_leaves(folder, tree, packages, rejected)


if __name__ == "__main__":
    run(make, list(VARIANTS))
