"""Topology names -> devices: ``cpu:N``, or a TPU slice as libtpu names it. No hardware is touched."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from migrate.errors import CompileError, TargetError
from migrate.topologies import resolve, split_slices

if TYPE_CHECKING:
    import jax

_EXAMPLES = "v5e-16, v5e:2x4, v5p:2x2x2, v6e:4x4, tpu7x:2x2x1, v4:2x2x1+megacore, 2xv5e-16, cpu:8"
_MAX_CPU_DEVICES = 4096


def cpu_devices(topology: str) -> int | None:
    """N of ``cpu:N``; None for any other topology. Raises :class:`TargetError` if N is not 1 to 4,096."""
    if topology.partition(":")[0].lower() != "cpu":
        return None
    match = re.fullmatch(r"cpu:([1-9]\d{0,3})", topology)
    if match is None or int(match.group(1)) > _MAX_CPU_DEVICES:
        raise TargetError(
            "the CPU topology is malformed",
            where="target.topology",
            expected=f"cpu:N with N from 1 to {_MAX_CPU_DEVICES}, e.g. cpu:8",
            found=repr(topology),
        )
    return int(match.group(1))


def open_devices(topology: str) -> Sequence[jax.Device]:
    """The devices of ``topology``, in its own order, slice by slice; names as :mod:`migrate.topologies` takes them.

    ``NAME+CONFIG`` selects a chip configuration: libtpu describes a v4 chip as two cores unless it is ``megacore``,
    the way jax runs on v4 (measured: ``v4:2x2x1`` has 8 devices, ``v4:2x2x1+megacore`` 4).

    Raises :class:`TargetError` with libtpu's words if it does not know the name, :class:`CompileError` if libtpu is
    not installed or cannot be started.
    """
    count = cpu_devices(topology)
    if count is not None:
        return _cpu_devices(count)
    if importlib.util.find_spec("libtpu") is None and "TPU_LIBRARY_PATH" not in os.environ:
        raise CompileError(
            "libtpu is not installed, so there is no compiler for TPU targets",
            where=f"target.topology: {topology}",
            remedy='install it for this interpreter, e.g. pip install "jax[tpu]", or use a cpu:N topology',
        )
    import jax
    from jax.experimental import topologies

    slices, one = split_slices(resolve(topology))
    name, _, chip_config = one.partition("+")
    options: dict[str, Any] = {"chip_config_name": chip_config} if chip_config else {}
    if slices > 1:
        options["num_slices"] = slices
    if _is_single_chip(name):
        # libtpu takes hosts of 2x2 chips for granted and refuses a slice that is smaller than one.
        options["chips_per_host_bounds"] = (1, 1, 1)
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices
    except jax.errors.JaxRuntimeError as error:
        if not str(error).startswith(("INVALID_ARGUMENT", "NOT_FOUND")):
            raise CompileError("libtpu cannot be started", where="target.libtpu", found=str(error)) from error
        raise TargetError(
            f"libtpu knows no topology {topology!r}",
            where="target.topology",
            expected=f"a name such as {_EXAMPLES}",
            found=str(error),
            remedy="tpu7x needs libtpu 0.0.27 or a newer one" if name.startswith("tpu7x") else None,
        ) from error


def _cpu_devices(count: int) -> Sequence[jax.Device]:
    import jax

    devices = jax.devices("cpu")
    if len(devices) < count:
        raise TargetError(
            f"this process has {len(devices)} CPU devices",
            where="target.topology",
            expected=f"{count}",
            remedy=f"start it with XLA_FLAGS=--xla_force_host_platform_device_count={count}",
        )
    return devices[:count]


def _is_single_chip(name: str) -> bool:
    return re.fullmatch(r"[^:=]+[:=]1(x1)*", name) is not None
