"""A compiled program as bytes: dump at compile time, load where it runs."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import jax
from jax.experimental import serialize_executable
from jax.sharding import Mesh

from migrate.errors import CompileError, EnvironmentMismatchError, ProgramError


def dump(compiled: jax.stages.Compiled, mesh: Mesh) -> bytes:
    """``compiled`` as a pickle of (PJRT payload, input tree, output tree, device ids in the order of ``mesh``).

    The order matters: PJRT assigns the executable's partitions to the devices it is loaded onto one by one, and a mesh
    follows the chips' wiring, not their ids (v5e:2x4 gives 0 1 2 3 7 6 5 4). Loaded in another order it ends the
    process at its first call ("PjRtBuffer's memory space is addressed by device ...", measured on CPU).

    Raises :class:`ProgramError` if its trees hold nodes that cannot be pickled, if it calls back into Python, or closes
    over arrays that jax passes as hidden arguments; :class:`CompileError` if the platform cannot serialize executables.
    """
    try:
        return pickle.dumps((*serialize_executable.serialize(compiled), [device.id for device in mesh.devices.flat]))
    except NotImplementedError as error:
        raise ProgramError(
            "the program closes over arrays, which a serialized executable cannot carry",
            where="Program.function",
            found=str(error),
            remedy="pass them as arguments",
        ) from error
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ProgramError(
            "the executable cannot be pickled",
            where="Program",
            found=str(error),
            remedy="define tree node classes at the top level of a module, and do not call back into Python from the "
            "function (jax.debug.print, jax.pure_callback)",
        ) from error
    except ValueError as error:
        raise CompileError("the executable cannot be serialized", found=str(error)) from error


def load(data: bytes, devices: Sequence[jax.Device]) -> jax.stages.Compiled:
    """The callable executable that :func:`dump` wrote, loaded onto those of ``devices`` it was compiled for.

    ``data`` is read through pickle: whoever wrote it decides what runs here. Call this only after the digest in the
    export's manifest was verified; recompiling from the ``jax.export`` artifact is the path without that trust.

    Raises :class:`EnvironmentMismatchError` if this jax, runtime or hardware cannot load it.
    """
    by_id = {device.id: device for device in devices}
    try:
        payload, in_tree, out_tree, ids = pickle.loads(data)  # noqa: S301  # the caller verified the digest, see above
        compiled: jax.stages.Compiled = serialize_executable.deserialize_and_load(
            payload, in_tree, out_tree, backend=devices[0].client, execution_devices=[by_id[number] for number in ids]
        )
        return compiled
    except Exception as error:  # unpickling foreign data and PJRT raise anything
        raise EnvironmentMismatchError(
            "the serialized executable cannot be loaded here",
            where=f"{len(devices)} x {devices[0].device_kind}",
            found=f"{type(error).__name__}: {error}",
            remedy="run the job again in this environment",
        ) from error
