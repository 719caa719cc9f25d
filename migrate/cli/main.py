"""The group of commands, and how it ends: errors of :mod:`migrate.errors` become messages and exit codes."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from typing import NoReturn

import click

from migrate.cli import (
    cache,
    check,
    completion,
    diff,
    explain,
    fleet,
    jobs,
    look,
    outputs,
    report,
    toolchains,
    topologies,
)
from migrate.cli.options import EXIT_CODES, print_json
from migrate.errors import ExitCode, ReexportError


@click.group(
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="reexport", prog_name="reexport")
def cli() -> None:
    """Re-export JAX checkpoints into the sharding and physical layout that a new executable expects.

    A job file names a checkpoint, a model and a target; see docs/jobs.md. Begin with:

    \b
      reexport run configs/demo.yaml
    """


for _command in (
    jobs.run,
    jobs.plan,
    jobs.compile_,
    look.inspect,
    look.verify,
    fleet.reconcile,
    fleet.history,
    outputs.list_,
    outputs.rollback,
    outputs.gc,
    check.check,
    diff.diff,
    report.report,
    explain.explain,
    toolchains.toolchains,
    cache.cache,
    topologies.topologies,
    jobs.demo_checkpoint,
    completion.completion,
):
    cli.add_command(_command)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit; errors of :mod:`migrate.errors` become messages and exit codes."""
    signal.signal(signal.SIGTERM, _terminate)
    as_json = "--json" in (sys.argv[1:] if arguments is None else arguments)
    try:
        # a command that checked something and found a difference ends with click's Exit, whose code comes back here
        code = cli.main(arguments, prog_name="reexport", standalone_mode=False) or int(ExitCode.DONE)
    except ReexportError as error:
        from migrate.report.text import format_error

        if as_json:
            print_json(dict(error.to_json()))
        if _json_logs(arguments):
            from migrate.report.structured import log_error

            log_error(error)
        else:
            click.echo(format_error(error), err=True)
        code = int(error.exit_code)
    except click.ClickException as error:
        error.show()
        code = int(ExitCode.USAGE)
    except (click.Abort, KeyboardInterrupt):
        text = f"interrupted{_INTERRUPTED.get(_command_name(arguments), '')}"
        if _json_logs(arguments):
            from migrate.report.structured import log

            log("interrupted", level="error", what=text)
        else:
            click.echo(text, err=True)
        code = int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # the reader of our output has gone, e.g. `| head`; Python would complain again when it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = int(ExitCode.DONE)
    except OSError as error:
        # standard output on a full disk, say; what a command reads and writes itself has typed errors
        click.echo(f"error: {error}", err=True)
        code = int(ExitCode.FAILED)
    _leave(code)


_INTERRUPTED = {
    "run": ": nothing was committed; the same command goes on where it stopped",
    "reconcile": ": what was current is still; the same command goes on where it stopped",
}


def _json_logs(arguments: list[str] | None) -> bool:
    words = sys.argv[1:] if arguments is None else arguments
    return "--log-format=json" in words or ("--log-format", "json") in itertools.pairwise(words)


def _command_name(arguments: list[str] | None) -> str:
    return next((word for word in (sys.argv[1:] if arguments is None else arguments) if not word.startswith("-")), "")


def _terminate(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _leave(code: int) -> NoReturn:
    """Exit at once: threads that outlive an interrupted pipeline, or that hang in a read, would be waited for."""
    from migrate import deadline

    sys.stdout.flush()
    sys.stderr.flush()
    if code == ExitCode.INTERRUPTED or deadline.abandoned():
        os._exit(code)
    sys.exit(code)
