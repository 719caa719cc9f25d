"""``reexport diff``."""

from __future__ import annotations

import click

from migrate.cli.options import example, json_option, print_json, stages


@click.command(
    short_help="Compare what two executables expect.",
    epilog=example("reexport diff configs/demo.yaml configs/demo.yaml --b topology=v6e:2x4"),
)
@click.argument("a")
@click.argument("b")
@click.option("--a", "a_settings", multiple=True, metavar="KEY=VALUE", help="Set a key of A's target, if A is a job.")
@click.option("--b", "b_settings", multiple=True, metavar="KEY=VALUE", help="Set a key of B's target, if B is a job.")
@click.option("--program", help="Program of an export, where it has several.")
@json_option
def diff(  # noqa: PLR0917 -- click passes them by name
    a: str, b: str, a_settings: tuple[str, ...], b_settings: tuple[str, ...], program: str | None, as_json: bool
) -> None:
    """Show what changes from A to B: layouts, device memory, and which stored arrays must be rewritten.

    A and B are exports or their outputs, signature files, or job files, which are compiled on the spot. Keys of a
    job's target can be set: --b topology=v6e:2x4, --b mesh.data=4, --b layout=default, --b flags.NAME=true.

    Exit code 0: every parameter is expected alike. 3: some are not.
    """
    from migrate.difference import DEFAULT_MAX_CHUNK_BYTES, compare_signatures
    from migrate.errors import ExitCode
    from migrate.report import terminal
    from migrate.report.difference import show_difference
    from migrate.sides import open_side

    reporter = stages()
    one = open_side(a, a_settings, program=program, where="--a", reporter=reporter)
    other = open_side(b, b_settings, program=program, where="--b", reporter=reporter)
    # what will be written is written by the job of B
    limit = other.max_chunk_bytes or one.max_chunk_bytes or DEFAULT_MAX_CHUNK_BYTES
    difference = compare_signatures(one.signature, other.signature, max_chunk_bytes=limit)
    if as_json:
        print_json({"a": one.label, "b": other.label, **difference.to_json()})
    else:
        show_difference(terminal.console(), difference, (one.label, other.label))
    if not difference.same_layouts:
        raise click.exceptions.Exit(int(ExitCode.MISMATCH))
