"""What notebooks show of a signature, a plan and a difference: short tables. Imports nothing heavy.

A notebook may hold output of others, so every text is escaped, and the tables carry no style but alignment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from migrate.report.text import format_bytes, format_grid, format_shape, plural, printable
from migrate.report.words import compiler, mesh, parameter_name, percent, sharding, verdict

if TYPE_CHECKING:
    from migrate.difference import Difference, ParameterChange
    from migrate.planner import Plan
    from migrate.signature import Fingerprint, Signature

MOST_ROWS = 20
"""Rows of a table; the largest arrays come first."""

Column = tuple[str, bool]
"""(heading, whether it holds numbers)."""


def signature_html(signature: Signature) -> str:
    """A line about the program, and the parameters that take most of a device."""
    parameters = sorted(signature.parameters, key=lambda p: -p.device_bytes)
    headline = (
        f"Program {signature.program}: {plural(len(parameters), 'parameter')}, "
        f"{format_bytes(signature.device_bytes)} on each device; {_target(signature.fingerprint)}"
    )
    columns = [("parameter", False), ("shard", False), ("sharding", False), ("per device", True), ("padding", True)]
    rows = (
        (
            parameter_name(p),
            str(p.shard),
            sharding(p.partition),
            format_bytes(p.device_bytes),
            percent(p.device_bytes - p.unpadded_bytes, p.device_bytes),
        )
        for p in parameters[:MOST_ROWS]
    )
    return _page("Signature", headline, columns, rows, len(parameters))


def plan_html(plan: Plan) -> str:
    """A line about the work, and the largest arrays."""
    arrays = sorted(plan.arrays, key=lambda a: -a.stored.nbytes)
    headline = (
        f"{plural(len(arrays), 'array')}, {format_bytes(plan.nbytes)} in {plural(len(plan.items), 'item')}; "
        f"{format_bytes(plan.device_bytes)} on each device"
    )
    columns = [
        ("array", False),
        ("dtype", False),
        ("shape", False),
        ("source chunks", False),
        ("target chunks", False),
        ("major to minor", False),
        ("bytes", True),
        ("per device", True),
    ]
    rows = (
        (
            a.name,
            a.stored.dtype,
            format_shape(a.stored.shape),
            format_grid(a.source_grid),
            format_grid(a.stored.grid),
            format_shape(a.stored.major_to_minor) if a.stored.shape else "",
            format_bytes(a.stored.nbytes),
            format_bytes(a.device_bytes),
        )
        for a in arrays[:MOST_ROWS]
    )
    return _page("Plan", headline, columns, rows, len(arrays))


def difference_html(difference: Difference) -> str:
    """What there is to do, and the changed parameters that take most of a device."""
    changes = sorted(difference.parameters, key=lambda change: -max(_sizes(change)))
    before, after = difference.before, difference.after
    headline = (
        f"{verdict(difference)}; on each device {format_bytes(before.device_bytes)} before, "
        f"{format_bytes(after.device_bytes)} after"
    )
    columns = [
        ("parameter", False),
        ("changed", False),
        ("before", False),
        ("after", False),
        ("per device before", True),
        ("after", True),
    ]
    rows = (
        (
            change.name,
            ", ".join(change.aspects),
            *("" if side is None else str(side.shard) for side in (change.before, change.after)),
            *map(format_bytes, _sizes(change)),
        )
        for change in changes[:MOST_ROWS]
    )
    return _page("Difference", headline, columns, rows, len(changes))


def _sizes(change: ParameterChange) -> tuple[int, int]:
    before, after = (0 if side is None else side.device_bytes for side in (change.before, change.after))
    return before, after


def _target(fingerprint: Fingerprint) -> str:
    return f"{fingerprint.topology}, mesh {mesh(fingerprint)}, {compiler(fingerprint)}"


def _page(title: str, headline: str, columns: Sequence[Column], rows: Iterable[Sequence[str]], count: int) -> str:
    parts = [f"<div><p><b>{_text(title)}</b> {_text(headline)}</p>"]
    if count:
        heading = "".join(_cell("th", name, number) for name, number in columns)
        parts.append(f"<table><thead><tr>{heading}</tr></thead><tbody>")
        for row in rows:
            cells = (_cell("td", text, number) for text, (_, number) in zip(row, columns, strict=True))
            parts.append(f"<tr>{''.join(cells)}</tr>")
        parts.append("</tbody></table>")
    if count > MOST_ROWS:
        parts.append(f"<p>and {count - MOST_ROWS:,} more</p>")
    return "".join([*parts, "</div>"])


def _cell(tag: str, text: str, number: bool) -> str:
    return f'<{tag} style="text-align: {"right" if number else "left"}">{_text(text)}</{tag}>'


def _text(text: str) -> str:
    return escape(printable(text))
