"""Tables of what a target can name: versions of libtpu."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from migrate.report.terminal import table
from migrate.report.text import format_bytes

if TYPE_CHECKING:
    from migrate.compiler.toolchains import Toolchain


def show_toolchains(out: Console, found: Sequence[Toolchain], working: str) -> None:
    """The versions that are here, a line each, and below them those that would work."""
    columns = [("libtpu", False), ("size", True), ("", False), ("library", False)]
    out.print(
        table(
            columns,
            [
                (
                    toolchain.version,
                    format_bytes(toolchain.nbytes),
                    "installed" if toolchain.installed else "downloaded",
                    str(toolchain.library),
                )
                for toolchain in found
            ],
        )
    )
    out.print(f"{working}; a version that is not here is downloaded when a target names it")
