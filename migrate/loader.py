"""An export -> a callable and its parameters, in a process that has the devices it was compiled for.

Parameters are read in storage order, put on their devices as they are, and only then given their logical dimension
order: to the executable's layout that is the same bytes, so nothing is transposed, on the host or on the device.
"""

from __future__ import annotations

import functools
import math
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np
import tensorstore as ts
from jax.experimental.layout import Format
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from migrate import allocator, arrays, storage
from migrate.box import Box
from migrate.compiler import executable as executables
from migrate.compiler.arguments import key_text
from migrate.compiler.calls import checked
from migrate.compiler.describe import jax_layout, physical_layout
from migrate.compiler.mesh import build_mesh
from migrate.compiler.recompile import recompile
from migrate.environment import Devices, check_devices, check_versions
from migrate.errors import EnvironmentMismatchError, StorageError, VerificationError
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
        where the executable wants them. Donated arguments are consumed, as in ``jax.jit``. Raises TypeError that names
        an argument whose tree, shape or dtype is not the program's; whole numbers of another width must fit.
        """
        if len(arguments) != len(self._formats):
            names = list(dict.fromkeys(parameter.argument for parameter in self.signature.parameters))
            raise TypeError(
                f"the program takes {len(self._formats)} arguments, {', '.join(names)}; got {len(arguments)}"
            )
        numbers = jax.tree.unflatten(self.compiled.in_tree, range(len(self.signature.parameters)))[0]
        parameters = self.signature.parameters
        placed = [
            argument if index == self._weights else jax.device_put(checked(argument, of, parameters), format_)
            for index, (argument, of, format_) in enumerate(zip(arguments, numbers, self._formats, strict=True))
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
    compiled for. Besides the parameters themselves the host
    holds 32 MiB of shards that are on their way (256 MiB from object stores), or one larger shard.

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
    wanted: list[ParameterSpec] = []
    for parameter in signature.weights:
        if parameter.path in given:
            _check_given(parameter, given[parameter.path], mesh)
            loaded[parameter.number] = given[parameter.path]
        elif parameter.path not in records:
            raise VerificationError(f"the export holds no array for parameter {parameter.name}", where=export.uri)
        else:
            wanted.append(parameter)
    most_bytes = _AHEAD_BYTES if storage.is_local(export.parameters_uri) else _REMOTE_AHEAD_BYTES
    for array in _placed((_Loading(records[each.path], each, mesh, database) for each in wanted), most_bytes):
        loaded[array.parameter.number] = array.assemble()
    allocator.give_back()
    return loaded


def _placed(loading: Iterable[_Loading], most_bytes: int) -> Iterator[_Loading]:
    """Each array when its shards are on their devices; those behind it are being read and copied meanwhile.

    What is under way has ``most_bytes`` at most, or is one shard.
    """
    reading: deque[_Shard] = deque()
    copying: deque[_Shard] = deque()
    under_way_bytes = 0
    for array in loading:
        for shard in array.shards():
            while under_way_bytes and under_way_bytes + shard.nbytes > most_bytes:
                done = _advance(reading, copying)
                under_way_bytes -= done.nbytes if done else 0
                if done and not done.array.missing:
                    yield done.array
            reading.append(shard)
            shard.read()
            under_way_bytes += shard.nbytes
    while reading or copying:
        done = _advance(reading, copying)
        if done and not done.array.missing:
            yield done.array


def _advance(reading: deque[_Shard], copying: deque[_Shard]) -> _Shard | None:
    """Take one shard one step on; it, if that was the last one. Half of the shards are read while others are copied."""
    if len(reading) >= max(1, len(copying)):
        shard = reading.popleft()
        shard.put()
        copying.append(shard)
        return None
    shard = copying.popleft()
    shard.wait()
    return shard


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
"""Of shards that are being read, or copied to their devices; one larger shard at least."""
_REMOTE_AHEAD_BYTES = 256 << 20
"""The same where each read waits for an object store."""


class _Loading:
    """An array on its way from storage to its devices; its shards go each by itself, so that few are on the host."""

    def __init__(self, record: ArrayRecord, parameter: ParameterSpec, mesh: Mesh, database: dict[str, Any]) -> None:
        self.parameter = parameter
        self.placed: dict[jax.Device, jax.Array] = {}
        """Shards by device; complete when :attr:`missing` is 0."""
        self.order = parameter.major_to_minor
        self.stays = self.order == tuple(range(len(self.order)))
        """Whether the stored dimension order is the logical one."""
        self.stored = record.stored
        self._database = database
        self._sharding = _sharding(parameter, mesh)
        self._devices: dict[Box, list[jax.Device]] = {}
        for device, index in self._sharding.addressable_devices_indices_map(parameter.shape).items():
            # replicas share one read
            self._devices.setdefault(_box(index or (), parameter.shape), []).append(device)
        self.missing = len(self._devices)

    def shards(self) -> Iterator[_Shard]:
        """Every distinct shard that lies on a device of this process."""
        store = arrays.open_array(self.stored, self._database)
        for box, devices in self._devices.items():
            yield _Shard(
                self,
                store[box.slices].transpose(self.order),
                tuple(devices),
                box.size * store.dtype.numpy_dtype.itemsize,
            )

    def unreadable(self, error: BaseException) -> StorageError:
        """The typed form of what storage says of one of its shards."""
        base = self._database["base"]
        where = f"{self.stored.storage_name} in {base.get('bucket', '')}{base['path']}"
        found = storage.storage_error(f"array {self.parameter.name} cannot be read", where, error)
        if "DATA_LOSS" in str(error) or "NOT_FOUND" in str(error):
            found.remedy = (
                "the export is damaged: `reexport verify` names all that differs; restore it from a copy, or "
            )
            found.remedy += "make it again in another output"
        return found

    def assemble(self) -> jax.Array:
        """The parameter in the executable's format, of all its shards."""
        parameter = self.parameter
        physical_sharding = NamedSharding(
            self._sharding.mesh,
            _partition_spec([parameter.partition[dimension] for dimension in self.order]),
            memory_kind=self._sharding.memory_kind,
        )
        physical = jax.make_array_from_single_device_arrays(
            tuple(parameter.shape[dimension] for dimension in self.order), physical_sharding, list(self.placed.values())
        )
        self.placed.clear()
        if self.stays and _has_layout(physical, parameter):
            return physical
        logical: jax.Array = _logical(self.order, Format(jax_layout(parameter.layout), self._sharding))(physical)
        return logical


@dataclass(eq=False, slots=True)
class _Shard:
    array: _Loading
    view: ts.TensorStore
    """On storage, in storage order."""
    devices: tuple[jax.Device, ...]
    nbytes: int
    _elements: np.ndarray | None = None
    _read: Any = None

    def read(self) -> None:
        """Begin to read it."""
        self._elements = _aligned_empty(self.view.shape, self.view.dtype.numpy_dtype)
        # never into a copy of the buffer, of which nobody would know
        self._read = ts.array(self._elements, copy=False, write=True).write(self.view)

    def put(self) -> None:
        """Begin to copy it to its devices, once it is read."""
        try:
            self._read.result()
        except (ValueError, OSError) as error:
            raise self.array.unreadable(error) from error
        # CPU devices take aligned memory as it is; what is to be donated must be a copy
        copies = jax.device_put(
            [self._elements] * len(self.devices), list(self.devices), may_alias=None if self.array.stays else False
        )
        self.array.placed.update(zip(self.devices, copies, strict=True))
        self._elements = None

    def wait(self) -> None:
        """Until it is on its devices."""
        jax.block_until_ready([self.array.placed[device] for device in self.devices])
        self.array.missing -= 1


_ALIGNMENT = 64
"""In bytes; XLA's for CPU buffers."""


def _aligned_empty(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
    nbytes = math.prod(shape) * dtype.itemsize
    buffer = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    return buffer[start : start + nbytes].view(dtype).reshape(shape)


@functools.lru_cache(maxsize=1024)
def _logical(order: tuple[int, ...], format_: Format) -> Any:
    """Undo the permutation ``order``; into a layout of that order it moves no byte within a shard."""
    inverse = tuple(int(dimension) for dimension in np.argsort(order))
    # the result takes the argument's place
    return jax.jit(lambda physical: physical.transpose(inverse), out_shardings=format_, donate_argnums=0)


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
