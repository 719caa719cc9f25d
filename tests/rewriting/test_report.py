"""What a person sees of a plan, a checkpoint, an export and a running job."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from migrate import audit, export
from migrate.compiler import CompileResult
from migrate.config import job_from_mapping
from migrate.driver import Result
from migrate.preparation import Prepared
from migrate.report import terminal
from migrate.report.plan import show_plan
from migrate.report.progress import ConsoleReporter
from migrate.signature import Signature

from .conftest import Run


@pytest.fixture
def out() -> Console:
    """The console a command would use, whose output goes into a file."""
    console = terminal.console()
    console.file = io.StringIO()
    return console


def text_of(console: Console) -> str:
    return console.file.getvalue()


@pytest.fixture
def prepared(two_arrays: Run, signature: Signature, tmp_path: Path) -> Prepared:
    job = job_from_mapping(
        {
            "source": {"path": two_arrays.checkpoint.uri},
            "program": {"entry": "model:step"},
            "target": {"topology": "v5e:2x2", "mesh": {"data": 1, "model": 4}},
            "output": two_arrays.paths.output,
        }
    )
    files = [tmp_path / name for name in ("executable", "exported", "log")]
    for file in files:
        file.write_bytes(b"x")
    return Prepared(job, two_arrays.checkpoint, {"main": CompileResult(signature, *files, 125.0)}, two_arrays.plan)


def finished(run: Run) -> export.Export:
    for item in run.plan.items:
        run.do(item)
    return run.commit()


def test_plan_shows_every_array_and_the_sums(out: Console, prepared: Prepared) -> None:
    show_plan(out, prepared)
    lines = text_of(out).splitlines()
    kernel = next(line.split() for line in lines if line.startswith("layer/kernel"))
    #                         dtype       shape   source  x  chunks  target x chunks  order  bytes
    assert kernel[1:11] == ["bfloat16", "40,12", "9", "x", "15,5", "4", "x", "40,3", "1,0", "960"]
    assert any("2 arrays, 1.2 KiB in 5 items" in line for line in lines)
    assert any("v5e:2x2, mesh data 1 x model 4, auto layouts" in line for line in lines)
    assert any("libtpu 0.0.42.1, compiled in 2:05" in line for line in lines)
    assert all(len(line) <= 160 for line in lines)


def test_a_limit_says_how_many_are_left(out: Console, prepared: Prepared) -> None:
    show_plan(out, prepared, limit=1)
    assert "... and 1 more" in text_of(out)
    assert "layer/bias" not in text_of(out)


PATTERNS = [
    "opt/[a-z]+",  # would be a style
    "opt[/.].*",  # would be a closing tag without an opening one
    "[bold]x",
    "a:key:b",  # would be an emoji
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_rules_are_printed_as_they_are(out: Console, prepared: Prepared, pattern: str) -> None:
    plan = dataclasses.replace(prepared.plan, dropped=(("opt/mu", f"drop: {pattern}"), ("opt/nu", f"drop: {pattern}")))
    show_plan(out, dataclasses.replace(prepared, plan=plan))
    assert f"not rewritten: 2 leaves drop: {pattern}" in text_of(out)


def test_array_names_are_printed_as_they_are(out: Console, prepared: Prepared) -> None:
    arrays = tuple(dataclasses.replace(array, path=("[red]x", ":key:")) for array in prepared.plan.arrays)
    show_plan(out, dataclasses.replace(prepared, plan=dataclasses.replace(prepared.plan, arrays=arrays)))
    assert "[red]x/:key:" in text_of(out)


def test_checkpoint(out: Console, two_arrays: Run) -> None:
    terminal.show_checkpoint(out, two_arrays.checkpoint)
    text = text_of(out)
    for part in (two_arrays.checkpoint.uri, "layer/kernel", "9 x 15,5", "2 arrays, 1.2 KiB"):
        assert part in text.replace("\n", "")


def test_export_and_its_check(out: Console, two_arrays: Run) -> None:
    found = finished(two_arrays)
    terminal.show_export(out, found)
    terminal.show_checked(out, found, audit.verify_export(found))
    text = text_of(out)
    for record in found.parameter_set().arrays:
        assert record.digest[:12] in text
    assert "xla_tpu_scoped_vmem_limit_kib=65536" in text
    assert f"Export {found.manifest.export} is intact: 2 arrays in 5 chunks, 1.2 KiB, and 2 files" in text


@pytest.mark.parametrize("again", [False, True])
def test_result(out: Console, two_arrays: Run, again: bool) -> None:
    found = finished(two_arrays)
    terminal.show_result(out, Result(found, two_arrays.plan, again, 5, 1200, 1.5))
    assert ("nothing was written" in text_of(out)) == again
    assert ("1.2 KiB written and verified" in text_of(out)) == (not again)


def test_signature_and_memory(out: Console, prepared: Prepared) -> None:
    terminal.show_compiled(out, list(prepared.compiled.values()))
    row = next(line for line in text_of(out).splitlines() if "embed/table" in line).split()
    assert row[:5] == ["0", "params", "embed/table", "bf16[16,2]{1,0:T(8,128)}", "-,model"]
    assert "temporary 2.0 KiB, code 4.0 KiB" in text_of(out)
    assert "compiled in 2:05" in text_of(out)


def reporter(*, is_terminal: bool) -> tuple[ConsoleReporter, io.StringIO]:
    stream = io.StringIO()
    return ConsoleReporter(None, Console(file=stream, force_terminal=is_terminal, width=160)), stream


def test_progress_without_a_terminal_is_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100, 1000, 10))
    monkeypatch.setattr("migrate.report.progress.time.monotonic", lambda: float(next(clock)))
    progress, stream = reporter(is_terminal=False)
    progress.stage("opening", "[a]")
    progress.started(4, 4096, 1)
    progress.progress(0, 0)  # nothing done: nothing to say
    progress.progress(2, 2048)
    progress.finished()
    assert stream.getvalue().splitlines() == [
        "opening [a]",
        "resuming: 1 item of an earlier run already verified",
        "rewriting 4 items, 4.0 KiB",
        # begun at 100, asked at 110, noted at 120, counted at 130
        "rewriting 2/4 items, 2.0 KiB of 4.0 KiB, 68 B/s, 30.0 s left",
    ]


def test_progress_on_a_terminal_is_a_bar(tmp_path: Path) -> None:
    progress, stream = reporter(is_terminal=True)
    progress.started(4, 4096, 0)
    progress.progress(2, 2048)
    progress.finished()
    progress.finished()
    assert "2/4 items" in stream.getvalue()


def test_planned_is_silent_where_standard_output_is_json(prepared: Any) -> None:
    progress, stream = reporter(is_terminal=False)
    progress.planned(prepared)
    assert stream.getvalue() == ""
