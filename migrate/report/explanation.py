"""An explained error, for reading."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from migrate.report.text import format_bytes

if TYPE_CHECKING:
    from migrate.explain import Explained, ExplainedSide


def show_explanation(out: Console, explained: Explained) -> None:
    """One mismatch: the parameter, both sides with their arithmetic, what differs, cause and cure."""
    mismatch, parameter = explained.mismatch, explained.parameter
    if mismatch.executable:
        _line(out, "executable", mismatch.executable)
    if mismatch.number is not None:
        _line(out, "parameter", f"HLO number {mismatch.number}")
    if mismatch.argument:
        _line(out, "argument", mismatch.argument)
    if parameter is not None:
        _line(
            out,
            "name",
            f"{parameter.name or parameter.argument} (argument {parameter.argument}, HLO number {parameter.number})",
        )
        _line(out, "signature", f"{parameter.shard}, {format_bytes(parameter.device_bytes)} on each device")
    if explained.today is not None:
        now = explained.today
        _line(out, "job today", f"{now.shard}, {format_bytes(now.device_bytes)} on each device")
    for label, side in (("expected", explained.expected), ("found", explained.found)):
        _show_side(out, label, side, whole=mismatch.is_global)
    for difference in explained.differences:
        _line(out, "differs", difference)
    _line(out, "cause", explained.cause)
    for command in explained.cure:
        _line(out, "do this", command)


def _show_side(out: Console, label: str, side: ExplainedSide, *, whole: bool) -> None:
    parts = [side.stated.text] if side.stated.text else []
    if side.stated.nbytes is not None:
        parts.append(f"{side.stated.nbytes:,} bytes ({format_bytes(side.stated.nbytes)})")
    if not parts:
        return
    if side.agrees is False:
        parts.append(f"but this shape takes {side.nbytes:,} bytes by its layout")
    elif side.agrees is None and side.nbytes is not None:
        parts.append(f"{side.nbytes:,} bytes" + (" if one device held the whole array" if whole else ""))
    _line(out, label, ", ".join(parts))
    if side.assumed is not None:
        out.print(Text(f"{'':12}counted as {side.assumed}: by its size, the message leaves tiles out"))
    for words in side.words:
        out.print(Text(f"{'':12}{words}"))


def _line(out: Console, label: str, text: str) -> None:
    # long words such as shapes must stay whole, to be copied
    out.print(Text.assemble((f"{label:12}", "bold"), text), soft_wrap=True)
