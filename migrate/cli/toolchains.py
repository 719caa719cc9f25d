"""``reexport toolchains``: the versions of libtpu and jax that targets can name."""

from __future__ import annotations

import importlib.metadata
import time
from pathlib import Path

import click

from migrate.cli.options import Command, example, json_option, print_json
from migrate.errors import ConfigError


def _jax_option(command: Command) -> Command:
    return click.option("--jax", "is_jax", is_flag=True, help="VERSION is one of jax, with an environment of its own.")(
        command
    )


@click.group(
    invoke_without_command=True,
    short_help="List, add, remove and test versions of libtpu and jax.",
    epilog=example("reexport toolchains add 0.0.37"),
)
@json_option
@click.pass_context
def toolchains(context: click.Context, as_json: bool) -> None:
    """List the versions of libtpu that are here: the installed one, and downloaded ones that target.libtpu may name.

    And the environments with another jax, which target.jax may name.
    """
    if context.invoked_subcommand is not None:
        return
    from migrate.compiler import interpreters
    from migrate.compiler import toolchains as known
    from migrate.report import targets, terminal

    found, others = known.available(), interpreters.environments()
    if as_json:
        print_json(
            {
                "jax": importlib.metadata.version("jax"),
                "working": known.working_range(),
                "cache": str(known.cache_directory()),
                "toolchains": [toolchain.to_json() for toolchain in found],
                "environments": [environment.to_json() for environment in others],
            }
        )
    else:
        targets.show_toolchains(terminal.console(), found, known.working_range())
        targets.show_environments(terminal.console(), others)


@toolchains.command(short_help="Download a version.", epilog=example("reexport toolchains add 0.0.37"))
@click.argument("version")
@_jax_option
@json_option
def add(version: str, is_jax: bool, as_json: bool) -> None:
    """Download VERSION of libtpu into the cache: 150 to 250 MB, and 0.3 to 0.8 GB on disk. A compile does it itself.

    With --jax an environment with that jax is made, 0.6 GB.
    """
    from migrate.compiler import interpreters
    from migrate.compiler.toolchains import provide
    from migrate.report.text import format_bytes

    if is_jax:
        environment = interpreters.provide(version)
        if as_json:
            print_json(environment.to_json())
        else:
            click.echo(f"jax {version}: {environment.python} ({format_bytes(environment.nbytes)})")
        return
    toolchain = provide(version)
    if as_json:
        print_json(toolchain.to_json())
    else:
        click.echo(f"libtpu {version}: {toolchain.library} ({format_bytes(toolchain.nbytes)})")


@toolchains.command(short_help="Delete a downloaded version.", epilog=example("reexport toolchains remove 0.0.37"))
@click.argument("version")
@_jax_option
@json_option
def remove(version: str, is_jax: bool, as_json: bool) -> None:
    """Delete VERSION of libtpu from the cache, or with --jax the environment with that jax."""
    from migrate.compiler import interpreters
    from migrate.compiler import toolchains as known
    from migrate.report.text import format_bytes

    nbytes = interpreters.remove(version) if is_jax else known.remove(version)
    if as_json:
        print_json({"version": version, "removed_bytes": nbytes})
    else:
        click.echo(f"removed {'jax' if is_jax else 'libtpu'} {version} ({format_bytes(nbytes)})")


@toolchains.command(short_help="Try a version with a tiny compile.", epilog=example("reexport toolchains test 0.0.37"))
@click.argument("version", required=False)
@_jax_option
@click.option("--python", type=click.Path(), help="Compile with this interpreter, as target.python would.")
@json_option
def test(version: str | None, is_jax: bool, python: str | None, as_json: bool) -> None:
    """Compile a tiny program with VERSION of libtpu: does this jax drive it? Downloads it first if it must.

    With --jax VERSION is one of jax, which compiles with the libtpu of its time. With --python another interpreter
    compiles, with VERSION of libtpu or the one installed for it.
    """
    from migrate.compiler import interpreters
    from migrate.compiler.driver import probe_toolchain
    from migrate.config import Target

    if (version is None and python is None) or (is_jax and python is not None):
        raise ConfigError("nothing to test, or two at once", where="toolchains test", expected="VERSION, or --python")
    if version is not None:
        _check_version(version)
    chosen = {"jax": version} if is_jax else {"libtpu": version, "python": python and str(Path(python).absolute())}
    interpreter, toolchain = interpreters.select(Target(topology="v5e:1x1", mesh={"data": 1}, **chosen))
    started = time.monotonic()
    found = probe_toolchain(toolchain, interpreter).signature.fingerprint
    seconds = time.monotonic() - started
    if as_json:
        print_json({"version": version, "libtpu": found.libtpu, "jax": found.jax, "works": True, "seconds": seconds})
    else:
        click.echo(f"libtpu {found.libtpu} works with jax {found.jax}: a tiny program compiled in {seconds:.1f} s")


def _check_version(version: str) -> None:
    if not version.replace(".", "").isdigit():
        raise ConfigError(f"{version!r} is not a version", where="VERSION", expected="numbers and points, as 0.0.37")
