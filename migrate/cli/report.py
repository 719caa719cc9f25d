"""``reexport report``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from migrate.cli.completion import paths
from migrate.cli.diff import compare_sides, side_options
from migrate.cli.options import example, stages
from migrate.cli.pages import write_page

if TYPE_CHECKING:
    from migrate.export import Export
    from migrate.report.html.document import Document
    from migrate.sources import SourceCheckpoint


@click.command(
    short_help="Write an HTML report of an export, a plan or a difference.",
    epilog=example("reexport report out/demo -o out/demo.html"),
)
@click.argument("a", shell_complete=paths)
@click.argument("b", required=False, shell_complete=paths)
@click.option(
    "-o", "--output", required=True, type=click.Path(dir_okay=False), metavar="FILE", help="The file to write."
)
@click.option("--verify", is_flag=True, help="Read the whole export first, as verify does, and say in the report.")
@side_options
@click.option(
    "--target", multiple=True, metavar="KEY=VALUE", help="Set a key of the target of each side that is a job."
)
@click.option("--program", help="Which program, where there are several and two sides are compared.")
def report(
    *,
    a: str,
    b: str | None,
    output: str,
    verify: bool,
    target: tuple[str, ...],
    program: str | None,
    **sides: Any,
) -> None:
    """Write one HTML file that shows what A is: device memory, padding, shardings and layouts drawn, every parameter.

    A is an export or its output; a job file, whose plan is made; or a signature. With B it shows what changes from A
    to B, which are named and set as in diff. The file needs no network and no other file.

    Exit code 0: written. 3: written, but --verify found that the export is damaged.
    """
    from migrate.errors import ExitCode, ReexportError

    if b is not None:
        if verify:
            raise click.UsageError("--verify reads one export; a comparison reads no arrays")
        from migrate.report.html import contents

        write_page(output, contents.of_difference(*compare_sides(a, b, target=target, sides=sides, program=program)))
        return
    if any(sides.values()) or program is not None:
        raise click.UsageError("--a, --b and --program are for two sides: give B, too")
    document, checked = _one(a, target, verify=verify)
    write_page(output, document)
    if isinstance(checked, ReexportError):
        from migrate.report.text import format_error

        click.echo(format_error(checked), err=True)
        raise click.exceptions.Exit(int(ExitCode.MISMATCH))


def _one(a: str, target: tuple[str, ...], *, verify: bool) -> tuple[Document, object]:
    from migrate import storage
    from migrate.export import is_export, open_export
    from migrate.report.html import contents
    from migrate.sides import is_job, open_side

    if is_job(a):
        if verify:
            raise click.UsageError("--verify reads an export, and a job is none")
        return _plan(a, target), None
    if target:
        raise click.UsageError("--target sets keys of a job's target, and A is no job")
    if not verify and not is_export(storage.normalise(a)):
        side = open_side(a)
        return contents.of_signature(side.signature, side.label), None
    export = open_export(a)
    checked = _verify(export) if verify else None
    return contents.of_export(export, source=_source(export), checked=checked), checked


def _plan(job: str, target: tuple[str, ...]) -> Document:
    from migrate.overrides import override_target
    from migrate.preparation import as_job, compile_directory, prepare
    from migrate.report.html import contents

    with compile_directory() as directory:
        return contents.of_plan(prepare(override_target(as_job(job), target, where="--target"), directory, stages()))


def _verify(export: Export) -> Any:
    from migrate.audit import verify_export
    from migrate.errors import VerificationError

    try:
        return verify_export(export, workers=os.cpu_count() or 1)
    except VerificationError as error:
        return error


def _source(export: Export) -> SourceCheckpoint | None:
    """The checkpoint that the export came from, if it still lies there unchanged: it tells the old chunks."""
    from migrate import sources
    from migrate.errors import ReexportError

    record = export.manifest.source
    try:
        found = sources.open_checkpoint(record.uri)
    except ReexportError:
        return None
    return found if found.identity == record.identity else None
