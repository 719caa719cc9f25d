"""LATEST: which export of an output is the current one, which were before it, and which were rolled back from.

One small file, so that all of it changes at once: ``{"export": ID, "previous": [ID, ...], "rolled_back": [ID, ...]}``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from types import EllipsisType

from migrate import storage
from migrate.errors import NotAnExportError, OutputConflictError
from migrate.manifest import LATEST_KEY

MAX_PREVIOUS = 50
"""Exports that LATEST remembers."""
_MAX_BYTES = 16_384


@dataclass(frozen=True, slots=True)
class Pointer:
    """What LATEST says."""

    export: str
    """Id of the current export."""
    previous: tuple[str, ...] = ()
    """Ids of those that were current before it, newest first; some may be gone."""
    rolled_back: tuple[str, ...] = ()
    """Ids that a person rolled back from: nothing but a person makes them current again."""

    def moved_to(self, export_id: str, *, rolled_back: bool = False) -> Pointer:
        """The pointer after ``export_id`` became current; ``rolled_back``: because this one is not wanted."""
        if export_id == self.export:
            return replace(self, rolled_back=_without(self.rolled_back, export_id))
        refused = _without(self.rolled_back, export_id)
        if rolled_back:
            # the way back is not a way forward: what is rolled back from is no longer a previous one
            return Pointer(
                export_id, _without(self.previous, export_id), (self.export, *_without(refused, self.export))
            )
        previous = (self.export, *_without(_without(self.previous, self.export), export_id))
        return Pointer(export_id, previous[:MAX_PREVIOUS], refused)

    def to_json(self) -> bytes:
        """The file's content; an output with one export needs no more than its id."""
        document: dict[str, object] = {"export": self.export}
        if self.previous:
            document["previous"] = list(self.previous)
        if self.rolled_back:
            document["rolled_back"] = list(self.rolled_back)
        return json.dumps(document).encode()


def _without(ids: tuple[str, ...], export_id: str) -> tuple[str, ...]:
    return tuple(known for known in ids if known != export_id)


def read(output: str) -> Pointer | None:
    """What LATEST of an output root says, or None if there is none. Raises :class:`NotAnExportError` if damaged."""
    return _parse(output, storage.read(output, LATEST_KEY, max_bytes=_MAX_BYTES))


def move(
    output: str, export_id: str, *, expected: str | EllipsisType | None = ..., rolled_back: bool = False
) -> Pointer | None:
    """Make ``export_id`` the current export, atomically; gives what LATEST said before.

    With ``expected`` (None: no LATEST) only if that one is still current. Raises :class:`OutputConflictError` if it is
    not, :class:`migrate.errors.StorageError` if the output cannot be written.
    """
    while True:
        data = storage.read(output, LATEST_KEY, max_bytes=_MAX_BYTES)
        before = _parse(output, data)
        current = before.export if before else None
        if expected is not ... and current != expected:
            raise OutputConflictError(
                "another export became the current one meanwhile",
                where=storage.join(output, LATEST_KEY),
                expected=str(expected or "none"),
                found=str(current or "none"),
                remedy="run the same command again",
            )
        after = before.moved_to(export_id, rolled_back=rolled_back) if before else Pointer(export_id)
        if after == before or storage.replace(output, LATEST_KEY, after.to_json(), expected=data):
            return before


def restore(output: str, pointer: Pointer | None, *, instead_of: str) -> None:
    """Undo a :func:`move` to ``instead_of``, unless LATEST was moved on since."""
    data = storage.read(output, LATEST_KEY, max_bytes=_MAX_BYTES)
    now = _parse(output, data)
    if now is not None and now.export == instead_of and pointer is not None:
        storage.replace(output, LATEST_KEY, pointer.to_json(), expected=data)


def _parse(output: str, data: bytes | None) -> Pointer | None:
    if data is None:
        return None
    try:
        document = json.loads(data)
        pointer = Pointer(
            document["export"], tuple(document.get("previous", ())), tuple(document.get("rolled_back", ()))
        )
        # ids become parts of paths
        if not all(isinstance(i, str) and i.isalnum() for i in (pointer.export, *pointer.previous)):
            raise ValueError(pointer)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotAnExportError(
            "LATEST is damaged",
            where=storage.join(output, LATEST_KEY),
            expected='{"export": "<id>"}',
            found=repr(data[:80]),
            remedy="open the export by its own directory under exports/",
        ) from error
    return pointer
