"""Compiler flags, checked before a long compile: those of the job, and those it takes from the caller's environment.

The names that a library knows are read from its strings, 0.4 s for libtpu's 700 MB. That is a superset of the flags it
takes, so that what is refused here is certainly wrong; the compiler refuses the rest itself. Nothing here imports jax.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import mmap
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from migrate.compiler.toolchains import Toolchain
from migrate.config import Target
from migrate.errors import ConfigError

DEVICE_COUNT_FLAG = "--xla_force_host_platform_device_count"
_UNKNOWN = re.compile(r"Unknown command line flag '([\w.-]+)'|Unknown flags? in XLA_FLAGS: --([\w.-]+)")


def check(flags: Iterable[str], toolchain: Toolchain) -> None:
    """Refuse names that ``toolchain`` does not have, with close ones. Raises :class:`ConfigError`."""
    unknown = []
    for name in flags:
        if "_impure_" in name:
            raise ConfigError(
                f"{name} is not an option of a compile",
                where=f"target.flags.{name}",
                remedy=f"set LIBTPU_INIT_ARGS=--{name}=VALUE in the environment, and target.inherit: "
                "[LIBTPU_INIT_ARGS] in the job",
            )
        if name not in known_names(toolchain.library):
            unknown.append(name)
    if unknown:
        raise ConfigError(
            f"libtpu {toolchain.version} has no flag {', '.join(unknown)}",
            where=", ".join(f"target.flags.{name}" for name in unknown),
            expected=_suggestions(unknown, known_names(toolchain.library)),
            remedy="flags come and go between libtpu versions; correct the name or leave it out",
        )


def inherit(target: Target, toolchain: Toolchain | None, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of ``target.inherit`` that ``environment`` sets, checked; ``toolchain`` is None on CPU.

    The number of CPU devices is left out of ``XLA_FLAGS``: the target says it.

    Raises :class:`ConfigError` for a token that is no ``--name=value``, and for a name that the library does not know:
    either would be ignored silently or end the compile process.
    """
    found: dict[str, str] = {}
    for variable in target.inherit:
        text = re.sub(rf"{DEVICE_COUNT_FLAG}(=\S*)?", "", environment.get(variable, "")).strip()
        if not text:
            continue
        where = f"target.inherit: {variable}"
        if variable == "XLA_FLAGS":
            library, owner = _jaxlib_library(), "jaxlib"
        elif toolchain is not None:
            library, owner = toolchain.library, f"libtpu {toolchain.version}"
        else:
            raise ConfigError(
                "LIBTPU_INIT_ARGS means nothing to a CPU target", where=where, remedy="leave it out of target.inherit"
            )
        unknown = [name for name in parse(text, where) if not _knows(library, name)]
        if unknown:
            raise ConfigError(
                f"{owner} has no flag {', '.join(unknown)}",
                where=where,
                expected=_suggestions(unknown, known_names(library)),
                found=text,
                remedy="flags of libtpu go into LIBTPU_INIT_ARGS, or better into target.flags"
                if variable == "XLA_FLAGS"
                else "correct the name or leave it out",
            )
        found[variable] = text
    return found


def parse(text: str, where: str) -> dict[str, str]:
    """Names and values of ``--name=value`` tokens; a name alone is ``true``. Raises :class:`ConfigError`."""
    try:
        tokens = shlex.split(text)
    except ValueError as error:
        raise ConfigError("a quotation is not closed", where=where, found=text) from error
    for token in tokens:
        if not re.match(r"--\w", token):
            raise ConfigError(
                "a part of the variable is not a flag, and would be ignored or taken for a file's name",
                where=where,
                expected="--name=value, separated by spaces",
                found=token,
            )
    pairs = (token.removeprefix("--").partition("=") for token in tokens)
    return {name: value if equals else "true" for name, equals, value in pairs}


def texts(flags: Mapping[str, str | bool | int | float], inherited: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """(name, value) of all flags for the fingerprint, sorted; inherited ones are called ``VARIABLE/name``.

    A YAML boolean and its text are the same flag to XLA.
    """
    own = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in flags.items()}
    taken = {
        f"{variable}/{name}": value
        for variable, text in inherited.items()
        for name, value in parse(text, variable).items()
    }
    return tuple(sorted({**own, **taken}.items()))


def refused_at_start(log: str) -> str | None:
    """The flag that ended a process at its start, as its log says; None if it ended for another reason."""
    match = _UNKNOWN.search(log)
    return match and next(group for group in match.groups() if group)


@functools.cache
def known_names(library: Path) -> frozenset[str]:
    """What looks like a flag in the strings of a shared library: ``xla_`` and letters, digits, underscores."""
    names = set()
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for match in re.finditer(rb"xla_[A-Za-z0-9_]+", content):
            if not _continues(content, match.start() - 1):
                name = match.group().decode()
                # in a serialized descriptor a field's tag, a capital, may follow its name
                names |= {name, re.sub(r"[A-Z]\d?$", "", name)}
    return frozenset(names)


def _knows(library: Path, name: str) -> bool:
    """Whether ``name``, or the flag that ``--no<flag>`` switches off, is among the library's strings."""
    if name in known_names(library) or name.removeprefix("no") in known_names(library):
        return True
    if name.startswith("xla_"):
        return False
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        # find is 20 times as fast as a regular expression without a fixed beginning
        return any(content.find(f"\0{text}\0".encode()) >= 0 for text in (name, name.removeprefix("no")))


def _continues(content: mmap.mmap, index: int) -> bool:
    return index >= 0 and (chr(content[index]).isalnum() or content[index] == ord("_"))


def _jaxlib_library() -> Path:
    """The library that holds XLA in jaxlib: the largest by far."""
    spec = importlib.util.find_spec("jaxlib")
    folders = (spec and spec.submodule_search_locations) or ()
    return max((file for folder in folders for file in Path(folder).glob("*.so")), key=lambda file: file.stat().st_size)


def _suggestions(unknown: Iterable[str], known: frozenset[str]) -> str:
    close = {name: difflib.get_close_matches(name, known, n=3) for name in unknown}
    found = [f"{' or '.join(names)} for {name}" for name, names in close.items() if names]
    return "; ".join(found) or "the name of a flag; no name there is close"
