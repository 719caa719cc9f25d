"""How long planning a model of a trillion parameters takes, and how large what Beam distributes becomes.

The same 2 TB of bfloat16 as 1,500 stacked or 100,000 unstacked arrays, row shards in a bucket, column shards with all
dimensions reversed for a mesh of 4,096 devices. No storage is touched but a temporary directory for the plan file.

    python benchmarks/plan.py
"""

from __future__ import annotations

import pickle
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ml_dtypes
import numpy as np

from migrate import dispatch, mapping, planner
from migrate.commit import CommitRequest, Work
from migrate.manifest import SourceRecord
from migrate.receipt import Destination
from migrate.signature import ParameterSpec
from migrate.sources.base import Leaf
from migrate.sources.readers import tensorstore_reader

MODELS = {"stacked": (1500, (64, 4096, 2560)), "unstacked": (100_000, (4096, 2560))}
SHARDS = 64
"""Along each of two axes: 4,096 devices."""


def model(count: int, shape: tuple[int, ...]) -> tuple[list[Leaf], list[ParameterSpec]]:
    """The leaves of the checkpoint and the parameters of the program."""
    database = {"driver": "ocdbt", "base": {"driver": "gcs", "bucket": "bucket", "path": "checkpoint/"}, "path": ""}
    *outer, rows, columns = shape
    shard = (*outer, rows // SHARDS, columns // SHARDS)
    leaves, parameters = [], []
    for number in range(count):
        path = ("params", f"layer_{number // 8}", f"w{number % 8}")
        name = ".".join(path)
        reader = tensorstore_reader(database, name, "zarr", name="/".join(path), missing_chunks="error")
        leaves.append(Leaf(path, shape, np.dtype(ml_dtypes.bfloat16), reader, (*outer, rows // SHARDS, columns)))
        parameters.append(
            ParameterSpec(
                number=number,
                argument="params",
                path=path,
                sequence_levels=(False,) * 3,
                shape=shape,
                dtype="bfloat16",
                partition=((),) * len(shape),
                shard_shape=shard,
                major_to_minor=tuple(reversed(range(len(shape)))),
                is_weight=True,
            )
        )
    return leaves, parameters


def one(kind: str) -> None:
    """Plan one model, and print what it took."""
    leaves, parameters = model(*MODELS[kind])
    started, cpu = time.perf_counter(), time.process_time()
    plan = planner.make_plan(
        mapping.match(leaves, parameters), source_identity="0" * 64, max_item_bytes=64 << 20, max_chunk_bytes=64 << 20
    )
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sizes = np.array([item.nbytes for item in plan.items])
    with tempfile.TemporaryDirectory() as directory:
        destination = Destination(f"{directory}/params", f"{directory}/carried", f"{directory}/run")
        source = SourceRecord("gs://bucket/checkpoint", "orbax", "", "0" * 64, None, None)
        request = CommitRequest(directory, "0" * 16, plan, source, (), {}, {}, 0.0)
        began = time.perf_counter()
        sent, ranges = dispatch.dispatch("job", Work(plan.items, request, destination))
        dispatched = time.perf_counter() - began
        file_bytes = sum(path.stat().st_size for path in Path(directory).rglob("*") if path.is_file())
    graph = len(pickle.dumps(sent)) * 3 + len(pickle.dumps(ranges))
    print(
        f"{kind:10} {len(plan.arrays):8,} {plan.nbytes / 1e12:5.2f} {seconds:8.2f} {cpu:7.2f} {peak / 1e6:8.0f}"
        f" {len(plan.items):8,} {sizes.min() / 1e6:5.1f} {sizes.mean() / 1e6:5.1f} {sizes.max() / 1e6:5.1f}"
        f" {graph / 1e6:8.3f} {file_bytes / 1e6:8.1f} {dispatched:8.2f}"
    )


def main() -> None:
    if sys.argv[1:]:
        one(sys.argv[1])
        return
    print(
        f"{'model':10} {'arrays':>8} {'TB':>5} {'seconds':>8} {'CPU s':>7} {'peak MB':>8} {'items':>8}"
        f" {'least':>5} {'mean':>5} {'most':>5} {'graph MB':>8} {'file MB':>8} {'dispatch':>8}",
        flush=True,
    )
    for kind in MODELS:
        subprocess.run([sys.executable, __file__, kind], check=True)


if __name__ == "__main__":
    main()
