"""How fast a checkpoint is rewritten, and in how much memory, beside what else one could do with it.

Synthetic checkpoints (benchmarks/synthetic.py) are rewritten onto the same grid, from row shards to column shards, and
from row shards to column shards with all dimensions reversed. Side by side, in turns:

  copy         cp -r, for scale
  tensorstore  a bare TensorStore copy array by array, ``target.write(source)``, without fsync
  synced       the same, then everything written is flushed to disk, as a checkpoint that is to be kept must be
  orbax        restored to host memory with Orbax, and saved with it
  mesh         restored onto a mesh of 8 simulated CPU devices in the target's sharding, and saved from there
  threads      what reexport does, without Beam: the same items in a pool of threads
  reexport     plan, Beam, digests, read-back, receipts, commit, all flushed to disk

``orbax`` keeps each array in one chunk and ``mesh`` keeps the dimension order: they do less than the case asks for.
Each runs in a process of its own. ``seconds`` is the wall time of the work, without imports and initialisation;
``process`` that of the whole process; memory the peak of the process tree's proportional set size; ``read`` what
TensorStore read, in multiples of the source's bytes (reexport's includes 1.0 for reading back). Medians of the turns;
on a shared machine only ratios mean anything.

    python benchmarks/rewrite.py [--checkpoints mixed,tiny,single] [--cases ...] [--ways ...] [--scale 1] [--turns 3]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import processes
import synthetic
import tensorstore as ts

from migrate import commit, planner

MESH = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={synthetic.MESH_SHARDS}", "JAX_PLATFORMS": "cpu"}
Work = Callable[[], None]
"""What is timed, after imports and initialisation."""


def copy(source: Path, target: Path, _: synthetic.Case) -> Work:
    return lambda: subprocess.run(["cp", "-r", str(source), str(target)], check=True) and None


def tensorstore_copy(source: Path, target: Path, case: synthetic.Case) -> Work:
    from migrate.arrays import root_database

    _, plan = synthetic.make_plan(source, case)
    context = ts.Context({"file_io_sync": False})

    def work() -> None:
        for array in plan.arrays:
            key = {"path": array.stored.storage_name + "/"}
            from_ = ts.open({"driver": "zarr3", "kvstore": {**root_database(str(source)), **key}}).result()
            to = ts.open(
                {
                    "driver": "zarr3",
                    "kvstore": {**root_database(str(target)), **key},
                    "metadata": array.stored.zarr_metadata(),
                },
                create=True,
                context=context,
            ).result()
            to.write(from_).result()

    return work


def synced_copy(source: Path, target: Path, case: synthetic.Case) -> Work:
    from migrate import storage

    copied = tensorstore_copy(source, target, case)

    def work() -> None:
        copied()
        storage.flush(str(target))

    return work


def orbax(source: Path, target: Path, _: synthetic.Case) -> Work:
    import numpy as np
    import orbax.checkpoint as ocp

    def work() -> None:
        checkpointer = ocp.PyTreeCheckpointer()
        metadata = checkpointer.metadata(source).item_metadata.tree
        arguments = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in metadata}
        checkpointer.save(target, checkpointer.restore(source, restore_args=arguments))

    return work


def mesh(source: Path, target: Path, case: synthetic.Case) -> Work:
    import jax
    import orbax.checkpoint as ocp
    from jax.sharding import NamedSharding, PartitionSpec

    devices = jax.make_mesh((synthetic.MESH_SHARDS,), ("x",))

    def arguments(leaf: Any) -> ocp.ArrayRestoreArgs:
        partition: list[str | None] = [None] * len(leaf.shape)
        if synthetic.shards(tuple(leaf.shape)) > 1:
            partition[case.sharded_axis] = "x"
        return ocp.ArrayRestoreArgs(sharding=NamedSharding(devices, PartitionSpec(*partition)))

    def work() -> None:
        checkpointer = ocp.PyTreeCheckpointer()
        metadata = checkpointer.metadata(source).item_metadata.tree
        wanted = {name: arguments(leaf) for name, leaf in metadata.items()}
        checkpointer.save(target, checkpointer.restore(source, restore_args=wanted))

    return work


def ours(source: Path, target: Path, case: synthetic.Case) -> Work:
    from pipelines import batch

    return rewrite_with(source, target, case, lambda work: batch.run({"job": work}))


def threads(source: Path, target: Path, case: synthetic.Case) -> Work:
    from migrate import rewrite, verify
    from migrate.allocator import kept_buffers

    def run(work: commit.Work) -> None:
        def do(item: planner.Item) -> None:
            verify.verify_item(item, rewrite.rewrite_item(item, work.destination), work.destination)

        with kept_buffers():
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                for _ in pool.map(do, work.items):
                    pass
            commit.commit(work.request, work.destination)

    return rewrite_with(source, target, case, run)


def rewrite_with(source: Path, target: Path, case: synthetic.Case, run: Callable[[commit.Work], None]) -> Work:
    """A rewrite with all that a job's has, its items given to ``run``."""
    from migrate import export
    from migrate.manifest import FileRecord, ProgramRecord, SourceRecord
    from migrate.receipt import Destination
    from migrate.signature import Fingerprint

    fingerprint = Fingerprint("0" * 64, "cpu:8", (("x", synthetic.MESH_SHARDS),), "", "", "", (), "default")

    def work() -> None:
        checkpoint, plan = synthetic.make_plan(source, case)
        paths = export.Paths(str(target))
        destination = Destination(
            paths.parameters(plan.parameter_set), paths.carried(plan.parameter_set), paths.run(plan.parameter_set)
        )
        request = commit.CommitRequest(
            output=str(target),
            export_id="benchmark",
            plan=plan,
            source=SourceRecord(checkpoint.uri, checkpoint.format, "", checkpoint.identity, None, None),
            programs=(ProgramRecord("main", "", fingerprint, {"none": FileRecord.of(b"")}),),
            tools={},
            timings={},
            rewrite_began=time.time(),
        )
        run(commit.Work(plan.items, request, destination))
        if not export.is_export(paths.export("benchmark")):
            raise SystemExit("nothing was committed")

    return work


WAYS: dict[str, Callable[[Path, Path, synthetic.Case], Work]] = {
    "copy": copy,
    "tensorstore": tensorstore_copy,
    "synced": synced_copy,
    "orbax": orbax,
    "mesh": mesh,
    "threads": threads,
    "reexport": ours,
}


def one(way: str, case: str, source: str, target: str) -> None:
    """Do one rewrite in this process, and print what it took."""
    work = WAYS[way](Path(source), Path(target), synthetic.CASES[case])
    started, cpu = time.perf_counter(), time.process_time()
    work()
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    name = "/tensorstore/kvstore/file/bytes_read"
    values = [value for metric in ts.experimental_collect_matching_metrics(name) for value in metric["values"]]
    read = sum(value["value"] for value in values)
    print(json.dumps({"seconds": seconds, "cpu": cpu, "read_bytes": read}))


def measure(way: str, case: str, source: Path, target: Path) -> dict[str, float]:
    """Run one case in a process of its own."""
    subprocess.run(["sync", "-f", str(source)], check=True)  # nobody pays for what the one before has left
    measured = processes.measure(
        processes.python(__file__, "--one", way, case, str(source), str(target)), MESH if way == "mesh" else None
    )
    shutil.rmtree(target, ignore_errors=True)
    return {**measured.told, "process": measured.seconds, "peak_bytes": measured.peak_bytes}


def compare(kind: str, cases: list[str], ways: list[str], options: argparse.Namespace) -> None:
    """Measure one checkpoint in all cases and ways, and print a table."""
    root = Path(tempfile.mkdtemp(prefix="reexport-benchmark-", dir=options.directory))
    try:
        arrays = synthetic.shapes(kind, options.scale)
        synthetic.write_source(root / "source", arrays)
        nbytes = synthetic.nbytes(arrays)
        print(f"\n{kind}: {nbytes / 1e9:.2f} GB in {len(arrays):,} arrays, {options.turns} turns")
        print(
            f"{'case':16} {'way':12} {'seconds':>8} {'GB/s':>6} {'CPU s':>6} {'process':>8} {'peak MB':>8} {'read':>5}"
            "  times as fast as"
        )
        for case in cases:
            results: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
            for _ in range(options.turns):
                for way in ways:
                    results[way].append(measure(way, case, root / "source", root / "target"))
            for way, turns in results.items():
                m = {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
                peak = max(turn["peak_bytes"] for turn in turns)
                print(
                    f"{case:16} {way:12} {m['seconds']:8.2f} {nbytes / 1e9 / m['seconds']:6.3f} {m['cpu']:6.2f}"
                    f" {m['process']:8.2f} {peak / 1e6:8.0f} {m['read_bytes'] / nbytes:5.2f}"
                    f"  {ratios(results) if way == 'reexport' else ''}",
                    flush=True,
                )
    finally:
        shutil.rmtree(root)


def ratios(results: dict[str, list[dict[str, float]]]) -> str:
    """How many times as fast as each other way ours was, turn by turn, so that both had the same neighbours."""
    own = results["reexport"]
    return ", ".join(
        f"{way} {statistics.median(b['seconds'] / a['seconds'] for a, b in zip(own, turns, strict=True)):.2f}"
        for way, turns in results.items()
        if turns is not own
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", default="mixed,tiny,single", help="of: mixed, tiny, single")
    parser.add_argument("--cases", default=",".join(synthetic.CASES), help=f"of: {', '.join(synthetic.CASES)}")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"of: {', '.join(WAYS)}")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of arrays; of the single one's size")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--directory", help="where to work, with room for three times the checkpoint")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(*options.one)
        return
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}")
    for kind in options.checkpoints.split(","):
        compare(kind, options.cases.split(","), options.ways.split(","), options)


if __name__ == "__main__":
    main()
