# /// script
# requires-python = ">=3.11"
# dependencies = ["jax==0.10.2", "flax==0.12.8", "tensorstore==0.1.86", "ml_dtypes", "numpy"]
# ///
"""Make checkpoints in the format of T5X, which is not on PyPI, with the installed versions.

    python t5x.py OUTPUT_DIR VARIANT [VARIANT ...]

Written after what T5X documents of its format, not by T5X. A step is a directory: ``checkpoint`` is a msgpack file of
``{"version": ..., "optimizer": tree}`` in which a partitioned array is a TensorStore spec with a relative path, and
each such array is a gzip-compressed Zarr v2 directory named like its path, joined with dots. Output and
``leaves.json`` are as of ``orbax.py``.

Variants: ``v3``; ``v2``, which stores bfloat16 as uint16. Tried with jax 0.10.2, flax 0.12.8, tensorstore 0.1.86, and
with jax 0.4.30, flax 0.8.5, tensorstore 0.1.64.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:] = [*(entry for entry in sys.path if Path(entry or ".").resolve() != HERE), str(HERE / "shared")]
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import ml_dtypes
import numpy as np
import tensorstore as ts
from common import run, write_leaves
from flax import serialization

STEP = 1000


def make_state() -> dict[str, Any]:
    """Parameters, and the factored statistics an Adafactor keeps of one of them."""
    random = np.random.default_rng(5)

    def array(*shape: int, dtype: Any = np.float32) -> np.ndarray:
        return random.normal(size=shape).astype(dtype)

    layer = {
        "attention": {"query": {"kernel": array(8, 16)}},
        "mlp": {"wi": {"kernel": array(8, 24, dtype=ml_dtypes.bfloat16)}},
        "norm": {"scale": array(8)},
    }
    return {
        "target": {"token_embedder": {"embedding": array(32, 8)}, "encoder": {"layers_0": layer}},
        "state": {
            "step": np.array(STEP, np.int32),
            "param_states": {"token_embedder": {"embedding": {"v_row": array(32), "v_col": array(8)}}},
        },
    }


def save_array(folder: Path, name: str, array: np.ndarray, *, bfloat16_as_uint16: bool) -> dict[str, Any]:
    """Write one array; its spec for the tree."""
    chunks = [max(1, extent // 2) if extent > 8 else extent for extent in array.shape]
    metadata = {"chunks": chunks, "compressor": {"id": "gzip", "level": 1}, "shape": list(array.shape)}
    stored = array.view(np.uint16) if bfloat16_as_uint16 and array.dtype == ml_dtypes.bfloat16 else array
    kvstore = {"driver": "file", "path": f"{folder / name}/"}
    spec = {"driver": "zarr", "kvstore": kvstore, "metadata": metadata, "dtype": str(stored.dtype), "create": True}
    ts.open(spec).result().write(stored).result()
    return {
        "driver": "zarr",
        "dtype": str(array.dtype),
        "kvstore": {**kvstore, "path": f"{name}/"},
        "metadata": metadata,
    }


def make(variant: str, folder: Path) -> None:
    """Make one variant."""
    step = folder / "ckpt" / f"checkpoint_{STEP}"
    step.mkdir(parents=True)
    state = make_state()

    def specs(value: Any, path: tuple[str, ...] = ()) -> Any:
        if isinstance(value, dict):
            return {key: specs(child, (*path, key)) for key, child in value.items()}
        if not value.shape:
            return value
        return save_array(step, ".".join(path), value, bfloat16_as_uint16=variant == "v2")

    tree = {"version": int(variant[1:]), "optimizer": specs(state)}
    (step / "checkpoint").write_bytes(serialization.msgpack_serialize(tree))
    write_leaves(folder, state, ("jax", "flax", "tensorstore", "numpy"))


if __name__ == "__main__":
    run(make, ["v2", "v3"])
