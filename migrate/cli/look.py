"""Commands that look at what lies on storage."""

from __future__ import annotations

import json
import os

import click

from migrate.cli.completion import directories, paths
from migrate.cli.options import example, json_option, print_json


@click.command(short_help="Show a checkpoint or an export.", epilog=example("reexport inspect tests/data/orbax_0.2.7"))
@click.argument("path", shell_complete=paths)
@click.option("--step", type=int, help="Training step; default: the latest committed one.")
@click.option("--item", help="Item of the step, where it holds several.")
@json_option
def inspect(path: str, step: int | None, item: str | None, as_json: bool) -> None:
    """Show what lies at PATH: a checkpoint of any known format, or an export."""
    from migrate import export, sources
    from migrate.manifest import MANIFEST
    from migrate.report import terminal

    if export.is_export(path):
        if step is not None or item is not None:
            raise click.UsageError("--step and --item choose in a checkpoint; this is an export")
        found = export.open_export(path)
        if as_json:
            print_json({"kind": "export", "uri": found.uri, **json.loads(MANIFEST.dump(found.manifest))})
        else:
            terminal.show_export(terminal.console(), found)
        return
    checkpoint = sources.open_checkpoint(path, step=step, item=item)
    if as_json:
        print_json({"kind": "checkpoint", **checkpoint.to_json()})
    else:
        terminal.show_checkpoint(terminal.console(), checkpoint)


@click.command(short_help="Read a whole export and check it.", epilog=example("reexport verify out/demo"))
@click.argument("export", shell_complete=directories)
@click.option("--source", is_flag=True, help="Read the source again, too, and compare the content of every array.")
@click.option("--source-path", metavar="URI", help="The same, where the checkpoint lies elsewhere now.")
@click.option(
    "--against",
    metavar="EXPORT",
    shell_complete=directories,
    help="Compare the content of every array with another export's.",
)
@json_option
def verify(export: str, source: bool, source_path: str | None, against: str | None, as_json: bool) -> None:
    """Read a whole export and compare it with the digests it was committed with.

    EXPORT is an output, whose current export is taken, or one export's directory. The arrays of --against are not read:
    the digests that it was committed with count.

    Exit code 0: intact, and the same content as what it was compared with. 3: something differs; it is named.
    """
    from migrate import audit, comparison
    from migrate import export as exports
    from migrate.errors import ExitCode
    from migrate.report import terminal
    from migrate.report.comparison import show_comparison

    found = exports.open_export(export)
    checked = audit.verify_export(found, workers=os.cpu_count() or 1)
    comparisons = []
    if source or source_path:
        comparisons.append(comparison.compare_with_source(found, source=source_path, workers=os.cpu_count() or 1))
    if against:
        comparisons.append(comparison.compare_exports(found, against))
    if as_json:
        compared = [one.to_json() for one in comparisons]
        print_json({"export": found.uri, "intact": True, **checked.to_json(), "compared": compared})
    else:
        terminal.show_checked(terminal.console(), found, checked)
        for one in comparisons:
            show_comparison(terminal.console(), one)
    if any(one.differences for one in comparisons):
        raise click.exceptions.Exit(int(ExitCode.MISMATCH))
