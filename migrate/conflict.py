"""What an output holds already, beside what a job would put there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from migrate import export, pointer, reuse, storage
from migrate.errors import OutputConflictError
from migrate.export import Export, Paths
from migrate.manifest import PARAMETERS_KEY
from migrate.preparation import Prepared


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a run would find in the output, and do there."""

    state: Literal["empty", "committed", "shared", "conflict"]
    """``committed``: this very export is there. ``shared``: its arrays are. ``conflict``: another export is current."""
    current: str | None
    """Id of the current export of the output."""
    written_bytes: int
    """Logical bytes that a run writes; one that supersedes, if there is a conflict."""
    copied_bytes: int
    """Of these, what it copies from the current export."""

    def to_json(self) -> dict[str, object]:
        """A JSON object for ``reexport plan --json``."""
        return {
            "state": self.state,
            "current": self.current,
            "bytes_written": self.written_bytes,
            "bytes_copied": self.copied_bytes,
        }


def outlook(prepared: Prepared) -> Outlook:
    """Look at the output of a prepared job; nothing is written.

    Raises :class:`migrate.errors.ReexportError` if the output cannot be read.
    """
    plan, paths = prepared.plan, Paths(prepared.job.output)
    current = export.latest(paths.output)
    if export.is_export(paths.export(prepared.export_id)):
        return Outlook("committed" if current in {None, prepared.export_id} else "conflict", current, 0, 0)
    conflict = current is not None
    if storage.exists(paths.parameters(plan.parameter_set), PARAMETERS_KEY):
        return Outlook("conflict" if conflict else "shared", current, 0, 0)
    _, copied = reuse.with_committed(plan, prepared.checkpoint.identity, paths.output)
    copied_bytes = reuse.copied_bytes(plan.items, copied)
    return Outlook("conflict" if conflict else "empty", current, plan.nbytes, copied_bytes)


def is_committed(prepared: Prepared, *, supersede: bool = False) -> bool:
    """Whether the output holds this very export.

    Raises :class:`OutputConflictError` that says what differs, if it holds another one as the current one and that is
    not to be superseded.
    """
    paths = Paths(prepared.job.output)
    current = export.latest(paths.output)
    if current not in {None, prepared.export_id} and not supersede:
        found = export.open_export(paths.output)
        raise _rolled_back(found, prepared) if goes_forward(prepared) else _conflict(found, prepared)
    return export.is_export(paths.export(prepared.export_id))


def goes_forward(prepared: Prepared) -> bool:
    """Whether the output holds this export, but a person rolled back from it.

    Raises :class:`migrate.errors.ReexportError` if the output cannot be read.
    """
    paths = Paths(prepared.job.output)
    now = pointer.read(paths.output)
    return (
        now is not None and prepared.export_id in now.rolled_back and export.is_export(paths.export(prepared.export_id))
    )


def _rolled_back(found: Export, prepared: Prepared) -> OutputConflictError:
    output, wanted = found.paths.output, prepared.export_id
    return OutputConflictError(
        "this job's export lies in the output already, and was rolled back",
        where=output,
        found=f"export {found.manifest.export} is current; {wanted}, which this job makes, was rolled back from",
        remedy=f"to go forward again, reexport rollback {output} --to {wanted}, or run with --supersede",
    )


def _conflict(found: Export, prepared: Prepared) -> OutputConflictError:
    differences = list(_source_differences(found, prepared))
    there, here = [program.name for program in found.manifest.programs], list(prepared.compiled)
    if there != here:
        differences.append(f"programs {', '.join(there)} (now {', '.join(here)})")
    for program in found.manifest.programs:
        if program.name not in prepared.compiled:
            continue
        old, new = program.fingerprint, prepared.compiled[program.name].signature.fingerprint
        of = f" of {program.name}" if len(there) > 1 else ""
        differences += [
            f"{_FIELDS[name]}{of} {_shown(getattr(old, name))} (now {_shown(getattr(new, name))})"
            for name in _FIELDS
            if getattr(old, name) != getattr(new, name)
        ]
    return OutputConflictError(
        "the output already holds an export of another identity",
        where=found.paths.output,
        found=f"export {found.manifest.export}; this job makes {prepared.export_id}. What differs:\n    "
        + "\n    ".join(differences or _storage_differences(found, prepared)),
        remedy="choose another output, or run with --supersede to add this export beside it as the current one",
    )


def _source_differences(found: Export, prepared: Prepared) -> Iterator[str]:
    old, new = found.manifest.source, prepared.checkpoint
    if old.identity == new.identity:
        return
    if old.step != new.step:
        yield f"source {old.uri}, step {_shown(old.step)} (now {new.uri}, step {_shown(new.step)})"
    else:
        yield f"source {old.uri}, identity {old.identity[:12]} (now {new.uri}, identity {new.identity[:12]})"


def _storage_differences(found: Export, prepared: Prepared) -> list[str]:
    """Which arrays come from the same source in another way, or are stored in another way."""
    there = {(record.tree, record.name): record for record in found.parameter_set().arrays}
    here = {(array.tree, array.name): array for array in prepared.plan.arrays}
    kinds: dict[str, list[str]] = {"mapping": [], "chunks": [], "compression": []}
    for key in dict.fromkeys((*here, *there)):
        old, new = there.get(key), here.get(key)
        if old is None or new is None or old.recipe != new.recipe:
            kinds["mapping"].append(key[1])
            continue
        if old.stored.chunk_shape != new.stored.chunk_shape:
            kinds["chunks"].append(key[1])
        if old.stored.compression != new.stored.compression:
            kinds["compression"].append(key[1])
    differences = []
    for kind, names in kinds.items():
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            differences.append(f"{kind} of {', '.join(names[:_SHOWN])}{more}")
    return differences or ["how the arrays are stored"]


_SHOWN = 3
"""Arrays that a message names of each kind."""

_FIELDS = {
    "stablehlo_sha256": "program (SHA-256 of its StableHLO)",
    "topology": "topology",
    "mesh": "mesh",
    "jax": "jax",
    "jaxlib": "jaxlib",
    "libtpu": "libtpu",
    "flags": "flags",
    "layout_policy": "layout policy",
}
"""Fingerprint fields, as a person calls them."""


_DIGEST_CHARACTERS = 64


def _shown(value: object) -> str:
    """A fingerprint's value: digests shortened, pairs joined."""
    if isinstance(value, tuple):
        return " ".join(f"{name}={setting}" for name, setting in value) or "none"
    if value is None or not str(value):
        return "none"
    return str(value) if len(str(value)) != _DIGEST_CHARACTERS else str(value)[:16]
