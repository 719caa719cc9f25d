"""Sentences and names that the terminal, the HTML report and notebooks share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from migrate.report.text import format_bytes, plural

if TYPE_CHECKING:
    from migrate.difference import Difference
    from migrate.signature import Fingerprint, ParameterSpec


def verdict(difference: Difference) -> str:
    """What there is to do, in a sentence or two."""
    if difference.kind == "nothing to do":
        return "nothing to do: the signatures are equal"
    if difference.kind == "recompile only":
        why = (
            "every parameter keeps its layout"
            if difference.same_layouts
            else f"{plural(len(difference.parameters), 'parameter')} changed, but no stored array does"
        )
        return f"recompile only: {why}; a run writes no array"
    rewritten = difference.rewritten
    weights = difference.after.weights
    text = f"rewrite {plural(len(rewritten), 'array')} ({format_bytes(sum(p.nbytes for p in rewritten))})"
    if len(rewritten) < len(weights):
        text += (
            f"; a run writes the parameter set as a whole: {plural(len(weights), 'array')}, "
            f"{format_bytes(sum(p.nbytes for p in weights))}"
        )
    return text


def sharding(partition: Sequence[Sequence[str]]) -> str:
    """The mesh axes of each dimension, ``-`` where it is not sharded: ``data,-,model+expert``."""
    return ",".join("+".join(axes) or "-" for axes in partition)


def pairs(items: Sequence[tuple[str, object]]) -> str:
    """``data=2, model=4``; ``none`` if there are none."""
    return ", ".join(f"{name}={value}" for name, value in items) or "none"


def mesh(fingerprint: Fingerprint) -> str:
    """``data 2 x model 4``."""
    return " x ".join(f"{name} {extent}" for name, extent in fingerprint.mesh)


def compiler(fingerprint: Fingerprint) -> str:
    """``jax 0.10.2, libtpu 0.0.42.1``."""
    return f"jax {fingerprint.jax}, {f'libtpu {fingerprint.libtpu}' if fingerprint.libtpu else 'XLA:CPU'}"


def percent(part: float, whole: float) -> str:
    """``12 %``; below 10 with one decimal; ``0 %`` where there is no whole."""
    share = 100 * part / whole if whole else 0.0
    if 0 < share < 0.05:
        return "< 0.1 %"
    return f"{share:.0f} %" if share >= 9.95 or not share else f"{share:.1f} %"


def parameter_name(parameter: ParameterSpec) -> str:
    """``argument/path``."""
    return "/".join((parameter.argument, *parameter.path))
