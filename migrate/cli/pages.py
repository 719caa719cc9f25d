"""What commands that write an HTML report share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from migrate.cli.options import Command
from migrate.errors import StorageError

if TYPE_CHECKING:
    from migrate.report.html.document import Document


def html_option(command: Command) -> Command:
    """Add ``--html`` to a command, as its argument ``html``."""
    return click.option(
        "--html", type=click.Path(dir_okay=False), metavar="FILE", help="Write it as an HTML report to FILE, too."
    )(command)


def write_page(path: str, document: Document) -> None:
    """Write a report to a file. Raises :class:`StorageError`."""
    from migrate import local_files
    from migrate.report.html.page import render

    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        local_files.write(Path(path), render(document), durable=False)
    except OSError as error:
        raise StorageError(
            "the report cannot be written",
            where=path,
            found=error.strerror or str(error),
            remedy="choose another file with -o or --html",
        ) from error
    click.echo(f"wrote {path}", err=True)
