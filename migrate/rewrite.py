"""One item of work: read source boxes, write whole chunks in the executable's dimension order. The only array writer.

All chunks of an item go into one OCDBT transaction: it commits them together, in few large files.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

from migrate import arrays, storage
from migrate.box import Box
from migrate.errors import ReexportError
from migrate.planner import Item, ItemPart
from migrate.receipt import Destination, Receipt

if TYPE_CHECKING:
    import numpy as np

_stopped: set[str] = set()


class StoppedError(ReexportError):
    """The run is being ended; the item was not begun."""


def stop(destination: Destination) -> None:
    """Refuse every further item of this run in this process: one failed already, or the user interrupts."""
    _stopped.add(destination.run_uri)


def allow(destination: Destination) -> None:
    """Take items of this run again."""
    _stopped.discard(destination.run_uri)


# Made at import, not at first use: threads that race through a cached function would each get a name of their own.
_WRITER_ID = uuid.uuid4().hex[:16]


def writer_id() -> str:
    """Name of this process among all writers of all runs."""
    return _WRITER_ID


def rewrite_item(item: Item, destination: Destination) -> Receipt:
    """Write every chunk of ``item`` into this process's database and return the digests of what was read.

    Holds about three times the item's bytes. Raises :class:`migrate.errors.SourceError` or
    :class:`migrate.errors.StorageError`; nothing of the item is then visible, in part or whole.
    """
    import tensorstore as ts

    if destination.run_uri in _stopped:
        raise StoppedError("the run is being ended")
    started = time.perf_counter()
    transaction = ts.Transaction()
    digests = []
    try:
        for part in item.parts:
            database = arrays.writer_database(destination.directory(part.array.tree), writer_id())
            store = arrays.open_array(part.array.stored, database).with_transaction(transaction)
            part_digests = []
            for box, chunk in _chunks(part):
                part_digests.append(arrays.chunk_digest(chunk))
                order = part.array.stored.major_to_minor
                # the array is never modified again, so TensorStore may keep a reference instead of a copy
                store[box.slices].transpose(order).write(chunk, can_reference_source_data_indefinitely=True).result()
            digests.append(tuple(part_digests))
        transaction.commit_async().result()
    except (ValueError, OSError) as error:
        transaction.abort()
        raise storage.storage_error(
            f"chunks of {part.array.name} {part.box} cannot be written", destination.directory(part.array.tree), error
        ) from error
    return Receipt(item.id, writer_id(), tuple(digests), item.nbytes, time.perf_counter() - started)


def _chunks(part: ItemPart) -> Iterator[tuple[Box, np.ndarray]]:
    """(box, elements in storage order) of each chunk of ``part``; the source is read in one pass."""
    order = part.array.stored.major_to_minor
    elements = part.array.source.read(part.box, storage_order=order)
    for box in part.array.stored.grid.boxes(part.box):
        yield box, elements[arrays.permuted_slices(box.relative_to(part.box), order)]
