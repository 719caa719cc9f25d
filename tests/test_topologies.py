"""Names of slices: the rule by example, and what every name has in common."""

from __future__ import annotations

import math

import pytest

from migrate.errors import TargetError
from migrate.topologies import common, describe, resolve, split_slices

NAMES = [
    # two TensorCores to a chip
    ("v2-8", "v2:2x2"),
    ("v3-8", "v3:2x2"),
    ("v3-2048", "v3:32x32"),
    ("v4-8", "v4:2x2x1+megacore"),
    ("v4-32", "v4:2x2x4+megacore"),
    ("v4-128", "v4:4x4x4+megacore"),
    ("v5p-8", "v5p:2x2x1"),
    ("v5p-128", "v5p:4x4x4"),
    ("v5p-2048", "v5p:8x8x16"),
    ("v5p-12288", "v5p:16x16x24"),  # the largest; no power of two
    ("tpu7x-8", "tpu7x:2x2x1"),
    # chips
    ("v5e-1", "v5e:1x1"),
    ("v5e-16", "v5e:4x4"),
    ("v5litepod-16", "v5e:4x4"),
    ("v5e-32", "v5e:4x8"),
    ("v6e-8", "v6e:2x4"),
    ("V6E-256", "v6e:16x16"),
    # libtpu's own form
    ("v5e:4x4", "v5e:4x4"),
    ("v5litepod:4x4", "v5e:4x4"),  # libtpu itself does not know this name
    ("v4:2x2x1", "v4:2x2x1"),  # two devices a chip, as libtpu describes it
    ("v4:4x4x12+megacore", "v4:4x4x12+megacore"),
    # several slices
    ("2xv5e-16", "2xv5e:4x4"),
    ("4xv4-8", "4xv4:2x2x1+megacore"),
    ("1xv5e-16", "v5e:4x4"),
    # for others to judge
    ("cpu:8", "cpu:8"),
    ("v99-8", "v99-8"),
    ("nonsense", "nonsense"),
    ("", ""),
]


@pytest.mark.parametrize(("name", "libtpu"), NAMES)
def test_resolve(name: str, libtpu: str) -> None:
    assert resolve(name) == libtpu
    assert resolve(libtpu) == libtpu


@pytest.mark.parametrize("name", ["v5e-24", "v5e-2", "v5p-4", "v4-12", "v5e-", "v5e-4x4", "2xv6e-512", "tpu7x-08"])
def test_sizes_that_do_not_exist(name: str) -> None:
    with pytest.raises(TargetError, match="there is no") as caught:
        resolve(name)
    assert caught.value.where == "target.topology"
    assert caught.value.found == repr(name)
    assert "or a shape such as" in (caught.value.expected or "")


def test_what_slices_have() -> None:
    found = {
        t.name: (t.chips, t.hosts, t.cores_per_chip, t.devices)
        for t in map(describe, ["v3-32", "v4-32", "v4:2x2x4", "v5litepod-8", "v5e-16", "v5p-128", "tpu7x-8", "2xv6e-8"])
    }
    assert found == {
        "v3-32": (16, 4, 2, 32),
        "v4-32": (16, 4, 2, 16),  # the cores of a chip are one device
        "v4:2x2x4": (16, 4, 2, 32),
        "v5e-8": (8, 1, 1, 8),
        "v5e-16": (16, 4, 1, 16),
        "v5p-128": (64, 16, 2, 64),
        "tpu7x-8": (4, 1, 2, 8),
        "2xv6e-8": (16, 2, 1, 16),
    }
    assert describe("v4:2x2x4").device_gib * 2 < describe("v4-32").device_gib
    with pytest.raises(TargetError, match="nothing is known of the topology 'cpu:8'"):
        describe("cpu:8")


def test_every_common_name() -> None:
    found = common()
    assert len(found) == len({t.name for t in found}) == len({t.libtpu for t in found}) > 60
    for topology in found:
        assert resolve(topology.name) == topology.libtpu
        assert describe(topology.libtpu) == topology
        shape = topology.libtpu.partition(":")[2].partition("+")[0]
        assert math.prod(map(int, shape.split("x"))) == topology.chips
        number = int(topology.name.rpartition("-")[2])
        counts_chips = topology.name.startswith(("v5e", "v6e"))
        assert number == topology.chips * (1 if counts_chips else topology.cores_per_chip)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("2xv5e-16", (2, "v5e-16")),
        ("v5e:2x4", (1, "v5e:2x4")),
        ("0xv5e-16", (1, "0xv5e-16")),
        ("x", (1, "x")),
    ],
)
def test_split_slices(name: str, parts: tuple[int, str]) -> None:
    assert split_slices(name) == parts
