"""The compile cache on real compiles: what is found again, and everything that must not be."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from migrate.compiler import CompileResult, compile_program
from migrate.config import Job, job_from_mapping

MODEL = """
import colorsys, json, os, pathlib
import jax, jax.numpy as jnp
from migrate.program import Program
from sizes import WIDTH
try:
    import fast_kernels
except ImportError:
    fast_kernels = None

HERE = pathlib.Path(__file__).parent

def step(mesh, scale=1):
    rows = json.loads((HERE / "rows.json").read_text()) + int(os.environ.get("MODEL_ROWS", "0"))
    try:
        rows += int((HERE / "more_rows").read_text())
    except FileNotFoundError:
        pass
    rows += len(os.listdir(HERE / "layers"))
    weights = {"w": jax.ShapeDtypeStruct((rows, WIDTH), jnp.float32)}
    return Program(lambda weights, x: x @ weights["w"] * scale, (weights, jax.ShapeDtypeStruct((4, rows), jnp.float32)))

def writes_what_it_read(mesh):
    program = step(mesh)
    (HERE / "rows.json").write_text((HERE / "rows.json").read_text())
    return program

def leaves_the_process(mesh):
    import subprocess
    subprocess.run(["true"], check=True)
    return step(mesh)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "model.py").write_text(MODEL)
    (folder / "sizes.py").write_text("WIDTH = 8\n")
    (folder / "rows.json").write_text("6")
    (folder / "layers").mkdir()
    (folder / "layers" / "first").touch()
    time.sleep(0.1)  # what changes while a program is compiled is not known again; files' clocks are coarse
    return folder


def make(model: Path, cache: Path | bool, entry: str = "step", **target: Any) -> Job:
    arguments = target.pop("arguments", {})
    return job_from_mapping(
        {
            "source": {"path": "unused"},
            "program": {"entry": f"model:{entry}", "arguments": arguments},
            "target": {"topology": "cpu:2", "mesh": {"data": 2}} | target,
            "output": "unused",
            "compile": {"cache": str(cache) if isinstance(cache, Path) else cache},
        },
        base=model,
    )


@pytest.fixture(scope="module")
def compiled(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CompileResult]:
    """(cache, the compile that filled it)."""
    cache = tmp_path_factory.mktemp("compiles")
    result = compile_program(make(model, cache), tmp_path_factory.mktemp("first"))
    assert not result.cached
    return cache, result


@pytest.fixture
def no_subprocess(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compile that is not in the cache cannot be done."""
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")


def is_hit(job: Job, directory: Path) -> bool:
    """Whether the cache has the compile; only together with ``no_subprocess``."""
    try:
        return compile_program(job, directory).cached
    except FileNotFoundError as error:
        if error.filename != "/nonexistent/python":
            raise
        return False


@pytest.mark.usefixtures("no_subprocess")
def test_a_hit_starts_no_subprocess_and_gives_the_same_files(
    model: Path, compiled: tuple[Path, CompileResult], tmp_path: Path
) -> None:
    cache, first = compiled
    again = compile_program(make(model, cache), tmp_path)
    assert again.cached
    assert again.signature == first.signature
    for name in ("executable", "exported", "log"):
        assert getattr(again, name).parent == tmp_path
        assert getattr(again, name).read_bytes() == getattr(first, name).read_bytes()


def edit(name: str, content: str) -> Callable[[Path], Callable[[], None]]:
    def apply(model: Path) -> Callable[[], None]:
        path = model / name
        before = path.read_text() if path.exists() else None
        path.write_text(content)
        return path.unlink if before is None else lambda: path.write_text(before) and None  # type: ignore[func-returns-value]

    return apply


CHANGES = {
    "the model's code": edit("model.py", MODEL.replace("* scale", "* (scale + 1)")),
    "a module that it imports": edit("sizes.py", "WIDTH = 9\n"),
    "a file that it reads": edit("rows.json", "7"),
    "a file that it looked for": edit("more_rows", "1"),
    "a directory that it lists": edit("layers/second", ""),
    "a module that it did not find": edit("fast_kernels.py", ""),
    "a package that it did not find": edit("fast_kernels/__init__.py", ""),
    "a module that would stand in for an installed one": edit("flatbuffers.py", ""),
    "a module that would stand in for one of Python's": edit("colorsys.py", ""),
}


@pytest.mark.usefixtures("no_subprocess")
@pytest.mark.parametrize("change", CHANGES)
def test_what_was_read_decides(change: str, model: Path, compiled: tuple[Path, CompileResult], tmp_path: Path) -> None:
    cache, _ = compiled
    if "package" in change:
        (model / "fast_kernels").mkdir()
    undo = CHANGES[change](model)
    try:
        assert not is_hit(make(model, cache), tmp_path)
    finally:
        undo()
        shutil.rmtree(model / "fast_kernels", ignore_errors=True)
    assert is_hit(make(model, cache), tmp_path)


@pytest.mark.usefixtures("no_subprocess")
def test_what_was_not_read_does_not(model: Path, compiled: tuple[Path, CompileResult], tmp_path: Path) -> None:
    unrelated = [edit("notes.txt", "x")(model), edit("another_module.py", "x = 1")(model)]
    try:
        assert is_hit(make(model, compiled[0]), tmp_path)
    finally:
        for undo in unrelated:
            undo()


@pytest.mark.usefixtures("no_subprocess")
@pytest.mark.parametrize(
    ("name", "value", "hit"),
    [
        ("MODEL_ROWS", "3", False),  # read by the entry
        ("UNRELATED", "3", True),
        ("JAX_ENABLE_X64", "1", True),  # the caller's own; no compile sees it
        ("PYTHONOPTIMIZE", "1", False),  # read by Python before anything can watch
    ],
)
def test_variables_that_were_read(
    name: str,
    value: str,
    hit: bool,
    model: Path,
    compiled: tuple[Path, CompileResult],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(name, value)
    assert is_hit(make(model, compiled[0]), tmp_path) == hit


@pytest.mark.usefixtures("no_subprocess")
@pytest.mark.parametrize(
    "change",
    [
        {"arguments": {"scale": 2}},
        {"topology": "cpu:1", "mesh": {"data": 1}},
        {"mesh": {"model": 2}},
        {"layout": "default"},
        {"flags": {"xla_cpu_enable_fast_math": True}},
        {"entry": "leaves_the_process"},
    ],
    ids=str,
)
def test_another_request_is_another_compile(
    change: dict[str, Any], model: Path, compiled: tuple[Path, CompileResult], tmp_path: Path
) -> None:
    assert not is_hit(make(model, compiled[0], **change), tmp_path)


@pytest.mark.usefixtures("no_subprocess")
def test_the_model_may_lie_elsewhere(model: Path, compiled: tuple[Path, CompileResult], tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(model, moved, ignore=shutil.ignore_patterns("__pycache__"))
    assert is_hit(make(moved, compiled[0]), tmp_path / "out")
    # another directory on the search path may hold anything
    job = make(moved, compiled[0])
    assert not is_hit(job.model_copy(update={"python_path": (*job.python_path, str(tmp_path))}), tmp_path / "out")


@pytest.mark.usefixtures("no_subprocess")
def test_without_a_cache_everything_is_compiled(
    model: Path, compiled: tuple[Path, CompileResult], tmp_path: Path
) -> None:
    assert is_hit(make(model, compiled[0]), tmp_path)
    assert not is_hit(make(model, False), tmp_path)
    dumped = {"xla_dump_to": str(tmp_path)}
    assert not is_hit(make(model, compiled[0], flags=dumped), tmp_path)


@pytest.mark.usefixtures("no_subprocess")
@pytest.mark.parametrize("damage", ["truncated", "changed", "absent", "record"])
def test_a_damaged_entry_is_removed(
    damage: str, model: Path, compiled: tuple[Path, CompileResult], tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(compiled[0], cache)
    objects = sorted((cache / "objects").iterdir(), key=lambda path: path.stat().st_size)
    (record,) = (cache / "records").glob("*/*.json")
    match damage:
        case "truncated":
            objects[-1].write_bytes(objects[-1].read_bytes()[:-1])
        case "changed":
            objects[-1].write_bytes(bytes([objects[-1].read_bytes()[0] ^ 1]) + objects[-1].read_bytes()[1:])
        case "absent":
            objects[0].unlink()
        case "record":
            record.write_text(record.read_text().replace('"rows.json', '"gone.json').replace("rows.json", "gone.json"))
    assert not is_hit(make(model, cache), tmp_path / "out")
    assert not record.exists()
    assert not (tmp_path / "out" / "executable.bin").exists()


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("leaves_the_process", "a process was started"),
        ("writes_what_it_read", "rows.json changed while the program was compiled"),
    ],
)
def test_what_cannot_be_known_again_is_not_stored(entry: str, reason: str, model: Path, tmp_path: Path) -> None:
    result = compile_program(make(model, tmp_path / "cache", entry), tmp_path / "out")
    assert not list((tmp_path / "cache").rglob("*.json"))
    (line,) = (line for line in result.log.read_text().splitlines() if "not put into the compile cache" in line)
    assert line.endswith(reason)


def test_a_cache_that_cannot_be_written_does_not_stop_a_compile(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    result = compile_program(make(model, tmp_path / "file" / "cache"), tmp_path / "out")
    assert not result.cached
    assert "the compile cannot be put into the cache" in caplog.text


def test_a_saved_program_is_known_by_its_content(
    model: Path, compiled: tuple[Path, CompileResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def saved(path: Path) -> Job:
        job = make(model, tmp_path / "cache")
        program = job.program.model_copy(update={"entry": None, "exported": str(path)})
        return job.model_copy(update={"programs": (program,)})

    first, second = tmp_path / "a.jax_export", tmp_path / "b.jax_export"
    shutil.copy(compiled[1].exported, first)
    shutil.copy(compiled[1].exported, second)
    result = compile_program(saved(first), tmp_path / "out")
    assert not result.cached
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    again = compile_program(saved(second), tmp_path / "again")
    assert again.cached
    assert again.signature == result.signature
    second.write_bytes(second.read_bytes() + b"\0")
    assert not is_hit(saved(second), tmp_path / "again")
