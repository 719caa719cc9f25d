"""``reexport explain``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from migrate.cli.completion import directories
from migrate.cli.options import example, json_option, print_json, stages

if TYPE_CHECKING:
    from migrate.signature import Signature


@click.command(
    short_help="Explain an error about layouts.",
    epilog=example(
        'reexport explain --export out/demo "expected parameter 2 of size 1024 \\\n'
        "    (bf16[8,3]{0,1:T(4,128)(2,1)}) but got buffer with incompatible size 2048 \\\n"
        '    (bf16[8,3]{1,0:T(8,128)(2,1)})"'
    ),
)
@click.argument("message", required=False)
@click.option("-f", "--file", type=click.Path(), help="Read the message from a file; a whole log will do.")
@click.option(
    "--export",
    shell_complete=directories,
    help="The export whose program raised it, or its output: names the parameter, finds the cause.",
)
@click.option(
    "--job",
    type=click.Path(),
    help="Compile this job: names the parameter; beside --export, finds what has changed since the export.",
)
@click.option("--target", multiple=True, metavar="KEY=VALUE", help="Set a key of the job's target, as in diff.")
@click.option("--program", help="Which program, where there are several.")
@json_option
def explain(
    *,
    message: str | None,
    file: str | None,
    export: str | None,
    job: str | None,
    target: tuple[str, ...],
    program: str | None,
    as_json: bool,
) -> None:
    """Explain an error about buffers in another layout than an executable expects.

    MESSAGE is XLA's E0102 ("Executable(...) expected parameter N of size ... but got buffer with incompatible size
    ..."), the same for memory spaces, or JAX's "Computation was compiled for input layouts that disagree with the
    layouts of arguments passed to it". Layouts may be missing, as in Reactant's errors. A MESSAGE that is the path of
    an existing file is read from there, as with --file. Without either it is read from standard input.
    """
    from migrate.environment import installed_versions
    from migrate.explain import explain_error
    from migrate.messages import MAX_CHARACTERS, read_message

    if message is not None and file is not None:
        raise click.UsageError("give either MESSAGE or --file")
    if target and job is None:
        raise click.UsageError("--target sets keys of the job's target: give --job, too")
    if message is not None and _is_file(message):
        message, file = None, message
    if message is None:
        message = _read(file, MAX_CHARACTERS)
    read_message(message)  # before anything is compiled
    signature, today = _signatures(export, job, target, program)
    explained = explain_error(message, signature, export=export, job=job, today=today, installed=installed_versions())
    if as_json:
        print_json({"export": export, "job": job, "mismatches": [one.to_json() for one in explained]})
        return
    from migrate.report import terminal
    from migrate.report.explanation import show_explanation

    out = terminal.console()
    for index, one in enumerate(explained):
        if index:
            out.print()
        show_explanation(out, one)


def _signatures(
    export: str | None, job: str | None, target: tuple[str, ...], program: str | None
) -> tuple[Signature | None, Signature | None]:
    """(the one to compare with, the job's of today if both are given)."""
    from migrate.export import open_export
    from migrate.sides import open_side

    of_export = None if export is None else open_export(export).signature(program)
    if job is None:
        return of_export, None
    compiled = open_side(job, target, program=program, where="--target", reporter=stages()).signature
    return (compiled, None) if of_export is None else (of_export, compiled)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a path, or with a null character
        return False


def _read(file: str | None, limit: int) -> str:
    """At most ``limit`` bytes of the file or of standard input, whatever they are."""
    if file is None:
        return sys.stdin.buffer.read(limit).decode(errors="replace")
    try:
        with Path(file).open("rb") as opened:
            return opened.read(limit).decode(errors="replace")
    except OSError as error:
        raise click.UsageError(f"{file} cannot be read: {error.strerror}") from error
