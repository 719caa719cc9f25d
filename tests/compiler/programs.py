"""Entries for the compiler's tests: small programs, and every way an entry can go wrong."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from migrate.program import Program


def _struct(mesh: Mesh, shape: tuple[int, ...], *axes: Any, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec(*axes)))


def _first(x: Any, *rest: Any) -> Any:
    return jax.tree.leaves(x)[0] * 2


class Pair(NamedTuple):
    left: Any
    right: Any


jax.export.register_namedtuple_serialization(Pair, serialized_name="tests.compiler.Pair")


def trees(mesh: Mesh) -> Program:
    """Every kind of tree node, an absent value, an unused argument, and a leaf without a sharding."""
    weights = {
        "layers": [_struct(mesh, (8, 16), "data"), _struct(mesh, (8, 16), None, ("data", "model"))],
        "pair": Pair(_struct(mesh, (4,)), (jax.ShapeDtypeStruct((2, 2), jnp.int4),)),
        "none": None,
        "scalar": _struct(mesh, (), dtype=jnp.bool_),
    }

    def step(scale: Any, weights: Any, /, *rest: Any) -> Any:
        return weights["layers"][0] * scale

    return Program(step, (_struct(mesh, ()), weights, {}, _struct(mesh, (3,))), parameters=1)


def pinned(mesh: Mesh) -> Program:
    """One weight demands a dimension order, the other leaves it to the policy."""
    sharding = NamedSharding(mesh, PartitionSpec(None, "model"))
    weights = {
        "free": jax.ShapeDtypeStruct((256, 512), jnp.bfloat16, sharding=sharding),
        "pinned": jax.ShapeDtypeStruct((256, 512), jnp.bfloat16, sharding=Format(Layout((1, 0)), sharding)),
        "row_major": jax.ShapeDtypeStruct((256, 512), jnp.bfloat16, sharding=Format(Layout((0, 1)), sharding)),
    }
    return Program(lambda w, x: x @ (w["free"] + w["pinned"] + w["row_major"]), (weights, _struct(mesh, (8, 256))))


def pallas(mesh: Mesh) -> Program:
    """A hand-written kernel, whose own module is embedded in the StableHLO."""
    from jax.experimental import pallas as pl

    def kernel(x: Any, y: Any, result: Any) -> None:
        result[...] = x[...] * y[...]

    def multiply(w: Any, x: Any) -> Any:
        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(w, x)

    everywhere = PartitionSpec()
    function = jax.shard_map(
        multiply, mesh=mesh, in_specs=(everywhere, everywhere), out_specs=everywhere, check_vma=False
    )
    return Program(function, (_struct(mesh, (256, 256)), _struct(mesh, (256, 256))))


def int8_weights(mesh: Mesh) -> Program:
    """Quantised weights, whose tiling changed between libtpu 0.0.37 and 0.0.40."""
    weights = {"w": _struct(mesh, (512, 512), None, "model", dtype=jnp.int8)}
    return Program(lambda w, x: x @ w["w"].astype(jnp.bfloat16), (weights, _struct(mesh, (8, 512), dtype=jnp.bfloat16)))


def on_host(mesh: Mesh) -> Program:
    """A weight that is kept in host memory."""
    sharding = NamedSharding(mesh, PartitionSpec(), memory_kind="pinned_host")
    weights = {"w": jax.ShapeDtypeStruct((256, 256), jnp.float32, sharding=sharding)}
    device = NamedSharding(mesh, PartitionSpec(), memory_kind="device")
    return Program(lambda w, x: x @ jax.device_put(w["w"], device), (weights, _struct(mesh, (8, 256))))


def big(mesh: Mesh) -> Program:
    """64 GiB of weights on every device."""
    return Program(_first, (_struct(mesh, (1 << 17, 1 << 17)),))


def raises(mesh: Mesh) -> Program:
    raise ZeroDivisionError("the entry's own words")


def returns_nothing(mesh: Mesh) -> None:
    return None


def wrong_numbers(mesh: Mesh) -> Program:
    return Program(_first, (_struct(mesh, (8,)),), parameters=1)


def no_tuple(mesh: Mesh) -> Program:
    return Program(_first, {"x": _struct(mesh, (8,))})


def constrained(mesh: Mesh) -> Program:
    """Names mesh axes without the mesh, as most model code does."""
    return Program(
        lambda w: jax.lax.with_sharding_constraint(w * 2, PartitionSpec("model")), (_struct(mesh, (8, 8), "data"),)
    )


def calls_back(mesh: Mesh) -> Program:
    def step(w: Any) -> Any:
        jax.debug.print("{}", w[0])
        return w

    return Program(step, (_struct(mesh, (8,)),))


def fails_under_tracing(mesh: Mesh) -> Program:
    return Program(lambda x: x @ jnp.ones((3, 3)), (_struct(mesh, (8, 8)),))


def aborts(mesh: Mesh) -> Program:
    sys.stderr.write("the last words of a native library\n")
    os.abort()


def exits(mesh: Mesh) -> Program:
    os._exit(7)


def sleeps(mesh: Mesh) -> Program:
    sys.stderr.write("falling asleep\n")
    time.sleep(120)
    raise AssertionError


def not_an_array(mesh: Mesh) -> Program:
    return Program(_first, ({"a": {"b": 3}},))


def prng_key(mesh: Mesh) -> Program:
    return Program(_first, ({"key": jax.eval_shape(lambda: jax.random.key(0))},))


def wide(mesh: Mesh) -> Program:
    return Program(_first, ({"w": jax.ShapeDtypeStruct((4,), "float64")},))


def foreign_sharding(mesh: Mesh) -> Program:
    struct = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=SingleDeviceSharding(mesh.devices.flat[0]))
    return Program(_first, ({"w": struct},))


def other_mesh(mesh: Mesh) -> Program:
    return Program(_first, ({"w": _struct(Mesh(mesh.devices.reshape(-1), "z"), (8,), "z")},))


def uneven(mesh: Mesh) -> Program:
    return Program(_first, ({"w": _struct(mesh, (8, 6), None, ("data", "model"))},))


def too_many_dimensions(mesh: Mesh) -> Program:
    return Program(_first, ({"w": _struct(mesh, (8,), None, "data")},))


def unconstrained(mesh: Mesh) -> Program:
    return Program(_first, ({"w": _struct(mesh, (8, 8), PartitionSpec.UNCONSTRAINED)},))


def same_path(mesh: Mesh) -> Program:
    return Program(_first, ({"a": Keyed(_struct(mesh, (8,)), _struct(mesh, (8,)))},))


def unsortable(mesh: Mesh) -> Program:
    return Program(_first, ({"a": _struct(mesh, (8,)), 1: _struct(mesh, (8,))},))


class Keyed:
    """A node whose two children have keys that are equal as text, and that cannot be exported."""

    def __init__(self, one: Any, other: Any) -> None:
        self.one, self.other = one, other


jax.tree_util.register_pytree_with_keys(
    Keyed,
    lambda node: (((jax.tree_util.DictKey(1), node.one), (jax.tree_util.DictKey("1"), node.other)), None),
    lambda _, children: Keyed(*children),
)


class Box:
    """A node that nobody told ``jax.export`` about."""

    def __init__(self, content: Any) -> None:
        self.content = content


jax.tree_util.register_pytree_node(Box, lambda box: ((box.content,), None), lambda _, children: Box(*children))


def library_tree(mesh: Mesh) -> Program:
    """A tree as model libraries have them: nodes of their own, and numbers as keys, more than ten of them."""
    layers = {number: {"w": _struct(mesh, (8, number + 1))} for number in range(12)}
    return Program(_first, ({"layers": layers, "list": [_struct(mesh, (8,)), Box(_struct(mesh, (4,)))]},))


def _tables(mesh: Mesh, *axes: Any) -> dict[str, jax.ShapeDtypeStruct]:
    return {"table": _struct(mesh, (4096, 64), *axes), "codes": _struct(mesh, (4096, 6), *axes, dtype=jnp.int32)}


def gathers(mesh: Mesh, *, axes: tuple[Any, ...] = ()) -> Program:
    """Reads single rows: the compiler lays a row's elements beside each other, padded to 128."""

    def look_up(params: Any, rows: Any) -> Any:
        return params["table"][rows].sum(-1) + params["codes"][rows].sum(-1)

    return Program(look_up, (_tables(mesh, *axes), _struct(mesh, (16,), dtype=jnp.int32)))


def slices(mesh: Mesh, *, axes: tuple[Any, ...] = (), rows: int = 4096, more: bool = False) -> Program:
    """Reads blocks of rows of the same tables, and has the compiler lay columns side by side; or one table more."""

    def cut(params: Any, start: Any) -> Any:
        return [jax.lax.dynamic_slice_in_dim(array, start[0], 8) for array in jax.tree.leaves(params)]

    params = _tables(mesh, *axes)
    params["table"] = _struct(mesh, (rows, 64), *axes)
    if more:
        params["more"] = _struct(mesh, (64, 8))
    return Program(cut, (params, _struct(mesh, (16,), dtype=jnp.int32)))


def halves(mesh: Mesh) -> Program:
    """The first table in another dtype."""
    return Program(_first, ({"table": _struct(mesh, (4096, 64), dtype=jnp.bfloat16)},))


def nested(mesh: Mesh) -> Program:
    """A group of arrays where the other programs have one."""
    return Program(_first, ({"table": {"rows": _struct(mesh, (4096, 64))}},))
