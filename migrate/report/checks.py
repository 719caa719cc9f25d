"""The outcome of ``reexport check``, for reading."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from migrate.check import effect
from migrate.report.difference import show_changes
from migrate.report.text import format_uri, plural

if TYPE_CHECKING:
    from migrate.check import Check

_VERDICTS = {
    "loads": "The program can be loaded as it is.",
    "recompile": "The stored arrays are right; the executable must be compiled again: run the job again.",
    "re-export": "The arrays must be written again: run the job again.",
    "refused": "migrate.load refuses in this environment. Whether its buffers would raise E0102 here, or be "
    "laid out again silently, is what a compile says: --job JOB, or --target libtpu=VERSION without one.",
}

_FLAGS = (
    "An executable keeps the flags of its compile, so they do not change how this program is loaded. What jax compiles "
    "in this process has the flags here, and may want other layouts."
)

_NAMES_SHOWN = 8


def show_check(out: Console, check: Check) -> None:
    """What was compared, what differs, what it would do, and the verdict."""
    out.print(Text.assemble(("export   ", "bold"), f"{format_uri(check.export)}, program {check.program}"))
    if check.difference is not None:
        show_changes(out, check.difference)
        effects: dict[str, list[str]] = {}
        for change in check.difference.parameters:
            effects.setdefault(effect(change), []).append(change.name)
        for name, parameters in effects.items():
            listed = ", ".join(parameters[:_NAMES_SHOWN]) + (", ..." if len(parameters) > _NAMES_SHOWN else "")
            count = plural(len(parameters), "parameter")
            out.print(Text(f"{name}: {count}, if buffers laid out for the export are passed: {listed}"))
    for problem in check.problems:
        parts = [f"expected {problem.expected}"] if problem.expected else []
        parts += [f"found {problem.found}"] if problem.found else []
        out.print(Text(": ".join(filter(None, (problem.what, ", ".join(parts))))))
        if problem.remedy:
            out.print(Text(f"    {problem.remedy}"))
    for text in check.flags:
        out.print(Text(f"flag {text}"))
    if check.flags:
        out.print(_FLAGS)
    out.print(_VERDICTS[check.verdict])
