"""The signature and the fingerprint, read off a lowered and compiled program."""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental.layout import Format, Layout

from migrate import layout as layouts
from migrate import topologies
from migrate.compiler import flags, policies
from migrate.compiler.arguments import AbstractLeaf
from migrate.compiler.request import Request
from migrate.compiler.toolchains import working_range
from migrate.compiler.topology import cpu_devices
from migrate.config import Target
from migrate.errors import CompileError, ToolchainError
from migrate.layout import COMBINE, ArrayShape, xla_dtype
from migrate.signature import DeviceMemory, Fingerprint, ParameterSpec


def parameter_specs(leaves: Sequence[AbstractLeaf], compiled: jax.stages.Compiled) -> tuple[ParameterSpec, ...]:
    """What ``compiled`` expects of every leaf, in HLO parameter order.

    Raises :class:`ToolchainError` if the compiler does not say (a libtpu outside the range this jax can drive).
    """
    formats = jax.tree.leaves(compiled.input_formats, is_leaf=lambda node: isinstance(node, Format))
    if len(formats) != len(leaves):
        raise CompileError(
            "the executable has another number of parameters than the program has arrays",
            expected=str(len(leaves)),
            found=str(len(formats)),
        )
    return tuple(
        _parameter_spec(number, leaf, format_)
        for number, (leaf, format_) in enumerate(zip(leaves, formats, strict=True))
    )


def _parameter_spec(number: int, leaf: AbstractLeaf, format_: Format) -> ParameterSpec:
    name = "/".join((leaf.argument, *leaf.path))
    major_to_minor, tiles, element_bits = physical_layout(format_.layout, name)
    shard_shape = tuple(leaf.sharding.shard_shape(leaf.shape))
    return ParameterSpec(
        number=number,
        argument=leaf.argument,
        path=leaf.path,
        sequence_levels=leaf.sequence_levels,
        shape=leaf.shape,
        dtype=leaf.dtype.name,
        # The compiler keeps what jit was given.
        partition=leaf.partition,
        shard_shape=shard_shape,
        major_to_minor=major_to_minor,
        tiles=tiles,
        element_bits=element_bits,
        memory_kind=leaf.memory_kind,
        is_weight=leaf.is_weight,
        donated=leaf.is_donated,
        default_device_bytes=_default_device_bytes(leaf, shard_shape),
    )


def physical_layout(layout: Any, where: str = "") -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...], int]:
    """(major_to_minor, tiles, element bits) of a ``jax.experimental.layout.Layout``; () of tiles where it has none.

    The one place that reads jax's layouts. Raises :class:`ToolchainError` naming ``where`` if there is none.

    It has moved with jax: 0.7.1 made ``tiling`` public, 0.9.0 the sub-byte attribute. This is 0.7.1 onward.
    """
    if layout is None or layout.major_to_minor is None:
        raise ToolchainError(
            "the compiler reports no layout for a parameter: this jax cannot drive its libtpu",
            where=where,
            expected=working_range(),
        )
    # XLA marks a combined dimension with the smallest int64, HLO text with *
    tiles = tuple(tuple(COMBINE if extent < 0 else extent for extent in tile) for tile in layout.tiling or ())
    bits = "sub_byte_element_size_in_bits"
    return tuple(layout.major_to_minor), tiles, getattr(layout, bits if hasattr(layout, bits) else f"_{bits}")


_XLA_COMBINE = -(2**63)


def jax_layout(layout: layouts.Layout) -> Layout:
    """The ``jax.experimental.layout.Layout`` of a layout, memory space aside: inverse of :func:`physical_layout`."""
    tiles = tuple(tuple(_XLA_COMBINE if extent == COMBINE else extent for extent in tile) for tile in layout.tiles)
    return Layout(layout.major_to_minor, tiles or None, layout.element_bits)


def _default_device_bytes(leaf: AbstractLeaf, shard_shape: tuple[int, ...]) -> int | None:
    """Bytes of a shard in the layout of ``jax.device_put``, which the client knows without compiling."""
    device = leaf.sharding.mesh.devices.flat[0]
    try:
        found: Any = device.client.get_default_layout(leaf.dtype, shard_shape, device)
    except (NotImplementedError, jax.errors.JaxRuntimeError):
        return None
    order, tiles, element_bits = physical_layout(Layout.from_pjrt_layout(found))
    layout = layouts.Layout(order[::-1], tiles, element_bits=element_bits)
    return ArrayShape(xla_dtype(leaf.dtype.name), shard_shape, layout).device_bytes


def device_memory(compiled: jax.stages.Compiled) -> DeviceMemory:
    """The compiler's own account of device memory, in bytes a device. Raises :class:`ToolchainError` without one."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        raise ToolchainError(
            "the compiler reports no memory use: this jax cannot drive its libtpu", expected=working_range()
        )
    return DeviceMemory(
        argument_bytes=analysis.argument_size_in_bytes,
        output_bytes=analysis.output_size_in_bytes,
        temporary_bytes=analysis.temp_size_in_bytes,
        code_bytes=analysis.generated_code_size_in_bytes,
    )


def _libtpu_here(target: Target) -> str:
    """The version that is installed for this interpreter, where ``target.python`` names it and no other libtpu."""
    if target.python is None or cpu_devices(target.topology) is not None:
        return ""
    return importlib.metadata.version("libtpu")


def fingerprint(lowered: jax.stages.Lowered, request: Request, parameters: Sequence[ParameterSpec]) -> Fingerprint:
    """What the compile is made from.

    The StableHLO text is printed without source locations, and the worker's environment keeps them out of what it
    embeds (Pallas kernels): moving lines changes nothing.
    """
    target = request.target
    return Fingerprint(
        stablehlo_sha256=hashlib.sha256(lowered.as_text().encode()).hexdigest(),
        topology=topologies.resolve(target.topology),
        mesh=tuple(target.mesh.items()),
        jax=importlib.metadata.version("jax"),
        jaxlib=importlib.metadata.version("jaxlib"),
        libtpu=request.libtpu or _libtpu_here(target),
        flags=flags.texts(target.flags, request.inherited),
        layout_policy=policies.policy_text(request, parameters),
    )
