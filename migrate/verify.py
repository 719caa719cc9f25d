"""Reading back: that an item's chunks on storage are what was read from the source, and that an export is intact."""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from migrate import arrays, receipt
from migrate.box import Box
from migrate.errors import RewriteVerificationError, VerificationError
from migrate.planner import Item, ItemPart
from migrate.receipt import Destination, Receipt
from migrate.zarr import StoredArray

if TYPE_CHECKING:
    import numpy as np
    import tensorstore as ts

_AHEAD_BYTES = 8 << 20
"""Of chunks whose reads are under way together."""
_PARTS_AT_ONCE = 4


def verify_item(item: Item, written: Receipt, destination: Destination) -> Receipt:
    """Read every chunk of ``item`` back, compare with the receipt's digests, and make chunks and receipt durable.

    The chunks first: a receipt that survives a power loss must not speak of chunks that did not.

    Raises :class:`RewriteVerificationError` naming array and box, or :class:`migrate.errors.StorageError`.
    """
    started = time.perf_counter()
    with ThreadPoolExecutor(1) as flusher:  # the disk works while this thread reads the same bytes from memory
        trees = {part.array.tree for part in item.parts}
        flushed = [flusher.submit(arrays.flush_database, destination.directory(t), written.writer) for t in trees]
        _compare(item, written, destination)
        for future in flushed:
            future.result()
    verified = replace(written, seconds=written.seconds + time.perf_counter() - started)
    receipt.save(verified, destination)
    return verified


def _compare(item: Item, written: Receipt, destination: Destination) -> None:
    # an item of many small arrays would else wait for each of them in turn
    with ThreadPoolExecutor(min(len(item.parts), _PARTS_AT_ONCE)) as pool:
        for _ in pool.map(functools.partial(_compare_part, written.writer, destination), item.parts, written.digests):
            pass


def _compare_part(writer: str, destination: Destination, part: ItemPart, expected: Sequence[str]) -> None:
    stored = part.array.stored
    directory = destination.directory(part.array.tree)
    database = arrays.writer_database(directory, writer)
    boxes = list(stored.grid.boxes(part.box))
    for problem in differences(stored, database, boxes, expected):
        raise RewriteVerificationError(
            "a chunk read back differs from what was written",
            where=f"{part.array.name} {problem[0]} in {directory}",
            expected=f"SHA-256 {problem[1][:16]}...",
            found=problem[2],
            remedy="check the storage's health; the same command repeats the items without a receipt",
        )


def differences(
    stored: StoredArray, database: dict[str, Any], boxes: Sequence[Box], expected: Sequence[str]
) -> Iterator[tuple[Box, str, str]]:
    """(box, expected digest, what was found) for each chunk in ``boxes`` whose SHA-256 is not the expected one.

    Holds one chunk at a time, or 8 MiB of smaller ones. A chunk that cannot be read, because it is absent or its CRC32C
    fails, is a difference.
    """
    store = arrays.open_array(stored, database)
    ahead = max(1, _AHEAD_BYTES // (math.prod(stored.chunk_shape) * stored.item_bytes))
    reads: deque[ts.Future[np.ndarray]] = deque()
    waiting = iter(boxes)
    for box, digest in zip(boxes, expected, strict=True):
        for following in itertools.islice(waiting, ahead - len(reads)):
            reads.append(store[following.slices].transpose(stored.major_to_minor).read())
        try:
            chunk = reads.popleft().result()
        except (ValueError, OSError) as error:
            yield box, digest, str(error).splitlines()[0][:300]
            continue
        found = arrays.chunk_digest(chunk)
        if found != digest:
            yield box, digest, f"SHA-256 {found[:16]}..."


def verify_array(stored: StoredArray, database: dict[str, Any], name: str, expected: Sequence[str]) -> int:
    """Check one array of an export against its chunk digests; the logical bytes that were read.

    Raises :class:`VerificationError` naming the array and every box that differs.
    """
    grid = stored.grid
    boxes = list(grid.boxes())
    if len(boxes) != len(expected):
        raise VerificationError(
            f"the manifest's digests do not fit the array {name}",
            expected=f"{len(boxes)} chunks",
            found=f"{len(expected)} digests",
        )
    problems = list(differences(stored, database, boxes, expected))
    if problems:
        shown = "; ".join(f"{box}: {found}" for box, _, found in problems[:5])
        raise VerificationError(
            f"{len(problems)} of {len(boxes)} chunks of {name} differ from what was committed",
            where=name,
            expected=f"SHA-256 {problems[0][1][:16]}... and so on, as in the manifest",
            found=shown + ("; ..." if len(problems) > 5 else ""),
            remedy="restore the export from a copy, or run the job again into another output",
        )
    return sum(box.size for box in boxes) * stored.item_bytes
