"""Several compiles at once, and the limits of each."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from migrate.compiler import CompileResult, compile_all, parallel, process
from migrate.config import Job
from migrate.errors import CompileError, ConfigError, ProgramError

MakeJob = Callable[..., Job]


def limited(job: Job, **limits: object) -> Job:
    return job.model_copy(update={"compile": job.compile.model_copy(update=limits)})


def test_each_job_has_its_own_end(make_job: MakeJob, tmp_path: Path) -> None:
    tiny = {"entry": "migrate.demo.tiny:next_token_step", "topology": "cpu:8"}
    good, twin = make_job(**tiny, arguments={"batch": 8}), make_job(**tiny, arguments={"batch": 8})
    other = make_job(**tiny, arguments={"batch": 16})
    broken = make_job("migrate.demo.tiny:no_such_step", topology="cpu:8", arguments={})
    greedy = limited(good, max_memory_bytes=50_000_000)
    results = compile_all([broken, good, twin, other, greedy], tmp_path, compile_jobs=2)
    assert isinstance(results[0], ProgramError)
    assert isinstance(results[1], CompileResult)
    assert results[2] is results[1]  # asked for twice, compiled once
    assert isinstance(results[3], CompileResult)
    assert results[3].signature != results[1].signature
    assert 50_000_000 < results[1].peak_bytes < 2 << 30
    assert isinstance(results[4], CompileError)
    assert "max_memory_bytes" in str(results[4])
    assert str(tmp_path) in str(results[4])  # where its log is
    assert len(list(tmp_path.iterdir())) == 4


def test_no_jobs(tmp_path: Path) -> None:
    assert compile_all([], tmp_path) == []


@pytest.mark.parametrize("wrong", [{"compile_jobs": 0}, {"memory_bytes": -1}])
def test_wrong_bounds(wrong: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not positive"):
        compile_all([], tmp_path, **wrong)


def test_an_interruption_ends_what_runs(make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = threading.Event()

    def compile_for_ever(job: Job, directory: Path, *, cancelled: threading.Event) -> CompileResult:
        directory.mkdir()
        began.set()
        ended = process.run(
            [sys.executable, "-c", "import time; time.sleep(600)"],
            {},
            directory / "log",
            timeout_seconds=60,
            cancelled=cancelled,
        )
        raise CompileError(ended.reason)

    def interrupt() -> None:
        assert began.wait(30)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # what Ctrl-C does

    monkeypatch.setattr(parallel, "compile_program", compile_for_ever)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        compile_all([make_job(), make_job(layout="default")], tmp_path, compile_jobs=1)


def test_memory_is_handed_out_within_the_bound() -> None:
    budget = parallel._Budget(100)
    lock, running, highest, alone = threading.Lock(), [0], [0], []

    def use(nbytes: int) -> None:
        with budget.taken(nbytes):
            with lock:
                running[0] += nbytes
                highest[0] = max(highest[0], running[0])
                if nbytes > 100:
                    alone.append(running[0])
            time.sleep(0.005)
            with lock:
                running[0] -= nbytes

    threads = [threading.Thread(target=use, args=(nbytes,)) for nbytes in [30, 50, 70, 20, 400, 60, 10, 100] * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert alone == [400] * 3  # too large for the bound: one at a time, with nothing beside it
    assert highest[0] == 400
    assert running[0] == 0


def test_available_memory_is_that_of_the_machine_or_less() -> None:
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert 0 < parallel.available_bytes() <= total


@pytest.mark.parametrize(
    ("code", "limits", "reason"),
    [
        ("pass", {}, "exit"),
        ("import time; time.sleep(600)", {"timeout_seconds": 0.3}, "timeout"),
        ("x = bytearray(300_000_000); import time; time.sleep(600)", {"max_memory_bytes": 200_000_000}, "memory"),
        # address space that is not touched
        ("import mmap, time; m = mmap.mmap(-1, 3 << 30); time.sleep(0.3)", {"max_memory_bytes": 200_000_000}, "exit"),
    ],
)
def test_limits_of_a_process(code: str, limits: dict[str, float], reason: str, tmp_path: Path) -> None:
    ended = process.run([sys.executable, "-c", code], {}, tmp_path / "log", **{"timeout_seconds": 60, **limits})
    assert ended.reason == reason
    assert (ended.code == 0) == (reason == "exit")
    if reason == "memory":
        assert ended.peak_bytes > 200_000_000
