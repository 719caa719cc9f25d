"""How fast a checkpoint is rewritten, and in how much memory, beside what else one could do with it.

A synthetic Orbax-like checkpoint (Zarr v3 in OCDBT, rows sharded) is rewritten onto other grids. Side by side, in
turns, in one run: ``cp -r``; a bare TensorStore copy array by array (``target.write(source)``, the fastest
store-to-store copy there is); ours (plan, Beam, digests, read-back, commit). Only ratios mean anything on a shared
machine. Memory is the peak of the process's resident set, each case in a process of its own.

    python benchmarks/rewrite.py [--megabytes 512] [--repeats 3] [--directory DIR]
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts

from migrate import commit, driver, mapping, orbax_metadata, planner, sources
from migrate.arrays import root_database
from migrate.export import Paths
from migrate.manifest import ArrayRecord, FileRecord, ProgramRecord, SourceRecord
from migrate.receipt import Destination
from migrate.signature import Fingerprint, ParameterSpec
from migrate.zarr import StoredArray
from pipelines import batch

SHARDS = 8
CASES = {
    # shard of the target, and its dimension order
    "same grid": (lambda rows, columns: (rows // SHARDS, columns), (0, 1)),
    "rows to columns": (lambda rows, columns: (rows, columns // SHARDS), (0, 1)),
    "transposed": (lambda rows, columns: (rows, columns // SHARDS), (1, 0)),
}
FINGERPRINT = Fingerprint("0" * 64, "cpu:8", (("x", SHARDS),), "", "", "", (), "default")


def shapes(total_bytes: int) -> list[tuple[int, int]]:
    """Most bytes in large arrays, and a tail of small ones, as models have them; float32."""
    large, middle = (4096, 2048), (1024, 512)
    count = max(1, int(total_bytes * 0.9) // (4096 * 2048 * 4))
    return [large] * count + [middle] * max(1, int(total_bytes * 0.1) // (1024 * 512 * 4)) + [(8, 64)] * 50


def write_source(directory: Path, total_bytes: int) -> None:
    rng = np.random.default_rng(0)
    records = []
    for number, (rows, columns) in enumerate(shapes(total_bytes)):
        stored = StoredArray(f"w{number:05}", (rows, columns), "float32", (rows // SHARDS, columns), (0, 1), "none")
        spec = {
            "driver": "zarr3",
            "kvstore": {**root_database(str(directory)), "path": stored.storage_name + "/"},
            "metadata": stored.zarr_metadata(),
            "store_data_equal_to_fill_value": True,
        }
        ts.open(spec, create=True).result().write(rng.random((rows, columns), np.float32)).result()
        records.append(ArrayRecord("params", (stored.storage_name,), (False,), stored, "", ()))
    (directory / orbax_metadata.TREE_METADATA_KEY).write_bytes(orbax_metadata.tree_metadata(records))


def make_plan(source: Path, case: str) -> tuple[Any, planner.Plan]:
    shard_of, order = CASES[case]
    checkpoint = sources.open_checkpoint(source)
    parameters = [
        ParameterSpec(
            number=number,
            argument="params",
            path=leaf.path,
            sequence_levels=(False,),
            shape=leaf.shape,
            dtype="float32",
            partition=((), ("x",)),
            shard_shape=shard_of(*leaf.shape),
            major_to_minor=order,
            is_weight=True,
        )
        for number, leaf in enumerate(checkpoint.leaves)
    ]
    found = mapping.match(checkpoint.leaves, parameters)
    plan = planner.make_plan(
        found, source_identity=checkpoint.identity, max_item_bytes=64 << 20, max_chunk_bytes=64 << 20
    )
    return checkpoint, plan


def ours(source: Path, target: Path, case: str) -> None:
    checkpoint, plan = make_plan(source, case)
    paths = Paths(str(target))
    destination = Destination(
        paths.parameters(plan.parameter_set), paths.carried(plan.parameter_set), paths.run(plan.parameter_set)
    )
    request = commit.CommitRequest(
        output=str(target),
        export_id="benchmark",
        plan=plan,
        source=SourceRecord(checkpoint.uri, checkpoint.format, "", checkpoint.identity, None, None),
        programs=(ProgramRecord("main", "", FINGERPRINT, {"none": FileRecord.of(b"")}),),
        tools={},
        timings={},
        rewrite_began=time.time(),
    )
    batch.run({"job": commit.Work(plan.items, request, destination)})
    assert driver.export.is_export(paths.export("benchmark"))


def tensorstore_copy(source: Path, target: Path, case: str) -> None:
    """No digests, no read-back, no bound on memory but one array at a time."""
    _, plan = make_plan(source, case)
    for array in plan.arrays:
        from_ = ts.open(
            {"driver": "zarr3", "kvstore": {**root_database(str(source)), "path": array.stored.storage_name + "/"}}
        ).result()
        to = ts.open(
            {
                "driver": "zarr3",
                "kvstore": {**root_database(str(target)), "path": array.stored.storage_name + "/"},
                "metadata": array.stored.zarr_metadata(),
            },
            create=True,
            context=ts.Context({"file_io_sync": False}),
        ).result()
        to.write(from_).result()


def copy(source: Path, target: Path, _: str) -> None:
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)


WAYS = {"cp -r": copy, "bare TensorStore copy": tensorstore_copy, "reexport": ours}


def measure(way: str, source: Path, target: Path, case: str) -> dict[str, float]:
    """Run one case in a process of its own."""
    command = [sys.executable, __file__, "--one", way, case, str(source), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    shutil.rmtree(target, ignore_errors=True)
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def one(way: str, case: str, source: str, target: str) -> None:
    started = time.perf_counter()
    WAYS[way](Path(source), Path(target), case)
    seconds = time.perf_counter() - started
    who = resource.RUSAGE_CHILDREN if way == "cp -r" else resource.RUSAGE_SELF
    print(json.dumps({"seconds": seconds, "peak_bytes": resource.getrusage(who).ru_maxrss * 1024}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--directory", help="where to work; default: a temporary directory")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(*options.one)
        return
    root = Path(tempfile.mkdtemp(prefix="reexport-benchmark-", dir=options.directory))
    try:
        write_source(root / "source", options.megabytes << 20)
        nbytes = sum(rows * columns * 4 for rows, columns in shapes(options.megabytes << 20))
        print(f"{nbytes / 2**20:,.0f} MiB in {len(shapes(options.megabytes << 20))} arrays, {options.repeats} turns")
        print(f"{'case':16} {'way':22} {'MiB/s':>7} {'of copy':>8} {'peak MiB':>9}")
        for case in CASES:
            results: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
            for _ in range(options.repeats):
                for way in WAYS:
                    results[way].append(measure(way, root / "source", root / "target", case))
            base = statistics.median(r["seconds"] for r in results["bare TensorStore copy"])
            for way, measured in results.items():
                seconds = statistics.median(r["seconds"] for r in measured)
                peak = max(r["peak_bytes"] for r in measured)
                print(f"{case:16} {way:22} {nbytes / 2**20 / seconds:7.0f} {base / seconds:8.2f} {peak / 2**20:9.0f}")
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
