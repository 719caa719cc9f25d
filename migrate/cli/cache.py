"""``reexport cache``: compiles that were done before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from migrate.cli.options import Command, example, json_option, print_json
from migrate.errors import ConfigError

if TYPE_CHECKING:
    from migrate.compiler.cache import CompileCache


def _place_option(command: Command) -> Command:
    return click.option(
        "--cache", "place", metavar="PLACE", help="Directory or URI of the cache; default: the user's own."
    )(command)


@click.group(
    invoke_without_command=True,
    short_help="List and prune the compile cache.",
    epilog=example("reexport cache prune --max-bytes 2GiB"),
)
@_place_option
@json_option
@click.pass_context
def cache(context: click.Context, place: str | None, as_json: bool) -> None:
    """List the compiles that the cache holds, last used first, and what they take."""
    if context.invoked_subcommand is not None:
        if place is not None:
            raise ConfigError(
                "--cache belongs behind the command", where=f"reexport cache {context.invoked_subcommand}"
            )
        return
    from migrate.report import targets, terminal

    found = _open(place)
    entries = found.entries()
    if as_json:
        print_json({"cache": found.uri, "nbytes": found.nbytes(), "entries": [entry.to_json() for entry in entries]})
    else:
        targets.show_cache(terminal.console(), found.uri, entries, found.nbytes())


@cache.command(short_help="Evict what was not used for longest.", epilog=example("reexport cache prune"))
@_place_option
@click.option("--max-bytes", default="10GiB", show_default=True, help="Keep at most this much, e.g. 500MB.")
@json_option
def prune(place: str | None, max_bytes: str, as_json: bool) -> None:
    """Evict the least recently used compiles until the cache holds at most --max-bytes.

    In an object store, which does not tell when an entry was read, the oldest go first.
    """
    from migrate.config import parse_bytes
    from migrate.report.text import format_bytes, plural

    try:
        limit = parse_bytes(max_bytes)
    except ValueError as error:
        raise ConfigError(
            "not a size", where="--max-bytes", expected="a number of bytes such as 500MB or 2GiB", found=max_bytes
        ) from error
    found = _open(place)
    before = found.nbytes()
    evicted, kept = found.prune(limit)
    after = found.nbytes()
    if as_json:
        print_json(
            {"cache": found.uri, "evicted": evicted, "kept": kept, "removed_bytes": before - after, "nbytes": after}
        )
    else:
        click.echo(f"evicted {plural(evicted, 'compile')}, freed {format_bytes(before - after)}; {kept} left")


@cache.command(short_help="Remove everything.", epilog=example("reexport cache clear"))
@_place_option
@json_option
def clear(place: str | None, as_json: bool) -> None:
    """Remove every compile from the cache. Toolchains are kept; see `reexport toolchains remove`."""
    from migrate.report.text import format_bytes, plural

    found = _open(place)
    nbytes = found.nbytes()
    removed = found.clear()
    if as_json:
        print_json({"cache": found.uri, "removed": removed, "removed_bytes": nbytes})
    else:
        click.echo(f"removed {plural(removed, 'compile')} ({format_bytes(nbytes)})")


def _open(place: str | None) -> CompileCache:
    from migrate import storage
    from migrate.compiler.cache import CompileCache
    from migrate.compiler.cached import user_cache

    return CompileCache(user_cache() if place is None else storage.normalise(place))
