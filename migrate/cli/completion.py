"""``reexport completion``, and what the shell offers for arguments."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from migrate.cli.options import example

_SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_REEXPORT_COMPLETE"
"""Click's protocol: the shell calls ``reexport`` with it and reads what may come next."""


@click.command(
    short_help="Print a script that completes reexport in a shell.", epilog=example("reexport completion bash")
)
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script for SHELL that completes commands, options, job files and paths of exports.

    \b
    Once and for all:
      reexport completion bash > ~/.local/share/bash-completion/completions/reexport
      reexport completion zsh > ~/.zfunc/_reexport     (fpath+=~/.zfunc before compinit)
      reexport completion fish > ~/.config/fish/completions/reexport.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"click knows no completion for {shell}")
    root = context.find_root().command
    # not .source(), which runs the shell to ask for its version: the script may be made on another machine
    complete = kind(root, {}, "reexport", VARIABLE)
    click.echo(complete.source_template % complete.source_vars())


def paths(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files and directories, which the shell lists better than we can: for exports, checkpoints, signatures, jobs."""
    return [CompletionItem(incomplete, type="file")]


def directories(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Directories: for outputs and exports."""
    return [CompletionItem(incomplete, type="dir")]


def topologies(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of TPU slices."""
    from migrate.topologies import common

    return [CompletionItem(found.name, help=found.libtpu) for found in common() if found.name.startswith(incomplete)]
