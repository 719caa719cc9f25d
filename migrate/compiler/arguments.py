"""The program's abstract arguments, checked and flattened into one record a leaf."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from migrate.errors import LayoutSyntaxError, ProgramError
from migrate.layout import xla_dtype
from migrate.program import Program


@dataclass(frozen=True)
class AbstractLeaf:
    """One array the program takes. Lives inside the worker: shardings do not cross process borders."""

    argument: str
    """Name of the argument it belongs to."""
    is_weight: bool
    """Whether that argument is the one a checkpoint fills."""
    is_donated: bool
    """Whether the results may reuse its buffer."""
    path: tuple[str, ...]
    """Tree path inside the argument."""
    sequence_levels: tuple[bool, ...]
    """For each key of ``path``: True if its container is a list or tuple."""
    shape: tuple[int, ...]
    """Global shape."""
    dtype: np.dtype[Any]
    """Element type."""
    sharding: NamedSharding
    """On the target's mesh; replicated if the program named none."""
    pinned: Layout | None
    """The layout that the program demands, whatever the policy."""

    @property
    def struct(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype alone; the sharding goes to ``jit``."""
        return jax.ShapeDtypeStruct(self.shape, self.dtype)

    @property
    def partition(self) -> tuple[tuple[str, ...], ...]:
        """For each dimension the mesh axes that shard it, as the program says, before jax normalises it."""
        return partition(self.sharding, len(self.shape))

    @property
    def memory_kind(self) -> str:
        """The platform's default memory kind is called ``device``, whatever its own name (CPU)."""
        kind = self.sharding.memory_kind
        default = self.sharding.mesh.devices.flat[0].default_memory().kind
        return "device" if kind is None or kind == default else kind


def abstract_leaves(program: Program, mesh: Mesh) -> list[AbstractLeaf]:
    """Every leaf of ``program.arguments`` in flat order, which is HLO parameter order when unused ones are kept.

    Raises :class:`ProgramError` naming ``argument/path`` of a leaf that has no shape and dtype, a dtype XLA cannot
    store, a sharding that is not a ``NamedSharding`` on ``mesh`` or does not divide the shape, or a path that two
    leaves share.
    """
    names = _argument_names(program)
    leaves: list[AbstractLeaf] = []
    taken: set[tuple[str, ...]] = set()
    for keys, value in _flat(program):
        number = keys[0].idx
        path = tuple(key_text(key) for key in keys[1:])
        where = "/".join((names[number], *path))
        if (names[number], *path) in taken:
            raise ProgramError(
                "two leaves of the program's arguments have the same path",
                where=where,
                remedy="give them keys that differ as text; 1 and '1' do not",
            )
        taken.add((names[number], *path))
        dtype = _checked_dtype(value, where)
        sharding, pinned = _checked_sharding(value, mesh, where)
        leaves.append(
            AbstractLeaf(
                argument=names[number],
                is_weight=number == program.parameters,
                is_donated=number in program.donated,
                path=path,
                sequence_levels=tuple(isinstance(key, SequenceKey) for key in keys[1:]),
                shape=tuple(value.shape),
                dtype=dtype,
                sharding=sharding,
                pinned=pinned,
            )
        )
    return leaves


def partition(sharding: NamedSharding, rank: int) -> tuple[tuple[str, ...], ...]:
    """For each of ``rank`` dimensions the mesh axes that shard it, major first; () where it is not sharded."""
    entries = [() if entry is None else (entry,) if isinstance(entry, str) else tuple(entry) for entry in sharding.spec]
    return tuple(entries) + ((),) * (rank - len(entries))


def _flat(program: Program) -> list[tuple[Any, Any]]:
    try:
        return jax.tree_util.tree_flatten_with_path(program.arguments)[0]
    except Exception as error:  # custom nodes run their own code
        raise ProgramError(
            "the program's arguments are not a tree that jax can flatten",
            where="Program.arguments",
            found=f"{type(error).__name__}: {error}",
            remedy="give dictionaries keys of one type that sorts",
        ) from error


def _argument_names(program: Program) -> list[str]:
    """The function's own parameter names; ``argN`` where it has none to offer (``*args``, builtins)."""
    names = [f"arg{number}" for number in range(len(program.arguments))]
    try:
        parameters = inspect.signature(program.function).parameters.values()
    except (TypeError, ValueError):
        return names
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return positional[: len(names)] + names[len(positional) :]


def key_text(key: Any) -> str:
    """A key of a tree path as text: ``w`` for ``['w']`` and ``.w``, ``0`` for ``[0]``."""
    match key:
        case DictKey() | FlattenedIndexKey():
            return str(key.key)
        case SequenceKey():
            return str(key.idx)
        case GetAttrKey():
            return str(key.name)
    return str(key)


def _checked_dtype(value: Any, where: str) -> np.dtype[Any]:
    dtype = getattr(value, "dtype", None)
    if dtype is None or not hasattr(value, "shape"):
        raise ProgramError(
            "a leaf of the program's arguments is not an abstract array",
            where=where,
            expected="jax.ShapeDtypeStruct(shape, dtype, sharding=...)",
            found=f"{type(value).__name__}: {value!r}"[:200],
        )
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        raise ProgramError(
            "an argument has an extended dtype, which a checkpoint does not hold as plain elements",
            where=where,
            found=str(dtype),
            remedy="for a PRNG key take the uint32 key data and call jax.random.wrap_key_data inside the function",
        )
    plain: np.dtype[Any] = np.dtype(dtype)  # jax.numpy.bfloat16 and the like are classes
    try:
        xla_dtype(plain.name)
    except LayoutSyntaxError as error:
        raise ProgramError(error.what, where=where) from error
    if jax.dtypes.canonicalize_dtype(plain) != plain:
        raise ProgramError(
            f"jax would silently turn {plain.name} into {jax.dtypes.canonicalize_dtype(plain).name}",
            where=where,
            remedy='call jax.config.update("jax_enable_x64", True) when the model\'s module is imported',
        )
    return plain


def _checked_sharding(value: Any, mesh: Mesh, where: str) -> tuple[NamedSharding, Layout | None]:
    shape = tuple(value.shape)
    sharding, pinned = getattr(value, "sharding", None), None
    if isinstance(value, jax.ShapeDtypeStruct) and isinstance(value.format.layout, Layout):
        # A struct made with a Format keeps the layout here, its sharding above; other values do not demand one.
        pinned = value.format.layout
    if sharding is None:
        sharding = NamedSharding(mesh, PartitionSpec())
    if not isinstance(sharding, NamedSharding) or sharding.mesh != mesh:
        raise ProgramError(
            "an argument's sharding is not a NamedSharding on the mesh that the entry was given",
            where=where,
            expected=f"jax.sharding.NamedSharding(mesh, PartitionSpec(...)) with mesh axes {dict(mesh.shape)}",
            found=str(sharding),
        )
    if PartitionSpec.UNCONSTRAINED in tuple(sharding.spec):
        raise ProgramError(
            "an argument's sharding leaves a dimension unconstrained, but a checkpoint needs a known place for it",
            where=where,
            found=str(sharding.spec),
            remedy="name the mesh axes of that dimension, or None",
        )
    for dimension, axes in enumerate(partition(sharding, len(shape))):
        shards = int(np.prod([mesh.shape[axis] for axis in axes], dtype=np.int64))
        if shape[dimension] % shards:
            raise ProgramError(
                "an argument's sharding does not divide its shape",
                where=where,
                expected=f"dimension {dimension} to be a multiple of {shards} ({' x '.join(axes)})",
                found=f"{shape[dimension]} in shape {shape}",
            )
    return sharding, pinned
