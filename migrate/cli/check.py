"""``reexport check``."""

from __future__ import annotations

import click

from migrate.cli.completion import directories
from migrate.cli.options import example, json_option, print_json, stages


@click.command(
    short_help="Say whether an export can be used as it is.",
    epilog=example("reexport check out/demo --job configs/demo.yaml"),
)
@click.argument("export", shell_complete=directories)
@click.option("--program", help="Program of the export, where it has several.")
@click.option(
    "--devices/--no-devices",
    default=None,
    help="Compare the devices that jax sees, too; starts jax in a subprocess. Default: unless something is compiled.",
)
@click.option("--job", type=click.Path(), help="Compile this job and compare what its executable expects.")
@click.option(
    "--target",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a key of the job's target, as in diff; without --job of the export's, whose saved program is compiled.",
)
@json_option
def check(  # noqa: PLR0917 -- click passes them by name
    export: str, program: str | None, devices: bool | None, job: str | None, target: tuple[str, ...], as_json: bool
) -> None:
    """Say whether an export can be used as it is.

    Compares EXPORT (an output, or one export's directory) with this environment: the jax, jaxlib and libtpu installed
    here, the flags in its variables, the devices that jax sees. With --job or --target it compares by what a compile
    of today expects, for example --target libtpu=0.0.52: which parameters would raise E0102, and which be laid out
    again silently.

    Exit code 0: it can. 3: recompile, re-export, or another environment.
    """
    from migrate.check import check_export
    from migrate.errors import ExitCode
    from migrate.report import terminal
    from migrate.report.checks import show_check

    found = check_export(export, program, devices=devices, job=job, settings=target, reporter=stages())
    if as_json:
        print_json(found.to_json())
    else:
        show_check(terminal.console(), found)
    if not found.fits:
        raise click.exceptions.Exit(int(ExitCode.MISMATCH))
