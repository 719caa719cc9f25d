"""``reexport explain``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from migrate.cli.options import example, json_option, print_json


@click.command(
    short_help="Explain an error about layouts.",
    epilog=example("reexport explain --export out/demo --file error.txt"),
)
@click.argument("message", required=False)
@click.option("-f", "--file", type=click.Path(), help="Read the message from a file; a whole log will do.")
@click.option(
    "--export", help="The export whose program raised it, or its output: names the parameter, finds the cause."
)
@click.option("--program", help="Program of the export, where it has several.")
@json_option
def explain(message: str | None, file: str | None, export: str | None, program: str | None, as_json: bool) -> None:
    """Explain an error about buffers in another layout than an executable expects.

    MESSAGE is XLA's E0102 ("Executable(...) expected parameter N of size ... but got buffer with incompatible size
    ..."), the same for memory spaces, or JAX's "Computation was compiled for input layouts that disagree with the
    layouts of arguments passed to it". Without MESSAGE and --file it is read from standard input.
    """
    from migrate.environment import installed_versions
    from migrate.explain import explain_error
    from migrate.messages import MAX_CHARACTERS

    if message is not None and file is not None:
        raise click.UsageError("give either MESSAGE or --file")
    signature = None
    if export is not None:
        from migrate.export import open_export

        signature = open_export(export).signature(program)
    if message is None:
        message = _read(file, MAX_CHARACTERS)
    explained = explain_error(message, signature, export=export or "EXPORT", installed=installed_versions())
    if as_json:
        print_json({"export": export, "mismatches": [one.to_json() for one in explained]})
        return
    from migrate.report import terminal
    from migrate.report.explanation import show_explanation

    out = terminal.console()
    for index, one in enumerate(explained):
        if index:
            out.print()
        show_explanation(out, one)


def _read(file: str | None, limit: int) -> str:
    """At most ``limit`` bytes of the file or of standard input, whatever they are."""
    if file is None:
        return sys.stdin.buffer.read(limit).decode(errors="replace")
    try:
        with Path(file).open("rb") as opened:
            return opened.read(limit).decode(errors="replace")
    except OSError as error:
        raise click.UsageError(f"{file} cannot be read: {error.strerror}") from error
