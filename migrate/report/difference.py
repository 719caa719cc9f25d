"""The difference of two signatures, for reading."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from migrate.report.tables import TextTable, print_table, table
from migrate.report.text import format_bytes, format_shape
from migrate.report.words import pairs, sharding, verdict

if TYPE_CHECKING:
    from migrate.difference import Difference, ParameterChange
    from migrate.signature import Change
    from migrate.upgrade import Upgrade


def show_difference(out: Console, difference: Difference, labels: tuple[str, str]) -> None:
    """Both sides, what the fingerprints differ in, a line a changed parameter, sums, and the verdict."""
    for name, label in zip(("A", "B"), labels, strict=True):
        out.print(Text.assemble((f"{name}  ", "bold"), label), soft_wrap=True)
    show_changes(out, difference)
    print_table(out, _sums(difference))
    out.print()
    out.print(Text(verdict(difference)))


def show_upgrade(out: Console, upgrade: Upgrade, label: str) -> None:
    """Which version of a range changed what a job expects, and what it changed."""
    versions, change = upgrade.versions, upgrade.change
    if change is None:
        out.print(Text(f"libtpu {versions[0]} and {versions[-1]} expect every parameter alike."))
        if len(versions) > 2:
            out.print(Text("A change between them that was taken back would not be seen."))
        return
    first = "" if change.before == versions[0] else f", which expects what {versions[0]} does"
    if change.skipped:
        words = (
            f"changed after libtpu {change.before}{first}, with {change.after} at the latest; could not be used: "
            f"{', '.join(change.skipped)}"
        )
    else:
        words = f"changed with libtpu {change.after}, not yet with {change.before}{first}"
    out.print(Text(f"{label} {words}."))
    out.print()
    show_difference(out, upgrade.difference, (f"libtpu {change.before}", f"libtpu {change.after}"))
    out.print()
    if upgrade.later:
        again = f"--libtpu {change.after}..{versions[-1]}"
        out.print(Text(f"libtpu {versions[-1]} expects yet something else: {again} finds where that begins."))
    elif len(versions) > 2:
        out.print(Text(f"libtpu {versions[-1]} expects the same. Changes that were taken back would not be seen."))


def show_changes(out: Console, difference: Difference) -> None:
    """What the fingerprints differ in, and a line a changed parameter."""
    for change in difference.fingerprint:
        out.print(Text(f"   {_fingerprint(change)}"), soft_wrap=True)
    out.print()
    if difference.parameters:
        print_table(out, _parameters(difference))
        out.print()


def _fingerprint(change: Change) -> str:
    if change.field == "stablehlo_sha256":
        return f"program: StableHLO {change.before[:12]} -> {change.after[:12]}"
    if change.field in {"mesh", "flags"}:
        return f"{change.field}: {pairs(change.before)} -> {pairs(change.after)}"
    return f"{change.field.replace('_', ' ')}: {change.before or 'none'} -> {change.after or 'none'}"


def _parameters(difference: Difference) -> TextTable:
    columns = [
        ("parameter", False),
        ("changed", False),
        ("A -> B, one device's shard in XLA's terms", False),
        ("per device", True),
        ("stored array", False),
    ]
    return table(columns, map(_row, difference.parameters))


def _row(change: ParameterChange) -> tuple[str, ...]:
    before, after = change.before, change.after
    weight = any(side is not None and side.is_weight for side in (before, after))
    stored = ("rewrite" if change.rewrite else "unchanged" if after is not None else "gone") if weight else ""
    sides = [
        ("-", "-") if side is None else (str(side.shard), format_bytes(side.device_bytes)) for side in (before, after)
    ]
    shape = f"{sides[0][0]}\n-> {sides[1][0]}"
    if before is not None and after is not None and before.partition != after.partition:
        shape += f"\nsharding {sharding(before.partition)} -> {sharding(after.partition)}"
    if before is not None and after is not None and before.shape != after.shape:
        shape += f"\nwhole array {format_shape(before.shape)} -> {format_shape(after.shape)}"
    return change.name, "\n".join(change.aspects), shape, f"{sides[0][1]}\n-> {sides[1][1]}", stored


def _sums(difference: Difference) -> TextTable:
    before, after = difference.before, difference.after
    rows = [
        ("all parameters", before.device_bytes, after.device_bytes),
        ("changed parameters", *difference.changed_device_bytes()),
        ("temporary", before.memory.temporary_bytes, after.memory.temporary_bytes),
        ("code", before.memory.code_bytes, after.memory.code_bytes),
    ]
    columns = [("on each device", False), ("A", True), ("B", True)]
    return table(columns, [(name, format_bytes(old), format_bytes(new)) for name, old, new in rows])
