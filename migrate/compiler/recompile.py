"""An executable made anew where it runs, from the ``jax.export`` artifact of an export and its signature's layouts."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from migrate.compiler import aot, describe
from migrate.compiler.arguments import abstract_leaves
from migrate.compiler.mesh import build_mesh
from migrate.compiler.saved import program_from_artifact
from migrate.errors import EnvironmentMismatchError
from migrate.signature import Fingerprint, Signature


def recompile(artifact: bytes, signature: Signature, devices: Sequence[jax.Device]) -> jax.stages.Compiled:
    """Compile ``artifact`` in this process for ``devices``; every argument has the layout that ``signature`` states.

    Flags that the fingerprint took from the environment (``XLA_FLAGS/...``) are not repeated: they are this process's
    own affair. Nothing is unpickled. Raises :class:`ProgramError` if this jax cannot read the artifact,
    :class:`migrate.errors.ConfigError` or :class:`migrate.errors.CompileError` if its compiler refuses a flag or the
    program, and :class:`EnvironmentMismatchError` if it does not keep the layouts.
    """
    fingerprint = signature.fingerprint
    where = f"program {signature.program} for {fingerprint.topology}"
    mesh = build_mesh(devices, dict(fingerprint.mesh))
    program = program_from_artifact(artifact, signature.parameters, mesh, devices[0].platform, where=where)
    leaves = abstract_leaves(program, mesh)
    lowered = aot.lower(
        program,
        mesh,
        leaves,
        [describe.jax_layout(parameter.layout) for parameter in signature.parameters],
        free_results=not fingerprint.layout_policy.startswith("default"),
    )
    compiled = aot.compile_lowered(lowered, _flags(fingerprint), where)
    expected = zip(signature.parameters, describe.parameter_specs(leaves, compiled), strict=True)
    for parameter, found in expected:
        if found.layout != parameter.layout:
            raise EnvironmentMismatchError(
                "this compiler does not keep the layouts of the export",
                where=f"{where}: {parameter.argument}/{parameter.name}",
                expected=str(parameter.layout),
                found=str(found.layout),
                remedy="run the job again for this environment's libtpu",
            )
    return compiled


def _flags(fingerprint: Fingerprint) -> dict[str, str | bool]:
    booleans = {"true": True, "false": False}
    return {name: booleans.get(text.lower(), text) for name, text in fingerprint.flags if "/" not in name}
