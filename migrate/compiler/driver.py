"""Runs a compile in a subprocess: libtpu can kill its process, and JAX reads its settings once, at start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from migrate import errors
from migrate.compiler import flags, policies, saved, toolchains
from migrate.compiler.request import REQUEST_FILE, RESULT_FILE, Request
from migrate.compiler.toolchains import Toolchain
from migrate.compiler.topology import cpu_devices
from migrate.config import Job, job_from_mapping
from migrate.errors import CompileError, ConfigError, ReexportError, ToolchainError
from migrate.manifest import EXECUTABLE_FILE, EXPORTED_FILE
from migrate.signature import ParameterSpec, Signature
from migrate.topologies import resolve

LOG_FILE = "compile.log"
_LOG_LINES_SHOWN = 15
_GRACE_SECONDS = 5.0
_PROBE_SECONDS = 180.0

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


def compile_program(job: Job, directory: Path, shared: Sequence[ParameterSpec] = ()) -> CompileResult:
    """Compile the job's primary program for its target in a subprocess; request, log and artifacts go to ``directory``.

    ``shared`` are parameters of a program compiled before: those that this one has too get the same layouts.

    Raises
    ------
    TargetError
        the topology does not exist, or the mesh does not use all of its devices
    ConfigError
        a layout policy pins what is no signature, or one that does not fit the program;
        the compiler does not take one of ``target.flags``, or of the flags in a variable of ``target.inherit``
    ToolchainError
        ``target.libtpu`` cannot be had, or does not work with this jax
    ProgramError
        the entry cannot be used, its arguments are unusable, or its function fails under tracing
    CompileError
        the compiler refused the program, died, or took more than ``job.compile.timeout_seconds``; ends with the path
        of the log
    """
    resolve(job.target.topology)  # a wrong name is found before anything is downloaded
    toolchain = toolchains.select(job.target)
    inherited = flags.inherit(job.target, toolchain, os.environ)
    try:
        return _compile(job, directory, toolchain, inherited, shared)
    except CompileError as error:
        # with a toolchain of the user's choice, that may be the reason
        if toolchain is not None and not toolchain.installed and not isinstance(error, ToolchainError):
            _blame(toolchain, error)
        raise


def probe_toolchain(toolchain: Toolchain) -> CompileResult:
    """Compile a program of ten small arrays for one v5e chip with ``toolchain``; a few seconds. Files are not kept.

    Raises :class:`ToolchainError` with the working range if that fails: this jax cannot drive it.
    """
    document = {
        "source": {"path": "none"},
        "program": {"entry": "migrate.demo.tiny:next_token_step"},
        "target": {"topology": "v5e:1x1", "mesh": {"data": 1}},
        "output": "none",
        "compile": {"timeout_seconds": _PROBE_SECONDS},
    }
    with tempfile.TemporaryDirectory(prefix="reexport-probe-") as directory:
        try:
            return _compile(job_from_mapping(document), Path(directory), toolchain, {})
        except ReexportError as error:
            raise ToolchainError(
                f"libtpu {toolchain.version} does not work with this jax: it cannot compile a small program",
                where="target.libtpu",
                expected=toolchains.working_range(),
                found="\n    ".join(filter(None, (error.what, error.found))),
                remedy="name another version, or use an interpreter with a jax of that libtpu's time",
            ) from error


def _blame(toolchain: Toolchain, died: CompileError) -> None:
    """Raise :class:`ToolchainError` if ``toolchain`` is to blame: it cannot compile a small program either."""
    try:
        probe_toolchain(toolchain)
    except ToolchainError as error:
        raise error from died


def _compile(
    job: Job,
    directory: Path,
    toolchain: Toolchain | None,
    inherited: Mapping[str, str],
    shared: Sequence[ParameterSpec] = (),
) -> CompileResult:
    environment = worker_environment(job.target.topology, toolchain, inherited)
    directory.mkdir(parents=True, exist_ok=True)
    request, result, log = (directory / name for name in (REQUEST_FILE, RESULT_FILE, LOG_FILE))
    if job.program.exported is not None:
        saved.fetch(job.program, directory)
    libtpu = toolchain.version if toolchain else ""
    copied = policies.fetch(job.target, job.program)
    asked = Request(job.program, job.target, job.python_path, libtpu, inherited, tuple(shared), copied)
    request.write_text(asked.to_json())
    result.unlink(missing_ok=True)  # of an earlier run in the same directory
    where = f"program {job.program.name} for {job.target.topology}"
    started = time.monotonic()
    ended = _run(
        # -P: what lies in the working directory must not stand in for reexport or its dependencies
        [sys.executable, "-P", "-m", "migrate.compiler.worker", str(request)],
        environment,
        log,
        job.compile.timeout_seconds,
    )
    seconds = time.monotonic() - started
    if not result.exists():
        if inherited and (flag := flags.refused_at_start(log.read_text(errors="replace"))):
            raise ConfigError(
                f"the compiler does not take the flag {flag} from the environment",
                where="target.inherit",
                remedy=f"take it out of the variable; log: {log}",
            )
        raise _died(ended, job.compile.timeout_seconds, where, log)
    document = json.loads(result.read_text())
    if "error" in document:
        raise _with_log(errors.from_json(document["error"]), log)
    return CompileResult(
        signature=Signature.from_json(document["signature"], where=str(result)),
        executable=directory / EXECUTABLE_FILE,
        exported=directory / EXPORTED_FILE,
        log=log,
        seconds=seconds,
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


def _run(command: list[str], environment: dict[str, str], log: Path, timeout_seconds: float) -> int | None:
    """Exit code of the command (negative: signal), None if it ran out of time. It never outlives this call."""
    with log.open("wb") as output:
        # A session of its own: Ctrl-C in the terminal reaches us alone, and we end it with whatever it started.
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
        )
    try:
        return process.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _died(ended: int | None, timeout_seconds: float, where: str, log: Path) -> CompileError:
    remedy = "another libtpu version or other flags may help"
    if ended is None:
        what = f"the compile took longer than {timeout_seconds:g} seconds and was ended"
        remedy = "raise compile.timeout_seconds; scanned layers compile faster than unrolled ones"
    elif ended < 0:
        what = f"the compile process was killed by {_signal_name(-ended)}"
        if -ended == signal.SIGKILL:
            remedy = "the machine may have run out of memory; a training step takes about 1 GB"
    else:
        what = f"the compile process ended with exit code {ended} and no result"
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
