# /// script
# requires-python = ">=3.11"
# dependencies = ["jax==0.10.2", "tensorstore==0.1.86", "ml_dtypes", "numpy"]
# ///
"""Make checkpoints of ``jax.experimental.array_serialization``, with the installed versions.

    python jax_arrays.py OUTPUT_DIR VARIANT [VARIANT ...]

Output and ``leaves.json`` are as of ``orbax.py``; the tree has arrays only, but for ``pytree``. Versions each variant
was tried with:

- ``new``: jax 0.10.2, tensorstore 0.1.86, numpy 2;
- ``old``: jax 0.4.30, tensorstore 0.1.64, numpy 1.26.

===========  ============================================================  ========
variant      what is written                                               versions
===========  ============================================================  ========
directories  ``GlobalAsyncCheckpointManager``, a directory an array        new, old
database     the same into one OCDBT database, ``db``, keys with dots      new, old
pytree       ``pytree_serialization.save``; leaves out chunks of zeros     new
===========  ============================================================  ========
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:] = [*(entry for entry in sys.path if Path(entry or ".").resolve() != HERE), str(HERE / "shared")]
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
from common import make_tree, run, save_what_is_accepted, walk, write_leaves
from jax.experimental.array_serialization import serialization


def arrays_only(value: Any) -> Any:
    """The tree without what this form cannot hold: everything but plain ``jax.Array``; None if nothing is left."""
    if isinstance(value, dict):
        kept = {key: arrays_only(child) for key, child in value.items()}
        return {key: child for key, child in kept.items() if child is not None} or None
    if isinstance(value, (list, tuple)):
        return type(value)(arrays_only(child) for child in value) or None
    plain = isinstance(value, jax.Array) and not jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended)
    return value if plain else None


def save_arrays(path: Path, tree: Any, *, ocdbt: bool) -> None:
    """One array for each leaf, named like its path."""
    named = {".".join(map(str, keys)) if ocdbt else "/".join(map(str, keys)): leaf for keys, leaf in flat(tree)}
    root = path / "db" if ocdbt else path
    specs = [serialization.get_tensorstore_spec(str(root / name), ocdbt=ocdbt) for name in named]
    manager = serialization.GlobalAsyncCheckpointManager()
    manager.serialize(list(named.values()), specs, on_commit_callback=lambda: None)
    manager.wait_until_finished()


def flat(tree: Any) -> list[tuple[list[Any], Any]]:
    """(keys, leaf) of every leaf."""
    return [([key for _, key in path], leaf) for path, leaf in walk(tree)]


def save_pytree(path: Path, tree: Any) -> None:
    """The form with a tree file, which has its own notion of what may be saved."""
    from jax.experimental.array_serialization import pytree_serialization

    pytree_serialization.save(tree, path)


def make(variant: str, folder: Path) -> None:
    """Make one variant."""
    packages = ("jax", "tensorstore", "numpy")
    if variant == "pytree":
        tree, rejected = save_what_is_accepted(save_pytree, folder)
        write_leaves(folder, tree, packages, rejected)
    else:
        tree = arrays_only(make_tree())
        save_arrays(folder / "ckpt", tree, ocdbt=variant == "database")
        write_leaves(folder, tree, packages)


if __name__ == "__main__":
    run(make, ["directories", "database", "pytree"])
