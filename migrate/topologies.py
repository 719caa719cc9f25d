"""Names of TPU slices as users know them -> libtpu's names, and what such a slice has. Arithmetic; no jax.

The rule is Cloud TPU's: the number in ``v2-8``, ``v3-8``, ``v4-32`` and ``v5p-128`` counts TensorCores, two to a chip;
in ``v5e-16`` (also ``v5litepod-16``) and ``v6e-8`` it counts chips. ``tpu7x-8`` is taken to count TensorCores, two to a
chip, each of them a device. The chips of a named slice form a square or a cube as far as powers of two allow, shorter
sides first: ``v5e-32`` is 4x8, ``v5p-64`` 2x4x4; and four chips of three dimensions are 2x2x1. Other shapes are written
in libtpu's form, such as ``v4:4x4x12``.

On v4 the two cores of a chip run as one device, which libtpu calls the chip configuration ``megacore``: ``v4-8`` is
``v4:2x2x1+megacore``. Several slices joined by the data centre's network are written ``2xv5e-16``.

>>> resolve("v5litepod-16"), resolve("v4-32"), resolve("2xv5e-16")
('v5e:4x4', 'v4:2x2x4+megacore', '2xv5e:4x4')
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from migrate.errors import TargetError

_CHIPS_PER_HOST = 4


@dataclass(frozen=True, slots=True)
class _Family:
    name: str
    """As libtpu calls it."""
    dimensions: int
    """Of the network between the chips."""
    cores_per_chip: int
    """TensorCores."""
    counts_cores: bool
    """Whether the number in a name counts TensorCores; else chips."""
    devices_per_chip: int
    """As jax shows them at run time."""
    smallest_chips: int
    """Chips of the smallest named slice."""
    largest_chips: int
    """Chips of the largest named slice whose chips are a power of two."""
    device_gib: float
    """GiB of HBM that a program can use on one device, as libtpu 0.0.42.1 says when it runs out of it."""
    single_host_chips: int = _CHIPS_PER_HOST
    """A slice of at most so many chips lies on one host; larger ones have four chips a host."""
    chip_config: str = ""
    """Chip configuration that libtpu must be told, for devices as at run time."""
    aliases: tuple[str, ...] = ()
    others: tuple[tuple[int, str], ...] = ()
    """(chips, shape) of named slices whose chips are no power of two."""


_FAMILIES = (
    _Family("v2", 2, 2, True, 2, 4, 256, 7.48),
    _Family("v3", 2, 2, True, 2, 4, 1024, 15.48),
    _Family("v4", 3, 2, True, 1, 4, 4096, 30.75, chip_config="megacore"),
    _Family("v5e", 2, 1, False, 1, 1, 256, 15.75, single_host_chips=8, aliases=("v5litepod",)),
    _Family("v5p", 3, 2, True, 1, 4, 4096, 95.74, others=((6144, "16x16x24"),)),
    _Family("v6e", 2, 1, False, 1, 1, 256, 31.25, single_host_chips=8),
    _Family("tpu7x", 3, 2, True, 2, 4, 8192, 94.75),
)
_BY_NAME = {name: family for family in _FAMILIES for name in (family.name, *family.aliases)}
_V4_CORE_GIB = 15.25  # a core of a v4 chip that is not configured as megacore


@dataclass(frozen=True, slots=True)
class Topology:
    """What a slice, or several equal ones, has."""

    name: str
    """As users know it, e.g. ``v5e-16``; libtpu's name where no such name exists."""
    libtpu: str
    """As :func:`resolve` gives it."""
    slices: int
    """Number of slices."""
    chips: int
    """Chips of all slices."""
    hosts: int
    """Hosts of all slices, one process each."""
    cores_per_chip: int
    """TensorCores of a chip."""
    devices: int
    """Devices that jax shows, which a mesh must use up."""
    device_gib: float
    """GiB of memory that a program can use on each device."""


def resolve(name: str) -> str:
    """libtpu's name of a topology: ``v5e-16`` -> ``v5e:4x4``. Names in libtpu's own form, and ``cpu:N``, stay.

    Raises :class:`TargetError` that lists the sizes if the family has no slice of that size.
    """
    count, one = split_slices(name)
    family_name, separator, rest = re.fullmatch(r"([^:-]*)([:-]?)(.*)", one.strip(), re.DOTALL).groups()  # type: ignore[union-attr]  # it matches any text
    family = _BY_NAME.get(family_name.lower())
    if family is None or not separator:
        return name  # libtpu or the parser of cpu:N judges it
    if separator == ":":
        found = f"{family.name}:{rest}"
    else:
        shapes = _named_shapes(family)
        if rest not in shapes:
            raise TargetError(
                f"there is no {family_name}-{rest}",
                where="target.topology",
                expected=f"{family_name}- and one of {', '.join(shapes)} "
                f"({'TensorCores' if family.counts_cores else 'chips'}), or a shape such as "
                f"{family.name}:{shapes[list(shapes)[2]]}",
                found=repr(name),
            )
        found = f"{family.name}:{shapes[rest]}" + (f"+{family.chip_config}" if family.chip_config else "")
    return f"{count}x{found}" if count > 1 else found


def split_slices(name: str) -> tuple[int, str]:
    """(number of slices, name of one): ``2xv5e:4x4`` -> (2, ``v5e:4x4``)."""
    match = re.fullmatch(r"([1-9]\d{0,3})x([a-zA-Z].*)", name)
    return (int(match.group(1)), match.group(2)) if match else (1, name)


def describe(name: str) -> Topology:
    """What the slice ``name`` has. Raises :class:`TargetError` if its family or size is not known here."""
    libtpu = resolve(name)
    count, one = split_slices(libtpu)
    match = re.fullmatch(r"([^:]+):(\d+(?:x\d+)*)(?:\+(\w+))?", one)
    family = match and _BY_NAME.get(match.group(1))
    if match is None or family is None:
        raise TargetError(
            f"nothing is known of the topology {name!r}",
            where="topology",
            expected=f"a name such as v5e-16 or v4:2x2x4 of the families {', '.join(_BY_NAME)}",
        )
    shape, config = match.group(2), match.group(3) or ""
    chips = math.prod(int(side) for side in shape.split("x"))
    split_cores = family.chip_config == "megacore" != config  # v4 as libtpu alone describes it
    sizes = {named: size for size, named in _named_shapes(family).items()} if not split_cores else {}
    user = f"{family.name}-{sizes[shape]}" if shape in sizes else one
    return Topology(
        name=f"{count}x{user}" if count > 1 else user,
        libtpu=libtpu,
        slices=count,
        chips=chips * count,
        hosts=(1 if chips <= family.single_host_chips else chips // _CHIPS_PER_HOST) * count,
        cores_per_chip=family.cores_per_chip,
        devices=chips * (family.cores_per_chip if split_cores else family.devices_per_chip) * count,
        device_gib=_V4_CORE_GIB if split_cores else family.device_gib,
    )


def common() -> list[Topology]:
    """The named slices of every family, smallest first."""
    return [describe(f"{family.name}-{size}") for family in _FAMILIES for size in _named_shapes(family)]


def _named_shapes(family: _Family) -> dict[str, str]:
    """Number in the name -> shape in chips, of all named slices of a family."""
    powers = range(family.largest_chips.bit_length())
    shapes = {
        1 << power: _balanced(power, family.dimensions)
        for power in powers
        # no slice of two chips: libtpu takes whole hosts of 2x2, or one chip
        if 1 << power >= family.smallest_chips and power != 1
    }
    shapes |= dict(family.others)
    factor = family.cores_per_chip if family.counts_cores else 1
    return {str(chips * factor): shape for chips, shape in shapes.items()}


def _balanced(power: int, dimensions: int) -> str:
    """Sides whose product is ``2**power``, as equal as can be, shorter ones first; a single host is 2x2x1."""
    if (power, dimensions) == (2, 3):
        return "2x2x1"
    low, more = divmod(power, dimensions)
    return "x".join(str(1 << low + (index >= dimensions - more)) for index in range(dimensions))
