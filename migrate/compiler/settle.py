"""Compile until every layout is one that the policies allow: at most a few times, mostly once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.experimental.layout import Layout
from jax.sharding import Mesh

from migrate import layout
from migrate.compiler import aot, describe, policies
from migrate.compiler.arguments import AbstractLeaf
from migrate.compiler.policies import Choice
from migrate.compiler.request import Request
from migrate.errors import CompileError
from migrate.program import Program
from migrate.signature import DeviceMemory, ParameterSpec


@dataclass(frozen=True)
class Settled:
    """A compiled program whose layouts are as they should be."""

    lowered: jax.stages.Lowered
    compiled: jax.stages.Compiled
    parameters: tuple[ParameterSpec, ...]
    free_memory: DeviceMemory | None
    """The compiler's account of the first compile, where that was not the last one."""


def settle(program: Program, mesh: Mesh, leaves: Sequence[AbstractLeaf], request: Request) -> Settled:
    """Compile ``program`` as its own policies say; then, where that gives a shared parameter another layout than the
    primary program's, or a bounded one too much padding, once more with that layout prescribed.

    A prescribed layout can change what the compiler chooses for the rest, which is then looked at again; each time
    more is prescribed. Raises what :mod:`migrate.compiler.policies` and compiling raise, and :class:`CompileError` if
    the compiler does not keep a prescribed layout.
    """
    shared = policies.pair(leaves, request.shared, request.program.name)
    choices = [
        _as_code_says(leaf, choice) for leaf, choice in zip(leaves, policies.choose(leaves, request), strict=True)
    ]
    wanted: dict[int, layout.Layout] = {}
    free_memory = None
    where = f"program {request.program.name} for {request.target.topology}"
    while True:
        formats = [_jax_layout(choice) for choice in choices]
        lowered = aot.lower(program, mesh, leaves, formats, free_results=_has_free_results(request))
        compiled = aot.compile_lowered(lowered, request.target.flags, where)
        specs = describe.parameter_specs(leaves, compiled)
        revised = [_revise(choices[n], spec, shared.get(n)) for n, spec in enumerate(specs)]
        if revised == choices:
            break
        free_memory = free_memory or describe.device_memory(compiled)
        for number, (before, after) in enumerate(zip(choices, revised, strict=True)):
            if before != after:
                wanted[number] = specs[number].layout
        choices = revised
    parameters = tuple(
        replace(spec, chosen_by=choice.chosen_by, wanted=wanted.get(spec.number))
        for spec, choice in zip(specs, choices, strict=True)
    )
    for spec, choice in zip(parameters, choices, strict=True):
        _check_kept(spec, choice)
    return Settled(lowered, compiled, parameters, free_memory)


def _has_free_results(request: Request) -> bool:
    """Whether the compiler chooses the layouts of the results: as the program's policy for arguments says."""
    return (request.program.layout or request.target.layout) != "default"


def _as_code_says(leaf: AbstractLeaf, choice: Choice) -> Choice:
    """A layout that the model's code demands counts more than a policy."""
    return choice if leaf.pinned is None else Choice("fixed", "program", _layout(leaf.pinned))


def _layout(of: Any) -> layout.Layout:
    order, tiles, bits = describe.physical_layout(of)
    return layout.Layout(order[::-1], tiles, element_bits=bits)


def _jax_layout(choice: Choice) -> Any:
    if choice.kind == "auto":
        return Layout.AUTO
    return None if choice.layout is None else describe.jax_layout(choice.layout)


def _revise(choice: Choice, found: ParameterSpec, primary: ParameterSpec | None) -> Choice:
    """What the array may have in the next compile, after the last one gave it ``found``."""
    if primary is not None:
        # layouts in host memory say so themselves; a layout is prescribed without the memory
        if choice.chosen_by != "primary" and found.layout != primary.layout:
            return Choice("fixed", "primary", replace(primary.layout, memory_space=0))
    elif choice.max_padding is not None and policies.exceeds(found, choice.max_padding):
        return Choice("default", "bound")
    return choice


def _check_kept(spec: ParameterSpec, choice: Choice) -> None:
    if choice.layout is None:
        return
    found = replace(spec.layout, memory_space=0)
    same = found == replace(choice.layout, memory_space=0)
    if not same and (choice.layout.tiles or found.minor_to_major != choice.layout.minor_to_major):
        raise CompileError(
            "the compiler does not keep a layout that was prescribed",
            where=f"{spec.argument}/{spec.name}",
            expected=str(choice.layout),
            found=str(found),
            remedy="another libtpu may tile otherwise: state major_to_minor alone, or take another policy",
        )
