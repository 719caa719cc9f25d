"""``reexport topologies``: the slices that targets can name."""

from __future__ import annotations

from dataclasses import asdict

import click

from migrate.cli.options import example, json_option, print_json


@click.command(
    short_help="Show the TPU slices that a target can name.", epilog=example("reexport topologies v5p-128 2xv5e-16")
)
@click.argument("names", nargs=-1)
@json_option
def topologies(names: tuple[str, ...], as_json: bool) -> None:
    """Show TPU slices: names, chips, hosts, devices, memory. NAMES are those of interest; default: the common ones."""
    from migrate import topologies as known
    from migrate.report import targets, terminal

    found = [known.describe(name) for name in names] or known.common()
    if as_json:
        print_json({"topologies": [asdict(topology) for topology in found]})
    else:
        targets.show_topologies(terminal.console(), found)
