"""Whether an export runs as it is: in this environment, or as its job would be compiled today.

Without a job the environment is compared with the fingerprint, as :func:`migrate.load` does. With the job its program
is compiled again, and the two signatures tell what would become of buffers laid out for the export.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from migrate.difference import DEFAULT_MAX_CHUNK_BYTES, Difference, ParameterChange, compare_signatures
from migrate.environment import check_devices, check_versions, visible_devices
from migrate.errors import EnvironmentMismatchError
from migrate.export import open_export
from migrate.preparation import Reporter
from migrate.sides import open_side
from migrate.signature import Signature

Effect = Literal["E0102", "silent relayout", "refused"]
Verdict = Literal["loads", "recompile", "re-export", "refused"]


@dataclass(frozen=True, slots=True)
class Check:
    """What was found."""

    export: str
    """URI of the export."""
    program: str
    """The program that was checked."""
    problems: tuple[EnvironmentMismatchError, ...]
    """Why :func:`migrate.load` would refuse in this environment."""
    difference: Difference | None
    """The export's signature against that of the job; None without a job."""

    @property
    def verdict(self) -> Verdict:
        """``loads``: as it is. ``recompile``: the stored arrays stay right, the executable does not. ``re-export``:
        the arrays must be written again. ``refused``: this environment cannot load it, and nothing else is known to be
        wrong with it.
        """
        if self.difference is not None:
            if self.difference.kind == "rewrite":
                return "re-export"
            if self.difference.kind == "recompile only":
                return "recompile"
        return "refused" if self.problems else "loads"

    @property
    def fits(self) -> bool:
        """Whether the export can be used as it is."""
        return self.verdict == "loads"

    def to_json(self) -> dict[str, object]:
        """A JSON object for ``reexport check --json``."""
        changes = () if self.difference is None else self.difference.parameters
        return {
            "export": self.export,
            "program": self.program,
            "verdict": self.verdict,
            "problems": [problem.to_json() for problem in self.problems],
            "parameters": [{"effect": effect(change), **change.to_json()} for change in changes],
            "fingerprint": None
            if self.difference is None
            else {c.field: {"before": c.before, "after": c.after} for c in self.difference.fingerprint},
        }


def effect(change: ParameterChange) -> Effect:
    """What becomes of a buffer laid out for the first program that is passed to the second.

    ``refused``: it is not such an array, and JAX says so. ``E0102``: its size or memory differs. ``silent relayout``:
    sizes are equal, so the runtime does not see it; ``jax.jit`` copies it into its layout at each call, and a compiled
    executable called through JAX raises "input layouts that disagree".
    """
    before, after = change.before, change.after
    if before is None or after is None or {"shape", "dtype"} & set(change.aspects):
        return "refused"
    if "memory space" in change.aspects or before.device_bytes != after.device_bytes:
        return "E0102"
    return "silent relayout"


def check_export(
    uri: str | os.PathLike[str],
    program: str | None = None,
    *,
    devices: bool = False,
    job: str | os.PathLike[str] | None = None,
    settings: Sequence[str] = (),
    reporter: Reporter | None = None,
) -> Check:
    """Compare an export (or the current one of an output) with this environment, or with its job compiled today.

    Without ``job`` the installed versions of jax, jaxlib and libtpu are compared; with ``devices`` those that jax sees
    too, for which a subprocess starts it. With ``job``, a job file, that job is compiled, with ``settings`` of its
    target (``topology=v6e:2x4``, see :mod:`migrate.overrides`), and the environment counts only if ``devices`` is set.

    Raises :class:`migrate.errors.NotAnExportError`, :class:`migrate.errors.VerificationError`, and what compiling a
    job raises.
    """
    export = open_export(uri)
    record = export.program(program)
    signature = export.signature(record.name)
    problems: list[EnvironmentMismatchError] = []
    difference = None
    if job is not None:
        compiled = open_side(job, settings, program=record.name, where="--target", reporter=reporter)
        limit = compiled.max_chunk_bytes or DEFAULT_MAX_CHUNK_BYTES
        difference = compare_signatures(signature, compiled.signature, max_chunk_bytes=limit)
    if devices:
        problems += _problems(signature)
    if job is None:
        try:
            check_versions(signature.fingerprint)
        except EnvironmentMismatchError as error:
            problems.append(error)
    return Check(export.uri, record.name, tuple(problems), difference)


def _problems(signature: Signature) -> list[EnvironmentMismatchError]:
    try:
        check_devices(signature, visible_devices())
    except EnvironmentMismatchError as error:
        return [error]
    return []
