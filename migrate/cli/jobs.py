"""Commands that take a job file, and the one that makes something to try them on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from migrate.cli.options import (
    example,
    job_from,
    json_option,
    log_format_option,
    no_cache_option,
    print_json,
    runner_options,
    stages,
    with_runner,
    without_cache,
)
from migrate.cli.pages import html_option, write_page
from migrate.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from migrate.config import Job


@click.command(short_help="Re-export checkpoints.", epilog=example("reexport run configs/demo.yaml"))
@click.argument("job", type=click.Path())
@runner_options
@click.option("--supersede", is_flag=True, help="Add this export beside a different one that the output holds already.")
@no_cache_option
@log_format_option
@json_option
def run(
    job: str,
    *,
    runner: str | None,
    options: tuple[str, ...],
    supersede: bool,
    no_cache: bool,
    log_format: str,
    as_json: bool,
) -> None:
    """Re-export a checkpoint: open, compile, plan, rewrite, verify, commit.

    The export appears only when it is whole and verified. After an interruption or a failure the same command goes on
    where it stopped. Running a finished job again writes nothing.

    JOB may also be a file of many models x targets (docs/fleet.md). All of them run as one batch: distinct programs are
    compiled once, all items go through one pipeline, and what fails does so alone: it is in the summary and in
    failures.json at the file's output, and the exit code is 1.

    What follows -- are options of the Beam runner, such as --region=us-central1; see docs/runners.md.
    """
    from migrate import driver
    from migrate.fleet import is_fleet
    from migrate.preparation import Reporter
    from migrate.report import terminal
    from migrate.report.progress import ConsoleReporter
    from migrate.report.structured import JsonReporter, log

    out = None if as_json or log_format == "json" else terminal.console()
    if is_fleet(job):

        def change(one: Job) -> Job:
            return with_runner(without_cache(one) if no_cache else one, runner, options)

        _run_batch(job, out, change, supersede=supersede, log_format=log_format, as_json=as_json)
        return
    reporter: Reporter = JsonReporter() if log_format == "json" else ConsoleReporter(out, terminal.console(stderr=True))
    chosen = with_runner(job_from(job, no_cache=no_cache), runner, options)
    result = driver.run(chosen, supersede=supersede, reporter=reporter)
    if log_format == "json":
        log("summary", result.to_json())
    if as_json:
        print_json(result.to_json())
    elif out is not None:
        terminal.show_result(out, result)


def _run_batch(
    file: str,
    out: Console | None,
    change: Callable[[Job], Job],
    *,
    supersede: bool,
    log_format: str,
    as_json: bool,
) -> None:
    from migrate.batch import BatchReporter, run_batch
    from migrate.fleet import load_fleet
    from migrate.report import terminal
    from migrate.report.batch import ConsoleBatchReporter, JsonBatchReporter, show_batch
    from migrate.report.structured import log

    fleet = load_fleet(file)
    reporter: BatchReporter = ConsoleBatchReporter(terminal.console(stderr=True))
    if log_format == "json":
        reporter = JsonBatchReporter()
    result = run_batch(
        {cell.name: change(cell.job) for cell in fleet.cells},
        supersede=supersede,
        compile_jobs=fleet.concurrency.compiles,
        failures_uri=fleet.output,
        reporter=reporter,
    )
    if log_format == "json":
        log("summary", result.to_json())
    if as_json:
        print_json(result.to_json())
    elif out is not None:
        show_batch(out, result)
    if result.exit_code:
        raise click.exceptions.Exit(int(result.exit_code))


@click.command(short_help="Show what a job would write.", epilog=example("reexport plan configs/demo.yaml"))
@click.argument("job", type=click.Path())
@no_cache_option
@html_option
@json_option
def plan(job: str, no_cache: bool, html: str | None, as_json: bool) -> None:
    """Show what a job would write and what its layouts cost, without writing it. Compiles the programs."""
    from migrate import costs
    from migrate.conflict import outlook
    from migrate.preparation import compile_directory, prepare
    from migrate.report import terminal
    from migrate.report.outputs import show_outlook
    from migrate.report.plan import show_plan

    with compile_directory() as directory:
        prepared = prepare(job_from(job, no_cache=no_cache), directory, stages())
        if as_json:
            programs = costs.to_json(prepared.signatures)
            found = outlook(prepared).to_json()
            print_json({"export": prepared.export_id, **prepared.plan.to_json(), "programs": programs, "output": found})
        else:
            show_plan(terminal.console(), prepared)
            show_outlook(terminal.console(), outlook(prepared))
        if html is not None:
            from migrate.report.html import contents

            write_page(html, contents.of_plan(prepared))


@click.command(
    "compile",
    short_help="Compile a program; show what its executable expects.",
    epilog=example("reexport compile configs/demo.yaml --output out/compiled"),
)
@click.argument("job", type=click.Path())
@click.option("-o", "--output", type=click.Path(), help="Keep the signature, the executable and the log here.")
@no_cache_option
@json_option
def compile_(job: str, output: str | None, no_cache: bool, as_json: bool) -> None:
    """Compile a job's programs for its target and show what the executables expect of every parameter.

    Of several programs each has a directory of its own in --output.
    """
    from migrate.manifest import SIGNATURE_FILE
    from migrate.preparation import compile_directory, compile_programs
    from migrate.report import terminal

    if output and Path(output).exists() and not Path(output).is_dir():
        raise ConfigError("the output of a compile is a directory", where="--output", found=f"a file, {output}")
    with compile_directory() as temporary:
        directory = Path(output) if output else temporary
        compiled = compile_programs(job_from(job, no_cache=no_cache), directory, stages())
        if output:
            for result in compiled.values():
                (result.executable.parent / SIGNATURE_FILE).write_text(result.signature.to_json())
        if as_json:
            documents = [
                {
                    "seconds": result.seconds,
                    "cached": result.cached,
                    "peak_bytes": result.peak_bytes,
                    "directory": output and str(result.executable.parent),
                    "signature": json.loads(result.signature.to_json()),
                }
                for result in compiled.values()
            ]
            print_json(documents[0] if len(documents) == 1 else {"programs": documents})
        else:
            terminal.show_compiled(terminal.console(), list(compiled.values()))


@click.command(
    "demo-checkpoint",
    short_help="Write the checkpoint of a small decoder.",
    epilog=example("reexport demo-checkpoint out/demo-checkpoint"),
)
@click.argument("directory", type=click.Path())
@click.option("--layers", type=click.IntRange(1), help="Number of layers; fewer make a smaller checkpoint.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random weights.")
def demo_checkpoint(directory: str, layers: int | None, seed: int) -> None:
    """Write the checkpoint of a small decoder, sharded over 8 CPU devices, with Orbax."""
    from migrate.demo.checkpoint import write_checkpoint

    if Path(directory).exists():
        raise ConfigError(
            "the demo checkpoint needs a directory of its own", where="DIRECTORY", found=f"{directory} exists"
        )
    path = write_checkpoint(directory, seed=seed, **({"layers": layers} if layers else {}))
    click.echo(f"wrote {path}")
