"""Programs from ``jax.export`` artifacts: compiled again without the model's code.

The driver puts the artifact into the compile's directory, and beside it the signature of the export it comes from,
which knows what an artifact does not: the arguments' names, which one holds the parameters, which are donated.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from migrate import export, storage
from migrate.config import ProgramConfig
from migrate.errors import ProgramError
from migrate.manifest import EXPORTED_FILE, SIGNATURE_FILE
from migrate.program import Program
from migrate.signature import ParameterSpec, Signature

if TYPE_CHECKING:
    from jax.sharding import Mesh

SAVED_FILE = "saved.jax_export"
SAVED_SIGNATURE_FILE = "saved-signature.json"


def fetch(config: ProgramConfig, directory: Path) -> None:
    """Copy the artifact that ``config.exported`` names, and the signature if it is an export's, into ``directory``.

    Raises :class:`ProgramError` if there is none, :class:`migrate.errors.VerificationError` if an export's files are
    not the committed ones.
    """
    assert config.exported is not None
    uri = config.exported
    if export.is_export(uri):
        found = export.open_export(uri)
        record = found.program(None if len(found.manifest.programs) == 1 else config.name)
        (directory / SAVED_FILE).write_bytes(found.read_file(record, EXPORTED_FILE))
        (directory / SAVED_SIGNATURE_FILE).write_bytes(found.read_file(record, SIGNATURE_FILE))
        return
    parent, _, name = uri.rpartition("/")
    data = storage.read(parent, name)
    if data is None:
        raise ProgramError(
            "there is no saved program",
            where="program.exported",
            expected="a jax.export artifact, an export, or an output",
            found=uri,
        )
    (directory / SAVED_FILE).write_bytes(data)


def saved_program(config: ProgramConfig, directory: Path, mesh: Mesh, platform: str) -> Program:
    """The program in the artifact that :func:`fetch` put into ``directory``. Runs in the worker.

    Raises what :func:`program_from_artifact` does.
    """
    data = (directory / SAVED_FILE).read_bytes()
    specs = _specs(directory)
    program = program_from_artifact(data, specs, mesh, platform, where=f"program.exported: {config.exported}")
    return program if specs else replace(program, parameters=config.parameters, donated=config.donated)


def program_from_artifact(
    data: bytes, specs: Sequence[ParameterSpec], mesh: Mesh, platform: str, *, where: str
) -> Program:
    """The program in the ``jax.export`` artifact ``data``, sharded over ``mesh``.

    ``specs`` are the parameters of the signature that came with it, in order; without them the artifact's own shardings
    count and its arguments have no names. Raises :class:`ProgramError` naming ``where`` if it is no artifact, was
    exported for another platform or number of devices, or shards over axes that ``mesh`` does not have.
    """
    import jax
    import jax.export

    try:
        exported = jax.export.deserialize(bytearray(data))
    except Exception as error:  # a flatbuffer reader on foreign bytes raises anything
        raise ProgramError(
            "not a jax.export artifact this jax can read",
            where=where,
            found=f"{type(error).__name__}: {error}"[:500],
        ) from error
    if platform not in exported.platforms or exported.nr_devices not in {1, mesh.size}:
        raise ProgramError(
            "the saved program was exported for another kind or number of devices",
            where=where,
            expected=f"{mesh.size} {platform} devices, as the target has",
            found=f"{exported.nr_devices} {' or '.join(exported.platforms)} devices",
            remedy="choose a slice with as many devices, or export again from the model's code",
        )
    shardings = _shardings(exported, specs, mesh)
    structs = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)
        for aval, sharding in zip(exported.in_avals, shardings, strict=True)
    ]
    arguments, keywords = jax.tree.unflatten(exported.in_tree, structs)
    if keywords:
        raise ProgramError("the saved program takes keyword arguments", where=where, found=str(sorted(keywords)))

    def call(*values: Any) -> Any:
        return exported.call(*values)

    call.__name__ = exported.fun_name
    if not specs:
        return Program(call, arguments)
    # one argument may be empty, so count leaves instead of names
    owners = [jax.tree.leaves(tree) for tree in jax.tree.unflatten(exported.in_tree, specs)[0]]
    names = [leaves[0].argument if leaves else f"arg{number}" for number, leaves in enumerate(owners)]
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # what inspect.signature reads
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names]
    )
    return Program(
        call,
        arguments,
        parameters=next((n for n, leaves in enumerate(owners) if leaves and leaves[0].is_weight), 0),
        donated=tuple(n for n, leaves in enumerate(owners) if leaves and leaves[0].donated),
    )


def _specs(directory: Path) -> list[ParameterSpec]:
    path = directory / SAVED_SIGNATURE_FILE
    if not path.exists():
        return []
    return list(Signature.from_json(path.read_bytes(), where=str(path)).parameters)


def _shardings(exported: Any, specs: Sequence[ParameterSpec], mesh: Mesh) -> list[Any]:
    """A sharding on ``mesh`` for each argument: the signature's, else the artifact's own."""
    from jax.sharding import NamedSharding, PartitionSpec

    if not specs:
        if exported.nr_devices == 1:
            return [None] * len(exported.in_avals)
        return list(exported.in_shardings_jax(mesh))
    missing = sorted({axis for spec in specs for axes in spec.partition for axis in axes} - set(mesh.axis_names))
    if missing:
        raise ProgramError(
            "the saved program shards over mesh axes that the target does not have",
            where="target.mesh",
            expected=", ".join(missing),
            found=", ".join(mesh.axis_names),
        )
    return [NamedSharding(mesh, PartitionSpec(*(axes or None for axes in spec.partition))) for spec in specs]
