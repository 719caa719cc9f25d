"""The compile subprocess: ``python -m migrate.compiler.worker REQUEST.json``.

Reads the request, writes the artifacts beside it, and last of all ``result.json``: either the signature or a typed
error. No result means that the process died; its driver says how. Everything printed here is the compile log.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from migrate.compiler import aot, describe, executable
from migrate.compiler.arguments import abstract_leaves
from migrate.compiler.mesh import build_mesh
from migrate.compiler.request import RESULT_FILE, Request
from migrate.compiler.saved import saved_program
from migrate.compiler.settle import settle
from migrate.compiler.topology import cpu_devices, open_devices
from migrate.errors import ReexportError
from migrate.manifest import EXECUTABLE_FILE, EXPORTED_FILE
from migrate.program import resolve
from migrate.signature import Signature


def compile_here(request: Request, directory: Path) -> str:
    """Compile in this process and write executable and export into ``directory``; the signature as JSON text.

    Raises the errors that :func:`migrate.compiler.compile_program` documents, those about the process aside.
    """
    target, config = request.target, request.program
    clock = _Clock()
    mesh = build_mesh(open_devices(target.topology), target.mesh)
    clock.lap("topology and mesh")
    platform = "tpu" if cpu_devices(target.topology) is None else "cpu"
    if config.entry is not None:
        program = resolve(config.entry, mesh, config.arguments, request.python_path)
    else:
        program = saved_program(config, directory, mesh, platform)
    leaves = abstract_leaves(program, mesh)
    clock.lap("program resolved")
    settled = settle(program, mesh, leaves, request)
    clock.lap("compiled")
    signature = Signature(
        program=config.name,
        parameters=settled.parameters,
        fingerprint=describe.fingerprint(settled.lowered, request, settled.parameters),
        memory=describe.device_memory(settled.compiled),
        free_memory=settled.free_memory,
    )
    (directory / EXECUTABLE_FILE).write_bytes(executable.dump(settled.compiled, mesh))
    clock.lap("executable written")
    (directory / EXPORTED_FILE).write_bytes(aot.export_program(program, mesh, leaves, platform))
    clock.lap("export written")
    return signature.to_json()


class _Clock:
    def __init__(self) -> None:
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        """Say how long ``name`` took; for the log."""
        now = time.monotonic()
        sys.stderr.write(f"reexport: {name} ({now - self._last:.2f} s)\n")
        self._last = now


def _end_with_parent() -> None:
    """End this process when the driver is gone: the driver holds the other end of standard input, and only that."""

    def wait() -> None:
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def main(request_file: str) -> None:
    """Run the request in ``request_file``; always leaves a result beside it, unless the process dies."""
    directory = Path(request_file).parent
    _end_with_parent()
    result: dict[str, Any]
    try:
        result = {"signature": compile_here(Request.from_json(Path(request_file).read_text()), directory)}
    except ReexportError as error:
        traceback.print_exc()  # the whole story, the user's frames included, is for the log
        result = {"error": error.to_json()}
    # Renamed into place: a result that exists is whole.
    temporary = directory / (RESULT_FILE + ".tmp")
    temporary.write_text(json.dumps(result))
    temporary.rename(directory / RESULT_FILE)


if __name__ == "__main__":
    main(sys.argv[1])
