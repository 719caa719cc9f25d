"""Versions of libtpu: the installed one, and others that pip downloads and a cache keeps.

One jax drives many libtpu versions: ``TPU_LIBRARY_PATH`` in the environment of the compile subprocess names the shared
library, and nothing is installed. The cache is ``libtpu/<version>/libtpu.so`` below :func:`cache_directory`. Nothing
here imports jax.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from migrate.compiler.topology import cpu_devices
from migrate.config import Target
from migrate.errors import TargetError, ToolchainError

LIBRARY_VARIABLE = "TPU_LIBRARY_PATH"
_CACHE_VARIABLE = "REEXPORT_CACHE_DIR"
_LIBRARY_FILE = "libtpu.so"
_UNFINISHED = ".unfinished-"
_PIP_LINES_SHOWN = 6

# (oldest jax, oldest libtpu, newest libtpu) that were seen to work together; newest jax first. See docs/toolchains.md.
_WORKING = (("0.10.2", "0.0.24", "0.0.52"), ("0.6.2", "0.0.14", "0.0.27"), ("0.5.3", "0.0.11", "0.0.17"))


@dataclass(frozen=True, slots=True)
class Toolchain:
    """One version of libtpu on this machine."""

    version: str
    """Version of the package, e.g. ``0.0.42.1``."""
    library: Path
    """The shared library."""
    installed: bool
    """Whether it is the one of this interpreter's packages; else it lies in the cache."""

    @property
    def nbytes(self) -> int:
        """Size of the library in bytes."""
        return self.library.stat().st_size

    def to_json(self) -> dict[str, object]:
        """A JSON object with version, library, installed and nbytes."""
        return {
            "version": self.version,
            "installed": self.installed,
            "library": str(self.library),
            "nbytes": self.nbytes,
        }


def cache_directory() -> Path:
    """Where downloaded versions are kept: ``$REEXPORT_CACHE_DIR``, or ``reexport`` in the user's cache directory."""
    if own := os.environ.get(_CACHE_VARIABLE):
        return Path(own).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "reexport"


def installed() -> Toolchain | None:
    """The libtpu of this interpreter's packages; None if there is none."""
    spec = importlib.util.find_spec("libtpu")
    for folder in (spec and spec.submodule_search_locations) or ():
        library = Path(folder) / _LIBRARY_FILE
        if library.is_file():
            return Toolchain(importlib.metadata.version("libtpu"), library, installed=True)
    return None


def cached() -> list[Toolchain]:
    """The downloaded versions, oldest first."""
    found = [
        Toolchain(library.parent.name, library, installed=False)
        for library in _folder().glob(f"[0-9]*/{_LIBRARY_FILE}")
        if _is_version(library.parent.name)
    ]
    return sorted(found, key=lambda toolchain: numbers(toolchain.version))


def available() -> list[Toolchain]:
    """The versions that are here: the installed one, and the downloaded ones."""
    here = installed()
    return [*([here] if here else []), *cached()]


def select(target: Target) -> Toolchain | None:
    """The toolchain that ``target`` asks for, downloaded if it must be; the installed one if it names none.

    None for CPU targets, and where libtpu is neither named nor installed.

    Raises :class:`TargetError` if a CPU target names a version, :class:`ToolchainError` if it cannot be had.
    """
    if cpu_devices(target.topology) is not None:
        if target.libtpu is not None:
            raise TargetError(
                "a CPU target has no libtpu",
                where="target.libtpu",
                found=f"{target.libtpu} for topology {target.topology}",
                remedy="leave the key out: jaxlib compiles for CPUs",
            )
        return None
    return installed() if target.libtpu is None else provide(target.libtpu)


def provide(version: str) -> Toolchain:
    """libtpu ``version``: installed, cached, or downloaded into the cache (150 to 250 MB, the library 0.3 to 0.8 GB).

    Safe in several processes at once: one downloads, the others wait, and a version appears in the cache whole.

    Raises :class:`ToolchainError` with the working range and pip's words if it cannot be had.
    """
    if not _is_version(version):
        raise ToolchainError(
            f"{version!r} is not a version of libtpu", where="target.libtpu", expected=f"a version; {working_range()}"
        )
    here = installed()
    if here is not None and here.version == version:
        return here
    library = _folder() / version / _LIBRARY_FILE
    if not library.is_file():
        try:
            with locked(_folder()):
                if not library.is_file():
                    _download(version)
        except OSError as error:
            raise _cannot_be_had(version, f"{type(error).__name__}: {error}") from error
    return Toolchain(version, library, installed=False)


def remove(version: str) -> int:
    """Delete a downloaded version; the bytes that this freed. A compile that uses it goes on.

    Raises :class:`ToolchainError` if the cache does not hold it.
    """
    found = {toolchain.version: toolchain for toolchain in cached()}
    if version not in found:
        held = ", ".join(found) or "none"
        raise ToolchainError(
            f"libtpu {version} is not in the cache",
            where=str(_folder()),
            expected=f"one of the downloaded versions: {held}",
            remedy="an installed libtpu is removed with pip",
        )
    library = found[version].library
    with locked(_folder()), unfinished(_folder()) as temporary:
        if not library.is_file():  # another process was faster
            return 0
        nbytes = library.stat().st_size
        library.parent.rename(temporary / version)  # first, so that nobody sees half a version
        return nbytes


def working_range() -> str:
    """Versions of libtpu that were seen to work with this jax, in words."""
    jax = importlib.metadata.version("jax")
    seen = _seen_to_work(jax)
    if seen is None:
        return f"no version is known to work with jax {jax}"
    return f"libtpu {seen[0]} to {seen[1]} work with jax {jax} (tpu7x from 0.0.27)"


def oldest_working() -> str | None:
    """The oldest version of libtpu that was seen to work with this jax; None if none was tried with it."""
    seen = _seen_to_work(importlib.metadata.version("jax"))
    return seen and seen[0]


def _seen_to_work(jax: str) -> tuple[str, str] | None:
    return next(((old, new) for since, old, new in _WORKING if numbers(jax) >= numbers(since)), None)


def _folder() -> Path:
    return cache_directory() / "libtpu"


def _is_version(text: str) -> bool:
    return re.fullmatch(r"\d+(\.\d+){1,4}", text) is not None


def numbers(version: str) -> tuple[int, ...]:
    """The numbers in a version, for comparisons."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Alone in ``folder``, among processes. The lock ends with its holder; what a killed one left is cleaned up."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in folder.glob(_UNFINISHED + "*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


@contextlib.contextmanager
def unfinished(folder: Path) -> Iterator[Path]:
    """A temporary directory in ``folder``, for what is renamed into place when it is whole."""
    with tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=folder) as temporary:
        yield Path(temporary)


def _download(version: str) -> None:
    """Put ``version`` into the cache. Raises :class:`ToolchainError`, and OSError where the disk refuses."""
    with unfinished(_folder()) as temporary:
        command = [sys.executable, "-P", "-m", "pip", "download", f"libtpu=={version}", "--dest", str(temporary)]
        # our cache keeps the library, pip's would keep the wheel once more
        options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--progress-bar=off"]
        quiet = ["--quiet", "--disable-pip-version-check"]
        done = subprocess.run([*command, *options, *quiet], capture_output=True, text=True, check=False)
        wheels = list(temporary.glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            lines = (done.stderr + done.stdout).strip().splitlines()[-_PIP_LINES_SHOWN:]
            raise _cannot_be_had(version, "".join(f"\n    {line}" for line in lines))
        whole = temporary / version
        whole.mkdir()
        try:
            with (
                zipfile.ZipFile(wheels[0]) as wheel,
                wheel.open(f"libtpu/{_LIBRARY_FILE}") as packed,
                (whole / _LIBRARY_FILE).open("wb") as library,
            ):
                shutil.copyfileobj(packed, library, 1 << 20)
                library.flush()
                os.fsync(library.fileno())
        except (KeyError, zipfile.BadZipFile) as error:
            raise _cannot_be_had(version, f"{wheels[0].name}: {error}") from error
        whole.rename(_folder() / version)


def _cannot_be_had(version: str, found: str) -> ToolchainError:
    return ToolchainError(
        f"libtpu {version} cannot be had",
        where="target.libtpu",
        expected=f"a version that pip can download for this interpreter; {working_range()}",
        found=found,
        remedy=f"name another version; where pip reaches no index, copy libtpu/{version}/ from the cache of a machine "
        "on which `reexport toolchains add` could",
    )
