"""The help of every command: it has an example, and the example works as it stands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from migrate.cli.main import cli

DOWNLOADS = {"toolchains", "toolchains add", "toolchains test", "toolchains remove"}
"""Their examples need a version of libtpu, 150 MB."""

FOUND_SOMETHING = {"reconcile"}
"""Their examples end with exit code 3: there is something to do."""


def commands(group: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        yield prefix + name, command
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{name} ")


COMMANDS = dict(commands(cli))


def example_of(command: click.Command) -> str:
    found = re.search(r"Example:\n((?:  .*\n)+)", (command.epilog or "") + "\n")
    assert found, "no example"
    return found.group(1).strip()


@pytest.fixture(scope="session")
def workspace(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the examples name, with two exports of the demonstration."""
    place = tmp_path_factory.mktemp("workspace")
    shutil.copytree(repository / "configs", place / "configs")
    (place / "tests/data").mkdir(parents=True)
    shutil.copytree(repository / "tests/data/orbax_0.2.7", place / "tests/data/orbax_0.2.7")
    job = (place / "configs/demo.yaml").read_text()
    (place / "configs/other.yaml").write_text(job.replace("layout: auto ", "layout: default "))
    for arguments in ("configs/other.yaml", "configs/demo.yaml --supersede"):
        done = shell(f"reexport run {arguments}", place)
        assert done.returncode == 0, done.stderr
    shutil.copytree(place / "out/demo", place / "untouched")
    return place


@pytest.fixture
def fresh(workspace: Path) -> Path:
    """The workspace, with the exports as they were: rollback is one of the examples."""
    shutil.rmtree(workspace / "out/demo")
    shutil.copytree(workspace / "untouched", workspace / "out/demo")
    return workspace


def shell(line: str, place: Path) -> subprocess.CompletedProcess[str]:
    """Run a line as a user's shell does, ``reexport`` being the installed one."""
    environment = {name: value for name, value in os.environ.items() if name not in {"XLA_FLAGS", "JAX_PLATFORMS"}}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["REEXPORT_CACHE_DIR"] = str(place / "cache")
    return subprocess.run(["bash", "-c", line], cwd=place, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in DOWNLOADS])
def test_the_example_works(name: str, fresh: Path) -> None:
    example = example_of(COMMANDS[name])
    assert example.startswith(f"reexport {name.split(maxsplit=1)[0]}")
    done = shell(example, fresh)
    assert done.returncode == (3 if name in FOUND_SOMETHING else 0), done.stderr
    assert done.stdout or name == "report"


@pytest.mark.parametrize("name", sorted(DOWNLOADS))
def test_the_example_is_one_of_its_command(name: str) -> None:
    assert example_of(COMMANDS[name]).startswith(f"reexport {name}")


@pytest.mark.slow
def test_the_examples_that_download(workspace: Path) -> None:
    if not os.environ.get("REEXPORT_TEST_DOWNLOADS"):
        pytest.skip("REEXPORT_TEST_DOWNLOADS names no directory for downloads")
    for name in ("toolchains add", "toolchains test", "toolchains remove"):
        done = shell(example_of(COMMANDS[name]), workspace)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_says_what_each_option_does(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    assert command.short_help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name


COMPLETED = [
    # (what is typed, what bash offers)
    ("reexport insp", {"inspect"}),
    ("reexport re", {"reconcile", "report"}),
    ("reexport run --super", {"--supersede"}),
    ("reexport run configs/demo-p", {"configs/demo-programs.yaml"}),  # job files
    ("reexport verify untou", {"untouched"}),  # exports
    ("reexport verify configs/dem", set()),  # and nothing that cannot be one
    ("reexport diff configs/demo.y", {"configs/demo.yaml"}),
    ("reexport diff a b --b-topology v5e-25", {"v5e-256"}),
    ("reexport completion z", {"zsh"}),
]


@pytest.mark.parametrize(("typed", "offered"), COMPLETED)
def test_bash_completes(typed: str, offered: set[str], workspace: Path) -> None:
    # compgen stands for readline where click leaves paths to the shell: -o default means files, -o dirnames directories
    script = f"""
source <(reexport completion bash)
compopt() {{ [[ $2 == dirnames ]] && kind=-d || kind=-f; }}
COMP_WORDS=({typed}) COMP_CWORD=$(( {len(typed.split())} - 1 ))
_reexport_completion reexport
if [[ $kind ]]; then compgen $kind -- "${{COMP_WORDS[-1]}}"; else printf '%s\\n' "${{COMPREPLY[@]}}"; fi
"""
    done = shell(script, workspace)
    assert done.returncode in {0, 1}, done.stderr
    assert done.stderr == ""
    assert set(done.stdout.split()) == offered


@pytest.mark.parametrize("shell_name", ["zsh", "fish"])
def test_scripts_for_other_shells(shell_name: str, workspace: Path) -> None:
    made = shell(f"reexport completion {shell_name}", workspace).stdout
    assert f"_REEXPORT_COMPLETE={shell_name}_complete" in made
    if shutil.which(shell_name):
        assert shell(f"reexport completion {shell_name} | {shell_name} -n", workspace).returncode == 0
    answer = shell(
        f'_REEXPORT_COMPLETE={shell_name}_complete COMP_WORDS="reexport insp" COMP_CWORD=1 reexport', workspace
    )
    if shell_name == "zsh":
        assert answer.stdout.split("\n")[:3] == ["plain", "inspect", "Show a checkpoint or an export."]
