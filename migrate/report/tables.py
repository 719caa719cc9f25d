"""Tables of literal text for terminals of any width. Laid out by hand: rich takes seconds for 20,000 rows.

Where a table is wider than the terminal, long cells are folded at separators; where that is not enough, each row
becomes a paragraph. Text that goes into a file or a pipe is never folded. What would move the cursor or change colours
in a name is shown as an escape.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from migrate.report.text import printable

_GAP = "  "
_NARROWEST_COLUMN = 14
"""Columns of a folded cell below which a reader loses the thread."""
_BETWEEN = " · "
"""Between the facts of a paragraph."""


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows of literal text under headings."""

    columns: Sequence[tuple[str, bool]]
    """(heading, whether it holds numbers, which stand to the right)."""
    rows: Sequence[Sequence[Sequence[str]]]
    """For each cell its lines."""

    def lines(self, width: int | None = None) -> tuple[list[str], list[str]] | None:
        """Heading and rows as lines of at most ``width`` columns; None if they cannot be that narrow."""
        cells: list[Sequence[Sequence[str]]] = [[[title] for title, _ in self.columns], *self.rows]
        widths = _widths(cells)
        if width is not None and (limit := self._limit(widths, width)) is not None:
            if limit < _NARROWEST_COLUMN:
                return None
            limits = [w if number else min(w, limit) for w, (_, number) in zip(widths, self.columns, strict=True)]
            cells = [[_fold_all(cell, most) for cell, most in zip(row, limits, strict=True)] for row in cells]
            widths = _widths(cells)
        return list(self._row(cells[0], widths)), [line for row in cells[1:] for line in self._row(row, widths)]

    def paragraphs(self, width: int, name_style: str = "{}") -> Iterator[str]:
        """For each row its first cell, put into ``name_style``, and below it the others with their headings."""
        if title := self.columns[0][0]:
            yield from fold(f"{title}:", width)
        for first, *others in self.rows:
            yield from (name_style.format(line) for line in _fold_all(first, width))
            line = ""
            for (heading, _), cell in zip(self.columns[1:], others, strict=True):
                if not any(cell):
                    continue
                value = (" " if any(part.startswith("->") for part in cell) else ", ").join(cell)
                fact = f"{heading} {value}".strip()
                if line and cell_len(line + _BETWEEN + fact) + 2 <= width:
                    line += _BETWEEN + fact
                    continue
                if line:
                    yield "  " + line
                line = fact
                if cell_len(fact) + 2 > width:
                    yield from ("  " + part for part in fold(heading, width - 2))
                    yield from (
                        "    " + part for line in cell for part in fold(line, max(_NARROWEST_COLUMN, width - 4))
                    )
                    line = ""
            if line:
                yield "  " + line

    def _limit(self, widths: Sequence[int], width: int) -> int | None:
        """The most that a column of text may take so that all fit; None if nothing needs to be folded."""
        room = width - len(_GAP) * (len(widths) - 1)
        if sum(widths) <= room:
            return None
        texts = sorted(w for w, (_, number) in zip(widths, self.columns, strict=True) if not number)
        room -= sum(widths) - sum(texts)
        while texts and texts[0] <= room // len(texts):
            room -= texts.pop(0)
        return room // len(texts) if texts else 0

    def _row(self, cells: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
        for number in range(max(map(len, cells))):
            parts = (
                _padded(cell[number] if number < len(cell) else "", width, is_number)
                for cell, width, (_, is_number) in zip(cells, widths, self.columns, strict=True)
            )
            yield _GAP.join(parts).rstrip()


def table(columns: Sequence[tuple[str, bool]], rows: Iterable[Sequence[str]]) -> TextTable:
    """A table of (heading, is a number) columns; every cell is literal text, of one or several lines."""
    return TextTable(columns, [[[printable(line) for line in cell.split("\n")] for cell in row] for row in rows])


def print_table(out: Console, table: TextTable) -> None:
    """Print a table as wide as it is, or as the terminal allows."""
    laid_out = table.lines(out.width if out.is_terminal else None)
    if laid_out is None:
        with out.capture() as bold:
            out.print(Text("{}", style="bold"), end="")
        lines: Iterable[str] = table.paragraphs(out.width, bold.get())
    else:
        heading, lines = laid_out
        for line in heading:
            out.print(Text(line, style="bold"), soft_wrap=True)
    out.file.write("".join(f"{line}\n" for line in lines))


def print_facts(out: Console, facts: Sequence[tuple[str, str]]) -> None:
    """Print (label, text) pairs, one a line; what a terminal cannot hold goes on below its beginning."""
    width = max(len(label) for label, _ in facts) + 2
    for label, text in facts:
        shown = printable(text)
        lines = fold(shown, max(_NARROWEST_COLUMN, out.width - width)) if out.is_terminal else [shown]
        out.print(Text.assemble((f"{label:{width}}", "bold"), lines[0]), soft_wrap=True)
        for line in lines[1:]:
            out.print(Text(" " * width + line), soft_wrap=True)


_WORD = re.compile(r"\s*\S+")
_PART = re.compile(r"[^/,;:{(\[]*(?:[/,;:]+|[{(\[]+|$)")


def fold(text: str, width: int) -> list[str]:
    """``text`` in lines of at most ``width`` columns: broken between words, within one only if it is too long."""
    if cell_len(text) <= width:
        return [text]
    lines, line = [], ""
    for word in _WORD.findall(text):
        if cell_len(line + word) <= width:
            line += word
            continue
        if line:
            lines.append(line)
        line = word.lstrip()
        if cell_len(line) > width:
            *whole, line = _fold_word(line, width)
            lines += whole
    return [*lines, line]


def _fold_word(word: str, width: int) -> list[str]:
    lines, line = [], ""
    for part in _PART.findall(word):
        if line and cell_len(line + part) > width:
            lines.append(line)
            line = ""
        *whole, line = chop_cells(line + part, width) or [""]
        lines += whole
    return [*lines, line]


def _widths(cells: Iterable[Sequence[Sequence[str]]]) -> list[int]:
    return [max(cell_len(line) for cell in column for line in cell) for column in zip(*cells, strict=True)]


def _fold_all(cell: Sequence[str], width: int) -> list[str]:
    return [part for line in cell for part in fold(line, width)]


def _padded(text: str, width: int, number: bool) -> str:
    space = " " * (width - cell_len(text))
    return space + text if number else text + space
