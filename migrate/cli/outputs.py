"""Commands that take an output: list, rollback, gc."""

from __future__ import annotations

import click

from migrate.cli.completion import directories
from migrate.cli.options import example, json_option, print_json
from migrate.retention import DEFAULT_GRACE_SECONDS, DEFAULT_KEEP


@click.command("list", short_help="List the exports of an output.", epilog=example("reexport list out/demo"))
@click.argument("output", shell_complete=directories)
@json_option
def list_(output: str, as_json: bool) -> None:
    """List the committed exports of OUTPUT, newest first, and say which one LATEST names."""
    from migrate.publication import list_exports
    from migrate.report import terminal
    from migrate.report.outputs import show_exports

    found = list_exports(output)
    if as_json:
        print_json({"output": output, "exports": [listed.to_json() for listed in found]})
    else:
        show_exports(terminal.console(), found)


@click.command(short_help="Make an earlier export current again.", epilog=example("reexport rollback out/demo"))
@click.argument("output", shell_complete=directories)
@click.option("--to", metavar="ID", help="The export to go to, or the beginning of its id; default: the one before.")
@json_option
def rollback(output: str, to: str | None, as_json: bool) -> None:
    """Make an earlier export of OUTPUT the current one; nothing is copied or deleted.

    What is rolled back from is remembered: `reexport reconcile` does not make it current again, until what it is made
    from changes, or you go to it with --to.
    """
    from migrate.publication import roll_back

    before, now = roll_back(output, to)
    if as_json:
        print_json({"output": output, "before": before, "now": now})
    elif before == now:
        click.echo(f"export {now} is the current one already")
    else:
        click.echo(f"export {now} is current; it was {before}")


def _seconds(_context: click.Context, _parameter: click.Parameter, value: str) -> float:
    from migrate.durations import parse_seconds

    try:
        return parse_seconds(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command(short_help="Delete old exports.", epilog=example("reexport gc out/demo --keep 2 --dry-run"))
@click.argument("output", shell_complete=directories)
@click.option(
    "--keep", type=click.IntRange(1), default=DEFAULT_KEEP, show_default=True, help="Newest exports that stay."
)
@click.option(
    "--grace",
    type=str,
    default=f"{DEFAULT_GRACE_SECONDS / 86_400:g}d",
    show_default=True,
    callback=_seconds,
    metavar="TIME",
    help="How long what is hidden stays readable for processes that have opened it: 90, 30m, 6h, 1d.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@json_option
def gc(output: str, keep: int, grace: float, dry_run: bool, as_json: bool) -> None:
    """Delete old exports of OUTPUT, and the arrays that no export refers to any more.

    An export that is not kept is first hidden: nobody can open it any more. Its files are deleted by a later gc, when
    it has been hidden for the grace period, so that a process that was loading it can finish. What an interrupted run
    left is treated alike. The current export, what a kept export refers to, and what a running job writes always stay.
    """
    from migrate.collector import collect
    from migrate.report import terminal
    from migrate.report.outputs import show_collected

    collected = collect(output, keep=keep, grace_seconds=grace, dry_run=dry_run)
    if as_json:
        print_json(collected.to_json())
    else:
        show_collected(terminal.console(), collected, grace)
