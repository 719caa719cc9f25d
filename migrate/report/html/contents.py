"""What a report says about an export, a plan, a signature, or the difference of two signatures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from migrate import costs, topologies
from migrate.errors import TargetError
from migrate.report.html.document import Document, FingerprintRow, Kind, Memory, Stage, Verification
from migrate.report.html.memory import most_wasted, sizes, split_groups
from migrate.report.html.specs import ParameterTable, role
from migrate.report.text import format_bytes, format_seconds, format_uri, plural, printable
from migrate.report.words import compiler, mesh, pairs, parameter_name, percent, verdict

if TYPE_CHECKING:
    from migrate.audit import Checked
    from migrate.box import Grid
    from migrate.difference import Difference
    from migrate.errors import ReexportError
    from migrate.export import Export
    from migrate.preparation import Prepared
    from migrate.signature import Fingerprint, Signature
    from migrate.sources import SourceCheckpoint
    from migrate.zarr import StoredArray

_FIELDS = {
    "topology": "topology",
    "mesh": "mesh",
    "layout_policy": "layout policy",
    "flags": "flags",
    "jax": "jax",
    "jaxlib": "jaxlib",
    "libtpu": "libtpu",
    "stablehlo_sha256": "program, SHA-256 of its StableHLO",
}


def of_export(
    export: Export, *, source: SourceCheckpoint | None = None, checked: Checked | ReexportError | None = None
) -> Document:
    """A committed export. ``source`` is the checkpoint it came from, if it still lies there; ``checked`` the outcome
    of a full check, if there was one. Raises :class:`migrate.errors.VerificationError` if its records are damaged.
    """
    manifest, arrays = export.manifest, export.parameter_set().arrays
    signatures = [export.signature(program.name) for program in manifest.programs]
    leaves = {} if source is None else {leaf.name: leaf.grid for leaf in source.leaves}
    table = _table(
        signatures,
        {a.path: (a.stored, a.source_name, leaves.get(a.source_name)) for a in arrays if a.tree == "params"},
    )
    for array in arrays:
        if array.tree == "carried":
            grid = leaves.get(array.source_name)
            table.add(array.name, "carried", source=array.source_name, source_grid=grid, stored=array.stored)
    nbytes = sum(array.stored.nbytes for array in arrays)
    rewrite = manifest.timings.get("rewrite", 0.0)
    throughput = "The arrays lay there already, verified: this run wrote none."
    if manifest.bytes_written and rewrite:
        rate = f"{format_bytes(manifest.bytes_written / rewrite)}/s"
        throughput = (
            f"{format_bytes(manifest.bytes_written)} written and read back in {format_seconds(rewrite)}: {rate}"
        )
    facts = [
        ("export", f"{manifest.export}, committed {manifest.created}"),
        ("source", _source(manifest.source.uri, manifest.source.format, manifest.source.version)),
        *_target(signatures[0].fingerprint),
        *((f"program {p.name}", p.entry) for p in manifest.programs),
        ("parameters", f"{manifest.parameter_set}: {plural(len(arrays), 'array')}, {format_bytes(nbytes)}"),
        ("made with", ", ".join(f"{name} {version}" for name, version in manifest.tools.items())),
    ]
    how = "verified when it was written" if checked is None else "read back and intact"
    if isinstance(checked, Exception):
        how = "DAMAGED"
    return _document(
        signatures,
        table,
        kind="export",
        title=f"Export {manifest.export}",
        headline=f"{plural(len(arrays), 'array')}, {format_bytes(nbytes)}, {how}: {_device_words(signatures[0])}.",
        facts=facts,
        stages=[Stage(name, seconds) for name, seconds in manifest.timings.items()],
        throughput=throughput,
        verification=_verification(sum(len(a.chunk_digests) for a in arrays), checked),
        notes=_left_out(manifest.dropped),
    )


def of_plan(prepared: Prepared) -> Document:
    """What a job would write, and what its layouts cost."""
    plan, source, signatures = prepared.plan, prepared.checkpoint, prepared.signatures
    table = _table(
        signatures,
        {a.path: (a.stored, a.source_name, a.source_grid) for a in plan.arrays if a.tree == "params"},
    )
    for array in plan.arrays:
        if array.tree == "carried":
            grid = array.source_grid
            table.add(array.name, "carried", source=array.source_name, source_grid=grid, stored=array.stored)
    facts = [
        ("source", _source(source.uri, source.format, source.version)),
        *_target(signatures[0].fingerprint),
        *((f"program {p.name}", p.origin) for p in (prepared.job.program, *prepared.job.secondary_programs)),
        ("output", f"{format_uri(prepared.job.output)} (export {prepared.export_id})"),
        ("work", f"{plural(len(plan.items), 'item')} of at most {format_bytes(prepared.job.rewrite.max_item_bytes)}"),
    ]
    notes = [f"This rule matched nothing: {rule}" for rule in plan.idle_rules]
    arrays = f"{plural(len(plan.arrays), 'array')}, {format_bytes(plan.nbytes)}"
    return _document(
        signatures,
        table,
        kind="plan",
        title="Plan",
        headline=f"Would write {arrays}: {_device_words(signatures[0])}.",
        facts=facts,
        stages=[Stage(name, seconds) for name, seconds in prepared.timings.items()],
        throughput="Nothing is written by a plan.",
        notes=[*notes, *_left_out(plan.dropped)],
    )


def of_signature(signature: Signature, label: str) -> Document:
    """What an executable expects, without an export."""
    return _document(
        [signature],
        _table([signature], {}),
        kind="signature",
        title=f"Program {printable(signature.program)}",
        headline=f"{plural(len(signature.parameters), 'parameter')}: {_device_words(signature)}.",
        facts=[("signature", label), *_target(signature.fingerprint)],
    )


def of_difference(difference: Difference, labels: tuple[str, str]) -> Document:
    """What changes from A to B."""
    before, after = difference.before, difference.after
    table = ParameterTable()
    numbers = [table.mesh(side.fingerprint.mesh) for side in (before, after)]
    changes = {change.name: change for change in difference.parameters}
    specs = {parameter_name(p): p for p in before.parameters}
    names = dict.fromkeys([*specs, *(parameter_name(p) for p in after.parameters)])
    new = {parameter_name(p): p for p in after.parameters}
    for name in names:
        old_spec, new_spec, change = specs.get(name), new.get(name), changes.get(name)
        known = new_spec or old_spec
        weight = known is not None and known.is_weight
        todo = (
            "" if not weight else "gone" if new_spec is None else "rewrite" if change and change.rewrite else "as it is"
        )
        table.add(
            name,
            "" if known is None else role(known),
            spec=table.spec(new_spec, numbers[1]),
            was=table.spec(old_spec, numbers[0]),
            changed=", ".join(change.aspects) if change else "",
            todo=todo,
        )
    text = verdict(difference)
    total = len(names)
    headline = f"{text[0].upper()}{text[1:]}. {len(changes):,} of {plural(total, 'parameter')} expected otherwise by B."
    memory = [("temporary", "temporary_bytes"), ("results", "output_bytes"), ("code", "code_bytes")]
    sums = [
        ("all parameters", before.device_bytes, after.device_bytes),
        ("parameters that change", *difference.changed_device_bytes()),
        *((name, getattr(before.memory, key), getattr(after.memory, key)) for name, key in memory),
    ]
    return Document(
        kind="difference",
        title="Difference",
        headline=headline,
        facts=_printable([("A", labels[0]), ("B", labels[1])]),
        memories=[_memory(side, name) for side, name in ((before, "A"), (after, "B"))],
        sides=("A", "B"),
        fingerprints=_fingerprints([before.fingerprint, after.fingerprint]),
        data={"kind": "difference", **table.to_json()},
        sums=sums,
    )


def _document(
    signatures: Sequence[Signature],
    table: ParameterTable,
    *,
    kind: Kind,
    facts: Sequence[tuple[str, str]],
    **more: Any,
) -> Document:
    several = len(signatures) > 1
    return Document(
        kind=kind,
        facts=_printable(facts),
        memories=[_memory(s, f"Program {printable(s.program)}" if several else "") for s in signatures],
        sides=[printable(s.program) for s in signatures],
        fingerprints=_fingerprints([s.fingerprint for s in signatures]),
        data={"kind": kind, **table.to_json()},
        **more,
    )


def _table(
    signatures: Sequence[Signature], stored: Mapping[tuple[str, ...], tuple[StoredArray, str, Grid | None]]
) -> ParameterTable:
    """A row a parameter of each program; ``stored`` holds (stored array, its origin, the source's chunks) by path."""
    table = ParameterTable()
    for signature in signatures:
        number = table.mesh(signature.fingerprint.mesh)
        for p in signature.parameters:
            found = stored.get(p.path) if p.is_weight else None
            table.add(
                parameter_name(p),
                role(p),
                signature.program if len(signatures) > 1 else "",
                spec=table.spec(p, number),
                source=found[1] if found else "",
                source_grid=found[2] if found else None,
                stored=found[0] if found else None,
            )
    return table


def _device_words(signature: Signature) -> str:
    nbytes = sum(sizes(p)[0] for p in signature.parameters)
    padding = nbytes - sum(sizes(p)[1] for p in signature.parameters)
    lost = f", {percent(padding, nbytes)} of it tile padding" if padding else ", none of it padding"
    return (
        f"each of {plural(signature.device_count, 'device')} of {signature.fingerprint.topology} holds "
        f"{format_bytes(nbytes)} of parameters{lost}"
    )


def _source(uri: str, kind: str, version: str) -> str:
    return f"{format_uri(uri)} ({kind}, {version})"


def _target(fingerprint: Fingerprint) -> list[tuple[str, str]]:
    target = f"{fingerprint.topology}, mesh {mesh(fingerprint)}, {fingerprint.layout_policy} layouts"
    return [("target", target), ("compiler", compiler(fingerprint))]


def _memory(signature: Signature, title: str) -> Memory:
    parameters, memory = signature.parameters, signature.memory
    both = [sizes(p) for p in parameters]
    conflicts = len(costs.conflicts(signature))
    if conflicts:
        title += f" ({plural(conflicts, 'parameter')} laid out as another program wants it)"
    return Memory(
        title=title,
        groups=split_groups(parameters),
        waste=most_wasted(parameters),
        padded=sum(nbytes > dense for nbytes, dense in both),
        nbytes=sum(nbytes for nbytes, _ in both),
        padding_bytes=sum(nbytes - dense for nbytes, dense in both),
        default_bytes=signature.default_device_bytes,
        figures=(
            ("parameters", memory.argument_bytes),
            ("temporary", memory.temporary_bytes),
            ("results, donated buffers included", memory.output_bytes),
            ("code", memory.code_bytes),
        ),
        device_bytes=_device_bytes(signature.fingerprint.topology),
    )


def _device_bytes(topology: str) -> int | None:
    try:
        return round(topologies.describe(topology).device_gib * (1 << 30))
    except TargetError:
        return None


def _fingerprints(fingerprints: Sequence[Fingerprint]) -> list[FingerprintRow]:
    rows = []
    for key, name in _FIELDS.items():
        values = [asdict(fingerprint)[key] for fingerprint in fingerprints]
        shown = [pairs(value) if key in {"mesh", "flags"} else str(value) or "none" for value in values]
        rows.append(FingerprintRow(name, list(map(printable, shown)), any(value != values[0] for value in values)))
    return rows


def _verification(chunks: int, checked: Checked | ReexportError | None) -> Verification:
    written = ("when it was written", "every chunk was read back and compared with what was read from the source")
    records = ("its records", "the digests of the commit, the manifest, the signatures and the list of arrays match")
    if checked is None:
        return Verification(
            "none",
            "Verified when it was written; its arrays were not read again for this report.",
            [written, records, ("chunks with a digest", f"{chunks:,}"), ("to read it all", "reexport report --verify")],
        )
    if isinstance(checked, Exception):
        facts = [written, ("found", checked.what), *checked.fields()]
        return Verification("bad", "What lies on storage is not what was committed.", _printable(facts))
    read = f"{plural(checked.arrays, 'array')} in {plural(checked.chunks, 'chunk')}, {format_bytes(checked.nbytes)}"
    return Verification(
        "good",
        "Read as a whole for this report, and intact: everything matches the committed digests.",
        [written, records, ("read again", read), ("files", f"{checked.files:,}")],
    )


def _printable(facts: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(printable(label), "\n".join(map(printable, text.split("\n")))) for label, text in facts]


def _left_out(dropped: Sequence[tuple[str, str]]) -> list[str]:
    counts: dict[str, int] = {}
    for _, reason in dropped:
        counts[reason] = counts.get(reason, 0) + 1
    return [
        f"Not rewritten: {count:,} {'leaf' if count == 1 else 'leaves'} {printable(reason)}"
        for reason, count in counts.items()
    ]
