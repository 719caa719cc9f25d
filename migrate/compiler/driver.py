"""Runs a compile in a subprocess: libtpu can kill its process, and JAX reads its settings once, at start."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from migrate import errors
from migrate.compiler import cached, flags, interpreters, observe, policies, process, saved, toolchains
from migrate.compiler.process import Ended
from migrate.compiler.request import REQUEST_FILE, RESULT_FILE, Request
from migrate.compiler.toolchains import Toolchain
from migrate.compiler.topology import cpu_devices
from migrate.config import Compile, Job, job_from_mapping
from migrate.errors import CompileError, ConfigError, ReexportError, ToolchainError
from migrate.manifest import EXECUTABLE_FILE, EXPORTED_FILE
from migrate.signature import ParameterSpec, Signature
from migrate.topologies import resolve

LOG_FILE = "compile.log"
_LOG_LINES_SHOWN = 15
_PROBE_SECONDS = 180.0
# Of an interpreter that does not know the option -P.
_USAGE_EXIT_CODE = 2

# The worker must not see how the caller set up its own JAX: these change programs, layouts or which libtpu answers.
_CALLER_ONLY = ("JAX_", "XLA_", "TPU_", "LIBTPU_", "PJRT_")
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    # JAX's persistent cache writes entries of compile-only clients that it cannot read back.
    "JAX_ENABLE_COMPILATION_CACHE": "false",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    # Without it a second libtpu on this machine fails on a lock file. Safe here only: this process runs nothing.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_LOG_DIR": "disabled",
    # Paths and lines of the model's source stay out of what is made: without this a Pallas kernel carries them into the
    # StableHLO, and moving a line changes fingerprint and export (measured). Names of operations remain.
    "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",
    # Model code that iterates over a set must lower to the same program every time.
    "PYTHONHASHSEED": "0",
}


@dataclass(frozen=True, slots=True)
class CompileResult:
    """What a compile left behind."""

    signature: Signature
    """What the executable expects of every parameter."""
    executable: Path
    """The serialized executable; a pickle, see :func:`migrate.compiler.executable.load`."""
    exported: Path
    """The portable ``jax.export`` artifact."""
    log: Path
    """Everything the compiler printed."""
    seconds: float
    """Wall time: of the subprocess, start-up included, or of finding the compile in the cache."""
    cached: bool = False
    """Whether it was found in the compile cache, and no subprocess started."""
    peak_bytes: int = 0
    """Largest resident memory of the subprocess that was seen, in bytes; 0 if it is not known."""


def compile_program(
    job: Job, directory: Path, shared: Sequence[ParameterSpec] = (), *, cancelled: threading.Event | None = None
) -> CompileResult:
    """Compile the job's primary program for its target in a subprocess; request, log and artifacts go to ``directory``.

    A compile that the job's cache holds is not done again: then no subprocess is started. ``shared`` are parameters of
    a program compiled before: those that this one has too get the same layouts. ``cancelled`` ends the compile when it
    is set.

    Raises
    ------
    TargetError
        the topology does not exist, or the mesh does not use all of its devices
    ConfigError
        a layout policy pins what is no signature, or one that does not fit the program;
        the compiler does not take one of ``target.flags``, or of the flags in a variable of ``target.inherit``
    ToolchainError
        ``target.libtpu`` or ``target.jax`` cannot be had, or do not work with each other
    ProgramError
        the entry cannot be used, its arguments are unusable, or its function fails under tracing
    CompileError
        the compiler refused the program, died, or took more than ``job.compile.timeout_seconds`` or
        ``max_memory_bytes``, or was cancelled; ends with the path of the log
    """
    resolve(job.target.topology)  # a wrong name is found before anything is downloaded
    python, toolchain = interpreters.select(job.target)
    inherited = flags.inherit(job.target, toolchain, os.environ)
    try:
        return _compile(job, directory, toolchain, inherited, shared, python=python, cancelled=cancelled)
    except CompileError as error:
        # with a toolchain of the user's choice, that may be the reason
        if toolchain is not None and not toolchain.installed and not isinstance(error, ToolchainError):
            _blame(toolchain, python, error)
        raise


def probe_toolchain(toolchain: Toolchain | None, python: Path | None = None) -> CompileResult:
    """Compile a program of ten small arrays for one v5e chip with ``toolchain``; a few seconds. Files are not kept.

    ``python`` is the interpreter that compiles, default: this one; without ``toolchain`` with the libtpu it has.

    Raises :class:`ToolchainError` with the working range if that fails: that jax cannot drive it.
    """
    document = {
        "source": {"path": "none"},
        "program": {"entry": "migrate.demo.tiny:next_token_step"},
        "target": {"topology": "v5e:1x1", "mesh": {"data": 1}},
        "output": "none",
        "compile": {"timeout_seconds": _PROBE_SECONDS, "cache": False},
    }
    with tempfile.TemporaryDirectory(prefix="reexport-probe-") as directory:
        try:
            return _compile(job_from_mapping(document), Path(directory), toolchain, {}, python=python)
        except ReexportError as error:
            libtpu = f"libtpu {toolchain.version}" if toolchain else "its libtpu"
            raise ToolchainError(
                f"{libtpu} does not work with {f'the jax of {python}' if python else 'this jax'}: it cannot compile a "
                "small program",
                where="target.libtpu" if toolchain else "target.python",
                expected=None if python else toolchains.working_range(),
                found="\n    ".join(filter(None, (error.what, error.found))),
                remedy="name another version, or use an interpreter with a jax of that libtpu's time",
            ) from error


def _blame(toolchain: Toolchain, python: Path | None, died: CompileError) -> None:
    """Raise :class:`ToolchainError` if ``toolchain`` is to blame: it cannot compile a small program either."""
    try:
        probe_toolchain(toolchain, python)
    except ToolchainError as error:
        raise error from died


def _compile(
    job: Job,
    directory: Path,
    toolchain: Toolchain | None,
    inherited: Mapping[str, str],
    shared: Sequence[ParameterSpec] = (),
    *,
    python: Path | None = None,
    cancelled: threading.Event | None = None,
) -> CompileResult:
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    environment = worker_environment(job.target.topology, toolchain, inherited)
    if python is not None:
        environment["PYTHONPATH"] = str(interpreters.search_path(directory))
    request, result, log = (directory / name for name in (REQUEST_FILE, RESULT_FILE, LOG_FILE))
    if job.program.exported is not None:
        saved.fetch(job.program, directory)
    libtpu = toolchain.version if toolchain else ""
    copied = policies.fetch(job.target, job.program)
    asked = Request(job.program, job.target, job.python_path, libtpu, inherited, tuple(shared), copied)
    request.write_text(asked.to_json())
    for left in (result, directory / observe.INPUTS_FILE):  # of an earlier run in the same directory
        left.unlink(missing_ok=True)
    where = f"program {job.program.name} for {job.target.topology}"
    started, began = time.monotonic(), time.time()
    lookup = cached.Lookup.of(job, asked, directory, environment, toolchain)
    entry = lookup and lookup.find()
    if entry is not None:
        return _result(directory, time.monotonic() - started, cached=True)
    if toolchain is not None:
        try:
            flags.check(job.target.flags, toolchain)
        except ConfigError:
            request.unlink()
            with contextlib.suppress(OSError):  # nothing was made, unless something lies there already
                directory.rmdir()
            raise
    started = time.monotonic()
    ended = process.run(
        # -P: what lies in the working directory must not stand in for reexport or its dependencies; a file and not a
        # module, whose package would be imported before the watch begins
        [str(python or sys.executable), "-P", observe.__file__, str(request)],
        environment,
        log,
        timeout_seconds=job.compile.timeout_seconds,
        max_memory_bytes=job.compile.max_memory_bytes,
        cancelled=cancelled,
    )
    seconds = time.monotonic() - started
    if ended.reason != "exit" or not result.exists():
        if inherited and (flag := flags.refused_at_start(log.read_text(errors="replace"))):
            raise ConfigError(
                f"the compiler does not take the flag {flag} from the environment",
                where="target.inherit",
                remedy=f"take it out of the variable; log: {log}",
            )
        raise _died(ended, job.compile, python, where, log)
    document = json.loads(result.read_text())
    if "error" in document:
        raise _with_log(errors.from_json(document["error"]), log)
    if lookup is not None:
        subject = f"{job.program.origin} for {job.target.topology}"
        reason = lookup.keep(subject, [RESULT_FILE, EXECUTABLE_FILE, EXPORTED_FILE, LOG_FILE], seconds, began)
        if reason is not None:
            with log.open("a") as lines:
                lines.write(f"reexport: not put into the compile cache: {reason}\n")
    return _result(directory, seconds, peak_bytes=ended.peak_bytes)


def _result(directory: Path, seconds: float, *, cached: bool = False, peak_bytes: int = 0) -> CompileResult:
    """What the worker, or the cache, left in ``directory``."""
    result = directory / RESULT_FILE
    return CompileResult(
        signature=Signature.from_json(json.loads(result.read_text())["signature"], where=str(result)),
        executable=directory / EXECUTABLE_FILE,
        exported=directory / EXPORTED_FILE,
        log=directory / LOG_FILE,
        seconds=seconds,
        cached=cached,
        peak_bytes=peak_bytes,
    )


def worker_environment(
    topology: str, toolchain: Toolchain | None = None, inherited: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment of a compile-only subprocess; without ``toolchain`` jax finds the installed libtpu.

    ``inherited`` are variables with flags that the job takes from the caller's environment.

    Raises :class:`TargetError` for a malformed ``cpu:N``.
    """
    harmless = {name: value for name, value in os.environ.items() if not name.startswith(_CALLER_ONLY)}
    environment = harmless | dict(inherited or {}) | _ENVIRONMENT
    if count := cpu_devices(topology):
        own = f"{flags.DEVICE_COUNT_FLAG}={count}"
        environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {own}".strip()
    if toolchain is not None and not toolchain.installed:
        environment[toolchains.LIBRARY_VARIABLE] = str(toolchain.library)
    return environment


def _died(ended: Ended, limits: Compile, python: Path | None, where: str, log: Path) -> CompileError:
    remedy = "another libtpu version or other flags may help"
    if ended.reason == "cancelled":
        what, remedy = "the compile was called off", "run it again"
    elif ended.reason == "timeout":
        what = f"the compile took longer than {limits.timeout_seconds:g} seconds and was ended"
        remedy = "raise compile.timeout_seconds; scanned layers compile faster than unrolled ones"
    elif ended.reason == "memory":
        what = f"the compile took {ended.peak_bytes:,} bytes of memory, above compile.max_memory_bytes, and was ended"
        remedy = f"raise compile.max_memory_bytes from {limits.max_memory_bytes:,}; scanned layers need less memory"
    elif ended.code == _USAGE_EXIT_CODE and python is not None:
        what, remedy = f"{python} does not start", "name an interpreter of Python 3.11 or newer"
    elif ended.code < 0:
        what = f"the compile process was killed by {_signal_name(-ended.code)}"
        if -ended.code == signal.SIGKILL:
            remedy = "the machine may have run out of memory; a training step takes about 1 GB"
    else:
        what = f"the compile process ended with exit code {ended.code} and no result"
    lines = log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
    shown = "".join(f"\n    {line}" for line in lines)
    return CompileError(what, where=where, found=f"last lines of its log:{shown}", remedy=f"{remedy}; log: {log}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _with_log(error: ReexportError, log: Path) -> ReexportError:
    """The compiler's own words may not be enough; the log has them all."""
    if isinstance(error, CompileError):
        error.remedy = f"{error.remedy}; log: {log}" if error.remedy else f"see the log: {log}"
    return error
