"""What commands share: the ``--json`` option, the form of their help, their output."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from migrate.config import Job

EXIT_CODES = """\b
Exit codes:
    0  done
    1  failed; nothing was committed
    2  wrong usage, or a job that cannot be used
    3  checked, and found stale or mismatched
  130  interrupted; nothing was committed
"""

Command = TypeVar("Command", bound=Callable[..., Any])


def json_option(command: Command) -> Command:
    """Add ``--json`` to a command, as its argument ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")(command)


def no_cache_option(command: Command) -> Command:
    """Add ``--no-cache`` to a command that compiles, as its argument ``no_cache``."""
    return click.option("--no-cache", is_flag=True, help="Compile even what the compile cache holds; store nothing.")(
        command
    )


def job_from(path: str, *, no_cache: bool) -> Job:
    """The job in the file at ``path``. Raises :class:`migrate.errors.ConfigError`."""
    from migrate.config import load_job

    job = load_job(path)
    return without_cache(job) if no_cache else job


def without_cache(job: Job) -> Job:
    """The job, but its programs are compiled even if the compile cache has them."""
    return job.model_copy(update={"compile": job.compile.model_copy(update={"cache": False})})


def runner_options(command: Command) -> Command:
    """Add ``--runner`` and the options after ``--`` to a command, as its arguments ``runner`` and ``options``."""
    command = click.argument("options", nargs=-1, metavar="[-- RUNNER_OPTIONS]")(command)
    return click.option("--runner", help="Where the pipeline runs, instead of the job's rewrite.runner.")(command)


def with_runner(job: Job, runner: str | None, options: tuple[str, ...]) -> Job:
    """The job with another runner, and with ``options`` after those of its own. Another runner has none of its own."""
    if runner is None and not options:
        return job
    found = job.rewrite
    own = found.runner_options if runner in {None, found.runner} else ()
    workers = found.workers if runner in {None, found.runner} else None
    changed = {"runner": runner or found.runner, "runner_options": (*own, *options), "workers": workers}
    return job.model_copy(update={"rewrite": found.model_copy(update=changed)})


def log_format_option(command: Command) -> Command:
    """Add ``--log-format`` to a command, as its argument ``log_format``."""
    return click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Form of what is said on standard error; json: an object a line, and nothing else.",
    )(command)


def example(text: str) -> str:
    """The end of a command's help: an example that works, and the exit codes."""
    return f"\b\nExample:\n  {text}\n\n{EXIT_CODES}"


def stages() -> Any:
    """A reporter that only announces stages."""
    from migrate.report import terminal
    from migrate.report.progress import ConsoleReporter

    return ConsoleReporter(None, terminal.console(stderr=True))


def print_json(value: dict[str, object]) -> None:
    """Print a JSON object on standard output."""
    click.echo(json.dumps(value, indent=1))
