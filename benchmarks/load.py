"""Time and memory of loading weights into a program's formats, on a mesh of 8 simulated CPU devices.

A checkpoint in row shards, C order; the target is sharded by columns, with all dimensions reversed:

  old      Orbax restores the old checkpoint, ``ArrayRestoreArgs`` with the target's Format
  export   Orbax restores an export of it, likewise
  load     what ``migrate.load`` does for the same export: read in storage order, put on the devices, no relayout

Each in a process of its own, in turns. ``grew`` is by how much the resident memory of the process grew at most, after
imports; ``of weights`` the same in multiples of what the arrays take on all devices together, (peak - before) / (sum
over devices of the bytes of their shards); ``kept`` what is left of it when all is loaded.

    python benchmarks/load.py [--scale 0.3] [--turns 3]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import processes
import rewrite
import synthetic

CASE = synthetic.CASES["reversed"]
WAYS = ("old", "export", "load")


def formats(devices: Any, shape: tuple[int, ...]) -> tuple[Any, tuple[tuple[str, ...], ...]]:
    """The Format of an array of the target, and its partition."""
    from jax.experimental.layout import Format, Layout
    from jax.sharding import NamedSharding, PartitionSpec

    partition: list[tuple[str, ...]] = [()] * len(shape)
    if synthetic.shards(shape) > 1:
        partition[CASE.sharded_axis] = ("x",)
    spec = PartitionSpec(*(axes or None for axes in partition))
    return Format(Layout(CASE.order(len(shape))), NamedSharding(devices, spec)), tuple(partition)


@dataclass(frozen=True)
class Loaded:
    """What one way took; ``told`` on the last line of its process."""

    seconds: float
    grown_bytes: int
    kept_bytes: int
    device_bytes: int
    """Of the shards on all devices."""


def measured(load: Callable[[], Any]) -> Loaded:
    """Load the arrays, and wait until they are there."""
    import jax

    before_bytes = resident_bytes()
    started = time.perf_counter()
    loaded = jax.block_until_ready(load())
    seconds = time.perf_counter() - started
    shards = [shard.data for array in jax.tree.leaves(loaded) for shard in array.addressable_shards]
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Loaded(
        seconds, peak_bytes - before_bytes, resident_bytes() - before_bytes, sum(shard.nbytes for shard in shards)
    )


def with_orbax(directory: str) -> Loaded:
    import jax
    import orbax.checkpoint as ocp

    devices = jax.make_mesh((synthetic.MESH_SHARDS,), ("x",))

    def restore() -> Any:
        checkpointer = ocp.PyTreeCheckpointer()
        metadata = checkpointer.metadata(directory).item_metadata.tree
        wanted = {
            name: ocp.ArrayRestoreArgs(sharding=formats(devices, tuple(leaf.shape))[0])
            for name, leaf in metadata.items()
        }
        return checkpointer.restore(directory, restore_args=wanted)

    return measured(restore)


def with_load(directory: str) -> Loaded:
    import jax

    from migrate import export, loader
    from migrate.signature import DeviceMemory, ParameterSpec, Signature

    devices = jax.make_mesh((synthetic.MESH_SHARDS,), ("x",))
    found = export.open_export(directory)
    parameters = [
        ParameterSpec(
            number=number,
            argument="params",
            path=record.path,
            sequence_levels=record.sequence_levels,
            shape=record.stored.shape,
            dtype=record.stored.dtype,
            partition=formats(devices, record.stored.shape)[1],
            shard_shape=synthetic.sharded(record.stored.shape, CASE.sharded_axis),
            major_to_minor=record.stored.major_to_minor,
            is_weight=True,
        )
        for number, record in enumerate(found.parameter_set().arrays)
    ]
    fingerprint = found.manifest.programs[0].fingerprint
    signature = Signature("main", tuple(parameters), fingerprint, DeviceMemory(0, 0, 0, 0))
    # without the executable, which a synthetic checkpoint has none of
    return measured(lambda: loader._read_weights(found, signature, devices, {}))


def one(way: str, directory: str) -> None:
    loaded = with_load(directory) if way == "load" else with_orbax(directory)
    print(json.dumps(asdict(loaded)))


def resident_bytes() -> int:
    """Of this process, now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=0.3)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--directory")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(*options.one)
        return
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    root = Path(tempfile.mkdtemp(prefix="reexport-benchmark-", dir=options.directory))
    try:
        arrays = synthetic.shapes("mixed", options.scale)
        nbytes = synthetic.nbytes(arrays)
        synthetic.write_source(root / "source", arrays)
        processes.measure(
            processes.python(rewrite.__file__, "--one", "reexport", "reversed", str(root / "source"), str(root / "out"))
        )
        parameters = next((root / "out" / "params").iterdir())
        places = {"old": root / "source", "export": parameters, "load": root / "out" / "exports" / "benchmark"}
        results: dict[str, list[processes.Measured]] = {way: [] for way in WAYS}
        for _ in range(options.turns):
            for way in WAYS:
                command = processes.python(__file__, "--one", way, str(places[way]))
                results[way].append(processes.measure(command, rewrite.MESH))
        print(f"{nbytes / 1e9:.2f} GB in {len(arrays):,} arrays, {options.turns} turns; load {os.getloadavg()[0]:.1f}")
        print(
            f"{'way':8} {'seconds':>8} {'GB/s':>6} {'grew MB':>8} {'of weights':>10} {'kept':>5}"
            f" {'load is faster by':>18}"
        )
        for way, turns in results.items():
            seconds = statistics.median(turn.told["seconds"] for turn in turns)
            device_bytes = turns[0].told["device_bytes"]
            peak = max(turn.told["grown_bytes"] for turn in turns)
            kept = max(turn.told["kept_bytes"] for turn in turns)
            ratio = statistics.median(
                a.told["seconds"] / b.told["seconds"] for a, b in zip(turns, results["load"], strict=True)
            )
            print(
                f"{way:8} {seconds:8.2f} {nbytes / 1e9 / seconds:6.2f} {peak / 1e6:8.0f}"
                f" {peak / device_bytes:10.2f} {kept / device_bytes:5.2f} {ratio:18.2f}"
            )
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    sys.exit(main())
