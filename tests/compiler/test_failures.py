"""Whatever goes wrong in a compile ends as a typed error that names the place and carries the compiler's words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from migrate.compiler import compile_program
from migrate.compiler.failures import compile_failure, trim
from migrate.config import Job
from migrate.errors import (
    CompileError,
    ConfigError,
    ProgramError,
    ReexportError,
    TargetError,
)

MakeJob = Callable[..., Job]

# entry, changes to the target, type, where, words of the error
PROGRAMS = [
    ("no_module:f", {}, ProgramError, "program.entry", "No module named 'no_module'"),
    ("migrate.demo.model", {}, ProgramError, "program.entry", "package.module:function"),
    ("no_such_function", {}, ProgramError, "program.entry", "no_such_function"),
    ("raises", {}, ProgramError, "programs.py:", "ZeroDivisionError: the entry's own words"),
    ("returns_nothing", {}, ProgramError, "program.entry", "NoneType"),
    ("wrong_numbers", {}, ProgramError, "Program.parameters", "parameters=1"),
    ("no_tuple", {}, ProgramError, "Program.arguments", "dict"),
    ("trees", {"arguments": {"no_such": 1}}, ProgramError, "program.entry", "no_such"),
    ("fails_under_tracing", {}, ProgramError, "programs.py:", "TypeError"),
    ("calls_back", {}, ProgramError, "Program", "jax.debug.print"),
    ("not_an_array", {}, ProgramError, "x/a/b", "int: 3"),
    ("prng_key", {}, ProgramError, "x/key", "jax.random.wrap_key_data"),
    ("wide", {}, ProgramError, "x/w", "jax_enable_x64"),
    ("foreign_sharding", {}, ProgramError, "x/w", "SingleDeviceSharding"),
    ("other_mesh", {}, ProgramError, "x/w", "NamedSharding on the mesh"),
    ("uneven", {}, ProgramError, "x/w", "dimension 1 to be a multiple of 8 (data x model)"),
    ("too_many_dimensions", {}, ProgramError, "programs.py:", "rank"),
    ("unconstrained", {}, ProgramError, "x/w", "UNCONSTRAINED"),
    ("same_path", {}, ProgramError, "x/a/1", "same path"),
    ("unsortable", {}, ProgramError, "Program.arguments", "keys of one type"),
]
CPU = {"topology": "cpu:8"}

TARGETS = [
    ("trees", {"topology": "v99:2x2"}, TargetError, "target.topology", "Invalid TPU external name: TPU v99"),
    ("trees", {"topology": "nonsense"}, TargetError, "target.topology", "v5e:2x4"),
    ("trees", {"topology": "v5e:3x3"}, TargetError, "target.topology", "not divisible"),
    ("trees", {"topology": "v5e:2x4+nope"}, TargetError, "target.topology", 'chip config "nope"'),
    ("trees", {"topology": "cpu:0"}, TargetError, "target.topology", "cpu:N"),
    ("trees", {"topology": "cpu"}, TargetError, "target.topology", "cpu:8"),
    ("trees", {"mesh": {"data": 2, "model": 3}}, TargetError, "target.mesh", "data 2 x model 3 = 6"),
    ("trees", {"mesh": {"data": 4, "model": 4}}, TargetError, "target.mesh", "product is 8"),
    ("pinned", {"flags": {"xla_nope": 1}}, ConfigError, "target.flags.xla_nope", "has no flag xla_nope"),
    ("pinned", {"flags": {"xla_cpu_enable_fast_math": "perhaps"}}, ConfigError, "enable_fast_math", "not a valid bool"),
    (
        "pinned",
        {"flags": {"xla_tpu_scoped_vmem_limit_kib": "many"}},
        ConfigError,
        "target.flags.xla_tpu_scoped_vmem_limit_kib",
        "Failed to parse 'many'",
    ),
    (
        "pinned",
        {"flags": {"xla_tpu_scoped_vmem_limit_kib": 65536}, **CPU},
        ConfigError,
        "target.flags.xla_tpu_scoped_vmem_limit_kib",
        "No such compile option",
    ),
    ("big", {}, CompileError, "program main for v5e:2x4", "RESOURCE_EXHAUSTED"),
]


@pytest.mark.parametrize(
    ("entry", "changes", "kind", "where", "words"),
    [(entry, {**CPU, **changes}, *rest) for entry, changes, *rest in PROGRAMS] + TARGETS,
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)
def test_typed_error(
    make_job: MakeJob,
    tmp_path: Path,
    entry: str,
    changes: dict[str, Any],
    kind: type[ReexportError],
    where: str,
    words: str,
) -> None:
    with pytest.raises(ReexportError) as caught:
        compile_program(make_job(entry, **changes), tmp_path)
    error = caught.value
    assert type(error) is kind
    assert where in (error.where or "")
    assert words in str(error)
    if kind is CompileError:
        assert str(tmp_path / "compile.log") in (error.remedy or "")
    assert not (tmp_path / "executable.bin").exists()


@pytest.mark.parametrize(
    ("entry", "words"),
    [("aborts", "killed by SIGABRT"), ("exits", "exit code 7")],
)
def test_a_dead_worker_is_reported_with_its_last_words(
    make_job: MakeJob, tmp_path: Path, entry: str, words: str
) -> None:
    with pytest.raises(CompileError, match=words) as caught:
        compile_program(make_job(entry, **CPU), tmp_path)
    log = tmp_path / "compile.log"
    assert str(log) in str(caught.value)
    if entry == "aborts":
        assert "the last words of a native library" in str(caught.value)
    assert len((caught.value.found or "").splitlines()) <= 16


def test_timeout_ends_the_worker(make_job: MakeJob, tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(CompileError, match="longer than 3 seconds") as caught:
        compile_program(make_job("sleeps", timeout_seconds=3, **CPU), tmp_path)
    assert time.monotonic() - started < 15
    assert "compile.timeout_seconds" in (caught.value.remedy or "")
    assert "falling asleep" in str(caught.value)
    assert not _workers(tmp_path)


def test_an_older_result_is_not_taken_for_this_one(make_job: MakeJob, tmp_path: Path) -> None:
    compile_program(make_job("pinned", **CPU), tmp_path)
    with pytest.raises(CompileError, match="SIGABRT"):
        compile_program(make_job("aborts", **CPU), tmp_path)


def test_ctrl_c_ends_the_worker(make_job: MakeJob, tmp_path: Path) -> None:
    def interrupt() -> None:
        _wait_for_workers(tmp_path)
        os.kill(os.getpid(), signal.SIGINT)

    # a shell that runs the tests in the background has them ignore Ctrl-C
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            compile_program(make_job("sleeps", **CPU), tmp_path)
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert not _workers(tmp_path)


def test_a_worker_does_not_outlive_a_killed_driver(make_job: MakeJob, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from migrate.config import Job; from migrate.compiler import *;"
        "compile_program(Job.model_validate_json(sys.argv[1]), Path(sys.argv[2]))"
    )
    job = make_job("sleeps", **CPU).model_dump_json()
    driver = subprocess.Popen([sys.executable, "-c", code, job, str(tmp_path)])
    _wait_for_workers(tmp_path)
    driver.kill()
    driver.wait()
    deadline = time.monotonic() + 20
    while _workers(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _workers(tmp_path)


def _workers(directory: Path) -> list[int]:
    """Process ids of workers on the request in ``directory``."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"migrate.compiler.worker" in command and str(directory / "request.json").encode() in command:
            found.append(int(process.name))
    return found


def _wait_for_workers(directory: Path) -> None:
    """Until the worker runs the entry ``sleeps``."""
    log = directory / "compile.log"
    deadline = time.monotonic() + 60
    while not (log.exists() and "falling asleep" in log.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_flag_is_blamed_only_if_the_job_sets_it() -> None:
    error = RuntimeError("INVALID_ARGUMENT: No such compile option: 'xla_other'")
    assert type(compile_failure(error, {"xla_mine": 1}, "here")) is CompileError
    assert type(compile_failure(error, {"xla_other": 1}, "here")) is ConfigError


def test_long_messages_keep_both_ends() -> None:
    text = trim("start" + "x" * 100_000 + "end")
    assert text.startswith("start")
    assert text.endswith("end")
    assert len(text) < 5_000
    assert trim(" short\n") == "short"
