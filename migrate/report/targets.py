"""Tables of what a target can name, versions of libtpu and slices, and of what was compiled for it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from migrate.report.tables import print_table, table
from migrate.report.text import format_bytes, format_seconds, format_uri, plural

if TYPE_CHECKING:
    from migrate.compiler.cache import Entry
    from migrate.compiler.interpreters import Environment
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


def show_environments(out: Console, found: Sequence[Environment]) -> None:
    """The interpreters with another jax, a line each; nothing if there are none."""
    if found:
        columns = [("jax", False), ("libtpu", False), ("size", True), ("python", False)]
        rows = [(item.version, item.libtpu or "", format_bytes(item.nbytes), str(item.python)) for item in found]
        out.print()
        print_table(out, table(columns, rows))


def show_cache(out: Console, uri: str, entries: Sequence[Entry], nbytes: int) -> None:
    """A cached compile a line, last used first, and the total."""
    if entries:
        rows = [
            (
                entry.id[:12],
                entry.program,
                format_bytes(entry.nbytes),
                format_seconds(entry.seconds),
                time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used)),
            )
            for entry in entries
        ]
        columns = [("entry", False), ("program", False), ("size", True), ("compiled in", True), ("last used", False)]
        print_table(out, table(columns, rows))
    out.print(f"{plural(len(entries), 'compile')}, {format_bytes(nbytes)} in {format_uri(uri)}")


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
