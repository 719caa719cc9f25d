"""What a compile read, as :mod:`migrate.compiler.observe` saw it: measured after it, compared before the next one."""

from __future__ import annotations

import hashlib
import os
import re
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import migrate
from migrate.compiler.digests import FileDigests
from migrate.compiler.request import REQUEST_FILE
from migrate.compiler.toolchains import LIBRARY_VARIABLE

# What a directory may hold for an import of ``name``: a package, or a module of these kinds.
_MODULE = re.compile(r"(?P<name>[^.]+)(\.py|\.pyc|(\.[\w.-]+)?\.so)?$")
_CLOCK_SECONDS = 0.05
"""Time stamps of files may lie this much behind the clock."""


class NotKnowableError(Exception):
    """A compile depends on what cannot be compared later; the text says on what."""


@dataclass(frozen=True)
class Roots:
    """Directories whose place differs from machine to machine or job to job; paths are kept relative to them."""

    folders: tuple[tuple[str, str], ...]
    """(name, absolute path), most specific first."""

    @classmethod
    def of(cls, directory: Path, python_path: Sequence[str]) -> Roots:
        """For a compile in ``directory`` that searches ``python_path``."""
        site = dict.fromkeys(sysconfig.get_paths()[name] for name in ("purelib", "platlib"))
        found = [
            ("compile", str(directory)),
            *((f"job{number}", path) for number, path in enumerate(python_path)),
            *((f"site{number}", path) for number, path in enumerate(site)),
            ("reexport", str(Path(migrate.__file__).parent)),
        ]
        # the compiler reports files without symbolic links, searched directories with them
        both = [(name, form) for name, path in found for form in dict.fromkeys((path, os.path.realpath(path)))]
        return cls(tuple(both))

    def relative(self, path: str) -> str:
        """``path`` as ``<root>/rest`` if it lies in a root, else as it is."""
        for name, folder in self.folders:
            if path == folder or path.startswith(folder + "/"):
                return f"<{name}>{path[len(folder) :]}"
        return path

    def absolute(self, path: str) -> str:
        """The inverse of :meth:`relative`; a path in a root that is not here stays as it is, and does not exist."""
        for name, folder in self.folders:
            if path == f"<{name}>" or path.startswith(f"<{name}>/"):
                return folder + path[len(name) + 2 :]
        return path


@dataclass(frozen=True)
class Inputs:
    """Everything a compile is known to depend on beyond its request. Paths are relative to :class:`Roots`."""

    files: dict[str, str | None]
    """Path -> hex SHA-256; None where a file was looked for and not there."""
    listings: dict[str, str]
    """Directory that the model listed -> digest of the names in it."""
    modules: dict[str, dict[str, list[str]]]
    """Directory that imports searched -> name -> files found for it; names without any are under the key ``""``."""
    variables: dict[str, str | None]
    """Environment variable -> hex SHA-256 of its value; None where it was not set."""

    @classmethod
    def measure(
        cls, seen: Mapping[str, Any], roots: Roots, environment: Mapping[str, str], digests: FileDigests, began: float
    ) -> Inputs:
        """The state of what was ``seen`` by a compile that began at the Unix time ``began``, seconds.

        Raises :class:`NotKnowableError` if the process was left (another process, the network), or a file has changed
        since the compile began, so that its present content may not be what was read.
        """
        if seen["unknowable"]:
            raise NotKnowableError("; ".join(seen["unknowable"]))
        files: dict[str, str | None] = {}
        for path in seen["files"]:
            name = roots.relative(path)
            if name == f"<compile>/{REQUEST_FILE}" or Path(path).is_dir():
                continue  # what was asked for is the key
            if not name.startswith("<compile>/") and _is_rewritten(path, seen["stamps"].get(path), began):
                raise NotKnowableError(f"{path} changed while the program was compiled")
            files[name] = digests.digest(path)
        return cls(
            files=files,
            listings={roots.relative(path): _listing(path) for path in seen["listings"]},
            modules={roots.relative(path): _candidates(path, names) for path, names in seen["modules"].items()},
            # which libtpu compiles is in the key, by content
            variables={
                name: _value_digest(environment.get(name)) for name in seen["variables"] if name != LIBRARY_VARIABLE
            },
        )

    def difference(self, roots: Roots, environment: Mapping[str, str], digests: FileDigests) -> str | None:
        """What is not as it was, in words; None if everything is."""
        for name, digest in self.variables.items():
            if _value_digest(environment.get(name)) != digest:
                return f"environment variable {name}"
        for name, found in self.listings.items():
            if _listing(roots.absolute(name)) != found:
                return f"directory {name}"
        for name, candidates in self.modules.items():
            if _candidates(roots.absolute(name), _names(candidates)) != candidates:
                return f"modules in {name}"
        # files of the model differ more often than installed ones, and sort before them
        for name, digest in sorted(self.files.items(), key=lambda item: item[0].startswith(("<site", "/"))):
            if digests.digest(roots.absolute(name)) != digest:
                return f"file {name}"
        return None

    def to_json(self) -> dict[str, Any]:
        """Plain data that :meth:`from_json` reads back."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Inputs:
        """The inputs in ``document``. Raises KeyError if it is something else."""
        return cls(document["files"], document["listings"], document["modules"], document["variables"])


def _is_rewritten(path: str, stamp: Sequence[int] | None, began: float) -> bool:
    """Whether ``path`` may have changed since the Unix time ``began``; ``stamp`` is what it was when it was opened.

    The clock of a file server may be another one than ours: the stamp needs none.
    """
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return stamp is not None
    now = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    return max(status.st_mtime, status.st_ctime) >= began - _CLOCK_SECONDS or (stamp is not None and now != list(stamp))


def _value_digest(value: str | None) -> str | None:
    """Values may be secrets: only their digests are kept."""
    return None if value is None else hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()


def _listing(path: str) -> str:
    try:
        names = sorted(os.listdir(path))  # noqa: PTH208
    except OSError:
        return "absent"
    return hashlib.sha256("\0".join(names).encode("utf-8", "surrogateescape")).hexdigest()


def _candidates(path: str, names: Iterable[str]) -> dict[str, list[str]]:
    """Files in ``path`` that an import of each of ``names`` could take; under ``""`` the names without one.

    Under ``".pth"`` the files that extend the search path from there.
    """
    wanted = set(names)
    found: dict[str, list[str]] = {}
    try:
        present = sorted(os.listdir(path))  # noqa: PTH208
    except OSError:
        present = []
    for entry in present:
        match = _MODULE.match(entry)
        if match and match["name"] in wanted:
            found.setdefault(match["name"], []).append(entry)
        elif entry.endswith(".pth"):
            found.setdefault(".pth", []).append(entry)
    return {**found, "": sorted(wanted - set(found))}


def _names(candidates: Mapping[str, Sequence[str]]) -> set[str]:
    return {*candidates[""], *(name for name in candidates if name not in {"", ".pth"})}
