"""Tables of what a target can name: versions of libtpu, and slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from migrate.report.terminal import print_table, table
from migrate.report.text import format_bytes

if TYPE_CHECKING:
    from migrate.compiler.toolchains import Toolchain
    from migrate.topologies import Topology


def show_toolchains(out: Console, found: Sequence[Toolchain], working: str) -> None:
    """The versions that are here, a line each, and below them those that would work."""
    columns = [("libtpu", False), ("size", True), ("", False), ("library", False)]
    print_table(
        out,
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
        ),
    )
    out.print(f"{working}; a version that is not here is downloaded when a target names it")


def show_topologies(out: Console, found: Sequence[Topology]) -> None:
    """A slice a line, with the memory that a program can use on each of its devices."""
    numbers = ("chips", "hosts", "cores/chip", "devices", "memory/device")
    print_table(
        out,
        table(
            [("name", False), ("libtpu", False), *((name, True) for name in numbers)],
            [
                (
                    topology.name,
                    topology.libtpu,
                    *(f"{n:,}" for n in (topology.chips, topology.hosts, topology.cores_per_chip, topology.devices)),
                    f"{topology.device_gib:.2f} GiB",
                )
                for topology in found
            ],
        ),
    )
