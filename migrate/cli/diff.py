"""``reexport diff``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from migrate.cli.completion import paths, topologies
from migrate.cli.options import example, json_option, print_json, stages
from migrate.cli.pages import html_option, write_page

if TYPE_CHECKING:
    from migrate.difference import Difference

Command = TypeVar("Command", bound=Callable[..., Any])

_KEYS = ("topology", "libtpu", "layout")
"""Keys of a target that have an option of their own for each side, such as ``--b-libtpu``."""


def side_options(command: Command) -> Command:
    """Add the options that set keys of one side's target."""
    for side in ("b", "a"):
        for key in reversed(_KEYS):
            command = click.option(
                f"--{side}-{key}",
                metavar="VALUE",
                help=f"The same as --{side} {key}=VALUE.",
                shell_complete=topologies if key == "topology" else None,
            )(command)
        command = click.option(
            f"--{side}",
            f"{side}_settings",
            multiple=True,
            metavar="KEY=VALUE",
            help=f"Set a key of {side.upper()}'s target, if {side.upper()} is a job or an export.",
        )(command)
    return command


@click.command(
    short_help="Compare what two executables expect.",
    epilog=example("reexport diff configs/demo.yaml configs/demo.yaml --b topology=v6e:2x4"),
)
@click.argument("a", shell_complete=paths)
@click.argument("b", required=False, shell_complete=paths)
@side_options
@click.option(
    "--target", multiple=True, metavar="KEY=VALUE", help="Set a key of the target of each side that is a job."
)
@click.option(
    "--libtpu",
    "versions",
    metavar="OLD..NEW",
    help="Find the version of libtpu in this range that changes what the job or export A expects.",
)
@click.option("--program", help="Which program, where there are several.")
@html_option
@json_option
def diff(
    *,
    a: str,
    b: str | None,
    target: tuple[str, ...],
    versions: str | None,
    program: str | None,
    html: str | None,
    as_json: bool,
    **sides: Any,
) -> None:
    """Show what changes from A to B: layouts, device memory, and which stored arrays must be rewritten.

    A and B are exports or their outputs, signature files, or job files, which are compiled on the spot. Keys of the
    target can be set for one side or for both: --b-libtpu 0.0.52, --b topology=v6e:2x4, --b mesh.data=4, --target
    layout=default, --a flags.NAME=true. For an export they compile its saved program again.

    With --libtpu OLD..NEW there is no B: A is compiled with both ends of the range, and then with versions
    between them until the one that changed its expectations is found. What is not here is downloaded, 135 to 230 MB
    a version.

    Exit code 0: every parameter is expected alike. 3: some are not.
    """
    from migrate.errors import ExitCode

    if versions is not None:
        given = [f"--{name.replace('_settings', '').replace('_', '-')}" for name, value in sides.items() if value]
        if html is not None:
            raise click.UsageError("--html shows two sides: give the two versions as A and B, with --b-libtpu")
        if given or b not in {None, a}:
            raise click.UsageError(f"--libtpu compares a job with itself: leave out {', '.join(given) or 'B'}")
        same = _range(a, versions, target, program, as_json)
    elif b is None:
        raise click.UsageError("give B, or --libtpu OLD..NEW for one job under several versions of libtpu")
    else:
        difference, labels = compare_sides(a, b, target=target, sides=sides, program=program)
        _show(difference, labels, as_json=as_json)
        if html is not None:
            from migrate.report.html import contents

            write_page(html, contents.of_difference(difference, labels))
        same = difference.same_layouts
    if not same:
        raise click.exceptions.Exit(int(ExitCode.MISMATCH))


def compare_sides(
    a: str, b: str, *, target: tuple[str, ...], sides: dict[str, Any], program: str | None
) -> tuple[Difference, tuple[str, str]]:
    """The difference of what ``a`` and ``b`` stand for, and what they are called; compiles where one is a job."""
    from migrate.difference import DEFAULT_MAX_CHUNK_BYTES, compare_signatures
    from migrate.sides import is_job, open_side

    if target and not (is_job(a) or is_job(b)):
        raise click.UsageError(
            "--target sets keys of a job's target, neither A nor B is a job; --a and --b are for one"
        )
    reporter = stages()
    one, other = (
        open_side(
            path,
            [*(target if is_job(path) else ()), *_own(side, sides)],
            program=program,
            where=f"--{side}" if _own(side, sides) else "--target",
            reporter=reporter,
        )
        for side, path in (("a", a), ("b", b))
    )
    # what will be written is written by the job of B
    limit = other.max_chunk_bytes or one.max_chunk_bytes or DEFAULT_MAX_CHUNK_BYTES
    return compare_signatures(one.signature, other.signature, max_chunk_bytes=limit), (one.label, other.label)


def _show(difference: Difference, labels: tuple[str, str], *, as_json: bool) -> None:
    from migrate.report import terminal
    from migrate.report.difference import show_difference

    if as_json:
        print_json({"a": labels[0], "b": labels[1], **difference.to_json()})
    else:
        show_difference(terminal.console(), difference, labels)


def _own(side: str, sides: dict[str, Any]) -> list[str]:
    """The settings of one side, those with an option of their own last."""
    named = [f"{key}={sides[f'{side}_{key}']}" for key in _KEYS if sides[f"{side}_{key}"] is not None]
    return [*sides[f"{side}_settings"], *named]


def _range(job: str, versions: str, target: tuple[str, ...], program: str | None, as_json: bool) -> bool:
    from migrate.report import terminal
    from migrate.report.difference import show_upgrade
    from migrate.upgrade import find_change

    err = terminal.console(stderr=True)
    found = find_change(
        job,
        versions,
        target,
        program=program,
        say=lambda text: err.print(text, style="dim", markup=False, highlight=False, soft_wrap=True),
    )
    if as_json:
        print_json({"job": job, **found.to_json()})
    else:
        show_upgrade(terminal.console(), found, " ".join((job, *target)))
    return found.change is None
