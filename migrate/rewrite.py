"""One item of work: read source boxes, write whole chunks in the executable's dimension order. The only array writer.

All chunks of an item go into one OCDBT transaction: it commits them together, in few large files.
"""

from __future__ import annotations

import time
import uuid

from migrate import arrays, storage
from migrate.errors import ReexportError
from migrate.planner import Item
from migrate.receipt import Destination, Receipt

_stopped: set[str] = set()


class StoppedError(ReexportError):
    """The run is being ended; the item was not begun."""


def stop(destination: Destination) -> None:
    """Refuse every further item of this run in this process: one failed already, or the user interrupts."""
    _stopped.add(destination.run_uri)


def allow(destination: Destination) -> None:
    """Take items of this run again."""
    _stopped.discard(destination.run_uri)


def check_running(destination: Destination) -> None:
    """Raises :class:`StoppedError` if this run takes no further items in this process."""
    if destination.run_uri in _stopped:
        raise StoppedError("the run is being ended")


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

    check_running(destination)
    started = time.perf_counter()
    transaction = ts.Transaction()
    digests, contents = [], []
    try:
        for part in item.parts:
            database = arrays.writer_database(destination.directory(part.array.tree), writer_id())
            store = arrays.open_array(part.array.stored, database).with_transaction(transaction)
            order = part.array.stored.major_to_minor
            # the source is read in one pass
            elements = part.array.source.read(part.box, storage_order=order)
            contents.append(arrays.content(elements, part.box, order).hex())
            part_digests = []
            for box in part.array.stored.grid.boxes(part.box):
                chunk = elements[arrays.permuted_slices(box.relative_to(part.box), order)]
                part_digests.append(arrays.chunk_digest(chunk))
                # the array is never modified again, so TensorStore may keep a reference instead of a copy
                store[box.slices].transpose(order).write(chunk, can_reference_source_data_indefinitely=True).result()
            digests.append(tuple(part_digests))
        transaction.commit_async().result()
    except (ValueError, OSError) as error:
        transaction.abort()
        raise storage.storage_error(
            f"chunks of {part.array.name} {part.box} cannot be written", destination.directory(part.array.tree), error
        ) from error
    return Receipt(item.id, writer_id(), tuple(digests), tuple(contents), item.nbytes, time.perf_counter() - started)
