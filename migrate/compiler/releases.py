"""The versions of libtpu that are published, as pip's index tells them. Nothing here imports jax."""

from __future__ import annotations

import re
import subprocess
import sys

from migrate.compiler import toolchains
from migrate.compiler.toolchains import numbers
from migrate.errors import ConfigError, ToolchainError

_LINES_SHOWN = 6
_TIMEOUT_SECONDS = 300.0
_RANGE = re.compile(r"\s*(\d+(?:\.\d+){1,4})\.\.(\d+(?:\.\d+){1,4})\s*")


def released() -> tuple[str, ...]:
    """Versions that pip can download for this interpreter and platform, oldest first; final releases only.

    Raises :class:`ToolchainError` with pip's words if it cannot tell.
    """
    command = [sys.executable, "-P", "-m", "pip", "index", "versions", "libtpu"]
    options = ["--no-input", "--disable-pip-version-check"]
    try:
        done = subprocess.run(
            [*command, *options], capture_output=True, text=True, check=False, timeout=_TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise _unknown(f"no answer within {_TIMEOUT_SECONDS:g} seconds") from None
    line = re.search(r"^Available versions: (.*)$", done.stdout, re.MULTILINE)
    if done.returncode or line is None:
        lines = (done.stderr + done.stdout).strip().splitlines()[-_LINES_SHOWN:]
        raise _unknown("".join(f"\n    {text}" for text in lines))
    found = [text.strip() for text in line[1].split(",")]
    return tuple(sorted((text for text in found if re.fullmatch(r"\d+(\.\d+)+", text)), key=numbers))


def in_range(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The published versions of a range ``OLD..NEW``, both ends included, oldest first: (usable, left out).

    Left out are those older than any that this jax was seen to drive.

    Raises :class:`ConfigError` if it is no range or holds fewer than two usable versions, and what :func:`released`
    raises.
    """
    match = _RANGE.fullmatch(text)
    if match is None or numbers(match[1]) >= numbers(match[2]):
        raise ConfigError(
            "this is not a range of versions",
            where="--libtpu",
            expected="OLD..NEW, such as 0.0.37..0.0.52",
            found=text,
            remedy="for one version on one side: --a-libtpu, --b-libtpu; on both: --target libtpu=VERSION",
        )
    low, high = numbers(match[1]), numbers(match[2])
    inside = [version for version in released() if low <= numbers(version) <= high]
    oldest = toolchains.oldest_working()
    usable = [v for v in inside if oldest is None or numbers(v) >= numbers(oldest)]
    if len(usable) < 2:
        raise ConfigError(
            "the range holds fewer than two versions that this jax can drive",
            where=f"--libtpu {text}",
            expected=toolchains.working_range(),
            found=", ".join(inside) or "no published version",
        )
    return tuple(usable), tuple(version for version in inside if version not in usable)


def _unknown(found: str) -> ToolchainError:
    return ToolchainError(
        "pip cannot say which versions of libtpu there are",
        where="pip index versions libtpu",
        found=found,
        remedy="compare two versions that are here instead: --a-libtpu and --b-libtpu",
    )
