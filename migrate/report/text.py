"""Numbers, shapes and errors as short text."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from migrate.box import Grid
from migrate.errors import ReexportError

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def format_bytes(nbytes: float) -> str:
    """A byte count with a binary unit: ``5242880`` -> ``5.0 MiB``."""
    amount, unit = float(nbytes), 0
    # what rounds to 1024.0 of a unit is 1.0 of the next
    while round(amount, 1) >= 1024 and unit < len(_UNITS) - 1:
        amount /= 1024
        unit += 1
    return f"{int(amount)} B" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


def format_seconds(seconds: float) -> str:
    """A duration: ``1.9 s``, ``2:05``, ``1:02:05``."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_shape(shape: Sequence[int]) -> str:
    """``(16, 1280)`` -> ``16,1280``; a scalar's is ``scalar``."""
    return ",".join(map(str, shape)) or "scalar"


def format_grid(grid: Grid) -> str:
    """How an array is cut: number of chunks and their shape, ``8 x 2,640``."""
    return f"{grid.size} x {format_shape(grid.chunk_shape)}" if grid.shape else "scalar"


def format_uri(uri: str) -> str:
    """A local path below the working directory without that part; everything else as it is."""
    here = str(Path.cwd()) + os.sep
    return uri.removeprefix(here)


def format_error(error: ReexportError) -> str:
    """What, where, expected, found, do this: one a line."""
    lines = [f"error: {error.what}", *(f"  {label + ':':10}{text}" for label, text in error.fields())]
    return "\n".join(printable(line.expandtabs()) for text in lines for line in text.split("\n"))


def printable(text: str) -> str:
    """``text`` with characters that would not show, or would reorder what stands beside them, as ``\\u202e``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def plural(count: int, noun: str) -> str:
    """``1 item``, ``2 items``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
