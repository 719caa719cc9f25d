"""The device mesh: made by one rule, at compile time from topology devices and at run time from real ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from migrate.errors import TargetError


def build_mesh(devices: Sequence[jax.Device], axes: Mapping[str, int]) -> Mesh:
    """A mesh over all ``devices`` with axis names and sizes in the order of ``axes``.

    ``jax.make_mesh`` lays logical axes along physical ones. Where it cannot (an axis that would have to split a
    physical one on some chips), the devices are taken in their own order. Several slices are laid along the first
    axis, each a mesh by itself, if that axis is a multiple of their number. All of this depends on the devices'
    coordinates and order alone, so that compile time and run time agree. Axis types are Auto: the compiler, not the
    model's types, propagates shardings.

    Raises :class:`TargetError` if the axes' product is not the number of devices.
    """
    names, sizes = tuple(axes), tuple(axes.values())
    if math.prod(sizes) != len(devices):
        shown = " x ".join(f"{name} {size}" for name, size in axes.items()) or "no axes"
        raise TargetError(
            "the mesh does not fit the topology's devices",
            where="target.mesh",
            expected=f"axis sizes whose product is {len(devices)}, one device each",
            found=f"{shown} = {math.prod(sizes)}",
        )
    slices: dict[int, list[jax.Device]] = {}
    for device in devices:
        slices.setdefault(getattr(device, "slice_index", 0), []).append(device)
    if len(slices) > 1 and sizes and sizes[0] % len(slices) == 0:
        inner = (sizes[0] // len(slices), *sizes[1:])
        arranged = np.concatenate([_arranged(members, inner, names) for members in slices.values()])
    else:
        arranged = _arranged(devices, sizes, names)
    return Mesh(arranged, names, axis_types=(AxisType.Auto,) * len(names))


def _arranged(devices: Sequence[jax.Device], sizes: tuple[int, ...], names: tuple[str, ...]) -> np.ndarray:
    types = (AxisType.Auto,) * len(names)
    try:
        return jax.make_mesh(sizes, names, devices=devices, axis_types=types).devices
    except (ValueError, NotImplementedError, AssertionError):  # what mesh_utils raises when no assignment exists
        return np.asarray(devices, dtype=object).reshape(sizes)
