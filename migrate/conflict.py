"""What an output holds already, beside what a job would put there."""

from __future__ import annotations

from migrate import export
from migrate.errors import OutputConflictError
from migrate.export import Export, Paths
from migrate.preparation import Prepared


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
