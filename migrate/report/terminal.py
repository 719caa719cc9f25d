"""Tables for a terminal: plans, checkpoints, exports, signatures."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from migrate.report.text import format_bytes, format_grid, format_seconds, format_shape, format_uri, plural

if TYPE_CHECKING:
    from migrate.compiler import CompileResult
    from migrate.driver import Result
    from migrate.export import Checked, Export
    from migrate.preparation import Prepared
    from migrate.signature import Signature
    from migrate.sources import SourceCheckpoint

_PIPED_WIDTH = 10_000
"""Columns of output that goes into a file or a pipe: nothing is wrapped there."""


def console(*, stderr: bool = False) -> Console:
    """A console for standard output or error: colours only on a terminal, and never under NO_COLOR."""
    stream = sys.stderr if stderr else sys.stdout
    # paths and regular expressions are printed as they are: [a-z] is no style, :key: no emoji
    return Console(
        stderr=stderr,
        width=None if stream.isatty() else _PIPED_WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=False,
    )


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows of literal text under headings. Laid out by hand: rich takes seconds for 20,000 rows."""

    columns: Sequence[tuple[str, bool]]
    """(heading, whether it holds numbers, which stand to the right)."""
    rows: Sequence[Sequence[str]]

    def lines(self) -> list[str]:
        """Heading and rows at their natural width."""
        cells = [[heading for heading, _ in self.columns], *self.rows]
        widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
        numbers = [number for _, number in self.columns]
        return ["  ".join(_padded(*cell) for cell in zip(row, widths, numbers, strict=True)).rstrip() for row in cells]


def _padded(text: str, width: int, number: bool) -> str:
    space = " " * (width - cell_len(text))
    return space + text if number else text + space


def table(columns: Sequence[tuple[str, bool]], rows: Iterable[Sequence[str]]) -> TextTable:
    """A table of (heading, is a number) columns; every cell is literal text, of one or several lines."""
    lines = (itertools.zip_longest(*(cell.split("\n") for cell in row), fillvalue="") for row in rows)
    return TextTable(columns, [line for row in lines for line in row])


def print_table(out: Console, table: TextTable) -> None:
    """Print a table at its natural width: a narrow terminal wraps whole lines, which beats cells cut in pieces."""
    heading, *rows = table.lines()
    out.print(Text(heading, style="bold"), soft_wrap=True)
    out.file.write("".join(f"{row}\n" for row in rows))


def _facts(out: Console, facts: Sequence[tuple[str, str]]) -> None:
    width = max(len(label) for label, _ in facts) + 2
    for label, text in facts:
        out.print(Text(f"{label:{width}}", style="bold") + Text(text), soft_wrap=True)


def show_plan(out: Console, prepared: Prepared, *, limit: int | None = None) -> None:
    """The plan of a job, an array a line; at most ``limit`` arrays."""
    plan, signature, source = prepared.plan, prepared.signature, prepared.checkpoint
    select = prepared.job.source.select
    fingerprint = signature.fingerprint
    mesh = " x ".join(f"{name} {extent}" for name, extent in fingerprint.mesh)
    compiler = f"libtpu {fingerprint.libtpu}" if fingerprint.libtpu else "XLA:CPU"
    _facts(
        out,
        [
            ("source", f"{format_uri(source.uri)} ({source.format}, {source.version})"),
            *([("subtree", select if isinstance(select, str) else ", ".join(select))] if select else []),
            ("target", f"{fingerprint.topology}, mesh {mesh}, {fingerprint.layout_policy} layouts"),
            ("compiler", f"jax {fingerprint.jax}, {compiler}, {format_seconds(prepared.compiled.seconds)}"),
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


def _carried_fact(export: Export, carried: bool) -> list[tuple[str, str]]:
    return [("carried", f"{format_uri(export.carried_uri)} (an Orbax checkpoint)")] if carried else []


def show_result(out: Console, result: Result) -> None:
    """The last words of a run."""
    manifest = result.export.manifest
    if result.already_committed:
        out.print(f"Already committed as export {manifest.export}: nothing was written.")
    else:
        reused = result.plan.nbytes - result.bytes_written
        shared = f"; {format_bytes(reused)} lay there already, verified" if reused else ""
        out.print(
            f"Committed export {manifest.export}: {format_bytes(result.bytes_written)} written and verified{shared}."
        )
    out.print()
    seconds = ", ".join(f"{stage} {format_seconds(seconds)}" for stage, seconds in manifest.timings.items())
    _facts(
        out,
        [
            ("export", format_uri(result.export.uri)),
            ("parameters", f"{format_uri(result.export.parameters_uri)} (an Orbax checkpoint)"),
            *_carried_fact(result.export, any(array.tree == "carried" for array in result.plan.arrays)),
            ("time", f"{format_seconds(result.seconds)}" + ("" if result.already_committed else f" ({seconds})")),
        ],
    )


def show_checkpoint(out: Console, checkpoint: SourceCheckpoint) -> None:
    """A source checkpoint, a leaf a line."""
    leaves = checkpoint.leaves
    facts = [("path", format_uri(checkpoint.uri)), ("format", checkpoint.format), ("written by", checkpoint.version)]
    if checkpoint.step is not None:
        facts.append(("step", str(checkpoint.step)))
    if checkpoint.item is not None:
        facts.append(("item", checkpoint.item))
    facts += list(checkpoint.details.items())
    facts.append(("identity", checkpoint.identity[:16]))
    _facts(out, facts)
    out.print()
    columns = [("leaf", False), ("dtype", False), ("shape", False), ("chunks", False), ("bytes", True)]
    rows = [
        (leaf.name, leaf.dtype.name, format_shape(leaf.shape), format_grid(leaf.grid), format_bytes(leaf.nbytes))
        for leaf in leaves
    ]
    rows += [("/".join(place.path), place.kind, "", "", "") for place in checkpoint.placeholders]
    print_table(out, table(columns, rows))
    out.print()
    out.print(f"{len(leaves):,} arrays, {format_bytes(sum(leaf.nbytes for leaf in leaves))}")


def show_export(out: Console, export: Export) -> None:
    """A committed export, an array a line."""
    manifest, arrays = export.manifest, export.parameter_set().arrays
    source = manifest.source
    facts = [
        ("export", f"{format_uri(export.uri)} (committed {manifest.created})"),
        ("parameters", f"{format_uri(export.parameters_uri)} (an Orbax checkpoint)"),
        *_carried_fact(export, any(array.tree == "carried" for array in arrays)),
        ("source", f"{format_uri(source.uri)} ({source.format}, {source.version})"),
    ]
    for program in manifest.programs:
        fingerprint = program.fingerprint
        mesh = " x ".join(f"{name} {extent}" for name, extent in fingerprint.mesh)
        compiler = f"libtpu {fingerprint.libtpu}" if fingerprint.libtpu else "XLA:CPU"
        target = f"{fingerprint.topology}, mesh {mesh}, jax {fingerprint.jax}, {compiler}"
        facts.append(("program", f"{program.name}: {program.entry} for {target}"))
        if fingerprint.flags:
            facts.append(("flags", ", ".join(f"{name}={value}" for name, value in fingerprint.flags)))
    _facts(out, facts)
    out.print()
    columns = [
        ("parameter", False),
        ("dtype", False),
        ("shape", False),
        ("chunks", False),
        ("major to minor", False),
        ("bytes", True),
        ("digest", False),
    ]
    rows = [
        (
            array.name if array.tree == "params" else f"(carried) {array.name}",
            array.stored.dtype,
            format_shape(array.stored.shape),
            format_grid(array.stored.grid),
            format_shape(array.stored.major_to_minor) if array.stored.shape else "",
            format_bytes(array.stored.nbytes),
            array.digest[:12],
        )
        for array in arrays
    ]
    print_table(out, table(columns, rows))
    out.print()
    out.print(f"{len(arrays):,} arrays, {format_bytes(sum(array.stored.nbytes for array in arrays))}")


def show_signature(out: Console, signature: Signature) -> None:
    """What an executable expects, a parameter a line."""
    columns = [
        ("number", True),
        ("argument", False),
        ("path", False),
        ("shape of a shard, in XLA's terms", False),
        ("sharding", False),
        ("per device", True),
    ]
    rows = [
        (
            str(p.number),
            p.argument,
            p.name,
            str(p.shard),
            ",".join("+".join(axes) or "-" for axes in p.partition),
            format_bytes(p.device_bytes),
        )
        for p in signature.parameters
    ]
    print_table(out, table(columns, rows))


def show_compiled(out: Console, compiled: CompileResult) -> None:
    """A compile: the signature, and the compiler's account of device memory."""
    show_signature(out, compiled.signature)
    memory = compiled.signature.memory
    out.print()
    out.print(
        f"on each device: arguments {format_bytes(memory.argument_bytes)}, "
        f"results {format_bytes(memory.output_bytes)}, "
        f"temporary {format_bytes(memory.temporary_bytes)}, code {format_bytes(memory.code_bytes)}"
    )
    fingerprint = compiled.signature.fingerprint
    out.print(f"compiled in {format_seconds(compiled.seconds)}; fingerprint {fingerprint.digest[:16]}")


def show_checked(out: Console, export: Export, checked: Checked) -> None:
    """The outcome of a full check that found nothing."""
    out.print(
        f"Export {export.manifest.export} is intact: {plural(checked.arrays, 'array')} in "
        f"{plural(checked.chunks, 'chunk')}, {format_bytes(checked.nbytes)}, "
        f"and {plural(checked.files, 'program file')} match the committed digests."
    )
