"""An export beside its source or another export, for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from migrate.report.tables import print_table, table
from migrate.report.text import format_bytes, format_uri, plural

if TYPE_CHECKING:
    from rich.console import Console

    from migrate.comparison import Comparison

_MOST_SHOWN = 20


def show_comparison(out: Console, comparison: Comparison) -> None:
    """Which arrays differ, at most twenty of them, and how many were compared."""
    other = format_uri(comparison.other)
    if comparison.same_files is False:
        out.print(Text(f"{other} is not, file by file, the checkpoint that the export was made from.", style="yellow"))
    if not comparison.differences:
        compared = f"{plural(comparison.arrays, 'array')}, {format_bytes(comparison.nbytes)}"
        out.print(Text(f"The same content as {other}: {compared}.", style="green"))
        return
    count = len(comparison.differences)
    out.print(Text(f"{count} of {plural(comparison.arrays, 'array')} differ from {other}:", style="red"))
    shown = comparison.differences[:_MOST_SHOWN]
    rows = [(d.name if d.tree == "params" else f"{d.name} (carried)", d.expected, d.found) for d in shown]
    columns = [("array", False), ("in the export", False), ("there", False)]
    print_table(out, table(columns, rows))
    if count > _MOST_SHOWN:
        out.print(f"and {count - _MOST_SHOWN} more")
