"""The consoles of a command, and what it prints of checkpoints, exports and signatures."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from migrate.report.tables import print_facts, print_table, table
from migrate.report.text import format_bytes, format_grid, format_seconds, format_shape, format_uri, plural

if TYPE_CHECKING:
    from migrate.audit import Checked
    from migrate.compiler import CompileResult
    from migrate.driver import Result
    from migrate.export import Export
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
        if result.bytes_copied:
            shared = f", {format_bytes(result.bytes_copied)} of it copied from the export before{shared}"
        out.print(
            f"Committed export {manifest.export}: {format_bytes(result.bytes_written)} written and verified{shared}."
        )
    out.print()
    seconds = ", ".join(f"{stage} {format_seconds(seconds)}" for stage, seconds in manifest.timings.items())
    print_facts(
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
    print_facts(out, facts)
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
        primary = " (primary)" if len(manifest.programs) > 1 and program is manifest.programs[0] else ""
        facts.append(("program", f"{program.name}{primary}: {program.entry} for {target}"))
        if fingerprint.flags:
            facts.append(("flags", ", ".join(f"{name}={value}" for name, value in fingerprint.flags)))
    print_facts(out, facts)
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


def format_compile(result: CompileResult) -> str:
    """Where an executable comes from."""
    return "from the compile cache" if result.cached else f"compiled in {format_seconds(result.seconds)}"


def show_compiled(out: Console, compiled: Sequence[CompileResult]) -> None:
    """Compiles: the signature of each, and the compiler's account of device memory."""
    for number, result in enumerate(compiled):
        signature, memory = result.signature, result.signature.memory
        if len(compiled) > 1:
            out.print(Text(("\n" if number else "") + f"program {signature.program}", style="bold"))
        show_signature(out, signature)
        out.print()
        out.print(
            f"on each device: arguments {format_bytes(memory.argument_bytes)}, "
            f"results {format_bytes(memory.output_bytes)}, "
            f"temporary {format_bytes(memory.temporary_bytes)}, code {format_bytes(memory.code_bytes)}"
        )
        out.print(f"{format_compile(result)}; fingerprint {signature.fingerprint.digest[:16]}")


def show_checked(out: Console, export: Export, checked: Checked) -> None:
    """The outcome of a full check that found nothing."""
    out.print(
        f"Export {export.manifest.export} is intact: {plural(checked.arrays, 'array')} in "
        f"{plural(checked.chunks, 'chunk')}, {format_bytes(checked.nbytes)}, "
        f"and {plural(checked.files, 'file')} match the committed digests."
    )
