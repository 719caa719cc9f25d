"""Commands that take a fleet file: reconcile, history."""

from __future__ import annotations

import json

import click

from migrate.cli.options import example, json_option, log_format_option, print_json


@click.command(
    short_help="Make what a fleet serves current.", epilog=example("reexport reconcile configs/fleet.yaml --dry-run")
)
@click.argument("fleet", type=click.Path())
@click.option("--dry-run", is_flag=True, help="Show the state of everything and what it would cost; write nothing.")
@click.option("--model", "models", multiple=True, metavar="NAME", help="Only this model; may be repeated.")
@click.option("--target", "targets", multiple=True, metavar="NAME", help="Only this target; may be repeated.")
@click.option(
    "--metrics", type=click.Path(), metavar="FILE", help="Replace FILE by figures for Prometheus' textfile collector."
)
@log_format_option
@json_option
def reconcile(  # noqa: PLR0917 -- click passes them by name
    fleet: str,
    dry_run: bool,
    models: tuple[str, ...],
    targets: tuple[str, ...],
    metrics: str | None,
    log_format: str,
    as_json: bool,
) -> None:
    """Make every model x target of FLEET current, with the least work: docs/fleet.md.

    Each is compared with what its job would make today, and is left alone, published, compiled again, or written. An
    export becomes the current one only after it was verified and the fleet's smoke command succeeded. One that fails
    does not stop the others. May run on several machines at once.

    Exit code 0: everything is current (with --dry-run: was current). 1: something failed. 3: with --dry-run, there is
    something to do.
    """
    from migrate.errors import ExitCode
    from migrate.fleet import load_fleet
    from migrate.metrics import write_metrics
    from migrate.reconcile import Listener
    from migrate.reconcile import reconcile as run
    from migrate.report import fleet as shown
    from migrate.report import terminal
    from migrate.report.structured import JsonListener, log

    if metrics and dry_run:
        raise click.UsageError("--metrics tells what a reconcile did; a dry run does nothing")
    found = load_fleet(fleet)
    cells = found.select(models, targets)
    listener: Listener = JsonListener()
    if log_format == "text":
        listener = shown.ConsoleListener(terminal.console(stderr=True), one_at_a_time=found.concurrency.rewrites == 1)
    summary = run(found, cells, dry_run=dry_run, listener=listener)
    if metrics:
        write_metrics(summary, metrics)
    if log_format == "json":
        log("summary", summary.totals())
    if as_json:
        print_json(summary.to_json())
    elif log_format == "text":
        (shown.show_plan if dry_run else shown.show_summary)(terminal.console(), summary)
    code = ExitCode.DONE
    if dry_run and any(assessment.stale for assessment in summary.assessments):
        code = ExitCode.MISMATCH
    if summary.count("failed"):
        code = ExitCode.FAILED
    if code:
        raise click.exceptions.Exit(int(code))


@click.command(short_help="Show what reconciles did.", epilog=example("reexport history configs/fleet.yaml --last 5"))
@click.argument("fleet", type=click.Path())
@click.option("--model", help="Only events of this model.")
@click.option("--target", help="Only events of this target.")
@click.option("--last", type=click.IntRange(1), default=20, show_default=True, help="How many events.")
@click.option("--json", "as_json", is_flag=True, help="Print the events as JSON, one a line.")
def history(fleet: str, model: str | None, target: str | None, last: int, as_json: bool) -> None:
    """Show what reconciles of FLEET did: an event a reconcile, and one for each export that was published or failed."""
    from migrate.fleet import load_fleet
    from migrate.history import read
    from migrate.report import terminal
    from migrate.report.fleet import show_history

    events = [
        event
        for event in read(load_fleet(fleet).output)
        if model in {None, event.get("model")} and target in {None, event.get("target")}
    ][-last:]
    if not as_json:
        show_history(terminal.console(), events)
        return
    for event in events:
        click.echo(json.dumps(event))
