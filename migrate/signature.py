"""What an executable expects of every parameter, and why: signature, fingerprint, and the difference of two. Pure."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from migrate.errors import ReexportError
from migrate.layout import COMBINE, ArrayShape, Layout, xla_dtype

if TYPE_CHECKING:
    from pydantic import TypeAdapter

CHOSEN_BY = {
    "auto": "the compiler",
    "default": "the platform's default",
    "pinned": "the job",
    "program": "the model's code",
    "primary": "the primary program, which shares the parameter",
    "bound": "the platform's default, since the compiler's choice was padded above the bound",
}
"""What can decide a parameter's layout, in words."""

HOST_MEMORY_SPACE = 5
"""XLA's number of host memory, ``S(5)``; JAX calls it ``pinned_host``."""


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """One parameter of a compiled executable."""

    number: int
    """HLO parameter number; unused parameters keep theirs."""
    argument: str
    """Name of the program's argument that holds it, e.g. ``params``."""
    path: tuple[str, ...]
    """Tree path inside the argument, each key as a string."""
    sequence_levels: tuple[bool, ...]
    """For each key of ``path``: True if its container is a list or tuple."""
    shape: tuple[int, ...]
    """Global shape."""
    dtype: str
    """NumPy or ml_dtypes name, e.g. ``bfloat16``."""
    partition: tuple[tuple[str, ...], ...]
    """For each dimension the mesh axes that shard it, major first; () where it is not sharded."""
    shard_shape: tuple[int, ...]
    """Shape of one device's shard."""
    major_to_minor: tuple[int, ...]
    """Physical dimension order of the shard, slowest varying first."""
    tiles: tuple[tuple[int, ...], ...] = ()
    """Tile shapes; () where the platform does not tile."""
    element_bits: int = 0
    """Bits an element takes where the layout packs sub-byte elements, else 0."""
    memory_kind: str = "device"
    """JAX memory kind of the buffer."""
    is_weight: bool = False
    """Whether it belongs to the argument that a checkpoint fills; the others are given at each call."""
    donated: bool = False
    """Whether the program's results may reuse its buffer."""
    chosen_by: str = ""
    """What decided the layout: one of :data:`CHOSEN_BY`; empty if unknown."""
    wanted: Layout | None = None
    """The layout it would have by the program's own policy, where ``chosen_by`` is ``primary`` or ``bound``."""
    default_device_bytes: int | None = None
    """What ``device_bytes`` would be in the layout that ``jax.device_put`` gives; None if unknown."""

    def __post_init__(self) -> None:
        """Raises ValueError for what no executable can expect; signatures also come from files."""
        rank = len(self.shape)
        if not rank == len(self.shard_shape) == len(self.partition) == len(self.major_to_minor):
            raise ValueError(f"{self.name}: shape, shard_shape, partition and major_to_minor differ in length")
        if sorted(self.major_to_minor) != list(range(rank)):
            raise ValueError(f"{self.name}: major_to_minor {self.major_to_minor} is no order of {rank} dimensions")
        extents = (*self.shape, *self.shard_shape)
        if min(extents, default=0) < 0 or not all(d > 0 or d == COMBINE for tile in self.tiles for d in tile):
            raise ValueError(f"{self.name}: a dimension or a tile has an impossible extent")
        if self.element_bits < 0:
            raise ValueError(f"{self.name}: an element has {self.element_bits} bits")

    @property
    def name(self) -> str:
        """Tree path joined with ``/``."""
        return "/".join(self.path)

    @property
    def layout(self) -> Layout:
        """Physical layout in XLA's terms."""
        return Layout(
            minor_to_major=self.major_to_minor[::-1],
            tiles=self.tiles,
            element_bits=self.element_bits,
            memory_space=HOST_MEMORY_SPACE if self.memory_kind.endswith("host") else 0,
        )

    @property
    def shard(self) -> ArrayShape:
        """Shape and layout of one shard, as XLA prints it."""
        return ArrayShape(xla_dtype(self.dtype), self.shard_shape, self.layout)

    @property
    def device_bytes(self) -> int:
        """Bytes of one device's shard, tile padding included."""
        return self.shard.device_bytes

    @property
    def wanted_device_bytes(self) -> int:
        """What ``device_bytes`` would be in the wanted layout."""
        return ArrayShape(xla_dtype(self.dtype), self.shard_shape, self.wanted or self.layout).device_bytes

    @property
    def unpadded_bytes(self) -> int:
        """Bytes of one device's shard without tile padding."""
        untiled = Layout(self.layout.minor_to_major, element_bits=self.element_bits)
        return ArrayShape(xla_dtype(self.dtype), self.shard_shape, untiled).device_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the whole logical array, sub-byte elements at one byte each."""
        return ArrayShape(xla_dtype(self.dtype), self.shape).dense_bytes


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Everything that can change a signature."""

    stablehlo_sha256: str
    """Hex digest of the StableHLO text without source locations."""
    topology: str
    """Topology name as the compiler knows it, e.g. ``v5e:2x4`` or ``cpu:8``."""
    mesh: tuple[tuple[str, int], ...]
    """Mesh axes and sizes in order."""
    jax: str
    """Version of jax that compiled."""
    jaxlib: str
    """Version of jaxlib that compiled."""
    libtpu: str
    """Version of libtpu that compiled; empty for CPU targets."""
    flags: tuple[tuple[str, str], ...]
    """Compiler options, sorted by name; one taken from the environment is called e.g. ``XLA_FLAGS/xla_dump_to``."""
    layout_policy: str
    """``auto``, ``default`` and so on; names the rules and digests of pinned layouts that were applied as well."""

    @property
    def digest(self) -> str:
        """Hex SHA-256 of all fields."""
        return canonical_digest(asdict(self))


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What the compiler says the executable needs on each device, in bytes."""

    argument_bytes: int
    """All arguments, tile padding included."""
    output_bytes: int
    """All results, those aliased to donated arguments included."""
    temporary_bytes: int
    """Scratch space."""
    code_bytes: int
    """Generated code."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What one executable expects of every parameter, and the fingerprint it comes from."""

    program: str
    """Name of the program, e.g. ``decode``."""
    parameters: tuple[ParameterSpec, ...]
    """Every parameter, in HLO order."""
    fingerprint: Fingerprint
    """What the compile was made from."""
    memory: DeviceMemory
    """The compiler's own account."""
    free_memory: DeviceMemory | None = None
    """The compiler's account with every wanted layout; None where all parameters have theirs."""

    @property
    def weights(self) -> tuple[ParameterSpec, ...]:
        """The parameters that a checkpoint fills."""
        return tuple(p for p in self.parameters if p.is_weight)

    @property
    def device_bytes(self) -> int:
        """Bytes of all parameters on one device, tile padding included."""
        return sum(p.device_bytes for p in self.parameters)

    @property
    def default_device_bytes(self) -> int | None:
        """Bytes of all parameters on one device, if all had default layouts; None if unknown."""
        known = [p.default_device_bytes for p in self.parameters if p.default_device_bytes is not None]
        return sum(known) if len(known) == len(self.parameters) else None

    @property
    def device_count(self) -> int:
        """Number of devices of the mesh."""
        return math.prod(extent for _, extent in self.fingerprint.mesh)

    def _repr_html_(self) -> str:
        """A short table, which notebooks show."""
        from migrate.report.notebook import signature_html

        return signature_html(self)

    def to_json(self) -> str:
        """JSON text that :meth:`from_json` reads back to an equal signature."""
        return _adapter().dump_json(self, indent=1).decode()

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str = "signature") -> Signature:
        """The signature in ``text``. Raises :class:`ReexportError` naming ``where`` if it is not one."""
        try:
            return _adapter().validate_json(text)
        except ValueError as error:
            # pydantic's first line counts problems, its last ones link to its site
            lines = [line.strip() for line in str(error).splitlines()[1:] if "errors.pydantic.dev" not in line]
            raise ReexportError("not a signature", where=where, found=": ".join(lines[:2])) from error


@functools.cache
def _adapter() -> TypeAdapter[Signature]:
    from pydantic import TypeAdapter

    return TypeAdapter(Signature)


@dataclass(frozen=True, slots=True)
class Change:
    """One field that differs between two signatures."""

    where: str
    """``argument/path`` of a parameter, or ``fingerprint``."""
    field: str
    """Name of the field; ``parameter`` if one side lacks it altogether."""
    before: Any
    """Value in the first signature; None if it has no such parameter."""
    after: Any
    """Value in the second signature; None if it has no such parameter."""

    def __str__(self) -> str:
        return f"{self.where}: {self.field} {self.before} -> {self.after}"


_PHYSICAL = ("shape", "dtype", "partition", "shard_shape", "major_to_minor", "tiles", "element_bits", "memory_kind")


def diff(before: Signature, after: Signature) -> list[Change]:
    """What differs: fingerprint fields first, then parameters in the order of ``before``. Empty if equal."""
    changes = [
        Change("fingerprint", name, old, new)
        for name, old in asdict(before.fingerprint).items()
        if old != (new := getattr(after.fingerprint, name))
    ]
    old_parameters = {(p.argument, *p.path): p for p in before.parameters}
    new_parameters = {(p.argument, *p.path): p for p in after.parameters}
    for key in {**old_parameters, **new_parameters}:
        old_parameter, new_parameter = old_parameters.get(key), new_parameters.get(key)
        where = "/".join(key)
        if old_parameter is None or new_parameter is None:
            present = [None if p is None else str(p.shard) for p in (old_parameter, new_parameter)]
            changes.append(Change(where, "parameter", *present))
            continue
        for name in _PHYSICAL:
            old, new = getattr(old_parameter, name), getattr(new_parameter, name)
            if old != new:
                changes.append(Change(where, name, old, new))
    return changes


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def canonical_digest(value: object) -> str:
    """Hex SHA-256 of ``value`` as :func:`canonical_json`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def canonical_json(value: object) -> str:
    """``value`` as JSON with sorted keys and no spaces."""
    return _CANONICAL.encode(value)
