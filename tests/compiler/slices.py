"""Prints what libtpu says of every named slice as JSON: devices, chips, slices, GiB that a program can use."""

from __future__ import annotations

import json
import re
import sys

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from migrate.compiler.mesh import build_mesh
from migrate.compiler.topology import open_devices
from migrate.topologies import common, describe


def usable_gib(device: jax.Device) -> float:
    """From the message with which a program of 256 GiB is refused."""
    sharding = SingleDeviceSharding(device)
    struct = jax.ShapeDtypeStruct((1 << 18, 1 << 18), jnp.float32)
    try:
        jax.jit(lambda x: x[0] * 2, in_shardings=sharding).lower(struct).compile()
    except jax.errors.JaxRuntimeError as error:
        return float(re.search(r"available HBM \(([\d.]+)G\)", str(error)).group(1))
    raise AssertionError


def slice_index(device: jax.Device) -> int:
    """Devices of a single slice have no such attribute."""
    return getattr(device, "slice_index", 0)


def main() -> None:
    mesh = build_mesh(open_devices("2xv5e-16"), {"data": 8, "model": 4})
    [first, second] = mesh.devices.reshape(2, 16)
    assert [slice_index(device) for device in mesh.devices.flat] == [0] * 16 + [1] * 16
    # each slice is laid out as it would be alone
    assert [device.coords for device in first] == [device.coords for device in second]
    alone = build_mesh(open_devices("v5e-16"), {"data": 4, "model": 4})
    assert [device.coords for device in first] == [device.coords for device in alone.devices.flat]
    found = {}
    for topology in [*common(), describe("v4:2x2x1"), describe("2xv5e-16"), describe("3xv4-16")]:
        devices = open_devices(topology.name)
        chips = {(slice_index(device), *device.coords) for device in devices}
        found[topology.name] = [len(devices), len(chips), len({slice_index(device) for device in devices})]
        if topology.chips <= 4:
            found[topology.name].append(usable_gib(devices[0]))
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
