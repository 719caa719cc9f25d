"""Whether an export runs as it is: in this environment, or as its program would be compiled today.

The environment is compared with the fingerprint, as :func:`migrate.load` does. With a job, or other values of the
target, the program is compiled again, and the two signatures tell what would become of buffers laid out for the export.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from migrate.compiler import flags, toolchains
from migrate.config import Target, load_job
from migrate.difference import DEFAULT_MAX_CHUNK_BYTES, Difference, ParameterChange, compare_signatures
from migrate.environment import (
    FLAG_VARIABLES,
    check_devices,
    check_versions,
    flag_differences,
    required_platform,
    visible_devices,
)
from migrate.errors import ConfigError, EnvironmentMismatchError
from migrate.export import Export, open_export
from migrate.preparation import Reporter
from migrate.sides import open_again, open_side
from migrate.signature import Fingerprint, Signature

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
    """The export's signature against that of the compile of today; None where nothing was compiled."""
    flags: tuple[str, ...] = ()
    """In which flags a compile in this environment would differ from the export's, in words."""

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
            "flags": list(self.flags),
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
    devices: bool | None = None,
    job: str | os.PathLike[str] | None = None,
    settings: Sequence[str] = (),
    reporter: Reporter | None = None,
) -> Check:
    """Compare an export (or the current one of an output) with this environment, or with a compile of today.

    Without ``job`` and ``settings``: with the jax, jaxlib and libtpu installed here, the flags in the environment, and
    the devices that jax sees, for which a subprocess starts it, unless ``devices`` is False. With ``job``, a job file,
    that job is compiled; ``settings`` are values of its target (``topology=v6e:2x4``, see :mod:`migrate.overrides`), or
    without a job of the export's own, whose saved program is compiled then. Such a compile is compared instead of the
    environment; its devices are, too, if ``devices`` is True.

    Raises :class:`migrate.errors.NotAnExportError`, :class:`migrate.errors.VerificationError`, and what compiling a
    job raises.
    """
    export = open_export(uri)
    record = export.program(program)
    signature = export.signature(record.name)
    environment = job is None and not settings
    problems: list[EnvironmentMismatchError] = []
    if devices or (environment and devices is None):
        problems += _problems(lambda: check_devices(signature, visible_devices()))
    if environment:
        problems += _problems(lambda: check_versions(signature.fingerprint))
        problems += _problems(lambda: _check_flags(signature.fingerprint))
    return Check(
        export=export.uri,
        program=record.name,
        problems=tuple(problems),
        difference=None
        if environment
        else _compare(export, signature, program=record.name, job=job, settings=settings, reporter=reporter),
        flags=tuple(flag_differences(signature.fingerprint, os.environ)) if environment else (),
    )


def _compare(
    export: Export,
    signature: Signature,
    *,
    program: str,
    job: str | os.PathLike[str] | None,
    settings: Sequence[str],
    reporter: Reporter | None,
) -> Difference:
    if job is None:
        compiled = open_again(export, settings, program=program, where="--target", reporter=reporter)
    else:
        # a job of one program need not call it as the export does
        names = [one.name for one in load_job(Path(job)).programs]
        name = program if len(names) > 1 else None
        compiled = open_side(job, settings, program=name, where="--target", reporter=reporter)
    limit = compiled.max_chunk_bytes or DEFAULT_MAX_CHUNK_BYTES
    return compare_signatures(signature, compiled.signature, max_chunk_bytes=limit)


def _check_flags(fingerprint: Fingerprint) -> None:
    """Raises :class:`EnvironmentMismatchError` for a flag here at which jax or libtpu ends its process."""
    on_tpu = required_platform(fingerprint) == "tpu"
    target = Target(
        topology=fingerprint.topology,
        mesh=dict(fingerprint.mesh),
        inherit=FLAG_VARIABLES if on_tpu else FLAG_VARIABLES[:1],
    )
    library = toolchains.installed() if on_tpu else None
    if on_tpu and library is None:
        return  # what is missing is found by the versions
    try:
        flags.inherit(target, library, os.environ)
    except ConfigError as error:
        variable = (error.where or "").rpartition(": ")[2]
        raise EnvironmentMismatchError(
            f"the environment sets a flag that would be ignored or end the process: {error.what}",
            where=variable,
            expected=error.expected,
            found=error.found,
            remedy=f"correct {variable}, or take the flag out",
        ) from error


def _problems(check: Callable[[], None]) -> list[EnvironmentMismatchError]:
    try:
        check()
    except EnvironmentMismatchError as error:
        return [error]
    return []
