"""The exports of an output, and what a collection did, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from migrate.collector import Collected
from migrate.conflict import Outlook
from migrate.durations import format_span
from migrate.publication import Listed
from migrate.report.tables import print_table, table
from migrate.report.text import format_bytes, format_uri, plural


def show_exports(out: Console, exports: Sequence[Listed]) -> None:
    """An export a line, newest first."""
    columns = [
        ("export", False),
        ("state", False),
        ("created", False),
        ("target", False),
        ("compiler", False),
        ("source", False),
        ("wrote", True),
        ("parameter set", False),
    ]
    print_table(out, table(columns, [_row(listed) for listed in exports]))


def _row(listed: Listed) -> tuple[str, ...]:
    manifest = listed.manifest
    fingerprint, source = manifest.programs[0].fingerprint, manifest.source
    return (
        listed.id,
        listed.state,
        manifest.created.replace("+00:00", "Z"),
        fingerprint.topology,
        f"libtpu {fingerprint.libtpu}" if fingerprint.libtpu else f"jaxlib {fingerprint.jaxlib}",
        f"step {source.step}" if source.step is not None else format_uri(source.uri),
        format_bytes(manifest.bytes_written),
        manifest.parameter_set,
    )


def show_collected(out: Console, collected: Collected, grace_seconds: float) -> None:
    """What stays, what is hidden, what goes."""
    decision, would = collected.decision, "would be " if collected.dry_run else ""
    for export_id, why in decision.keep.items():
        out.print(f"keep    export {export_id}: {why}")
    for export_id in decision.hide:
        out.print(f"hide    export {export_id}")
    for export_id in (*decision.waiting_exports, *decision.mark_exports):
        if export_id not in decision.hide:
            out.print(f"wait    export {export_id}: not visible; its grace period lasts, or a job is running")
    for name in (*decision.waiting_sets, *decision.mark_sets):
        out.print(f"wait    parameter set {name}: no export refers to it; its grace period lasts, or a job holds it")
    for export_id in decision.delete_exports:
        out.print(f"delete  export {export_id}")
    for name in decision.delete_sets:
        out.print(f"delete  parameter set {name}")
    deleted = (
        f"{plural(len(decision.delete_exports), 'export')} and {plural(len(decision.delete_sets), 'set')} of arrays"
    )
    out.print(
        f"{plural(len(decision.hide), 'export')} {would}hidden; {deleted} {would}deleted "
        f"({format_bytes(collected.freed_bytes)}); {format_bytes(collected.kept_bytes)} of arrays stay"
    )
    if set(decision.hide) - set(decision.delete_exports):
        out.print(f"run gc again after {format_span(grace_seconds)} to delete what is hidden now")


def show_outlook(out: Console, outlook: Outlook) -> None:
    """What a run would meet in the output; nothing where that is empty."""
    if outlook.state == "empty":
        return
    out.print()
    if outlook.state == "committed":
        out.print("The output holds this export already: a run writes nothing.")
        return
    written = "no array"
    if outlook.written_bytes:
        written = format_bytes(outlook.written_bytes)
        if outlook.copied_bytes:
            written += f", {format_bytes(outlook.copied_bytes)} of it copied from that export,"
    if outlook.state == "shared":
        out.print(f"The output holds these arrays already: a run writes {written}.")
        return
    out.print(
        f"The output holds another export, {outlook.current}: a run is refused, unless it is told to --supersede it. "
        f"Then it writes {written} and becomes the current one."
    )
