# /// script
# requires-python = ">=3.11"
# dependencies = ["safetensors==0.8.0", "jax==0.10.2", "ml_dtypes", "numpy"]
# ///
"""Make safetensors files with the installed version of the `safetensors` package.

    python safetensors.py OUTPUT_DIR VARIANT [VARIANT ...]

Output and ``leaves.json`` are as of ``orbax.py``; a name is one key, dots and all. Versions each variant was tried
with: safetensors 0.8.0 (``new``) and 0.4.3 with ml_dtypes 0.4.1 (``old``; without complex64, float8_e8m0fnu and the fnuz kinds).

=======  ==================================================================  ========
variant  what is written                                                     versions
=======  ==================================================================  ========
single   one file with metadata                                              new, old
sharded  two files and an index                                              new, old
dtypes   an array of every dtype the package takes, and odd shapes           new, old
=======  ==================================================================  ========
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

# Python puts this file's directory first, where the file itself would be taken for the package `safetensors`.
HERE = Path(__file__).resolve().parent
sys.path[:] = [*(entry for entry in sys.path if Path(entry or ".").resolve() != HERE), str(HERE / "shared")]
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import ml_dtypes
import numpy as np
from common import run, write_leaves
from safetensors.numpy import save_file

CODES = {
    "bool": np.bool_,
    "uint8": np.uint8,
    "int8": np.int8,
    "uint16": np.uint16,
    "int16": np.int16,
    "uint32": np.uint32,
    "int32": np.int32,
    "uint64": np.uint64,
    "int64": np.int64,
    "float16": np.float16,
    "float32": np.float32,
    "float64": np.float64,
    "bfloat16": ml_dtypes.bfloat16,
    "complex64": np.complex64,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "float8_e8m0fnu": getattr(ml_dtypes, "float8_e8m0fnu", None),
}
Arrays = dict[str, np.ndarray]


def make_model() -> Arrays:
    """Names as model hubs have them."""
    random = np.random.default_rng(3)

    def array(*shape: int, dtype: Any = ml_dtypes.bfloat16) -> np.ndarray:
        return random.normal(size=shape).astype(dtype)

    layers = {
        f"model.layers.{layer}.{name}": array(*shape)
        for layer in range(3)
        for name, shape in {"self_attn.q_proj.weight": (16, 8), "mlp.up_proj.weight": (24, 8)}.items()
    }
    norms = {"model.norm.weight": array(8, dtype=np.float32)}
    return {"model.embed_tokens.weight": array(32, 8), **layers, **norms, "step": np.array(7, np.int64)}


def make_every_dtype() -> Arrays:
    """One array a dtype, and the shapes that are easily got wrong."""
    values = np.arange(24).reshape(2, 3, 4)
    arrays = {name: values.astype(dtype) for name, dtype in CODES.items() if dtype is not None}
    arrays["scalar"] = np.array(2.5)
    arrays["scalar_bool"] = np.array(True)
    arrays["empty"] = np.zeros((0, 3), np.int8)
    arrays["empty_inside"] = np.zeros((2, 0, 3), ml_dtypes.bfloat16)
    arrays["slash/name with space %41 é"] = np.arange(3, dtype=np.uint8)
    return arrays


def save_sharded(folder: Path, arrays: Arrays) -> None:
    """Two files of about equal bytes, and the index that model hubs put beside them."""
    names = list(arrays)
    parts = [names[: len(names) // 2], names[len(names) // 2 :]]
    files = {f"model-{part + 1:05}-of-00002.safetensors": chosen for part, chosen in enumerate(parts)}
    for file, chosen in files.items():
        save_file({name: arrays[name] for name in chosen}, folder / file, {"format": "flax"})
    index = {
        "metadata": {"total_size": sum(array.nbytes for array in arrays.values())},
        "weight_map": {name: file for file, chosen in files.items() for name in chosen},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))


def what_is_accepted(folder: Path, arrays: Arrays) -> tuple[Arrays, dict[str, str]]:
    """(the arrays the installed version takes, what it said of each of the others)."""
    rejected = {}
    for name, array in arrays.items():
        try:
            save_file({name: array}, folder / "trial")
        except Exception as error:  # versions differ in what they raise
            rejected[name] = f"{type(error).__name__}: {error}"[:200]
    (folder / "trial").unlink()
    return {name: array for name, array in arrays.items() if name not in rejected}, rejected


def make(variant: str, folder: Path) -> None:
    """Make one variant."""
    checkpoint = folder / "ckpt"
    checkpoint.mkdir()
    arrays, rejected = make_model(), {}
    if variant == "sharded":
        save_sharded(checkpoint, arrays)
    elif variant == "single":
        save_file(arrays, checkpoint / "model.safetensors", {"format": "flax"})
    else:
        arrays, rejected = what_is_accepted(checkpoint, make_every_dtype())
        save_file(arrays, checkpoint / "model.safetensors")
    write_leaves(folder, arrays, ("safetensors", "ml_dtypes", "numpy"), rejected)


if __name__ == "__main__":
    run(make, ["single", "sharded", "dtypes"])
