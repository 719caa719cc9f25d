"""What an output holds already, beside what a job would put there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from migrate import export, reuse, storage
from migrate.errors import OutputConflictError
from migrate.export import Export, Paths
from migrate.manifest import PARAMETERS_KEY
from migrate.preparation import Prepared


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a run would find in the output, and do there."""

    state: Literal["empty", "committed", "shared", "conflict"]
    """``committed``: this very export is there. ``shared``: its arrays are. ``conflict``: another export is."""
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
        return Outlook("committed", current, 0, 0)
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
        raise _conflict(export.open_export(paths.output), prepared)
    return export.is_export(paths.export(prepared.export_id))


def _conflict(found: Export, prepared: Prepared) -> OutputConflictError:
    differences = []
    source = found.manifest.source
    if source.identity != prepared.checkpoint.identity:
        differences.append(
            f"source {source.uri}, identity {source.identity[:12]} (now {prepared.checkpoint.identity[:12]})"
        )
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
        + ("\n    ".join(differences) or "the storage layout: mapping, chunk bound or compression"),
        remedy="choose another output, or run with --supersede to add this export beside it as the current one",
    )


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
    return str(value) if len(str(value)) != _DIGEST_CHARACTERS else str(value)[:16]
