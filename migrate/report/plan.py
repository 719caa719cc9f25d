"""The plan of a job, and what its layouts cost, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from migrate import costs
from migrate.report.tables import print_facts, print_table, table
from migrate.report.text import format_bytes, format_grid, format_seconds, format_shape, format_uri, plural

if TYPE_CHECKING:
    from migrate.preparation import Prepared
    from migrate.signature import ParameterSpec, Signature

_SHOWN = 10
"""Parameters of a table that lists the largest."""


def show_plan(out: Console, prepared: Prepared, *, limit: int | None = None) -> None:
    """The plan of a job, an array a line; at most ``limit`` arrays."""
    plan, source = prepared.plan, prepared.checkpoint
    select = prepared.job.source.select
    fingerprint = prepared.signatures[0].fingerprint
    results = prepared.compiled.values()
    done = [result.seconds for result in results if not result.cached]
    origin = f"compiled in {format_seconds(sum(done))}" if done else "from the compile cache"
    if 0 < len(done) < len(results):
        origin += f", {len(results) - len(done)} of {len(results)} from the compile cache"
    mesh = " x ".join(f"{name} {extent}" for name, extent in fingerprint.mesh)
    compiler = f"libtpu {fingerprint.libtpu}" if fingerprint.libtpu else "XLA:CPU"
    print_facts(
        out,
        [
            ("source", f"{format_uri(source.uri)} ({source.format}, {source.version})"),
            *([("subtree", select if isinstance(select, str) else ", ".join(select))] if select else []),
            ("target", f"{fingerprint.topology}, mesh {mesh}, {fingerprint.layout_policy} layouts"),
            ("compiler", f"jax {fingerprint.jax}, {compiler}, {origin}"),
            ("output", f"{format_uri(prepared.job.output)} (export {prepared.export_id})"),
        ],
    )
    out.print()
    columns = [
        ("parameter", False),
        ("dtype", False),
        ("shape", False),
        ("source chunks", False),
        ("target chunks", False),
        ("major to minor", False),
        ("bytes", True),
        ("per device", True),
    ]
    prefix = f"{select.strip('/')}/" if isinstance(select, str) else ""
    parameters = [array for array in plan.arrays if array.tree == "params"]
    shown = parameters if limit is None else parameters[:limit]
    rows = [
        (
            array.name,
            array.stored.dtype,
            format_shape(array.stored.shape),
            format_grid(array.source_grid),
            format_grid(array.stored.grid),
            format_shape(array.stored.major_to_minor) if array.stored.shape else "",
            format_bytes(array.stored.nbytes),
            format_bytes(array.device_bytes),
        )
        for array in shown
    ]
    print_table(out, table(columns, rows))
    if len(shown) < len(parameters):
        out.print(f"... and {len(parameters) - len(shown)} more; `reexport plan` lists them all")
    made = [array for array in shown if prefix + array.name != array.source_name]
    if made:
        out.print()
        print_table(
            out, table([("made by the mapping", False), ("from", False)], [(a.name, a.source_name) for a in made])
        )
    out.print()
    out.print(
        f"{plural(len(plan.arrays), 'array')}, {format_bytes(plan.nbytes)} in {plural(len(plan.items), 'item')}; "
        f"{format_bytes(plan.device_bytes)} on each device with tile padding"
    )
    for note in _notes(prepared):
        out.print(Text(note))
    out.print()
    show_layout_costs(out, prepared.signatures)


def _notes(prepared: Prepared) -> Iterator[str]:
    """What a reader of the plan should know besides the table."""
    plan = prepared.plan
    coarse = [a.source_chunk_bytes for a in plan.arrays if a.source_chunk_bytes > prepared.job.rewrite.max_item_bytes]
    if coarse:
        yield (
            f"{plural(len(coarse), 'array')} with source chunks above max_item_bytes, up to "
            f"{format_bytes(max(coarse))}: each item that touches such a chunk holds all of it"
        )
    if carried := [array.stored.nbytes for array in plan.arrays if array.tree == "carried"]:
        yield f"carried along unchanged: {plural(len(carried), 'array')}, {format_bytes(sum(carried))}"
    for rule in plan.idle_rules:
        yield f"this rule matched nothing: {rule}"
    if plan.dropped:
        yield "not rewritten: " + _reasons(plan.dropped)


def _reasons(dropped: Sequence[tuple[str, str]]) -> str:
    counts: dict[str, int] = {}
    for _, reason in dropped:
        counts[reason] = counts.get(reason, 0) + 1
    return "; ".join(f"{count} {'leaf' if count == 1 else 'leaves'} {reason}" for reason, count in counts.items())


def show_layout_costs(out: Console, signatures: Sequence[Signature]) -> None:
    """Device memory of each program, by its layouts and by the default ones; and where two programs disagree."""
    columns = [
        ("program", False),
        ("arguments", True),
        ("by default layouts", True),
        ("temporary", True),
        ("results", True),
        ("code", True),
    ]
    rows = [
        (
            signature.program + (" (primary)" if len(signatures) > 1 and signature is signatures[0] else ""),
            format_bytes(signature.device_bytes),
            _maybe(signature.default_device_bytes),
            *map(
                format_bytes,
                (signature.memory.temporary_bytes, signature.memory.output_bytes, signature.memory.code_bytes),
            ),
        )
        for signature in signatures
    ]
    print_table(out, table(columns, rows))
    for signature in signatures:
        _show_unlike_default(out, signature)
        _show_prescribed(
            out,
            signature,
            costs.refused(signature),
            f"{signature.program}: layouts refused, since they are padded too much",
            "refused",
        )
        _show_prescribed(
            out,
            signature,
            costs.conflicts(signature),
            f"{signature.program} would have these otherwise than the programs before it",
            "wanted",
        )


def _maybe(nbytes: int | None) -> str:
    return "unknown" if nbytes is None else format_bytes(nbytes)


def _show_unlike_default(out: Console, signature: Signature) -> None:
    found = costs.unlike_default(signature)
    if not found:
        return
    out.print()
    columns = [
        (f"{signature.program}: not as by default", False),
        ("layout of a shard", False),
        ("per device", True),
        ("by default", True),
    ]
    rows = [
        (f"{p.argument}/{p.name}", str(p.shard), format_bytes(p.device_bytes), _maybe(p.default_device_bytes))
        for p in found[:_SHOWN]
    ]
    print_table(out, table(columns, rows))
    _show_rest(out, len(found))


def _show_prescribed(
    out: Console, signature: Signature, found: Sequence[ParameterSpec], title: str, other: str
) -> None:
    """Parameters that do not have the layout the compiler chose for them, and what that costs the program."""
    if not found:
        return
    out.print()
    columns = [(title, False), ("layout", False), ("per device", True), (other, False), ("per device", True)]
    rows = [
        (
            f"{p.argument}/{p.name}",
            str(p.layout),
            format_bytes(p.device_bytes),
            str(p.wanted),
            f"{format_bytes(p.wanted_device_bytes)}"
            + (f" ({p.wanted_device_bytes / max(1, p.unpadded_bytes):.1f} x)" if other == "refused" else ""),
        )
        for p in sorted(found, key=lambda p: -abs(p.device_bytes - p.wanted_device_bytes))[:_SHOWN]
    ]
    print_table(out, table(columns, rows))
    _show_rest(out, len(found))
    if (free := signature.free_memory) is not None:
        memory = signature.memory
        out.print(
            f"{signature.program} with all layouts of its own: arguments {format_bytes(free.argument_bytes)} instead "
            f"of {format_bytes(memory.argument_bytes)}, temporary {format_bytes(free.temporary_bytes)} instead of "
            f"{format_bytes(memory.temporary_bytes)}"
        )


def _show_rest(out: Console, count: int) -> None:
    if count > _SHOWN:
        out.print(f"... and {count - _SHOWN} more; `reexport plan --json` lists them all")
