"""An export -> a callable and its parameters, in a process that has the devices it was compiled for.

Parameters are read in storage order, put on their devices as they are, and only then given their logical dimension
order: to the executable's layout that is the same bytes, so nothing is transposed, on the host or on the device.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np
from jax.experimental.layout import Format
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from migrate import arrays, storage
from migrate.box import Box
from migrate.compiler import executable as executables
from migrate.compiler.arguments import key_text
from migrate.compiler.describe import jax_layout, physical_layout
from migrate.compiler.mesh import build_mesh
from migrate.compiler.recompile import recompile
from migrate.environment import Devices, check_devices, check_versions
from migrate.errors import EnvironmentMismatchError, VerificationError
from migrate.export import Export, open_export
from migrate.manifest import EXECUTABLE_FILE, EXPORTED_FILE, ArrayRecord
from migrate.signature import ParameterSpec, Signature


@dataclass(frozen=True, repr=False)
class LoadedProgram:
    """A program of an export, ready to run. Unpacks as ``call, params = migrate.load(uri)``."""

    params: Any
    """Pytree of ``jax.Array`` in the executable's shardings and layouts: the argument that the checkpoint fills."""
    compiled: jax.stages.Compiled
    """The executable itself; it takes arguments in exactly its own formats."""
    signature: Signature
    export: Export
    _formats: tuple[Any, ...]
    _weights: int

    def call(self, *arguments: Any) -> Any:
        """Run the program on all its arguments, in the order of the model's function.

        Arguments other than the parameters may be NumPy arrays, or lie elsewhere or in another layout: they are put
        where the executable wants them. Donated arguments are consumed, as in ``jax.jit``.
        """
        if len(arguments) != len(self._formats):
            names = list(dict.fromkeys(parameter.argument for parameter in self.signature.parameters))
            raise TypeError(
                f"the program takes {len(self._formats)} arguments, {', '.join(names)}; got {len(arguments)}"
            )
        placed = [
            argument if index == self._weights else jax.device_put(argument, format_)
            for index, (argument, format_) in enumerate(zip(arguments, self._formats, strict=True))
        ]
        return self.compiled(*placed)

    __call__ = call

    def __iter__(self) -> Iterator[Any]:
        return iter((self.call, self.params))

    def __repr__(self) -> str:
        fingerprint, arrays = self.signature.fingerprint, len(jax.tree.leaves(self.params))
        return (
            f"LoadedProgram({self.signature.program!r} for {fingerprint.topology}, {arrays} arrays, {self.export.uri})"
        )


def load(
    uri: str | os.PathLike[str],
    program: str | None = None,
    *,
    devices: Sequence[jax.Device] | None = None,
    params: Any = None,
    executable: Literal["serialized", "recompile"] = "serialized",
) -> LoadedProgram:
    """Load a committed export: ``uri`` is its directory, or an output root, whose LATEST is followed.

    ``program`` names one of several programs; default: the primary one. Only the parameters that it takes are read.
    ``params`` are those of another program of the export, loaded before: what both take is shared and not read again,
    so that ``migrate.load(uri, "prefill", params=decode.params)`` adds an executable and no weights. A program that
    donates its parameters must not share them. ``devices`` (default: ``jax.devices()``) must be those the export was
    compiled for. At any time the host holds the bytes of about two arrays besides the parameters themselves.

    The ``serialized`` executable is a pickle; its digest is compared with the committed manifest first, so trust in the
    output directory is trust in what runs (docs/security.md). ``executable="recompile"`` never opens it: the program is
    compiled here from its ``jax.export`` artifact, with the layouts of the signature, so the arrays are read as they
    lie all the same. That also runs an export under another jax or libtpu, as long as they keep these layouts.

    Raises :class:`migrate.errors.NotAnExportError`, :class:`VerificationError` if a file is not the committed one, and
    :class:`EnvironmentMismatchError` before anything is read if this process cannot run the export, or ``params`` hold
    an array that does not lie as the program expects it.
    """
    export = open_export(uri)
    record = export.program(program)
    signature = export.signature(record.name)
    if executable == "recompile":
        chosen = check_environment(signature, devices, any_version=True)
        compiled = recompile(export.read_file(record, EXPORTED_FILE), signature, chosen)
    elif executable == "serialized":
        chosen = check_environment(signature, devices)
        compiled = executables.load(export.read_file(record, EXECUTABLE_FILE), chosen)
    else:
        raise ValueError(f'executable is "serialized" or "recompile", not {executable!r}')
    mesh = _mesh(compiled, signature, chosen)
    given = {tuple(map(key_text, keys)): leaf for keys, leaf in jax.tree_util.tree_leaves_with_path(params)}
    weights = _read_weights(export, signature, mesh, given)
    numbers = jax.tree.unflatten(compiled.in_tree, range(len(signature.parameters)))[0]
    position = next(i for i, tree in enumerate(numbers) if set(jax.tree.leaves(tree)) & set(weights))
    return LoadedProgram(
        params=jax.tree.map(weights.__getitem__, numbers[position]),
        compiled=compiled,
        signature=signature,
        export=export,
        _formats=tuple(compiled.input_formats[0]),
        _weights=position,
    )


def check_environment(
    signature: Signature, devices: Sequence[jax.Device] | None = None, *, any_version: bool = False
) -> Sequence[jax.Device]:
    """The devices that the signature's program can run on; versions do not matter where it is compiled anew.

    Raises :class:`EnvironmentMismatchError` if it cannot run here.
    """
    found = jax.devices() if devices is None else devices
    check_devices(signature, Devices(found[0].platform, found[0].device_kind, len(found)))
    if not any_version:
        check_versions(signature.fingerprint)
    return found[: signature.device_count]


def _mesh(compiled: jax.stages.Compiled, signature: Signature, devices: Sequence[jax.Device]) -> Mesh:
    """The executable's own mesh, where its shardings tell it; else the one built by the rule of compile time."""
    for format_ in jax.tree.leaves(compiled.input_formats[0]):
        if isinstance(format_.sharding, NamedSharding) and isinstance(format_.sharding.mesh, Mesh):
            return format_.sharding.mesh
    return build_mesh(devices, dict(signature.fingerprint.mesh))


def _read_weights(
    export: Export, signature: Signature, mesh: Mesh, given: Mapping[tuple[str, ...], Any]
) -> dict[int, jax.Array]:
    """HLO parameter number -> array, for every parameter of the program; ``given`` are taken as they are."""
    records = {record.path: record for record in export.parameter_set().arrays if record.tree == "params"}
    database = arrays.root_database(export.parameters_uri)
    loaded: dict[int, jax.Array] = {}
    pending: deque[_Pending] = deque()
    # arrays are read while those before them go to their devices
    for parameter in signature.weights:
        if parameter.path in given:
            _check_given(parameter, given[parameter.path], mesh)
            loaded[parameter.number] = given[parameter.path]
            continue
        if parameter.path not in records:
            raise VerificationError(f"the export holds no array for parameter {parameter.name}", where=export.uri)
        pending.append(_Pending(records[parameter.path], parameter, mesh, database))
        while len(pending) > 1 and sum(each.nbytes for each in pending) > _AHEAD_BYTES:
            first = pending.popleft()
            loaded[first.parameter.number] = first.array()
    for each in pending:
        loaded[each.parameter.number] = each.array()
    return loaded


def _check_given(parameter: ParameterSpec, array: Any, mesh: Mesh) -> None:
    """Refuse an array that the executable would not take as it is. Raises :class:`EnvironmentMismatchError`."""
    sharding = _sharding(parameter, mesh)
    if (
        isinstance(array, jax.Array)
        and (array.shape, array.dtype.name) == (parameter.shape, parameter.dtype)
        and array.sharding.is_equivalent_to(sharding, array.ndim)
        and _has_layout(array, parameter)
    ):
        return
    found: Any = getattr(array, "format", type(array).__name__)
    raise EnvironmentMismatchError(
        "a given parameter does not lie as the program expects it",
        where=f"params: {parameter.name}",
        expected=f"{parameter.dtype}{list(parameter.shape)}, {Format(jax_layout(parameter.layout), sharding)}",
        found=f"{getattr(array, 'dtype', '')}{list(getattr(array, 'shape', ()))}, {found}",
        remedy="give the params of another program of this export, loaded onto the same devices",
    )


_AHEAD_BYTES = 32 << 20
"""Of arrays that are read ahead; a larger one is read while the one before it goes to its devices."""


class _Pending:
    """An array whose shards are being read."""

    def __init__(self, record: ArrayRecord, parameter: ParameterSpec, mesh: Mesh, database: dict[str, Any]) -> None:
        self.parameter = parameter
        self.nbytes = record.stored.nbytes
        self._record = record
        self._order = parameter.major_to_minor
        self._sharding = _sharding(parameter, mesh)
        store = arrays.open_array(record.stored, database)
        self._boxes = {
            device: _box(index or (), parameter.shape)
            for device, index in self._sharding.addressable_devices_indices_map(parameter.shape).items()
        }
        # replicas share one read
        self._reads = {
            box: store[box.slices].transpose(self._order).read() for box in dict.fromkeys(self._boxes.values())
        }

    def array(self) -> jax.Array:
        """The parameter in the executable's format."""
        order, parameter = self._order, self.parameter
        try:
            shards = {box: future.result() for box, future in self._reads.items()}
        except (ValueError, OSError) as error:
            raise storage.storage_error(
                f"array {parameter.name} cannot be read", self._record.stored.storage_name, error
            ) from error
        self._reads.clear()
        physical_sharding = NamedSharding(
            self._sharding.mesh,
            _partition_spec([parameter.partition[dimension] for dimension in order]),
            memory_kind=self._sharding.memory_kind,
        )
        on_devices = jax.device_put([shards[box] for box in self._boxes.values()], list(self._boxes))
        physical = jax.make_array_from_single_device_arrays(
            tuple(parameter.shape[dimension] for dimension in order), physical_sharding, on_devices
        )
        if order == tuple(range(len(order))) and _has_layout(physical, parameter):
            return physical
        logical: jax.Array = _logical(order, Format(jax_layout(parameter.layout), self._sharding))(physical)
        return logical


@functools.lru_cache(maxsize=1024)
def _logical(order: tuple[int, ...], format_: Format) -> Any:
    """Undo the permutation ``order``; into a layout of that order it moves no byte within a shard."""
    inverse = tuple(int(dimension) for dimension in np.argsort(order))
    return jax.jit(lambda physical: physical.transpose(inverse), out_shardings=format_)


def _has_layout(array: Any, parameter: ParameterSpec) -> bool:
    expected = (parameter.major_to_minor, parameter.tiles, parameter.element_bits)
    return physical_layout(array.format.layout, parameter.name) == expected


def _sharding(parameter: ParameterSpec, mesh: Mesh) -> NamedSharding:
    kind = None if parameter.memory_kind == "device" else parameter.memory_kind
    return NamedSharding(mesh, _partition_spec(parameter.partition), memory_kind=kind)


def _partition_spec(partition: Sequence[tuple[str, ...]]) -> PartitionSpec:
    spec: PartitionSpec = PartitionSpec(*(axes or None for axes in partition))
    return spec


def _box(index: tuple[slice, ...], shape: tuple[int, ...]) -> Box:
    bounds = [part.indices(extent) for part, extent in zip(index, shape, strict=True)]
    return Box(tuple(start for start, _, _ in bounds), tuple(stop for _, stop, _ in bounds))
