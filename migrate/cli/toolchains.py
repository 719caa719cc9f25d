"""``reexport toolchains``: the versions of libtpu that targets can name."""

from __future__ import annotations

import importlib.metadata
import time

import click

from migrate.cli.options import example, json_option, print_json


@click.group(
    invoke_without_command=True,
    short_help="List, add, remove and test versions of libtpu.",
    epilog=example("reexport toolchains add 0.0.37"),
)
@json_option
@click.pass_context
def toolchains(context: click.Context, as_json: bool) -> None:
    """List the versions of libtpu that are here: the installed one, and downloaded ones that target.libtpu may name."""
    if context.invoked_subcommand is not None:
        return
    from migrate.compiler import toolchains as known
    from migrate.report import targets, terminal

    found = known.available()
    if as_json:
        print_json(
            {
                "jax": importlib.metadata.version("jax"),
                "working": known.working_range(),
                "cache": str(known.cache_directory()),
                "toolchains": [toolchain.to_json() for toolchain in found],
            }
        )
    else:
        targets.show_toolchains(terminal.console(), found, known.working_range())


@toolchains.command(short_help="Download a version.", epilog=example("reexport toolchains add 0.0.37"))
@click.argument("version")
@json_option
def add(version: str, as_json: bool) -> None:
    """Download VERSION of libtpu into the cache: 150 to 250 MB, and 0.3 to 0.8 GB on disk. A compile does it itself."""
    from migrate.compiler.toolchains import provide
    from migrate.report.text import format_bytes

    toolchain = provide(version)
    if as_json:
        print_json(toolchain.to_json())
    else:
        click.echo(f"libtpu {version}: {toolchain.library} ({format_bytes(toolchain.nbytes)})")


@toolchains.command(short_help="Delete a downloaded version.", epilog=example("reexport toolchains remove 0.0.37"))
@click.argument("version")
@json_option
def remove(version: str, as_json: bool) -> None:
    """Delete VERSION of libtpu from the cache."""
    from migrate.compiler.toolchains import remove as remove_cached
    from migrate.report.text import format_bytes

    nbytes = remove_cached(version)
    if as_json:
        print_json({"version": version, "removed_bytes": nbytes})
    else:
        click.echo(f"removed libtpu {version} ({format_bytes(nbytes)})")


@toolchains.command(short_help="Try a version with a tiny compile.", epilog=example("reexport toolchains test 0.0.37"))
@click.argument("version")
@json_option
def test(version: str, as_json: bool) -> None:
    """Compile a tiny program with VERSION of libtpu: does this jax drive it? Downloads it first if it must."""
    from migrate.compiler.driver import probe_toolchain
    from migrate.compiler.toolchains import provide

    toolchain = provide(version)
    started = time.monotonic()
    probe_toolchain(toolchain)
    seconds = time.monotonic() - started
    jax = importlib.metadata.version("jax")
    if as_json:
        print_json({"version": version, "jax": jax, "works": True, "seconds": seconds})
    else:
        click.echo(f"libtpu {version} works with jax {jax}: a tiny program compiled in {seconds:.1f} s")
