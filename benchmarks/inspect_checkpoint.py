"""What opening a checkpoint of many leaves costs, over a bare TensorStore listing of the same keys.

Each turn opens the checkpoint in a fresh process, lists its keys in another, and runs ``reexport inspect`` in a third;
turns alternate, and only the ratio means anything on a shared machine. Imports are not counted in the first two. A bare
listing names every key and reads none; opening also reads every array's metadata document, checks it, and takes the
stamp of every file for the identity.

    python benchmarks/inspect_checkpoint.py [--leaves 20000] [--turns 5] [--only "OCDBT, Zarr v2"]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FORMATS: dict[str, dict[str, bool]] = {
    # name: as Orbax's tree file says it
    "OCDBT, Zarr v2": {"use_ocdbt": True, "use_zarr3": False},
    "OCDBT, Zarr v3": {"use_ocdbt": True, "use_zarr3": True},
    "directories, Zarr v3": {"use_ocdbt": False, "use_zarr3": True},
    "directories, Zarr v2": {"use_ocdbt": False, "use_zarr3": False},
}
LISTING = """
import sys, time
import tensorstore as ts
path, ocdbt = sys.argv[1], sys.argv[2] == "True"
base = {"driver": "file", "path": path + "/"}
started = time.perf_counter()
keys = ts.KvStore.open({"driver": "ocdbt", "base": base} if ocdbt else base).result().list().result()
print(time.perf_counter() - started, sum(key.endswith((b".zarray", b"zarr.json")) for key in keys))
"""
OPENING = """
import sys, time
import tensorstore
from migrate.sources import open_checkpoint
started = time.perf_counter()
checkpoint = open_checkpoint(sys.argv[1])
print(time.perf_counter() - started, len(checkpoint.leaves))
"""
INSPECT = "import sys; from migrate.cli import main; main(['inspect', sys.argv[1]])"
IN_FLIGHT = 256


def write_checkpoint(root: Path, leaves: int, *, use_ocdbt: bool, use_zarr3: bool) -> None:
    """A tree of small arrays as Orbax stores it, without the hours that Orbax takes to save so many."""
    import numpy as np
    import tensorstore as ts

    root.mkdir()
    context = ts.Context({"file_io_sync": False})
    base = {"driver": "file", "path": f"{root}/"}
    driver = "zarr3" if use_zarr3 else "zarr"
    names = [("params", f"layer_{index // 20}", f"weight_{index % 20}") for index in range(leaves)]
    transaction = ts.Transaction() if use_ocdbt else None
    pending: list[Any] = []
    for index, path in enumerate(names):
        name = ".".join(path)
        shape = [16 + index % 20, 8]  # every layer has the same twenty arrays
        kvstore = (
            {"driver": "ocdbt", "base": base, "path": f"{name}/"} if use_ocdbt else {**base, "path": f"{root}/{name}/"}
        )
        array = ts.open(
            {"driver": driver, "kvstore": kvstore},
            create=True,
            dtype=ts.float32,
            shape=shape,
            context=context,
            transaction=transaction,
        ).result()
        pending.append(array.write(np.ones(shape, np.float32)))
        if transaction is None and len(pending) == IN_FLIGHT:
            for write in pending:
                write.result()
            pending.clear()
    if transaction is None:
        for write in pending:
            write.result()
    else:
        transaction.commit_async().result()
    value = {"value_type": "jax.Array", "skip_deserialize": False}
    tree = {
        str(path): {"key_metadata": [{"key": key, "key_type": 2} for key in path], "value_metadata": value}
        for path in names
    }
    (root / "_METADATA").write_text(json.dumps({"tree_metadata": tree, "use_ocdbt": use_ocdbt, "use_zarr3": use_zarr3}))


def timed(code: str, *arguments: str) -> tuple[float, int]:
    """(seconds, number of arrays) that a fresh process reports."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    seconds, count = done.stdout.split()
    return float(seconds), int(count)


def whole_command(path: Path) -> float:
    """Seconds of ``reexport inspect``, start of the interpreter included."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", INSPECT, str(path)], capture_output=True, check=True)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--leaves", type=int, default=20_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", choices=list(FORMATS), help="one of the formats")
    options = parser.parse_args()
    print(f"{options.leaves:,} leaves, median of {options.turns} turns")
    print(f"{'format':22} {'listing s':>9} {'open s':>8} {'ratio':>6} {'inspect s':>9}")
    for name in [options.only] if options.only else FORMATS:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "checkpoint"
            write_checkpoint(path, options.leaves, **FORMATS[name])
            listings, openings, commands = [], [], []
            for _ in range(options.turns):
                seconds, listed = timed(LISTING, str(path), str(FORMATS[name]["use_ocdbt"]))
                listings.append(seconds)
                seconds, opened = timed(OPENING, str(path))
                openings.append(seconds)
                commands.append(whole_command(path))
                if not listed == opened == options.leaves:
                    raise SystemExit(f"{name}: {listed:,} arrays listed, {opened:,} opened")
        ratio = statistics.median(a / b for a, b in zip(openings, listings, strict=True))
        medians = [statistics.median(series) for series in (listings, openings, commands)]
        print(f"{name:22} {medians[0]:9.2f} {medians[1]:8.2f} {ratio:6.1f} {medians[2]:9.2f}")


if __name__ == "__main__":
    main()
