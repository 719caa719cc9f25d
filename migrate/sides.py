"""One side of a comparison: an export, a signature file, or a job that is compiled on the spot."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from migrate import storage
from migrate.config import Job, job_from_mapping
from migrate.errors import ConfigError
from migrate.export import Export, is_export, open_export
from migrate.manifest import SIGNATURE_FILE
from migrate.overrides import override_target
from migrate.preparation import Reporter, Silent, as_job, compile_directory, compile_programs
from migrate.signature import Signature


@dataclass(frozen=True, slots=True)
class Side:
    """A signature, and where it came from."""

    label: str
    """How it was given, overrides included."""
    signature: Signature
    max_chunk_bytes: int | None = None
    """The job's bound of a stored chunk; None where there is no job."""


def open_side(
    path: str | os.PathLike[str],
    settings: Sequence[str] = (),
    *,
    program: str | None = None,
    where: str = "override",
    reporter: Reporter | None = None,
) -> Side:
    """The signature that ``path`` stands for.

    ``path`` is an export or its output, a ``signature.json`` or a directory with one (``reexport compile --output``),
    or a job file, which is compiled. ``settings`` are overrides of its target, see :mod:`migrate.overrides`; with them
    an export's saved program is compiled again, as :func:`open_again` does. ``program`` names one of several programs,
    default: the primary one; ``where`` is how errors name the overrides.

    Raises :class:`ConfigError` if nothing of this lies there, or settings are given for a signature, and everything
    that opening an export or compiling a job raises.
    """
    text = os.fspath(path)
    file = Path(text) / SIGNATURE_FILE if Path(text).is_dir() else Path(text)
    if file.suffix == ".json" and file.is_file():
        _refuse(settings, text, where)
        return Side(text, Signature.from_json(file.read_bytes(), where=str(file)))
    if is_job(file):
        return _compiled(text, settings, where, program, reporter or Silent())
    if not is_export(storage.normalise(text)):
        raise ConfigError(
            "neither an export nor a signature nor a job lies here",
            where=text,
            expected=f"an export or its output, a {SIGNATURE_FILE}, or a job file",
            remedy="check the path",
        )
    export = open_export(text)
    if settings:
        return open_again(export, settings, program=program, where=where, reporter=reporter)
    return Side(text, export.signature(program))


def is_job(path: str | os.PathLike[str]) -> bool:
    """Whether :func:`open_side` takes ``path`` for a job file: a file that is no ``.json``."""
    return Path(path).is_file() and Path(path).suffix != ".json"


_POLICY = re.compile(r"(auto|default|auto-bounded)(?: ([\d.]+))?(?:; \d+ prescribed \(\w+\))?")


def open_again(
    export: Export,
    settings: Sequence[str],
    *,
    program: str | None = None,
    where: str = "override",
    reporter: Reporter | None = None,
) -> Side:
    """What a program of ``export`` expects when it is compiled again from the artifact in the export.

    The target is that of its fingerprint, with ``settings``, and the compiler the one that is installed here unless
    they name another. The fingerprint's StableHLO is the export's: an artifact is traced to another text.

    Raises :class:`ConfigError` if the fingerprint does not tell its target, and what compiling a job raises.
    """
    record = export.program(program)
    fingerprint = record.fingerprint
    policy = _POLICY.fullmatch(fingerprint.layout_policy)
    if policy is None:
        raise ConfigError(
            "how this program's layouts were chosen cannot be repeated from the export alone",
            where=f"{export.uri}, program {record.name}",
            found=f"layout policy {fingerprint.layout_policy}",
            remedy="give the job it was made with: --job",
        )
    programs = dict.fromkeys((export.program(None).name, record.name))  # the primary one chooses shared layouts
    document = {
        "source": {"path": "."},
        "programs": [{"exported": export.uri, "name": name} for name in programs],
        "target": {
            "topology": fingerprint.topology,
            "mesh": dict(fingerprint.mesh),
            "flags": {name: value for name, value in fingerprint.flags if "/" not in name},
            "layout": policy[1],
            **({"max_padding": policy[2]} if policy[2] else {}),
        },
        "output": ".",
    }
    job = override_target(job_from_mapping(document), settings, where=where)
    signature = _signature(job, record.name, reporter or Silent())
    same_program = replace(signature.fingerprint, stablehlo_sha256=fingerprint.stablehlo_sha256)
    return Side(" ".join((export.uri, *settings)), replace(signature, fingerprint=same_program))


def _refuse(settings: Sequence[str], text: str, where: str) -> None:
    if settings:
        raise ConfigError(
            "a signature is what it is: only the target of a job or of an export can be set",
            where=f"{where} {settings[0]}",
            found=text,
            remedy="give the job file or the export that it comes from",
        )


def _compiled(text: str, settings: Sequence[str], where: str, program: str | None, reporter: Reporter) -> Side:
    job = override_target(as_job(text), settings, where=where)
    signature = _signature(job, job.find_program(program).name, reporter)
    limit = min(job.rewrite.max_chunk_bytes, job.rewrite.max_item_bytes)
    return Side(" ".join((text, *settings)), signature, limit)


def _signature(job: Job, program: str, reporter: Reporter) -> Signature:
    with compile_directory() as directory:
        return compile_programs(job, directory, reporter, last=program)[program].signature
