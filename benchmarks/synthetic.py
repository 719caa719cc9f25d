"""Synthetic checkpoints, and plans that rewrite them: bfloat16 arrays as Orbax lays them, row shards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import tensorstore as ts

from migrate import mapping, orbax_metadata, planner, sources
from migrate.arrays import root_database
from migrate.manifest import ArrayRecord
from migrate.signature import ParameterSpec
from migrate.sources import SourceCheckpoint
from migrate.zarr import StoredArray

Shape = tuple[int, ...]
ITEM_BYTES = 2
SHARDED_BYTES = 1 << 20
"""Smaller arrays are replicated, as models do with norms and biases."""
MESH_SHARDS = 8
MAX_SHARD_BYTES = 64 << 20


def shapes(kind: str, scale: float) -> list[Shape]:
    """The arrays of a checkpoint: ``mixed`` is 1.7 GB, ``tiny`` 10,000 arrays of 1 KB, ``single`` one of 8 GB."""

    def count(number: int) -> int:
        return max(1, round(number * scale))

    if kind == "mixed":
        return [
            *[(32, 1024, 1024)] * count(20),
            *[(8, 512, 512)] * count(100),
            *[(64, 64)] * count(1000),
        ]
    if kind == "tiny":
        return [(16, 32)] * count(10_000)
    if kind == "single":
        return [(max(8, round(128 * scale)), 8192, 4096)]
    raise ValueError(kind)


def nbytes(arrays: Sequence[Shape]) -> int:
    """Logical bytes of all arrays."""
    return sum(math.prod(shape) for shape in arrays) * ITEM_BYTES


def shards(shape: Shape) -> int:
    """In how many shards an array lies: those of the mesh, or as many as keep a shard under 64 MiB."""
    size = math.prod(shape) * ITEM_BYTES
    return 1 if size < SHARDED_BYTES else max(MESH_SHARDS, -(-size // MAX_SHARD_BYTES))


def sharded(shape: Shape, axis: int) -> Shape:
    """Shape of a shard cut along ``axis``."""
    return tuple(extent // shards(shape) if d == axis % len(shape) else extent for d, extent in enumerate(shape))


def write_source(directory: Path, arrays: Sequence[Shape]) -> None:
    """An Orbax checkpoint (Zarr v3 in OCDBT, no checksums, C order) of random bits."""
    rng = np.random.default_rng(0)
    records = []
    for number, shape in enumerate(arrays):
        order = tuple(range(len(shape)))
        stored = StoredArray(f"w{number:06}", shape, "bfloat16", sharded(shape, 0), order, "none")
        spec = {
            "driver": "zarr3",
            "kvstore": {**root_database(str(directory)), "path": stored.storage_name + "/"},
            "metadata": {
                **stored.zarr_metadata(),
                "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            },
            "store_data_equal_to_fill_value": True,
        }
        store = ts.open(spec, create=True, context=_CONTEXT).result()
        for box in stored.grid.boxes():
            # normal numbers only: a NaN would not compare equal
            bits = rng.integers(0, 0x4000, box.shape, np.uint16)
            store[box.slices].write(bits.view(ml_dtypes.bfloat16)).result()
        records.append(ArrayRecord("params", (stored.storage_name,), (False,), stored, "", ()))
    (directory / orbax_metadata.TREE_METADATA_KEY).write_bytes(orbax_metadata.tree_metadata(records))


_CODECS = [{"name": "bytes", "configuration": {"endian": "little"}}]
_CONTEXT = ts.Context({"file_io_sync": False})


@dataclass(frozen=True)
class Case:
    """One rewrite."""

    sharded_axis: int
    """The axis along which the target is sharded."""
    reversed: bool
    """Whether its dimensions lie in reverse order."""

    def order(self, rank: int) -> Shape:
        """Dimension order of the target."""
        return tuple(reversed(range(rank))) if self.reversed else tuple(range(rank))


CASES = {"same grid": Case(0, False), "rows to columns": Case(-1, False), "reversed": Case(-1, True)}


def make_plan(source: Path, case: Case) -> tuple[SourceCheckpoint, planner.Plan]:
    """Open the checkpoint and plan the rewrite with the job file's default bounds."""
    checkpoint = sources.open_checkpoint(source)
    parameters = [
        ParameterSpec(
            number=number,
            argument="params",
            path=leaf.path,
            sequence_levels=(False,),
            shape=leaf.shape,
            dtype="bfloat16",
            partition=((),) * len(leaf.shape),
            shard_shape=sharded(leaf.shape, case.sharded_axis),
            major_to_minor=case.order(len(leaf.shape)),
            is_weight=True,
        )
        for number, leaf in enumerate(checkpoint.leaves)
    ]
    plan = planner.make_plan(
        mapping.match(checkpoint.leaves, parameters),
        source_identity=checkpoint.identity,
        max_item_bytes=64 << 20,
        max_chunk_bytes=64 << 20,
    )
    return checkpoint, plan
