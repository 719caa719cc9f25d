# /// script
# requires-python = ">=3.11"
# dependencies = ["jax==0.10.2", "flax==0.12.8", "orbax-checkpoint==0.12.8", "ml_dtypes", "numpy"]
# ///
"""Make a family of Flax checkpoints like the old ones in this directory, with the installed versions.

    python flax.py OUTPUT_DIR VARIANT [VARIANT ...]

Output and ``leaves.json`` are as of ``orbax.py``. Versions each variant was tried with (``pip install jax==X jaxlib==X
flax==Y orbax-checkpoint==Z``):

- ``new``: jax 0.10.2, flax 0.12.8, orbax 0.12.8, numpy 2;
- ``old``: jax 0.4.30, flax 0.8.5, orbax 0.5.23, tensorstore 0.1.64, numpy 1.26.

===============  ================================================================  ========
variant          what is written                                                   versions
===============  ================================================================  ========
msgpack          one msgpack file, ``checkpoint_10``                               new, old
msgpack_chunked  the same, its larger arrays cut into pieces: the limit for that,  new, old
                 1 GiB, is lowered
steps            the files of steps 1, 2 and 10, the last of which is listed       new, old
orbax            through Orbax, as newer versions do by default                    new, old
===============  ================================================================  ========

The arrays beside a file, which multi-process runs of 0.6 wrote, are kept in ``flax.tar.xz`` and are not remade.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Python puts this file's directory first, where the file itself would be taken for the package `flax`.
HERE = Path(__file__).resolve().parent
sys.path[:] = [*(entry for entry in sys.path if Path(entry or ".").resolve() != HERE), str(HERE / "shared")]
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import flax
from common import run, save_what_is_accepted, write_leaves
from flax.training import checkpoints

CHUNK_BYTES = 200


def save_file(path: Path, tree: Any, *, steps: tuple[int, ...] = (10,)) -> None:
    """The files that were there before Flax used Orbax."""
    flax.config.update("flax_use_orbax_checkpointing", False)
    for step in steps:
        checkpoints.save_checkpoint(path, tree, step=step, keep=len(steps))


def save_chunked(path: Path, tree: Any) -> None:
    """As if the arrays were above the limit."""
    limit = flax.serialization.MAX_CHUNK_SIZE
    flax.serialization.MAX_CHUNK_SIZE = CHUNK_BYTES
    try:
        save_file(path, tree)
    finally:
        flax.serialization.MAX_CHUNK_SIZE = limit


def save_through_orbax(path: Path, tree: Any) -> None:
    """The default of newer versions."""
    flax.config.update("flax_use_orbax_checkpointing", True)
    checkpoints.save_checkpoint(path, tree, step=10)


VARIANTS: dict[str, Callable[[Path, Any], None]] = {
    "msgpack": save_file,
    "msgpack_chunked": save_chunked,
    "steps": lambda path, tree: save_file(path, tree, steps=(1, 2, 10)),
    "orbax": save_through_orbax,
}


def make(variant: str, folder: Path) -> None:
    """Make one variant."""
    tree, rejected = save_what_is_accepted(VARIANTS[variant], folder)
    write_leaves(folder, tree, ("jax", "flax", "orbax-checkpoint", "numpy"), rejected)


if __name__ == "__main__":
    run(make, list(VARIANTS))
