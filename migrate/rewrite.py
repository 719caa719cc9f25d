"""One item of work: read source boxes, write whole chunks in the executable's dimension order. The only array writer.

All chunks of an item go into one OCDBT transaction: it commits them together, in few large files.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from migrate import arrays, storage
from migrate.box import Box, Grid
from migrate.errors import ReexportError
from migrate.planner import Item, ItemPart
from migrate.receipt import Destination, Receipt

if TYPE_CHECKING:
    import numpy as np

_stopped: set[Destination] = set()


class StoppedError(ReexportError):
    """The run is being ended; the item was not begun."""


def stop(destination: Destination) -> None:
    """Refuse every further item of this attempt in this process: one failed already, or the user interrupts."""
    _stopped.add(destination)


def check_running(destination: Destination) -> None:
    """Raises :class:`StoppedError` if this attempt takes no further items in this process."""
    if destination in _stopped:
        raise StoppedError("the run is being ended")


# Made at import, not at first use: threads that race through a cached function would each get a name of their own.
_WRITER_ID = uuid.uuid4().hex[:16]


def writer_id() -> str:
    """Name of this process among all writers of all runs."""
    return _WRITER_ID


def _writer(destination: Destination) -> str:
    """Name of the database for what this process writes in one attempt: one that was damaged is not used again."""
    return writer_id() + destination.attempt[:8]


def rewrite_item(item: Item, destination: Destination) -> Receipt:
    """Write every chunk of ``item`` into this process's database and return the digests of what was read.

    Holds about three times the item's bytes. Raises :class:`migrate.errors.SourceError` or
    :class:`migrate.errors.StorageError`; nothing of the item is then visible, in part or whole.
    """
    import tensorstore as ts

    check_running(destination)
    started = time.perf_counter()
    transaction, writer = ts.Transaction(), _writer(destination)
    digests, contents, writes = [], [], []
    # an item of many small arrays would else wait for each of them in turn
    with ThreadPoolExecutor(min(len(item.parts), _PARTS_AT_ONCE)) as pool:
        read = list(pool.map(_elements, item.parts))
    try:
        for part, elements in zip(item.parts, read, strict=True):
            database = arrays.writer_database(destination.directory(part.array.tree), writer)
            store = arrays.open_array(part.array.stored, database).with_transaction(transaction)
            order = part.array.stored.major_to_minor
            contents.append(arrays.content(elements, part.box, order).hex())
            part_digests = []
            for box in part.array.stored.grid.boxes(part.box):
                chunk = elements[arrays.permuted_slices(box.relative_to(part.box), order)]
                part_digests.append(arrays.chunk_digest(chunk))
                # the array is never modified again, so TensorStore may keep a reference instead of a copy
                target = store[box.slices].transpose(order)
                writes.append(target.write(chunk, can_reference_source_data_indefinitely=True).copy)
            digests.append(tuple(part_digests))
        for copied in writes:
            copied.result()
        transaction.commit_async().result()
    except (ValueError, OSError) as error:
        transaction.abort()
        raise storage.storage_error(
            f"chunks of {part.array.name} {part.box} cannot be written", destination.directory(part.array.tree), error
        ) from error
    return Receipt(item.id, writer, tuple(digests), tuple(contents), item.nbytes, time.perf_counter() - started)


_PARTS_AT_ONCE = 8
_READ_BYTES = 192 << 20
"""Source chunks are held whole while they are read: at most so many bytes of them at once."""


def _elements(part: ItemPart) -> np.ndarray:
    """The part's elements in storage order, read in one pass; a few source chunks at a time where it touches many."""
    import numpy as np

    order, grid = part.array.stored.major_to_minor, part.array.source_grid
    cover = grid.cover(part.box)
    if cover.size * part.array.stored.item_bytes <= _READ_BYTES:
        return part.array.source.read(part.box, storage_order=order)
    pieces = [piece for box in _source_pieces(part) if (piece := box.intersect(part.box)) is not None]
    first = part.array.source.read(pieces[0], storage_order=order)
    elements = np.empty([part.box.shape[d] for d in order], first.dtype)
    for number, piece in enumerate(pieces):
        read = part.array.source.read(piece, storage_order=order) if number else first
        elements[arrays.permuted_slices(piece.relative_to(part.box), order)] = read
    return elements


def _source_pieces(part: ItemPart) -> Iterator[Box]:
    """Groups of neighbouring source chunks of bounded bytes that cover the part."""
    grid = part.array.source_grid
    shape = list(grid.chunk_shape)
    room = _READ_BYTES // part.array.source_chunk_bytes
    for dimension in reversed(range(len(shape))):
        if room > 1:
            factor = min(room, -(-part.box.shape[dimension] // shape[dimension]))
            shape[dimension] *= factor
            room //= factor
    return Grid(grid.shape, tuple(shape)).boxes(part.box)
