"""Interpreters with another jax: environments of their own, made with ``venv`` and pip in the user's cache.

An environment holds jax, its jaxlib and what the compile subprocess imports besides; libtpu comes from
:mod:`migrate.compiler.toolchains`. It lies in ``jax/<version>-python<major>.<minor>`` below the cache directory.
Nothing here imports jax.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import migrate
from migrate.compiler import toolchains
from migrate.compiler.toolchains import Toolchain
from migrate.compiler.topology import cpu_devices
from migrate.config import Target
from migrate.errors import ConfigError, ToolchainError

NEEDED = ("pydantic>=2.8", "pyyaml>=6.0", "flatbuffers>=24", "numpy")
"""What the compile subprocess imports beside jax."""
_OLDEST_JAX = (0, 7, 2)
_PIP_LINES_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Environment:
    """An interpreter with one version of jax."""

    version: str
    """Of jax."""
    folder: Path
    """The virtual environment."""

    @property
    def python(self) -> Path:
        """The interpreter."""
        return self.folder / "bin" / "python"

    @property
    def nbytes(self) -> int:
        """Bytes of its files."""
        return sum(path.lstat().st_size for path in self.folder.rglob("*") if not path.is_dir())

    @property
    def libtpu(self) -> str | None:
        """The version of libtpu that this jax asks for; None if its metadata name none."""
        for metadata in self.folder.glob(f"lib/python*/site-packages/jax-{self.version}.dist-info/METADATA"):
            if match := re.search(r"^Requires-Dist: libtpu==([\d.]+?)(\.\*)?\s*;", metadata.read_text(), re.MULTILINE):
                return match[1]
        return None

    def to_json(self) -> dict[str, object]:
        """A JSON object with jax, libtpu, python and nbytes."""
        return {"jax": self.version, "libtpu": self.libtpu, "python": str(self.python), "nbytes": self.nbytes}


def environments() -> list[Environment]:
    """The environments in the cache for this version of Python, oldest jax first."""
    found = [
        Environment(folder.name.removesuffix(_suffix()), folder) for folder in _folder().glob(f"[0-9]*{_suffix()}")
    ]
    return sorted(found, key=lambda environment: toolchains.numbers(environment.version))


def provide(version: str) -> Environment:
    """The environment with jax ``version``, made in the cache if it is not there (about 0.5 GB, a minute).

    Safe in several processes at once: one makes it, the others wait, and it appears whole.

    Raises :class:`ToolchainError` with pip's words if it cannot be made.
    """
    if toolchains.numbers(version) < _OLDEST_JAX:
        raise ToolchainError(
            f"jax {version} is too old for this program", where="target.jax", expected="jax 0.7.2 or newer"
        )
    environment = Environment(version, _folder() / f"{version}{_suffix()}")
    if not environment.python.exists():
        try:
            with toolchains.locked(_folder()):
                if not environment.python.exists():
                    _make(environment)
        except OSError as error:
            raise _cannot_be_had(version, f"{type(error).__name__}: {error}") from error
    return environment


def remove(version: str) -> int:
    """Delete the environment with jax ``version``; the bytes that this freed.

    Raises :class:`ToolchainError` if the cache does not hold it.
    """
    found = {environment.version: environment for environment in environments()}
    if version not in found:
        raise ToolchainError(
            f"jax {version} is not in the cache",
            where=str(_folder()),
            expected=f"one of the environments here: {', '.join(found) or 'none'}",
        )
    nbytes = found[version].nbytes
    with toolchains.locked(_folder()), toolchains.unfinished(_folder()) as temporary:
        found[version].folder.rename(temporary / version)
    return nbytes


def _folder() -> Path:
    return toolchains.cache_directory() / "jax"


def _suffix() -> str:
    return f"-python{sys.version_info.major}.{sys.version_info.minor}"


def _make(environment: Environment) -> None:
    with toolchains.unfinished(_folder()) as temporary:
        folder = temporary / environment.folder.name
        pip = [str(folder / "bin" / "python"), "-P", "-m", "pip", "install", "--no-cache-dir", "--no-input", "--quiet"]
        for command in (
            [sys.executable, "-P", "-m", "venv", str(folder)],
            [*pip, "--progress-bar=off", "--disable-pip-version-check", f"jax=={environment.version}", *NEEDED],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                lines = (done.stderr + done.stdout).strip().splitlines()[-_PIP_LINES_SHOWN:]
                raise _cannot_be_had(environment.version, "".join(f"\n    {line}" for line in lines))
        folder.rename(environment.folder)


def _cannot_be_had(version: str, found: str) -> ToolchainError:
    return ToolchainError(
        f"an environment with jax {version} cannot be made",
        where="target.jax",
        expected=f"a version that pip can install for {_suffix()[1:]}, 0.7.2 or newer",
        found=found,
        remedy="name another version, or an interpreter that has it as target.python",
    )


def select(target: Target) -> tuple[Path | None, Toolchain | None]:
    """(interpreter, libtpu) that ``target`` asks for, provided if they must be.

    No interpreter: the one that runs this. No libtpu: a CPU target, or the interpreter's own.

    Raises what :func:`provide` and :func:`migrate.compiler.toolchains.select` do, and :class:`ConfigError` if
    ``target.python`` is no program.
    """
    if target.jax is None and target.python is None:
        return None, toolchains.select(target)
    chosen = toolchains.select(target) if target.libtpu or cpu_devices(target.topology) else None
    if target.python is not None:
        python = Path(target.python)
        if not (python.is_file() and os.access(python, os.X_OK)):
            raise ConfigError("there is no interpreter to compile with", where="target.python", found=target.python)
    else:
        assert target.jax is not None
        environment = provide(target.jax)
        python = environment.python
        if chosen is None and cpu_devices(target.topology) is None:
            if environment.libtpu is None:
                raise ToolchainError(
                    f"jax {target.jax} does not say which libtpu it was made for",
                    where="target.jax",
                    remedy="name one as target.libtpu",
                )
            chosen = toolchains.provide(environment.libtpu)
    # another interpreter does not find the libtpu that is installed for this one
    return python, chosen and replace(chosen, installed=False)


def search_path(directory: Path) -> Path:
    """A folder in ``directory`` for the ``PYTHONPATH`` of another interpreter: it holds this package and nothing else.

    The packages installed beside it are those of another jax.
    """
    folder = directory / "search-path"
    folder.mkdir(exist_ok=True)
    link = folder / "migrate"
    link.unlink(missing_ok=True)
    link.symlink_to(Path(migrate.__file__).parent)
    return folder
