"""The ``reexport`` command. Heavy modules are imported by the command that needs them: start-up is a feature."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from migrate.errors import ExitCode, ReexportError

_EXIT_CODES = """\b
Exit codes:
    0  done
    1  failed; nothing was committed
    2  wrong usage, or a job that cannot be used
    3  checked, and found stale or mismatched
  130  interrupted; nothing was committed
"""

Command = TypeVar("Command", bound=Callable[..., Any])


@click.group(
    epilog=_EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="reexport", prog_name="reexport")
def cli() -> None:
    """Re-export JAX checkpoints into the sharding and physical layout that a new executable expects.

    A job file names a checkpoint, a model and a target; see docs/jobs.md. Begin with:

    \b
      reexport run configs/demo.yaml
    """


def _json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")(command)


def _example(text: str) -> str:
    return f"\b\nExample:\n  {text}\n\n{_EXIT_CODES}"


@cli.command(epilog=_example("reexport run configs/demo.yaml"))
@click.argument("job", type=click.Path())
@click.option("--supersede", is_flag=True, help="Add this export beside a different one that the output holds already.")
@_json_option
def run(job: str, supersede: bool, as_json: bool) -> None:
    """Re-export one checkpoint: open, compile, plan, rewrite, verify, commit.

    The export appears only when it is whole and verified. After an interruption or a failure the same command goes on
    where it stopped. Running a finished job again writes nothing.
    """
    from migrate import driver
    from migrate.report import terminal
    from migrate.report.progress import ConsoleReporter

    out = None if as_json else terminal.console()
    result = driver.run(job, supersede=supersede, reporter=ConsoleReporter(out, terminal.console(stderr=True)))
    if out is None:
        _print_json(result.to_json())
    else:
        terminal.show_result(out, result)


@cli.command(epilog=_example("reexport plan configs/demo.yaml"))
@click.argument("job", type=click.Path())
@_json_option
def plan(job: str, as_json: bool) -> None:
    """Show what a job would write, without writing it. Compiles the program."""
    from migrate.preparation import as_job, compile_directory, prepare
    from migrate.report import terminal

    with compile_directory() as directory:
        prepared = prepare(as_job(job), directory, _stages())
        if as_json:
            _print_json({"export": prepared.export_id, **prepared.plan.to_json()})
        else:
            terminal.show_plan(terminal.console(), prepared)


@cli.command("compile", epilog=_example("reexport compile configs/demo.yaml --output out/compiled"))
@click.argument("job", type=click.Path())
@click.option("-o", "--output", type=click.Path(), help="Keep the signature, the executable and the log here.")
@_json_option
def compile_(job: str, output: str | None, as_json: bool) -> None:
    """Compile a job's program for its target and show what the executable expects of every parameter."""
    from migrate.compiler import compile_program
    from migrate.manifest import SIGNATURE_FILE
    from migrate.preparation import as_job, compile_directory
    from migrate.report import terminal

    loaded = as_job(job)
    with compile_directory() as temporary:
        directory = Path(output) if output else temporary
        compiled = compile_program(loaded, directory)
        text = compiled.signature.to_json()
        if output:
            (directory / SIGNATURE_FILE).write_text(text)
        if as_json:
            _print_json({"seconds": compiled.seconds, "directory": output, "signature": json.loads(text)})
        else:
            terminal.show_compiled(terminal.console(), compiled)


@cli.command(epilog=_example("reexport inspect tests/data/orbax_0.2.7"))
@click.argument("path")
@click.option("--step", type=int, help="Training step; default: the latest committed one.")
@click.option("--item", help="Item of the step, where it holds several.")
@_json_option
def inspect(path: str, step: int | None, item: str | None, as_json: bool) -> None:
    """Show what lies at PATH: a checkpoint of any known format, or an export."""
    from migrate import export, sources
    from migrate.manifest import MANIFEST
    from migrate.report import terminal

    if export.is_export(path):
        found = export.open_export(path)
        if as_json:
            _print_json({"kind": "export", "uri": found.uri, **json.loads(MANIFEST.dump(found.manifest))})
        else:
            terminal.show_export(terminal.console(), found)
        return
    checkpoint = sources.open_checkpoint(path, step=step, item=item)
    if as_json:
        _print_json({"kind": "checkpoint", **checkpoint.to_json()})
    else:
        terminal.show_checkpoint(terminal.console(), checkpoint)


@cli.command(epilog=_example("reexport verify out/demo"))
@click.argument("export")
@_json_option
def verify(export: str, as_json: bool) -> None:
    """Read a whole export and compare it with the digests it was committed with.

    EXPORT is an output, whose current export is taken, or one export's directory.
    """
    from migrate import export as exports
    from migrate.report import terminal

    found = exports.open_export(export)
    checked = exports.verify_export(found, workers=os.cpu_count() or 1)
    if as_json:
        _print_json({"export": found.uri, "intact": True, **checked.to_json()})
    else:
        terminal.show_checked(terminal.console(), found, checked)


@cli.command("demo-checkpoint", epilog=_example("reexport demo-checkpoint out/demo-checkpoint"))
@click.argument("directory", type=click.Path())
@click.option("--layers", type=click.IntRange(1), help="Number of layers; fewer make a smaller checkpoint.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random weights.")
def demo_checkpoint(directory: str, layers: int | None, seed: int) -> None:
    """Write the checkpoint of a small decoder, sharded over 8 CPU devices, with Orbax."""
    from migrate.demo.checkpoint import write_checkpoint

    path = write_checkpoint(directory, seed=seed, **({"layers": layers} if layers else {}))
    click.echo(f"wrote {path}")


def _stages() -> Any:
    """A reporter that only announces stages."""
    from migrate.report import terminal
    from migrate.report.progress import ConsoleReporter

    return ConsoleReporter(None, terminal.console(stderr=True))


def _print_json(value: dict[str, object]) -> None:
    click.echo(json.dumps(value, indent=1))


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit; errors of :mod:`migrate.errors` become messages and exit codes."""
    signal.signal(signal.SIGTERM, _terminate)
    as_json = "--json" in (sys.argv[1:] if arguments is None else arguments)
    try:
        cli.main(arguments, prog_name="reexport", standalone_mode=False)
        code = int(ExitCode.DONE)
    except ReexportError as error:
        from migrate.report.text import format_error

        if as_json:
            _print_json(dict(error.to_json()))
        click.echo(format_error(error), err=True)
        code = int(error.exit_code)
    except click.ClickException as error:
        error.show()
        code = int(ExitCode.USAGE)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted: nothing was committed; the same command goes on where it stopped", err=True)
        code = int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # the reader of our output has gone, e.g. `| head`; Python would complain again when it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = int(ExitCode.DONE)
    _leave(code)


def _terminate(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _leave(code: int) -> NoReturn:
    """Exit at once: Beam's worker threads, which outlive an interrupted pipeline, would be waited for."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code == ExitCode.INTERRUPTED:
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
