"""Error messages about layouts -> what they say: XLA's E0102 and JAX's own check, as plain data. Pure.

The runtime's messages are those of libtpu: a buffer of the wrong size, or in the wrong memory space. Some runtimes
leave shapes or the executable's name out. JAX checks layouts itself before it calls the runtime, and then names
arguments instead of HLO parameter numbers.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from migrate.errors import LayoutSyntaxError, UnknownMessageError
from migrate.layout import COMBINE, ArrayShape, Layout, parse, xla_dtype

Form = Literal["buffer size", "memory space", "jax"]

MAX_CHARACTERS = 1 << 20
"""Of a longer text only this much is looked at."""
MAX_MISMATCHES = 100
"""A text that repeats itself, such as the log of many hosts, is read up to this many different messages."""


@dataclass(frozen=True, slots=True)
class Side:
    """What one side of a message says of a buffer."""

    text: str = ""
    """Shape, sharding or memory space in the message's words; empty if it gives none."""
    shape: ArrayShape | None = None
    """The shape, if the text is one that XLA could have printed."""
    nbytes: int | None = None
    """Bytes on a device that the message states."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One parameter that was given another buffer than its executable expects."""

    form: Form
    """Who says so, and of what."""
    expected: Side
    """What the executable was compiled for."""
    found: Side
    """The buffer that was passed."""
    executable: str = ""
    """Name of the executable, e.g. ``jit_step``; empty if the message has none."""
    number: int | None = None
    """HLO parameter number; JAX's own check gives none."""
    argument: str = ""
    """The argument as JAX names it, e.g. ``params['embed']['table']``; the runtime gives none."""

    @property
    def is_global(self) -> bool:
        """Whether the shapes are those of whole arrays; the runtime speaks of one device's shard."""
        return self.form == "jax"


_SHAPE = r"[a-z][a-z0-9]{0,31}\[[^\]\s]{0,400}\](?:\{[^{}\s]{0,400}\})?"
_NAME = r"Executable(?:\((?P<executable>[^()\s]{0,400})\))?"
_BUFFER = re.compile(
    rf"(?:{_NAME} )?expected parameter (?P<number>\d{{1,9}}) of size (?P<expected_bytes>\d{{1,18}})"
    rf"(?: \((?P<expected>{_SHAPE})\))? but got buffer with incompatible (?P<what>size|memory space)"
    rf"(?: (?P<found_bytes>\d{{1,18}}))?(?: \((?P<found>{_SHAPE})\))?"
)
_MEMORY = re.compile(
    rf"{_NAME} got a parameter buffer for parameter (?P<number>\d{{1,9}}) in an unexpected memory space "
    r"'(?P<space>[^']{0,100})'"
)
_JAX_ARGUMENT = re.compile(
    r"Argument (?P<name>.{1,400}?) with shape (?P<dtype>\w{1,32})\[(?P<dimensions>[^\]]{0,400})\]:"
)
_JAX_SIDE = re.compile(r"(?P<side>Passed|Required) (?P<kind>layout|sharding): ")
_JAX_LAYOUT = re.compile(
    r"Layout\(major_to_minor=(?P<order>\([\d, ]{0,200}\)), tiling=(?P<tiling>None|\((?:\([-\d, ]{0,100}\),? ?){0,8}\))"
    r"(?:, sub_byte_element_size_in_bits=(?P<bits>\d{1,3}))?"
)
_JAX_MARK = "that disagree with the"


def read_message(text: str) -> tuple[Mismatch, ...]:
    """The mismatches that a text speaks of, without repetitions, in order; it may be a whole log.

    Raises :class:`UnknownMessageError` that shows what was looked for, if it speaks of none.
    """
    shortened = " ".join(text[:MAX_CHARACTERS].split())
    found: dict[Mismatch, None] = {}
    for mismatch in _mismatches(shortened):
        found.setdefault(mismatch)
        if len(found) >= MAX_MISMATCHES:
            break
    if not found:
        raise UnknownMessageError(
            "this text is no message about layouts that reexport knows",
            expected="\n    ".join(
                [
                    "one of",
                    "Executable(NAME) expected parameter N of size BYTES (SHAPE) "
                    "but got buffer with incompatible size BYTES (SHAPE)",
                    "Executable(NAME) got a parameter buffer for parameter N in an unexpected memory space 'SPACE'",
                    "Computation was compiled for input layouts that disagree with the layouts of arguments passed to "
                    "it. Here are the N mismatches: ...",
                ]
            ),
            found=repr(shortened[:200]) if shortened else "nothing",
            remedy="give the whole message: in quotes, or as the path of its file (--file PATH), or on standard input",
        )
    return tuple(found)


def _mismatches(text: str) -> Iterator[Mismatch]:
    for match in _BUFFER.finditer(text):
        expected = _side(match["expected"], match["expected_bytes"])
        found = _side(match["found"], match["found_bytes"])
        spaces = {_space(side) for side in (expected, found)}
        form: Form = "memory space" if match["what"] == "memory space" or len(spaces) > 1 else "buffer size"
        yield Mismatch(form, expected, found, match["executable"] or "", int(match["number"]))
    for match in _MEMORY.finditer(text):
        yield Mismatch("memory space", Side(), Side(match["space"]), match["executable"] or "", int(match["number"]))
    if (start := text.find(_JAX_MARK)) >= 0:
        yield from _jax_mismatches(text[start:])


def _space(side: Side) -> int | None:
    return None if side.shape is None or side.shape.layout is None else side.shape.layout.memory_space


def _side(text: str | None, nbytes: str | None) -> Side:
    shape = None
    try:
        parsed = parse(text) if text else None
        shape = parsed if isinstance(parsed, ArrayShape) else None
    except LayoutSyntaxError:
        pass  # the text itself is still shown
    return Side(text or "", shape, int(nbytes) if nbytes else None)


def _jax_mismatches(text: str) -> Iterator[Mismatch]:
    arguments = list(_JAX_ARGUMENT.finditer(text))
    ends = [match.start() for match in arguments[1:]] + [len(text)]
    for match, end in zip(arguments, ends, strict=True):
        sides: dict[str, Side] = {}
        marks = list(_JAX_SIDE.finditer(text, match.end(), end))[:2]
        for mark, stop in zip(marks, [mark.start() for mark in marks[1:]] + [end], strict=True):
            words = text[mark.end() : stop].strip()[:1000]
            sides[mark["side"]] = _jax_side(match["dtype"], match["dimensions"], words)
        if len(sides) == 2:
            yield Mismatch("jax", sides["Required"], sides["Passed"], argument=match["name"])


def _jax_side(dtype: str, dimensions: str, words: str) -> Side:
    layout = _JAX_LAYOUT.match(words)
    if layout is None:
        return Side(words)
    try:
        # explicit sharding puts mesh axes after the extents: 8@data
        extents = tuple(int(part.partition("@")[0]) for part in dimensions.split(",") if part)
        order = ast.literal_eval(layout["order"])
        tiling = ast.literal_eval(layout["tiling"]) or ()
        tiles = tuple(tuple(COMBINE if extent < 0 else int(extent) for extent in tile) for tile in tiling)
        physical = Layout(order[::-1], tiles, element_bits=int(layout["bits"] or 0))
        # through the text, which checks all of it
        shape = parse(str(ArrayShape(_xla_name(dtype), extents, physical)))
    except (ValueError, TypeError, SyntaxError):
        return Side(words)
    return Side(str(shape), shape if isinstance(shape, ArrayShape) else None)


def _xla_name(dtype: str) -> str:
    """JAX names dtypes as NumPy does, or shortly as XLA does."""
    try:
        return xla_dtype(dtype)
    except LayoutSyntaxError:
        return dtype
