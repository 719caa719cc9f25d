"""Which leaf fills which parameter: select a subtree, apply the rules in order, match by path, check shape and dtype.

Every leaf ends up matched or dropped by a rule, and every parameter filled; anything else is an error that lists all
problems at once.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from migrate.config import DropRule, RenameRule
from migrate.errors import ConfigError, MappingError
from migrate.signature import ParameterSpec
from migrate.sources.base import Leaf, Placeholder

_SHOWN = 20
"""Problems of one kind that a message spells out."""


@dataclass(frozen=True, slots=True)
class Match:
    """A parameter and the leaf that fills it."""

    parameter: ParameterSpec
    leaf: Leaf


@dataclass(frozen=True, slots=True)
class Dropped:
    """A leaf that is left out, and the rule that says so."""

    leaf: str
    reason: str


@dataclass(frozen=True, slots=True)
class Mapping:
    """The outcome: every parameter with its leaf, in HLO order, and every leaf left out."""

    matches: tuple[Match, ...]
    dropped: tuple[Dropped, ...]


def match(
    leaves: Sequence[Leaf],
    parameters: Sequence[ParameterSpec],
    *,
    rules: Sequence[DropRule | RenameRule] = (),
    select: str | None = None,
    placeholders: Sequence[Placeholder] = (),
) -> Mapping:
    """Pair ``leaves`` with ``parameters`` by path.

    ``select`` is a ``/``-joined prefix that is taken off; leaves outside it are dropped. Raises
    :class:`MappingError` that lists every leaf without parameter, parameter without leaf, and pair of different
    shape or dtype.
    """
    dropped: list[Dropped] = []
    named: dict[str, Leaf] = {}
    problems: list[str] = []
    for leaf in leaves:
        name, reason = _destination(leaf.name, rules, select)
        if name is None:
            dropped.append(Dropped(leaf.name, reason))
        elif name in named:
            problems.append(f"leaves {named[name].name} and {leaf.name} both map to {name}")
        else:
            named[name] = leaf
    wanted: dict[str, ParameterSpec] = {}
    for parameter in parameters:
        # the keys of a path may hold slashes
        if (first := wanted.setdefault(parameter.name, parameter)) is not parameter:
            problems.append(f"parameters {list(first.path)} and {list(parameter.path)} are both called {first.name}")
    empty = {_destination("/".join(p.path), rules, select)[0]: p for p in placeholders}
    matches = []
    for name, parameter in wanted.items():
        if name in named:
            problems += _disagreements(parameter, named[name])
            matches.append(Match(parameter, named[name]))
        elif name in empty:
            problems.append(f"parameter {name} has no leaf: the checkpoint holds {empty[name].kind} there")
        else:
            problems.append(f"parameter {name} has no leaf{_suggestion(name, set(named) - set(wanted))}")
    unused = sorted(set(named) - set(wanted))
    problems += [
        f"leaf {named[name].name} has no parameter{_suggestion(name, set(wanted) - set(named))}" for name in unused
    ]
    if problems:
        shown = problems[:_SHOWN] + ([f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else [])
        raise MappingError(
            f"{len(problems)} {'mismatch' if len(problems) == 1 else 'mismatches'} between checkpoint and program",
            expected="every leaf has a parameter of its shape and dtype, and every parameter a leaf",
            found="\n    ".join(["", *shown]),
            remedy="add rename or drop rules under mapping:, or choose the subtree with source.select",
        )
    return Mapping(tuple(matches), tuple(dropped))


def check_select(leaves: Sequence[Leaf], select: str | None) -> None:
    """Refuse a ``source.select`` that matches no leaf. Raises :class:`ConfigError` listing those there are."""
    if select is None or any(_destination(leaf.name, (), select)[0] is not None for leaf in leaves):
        return
    roots = sorted({leaf.path[0] for leaf in leaves if leaf.path})
    raise ConfigError(
        "source.select matches no leaf of the checkpoint",
        where="source.select",
        expected=f"a subtree, such as {', '.join(roots[:_SHOWN])}",
        found=repr(select),
    )


def _destination(name: str, rules: Sequence[DropRule | RenameRule], select: str | None) -> tuple[str | None, str]:
    if select is not None:
        prefix = select.strip("/") + "/"
        if not name.startswith(prefix):
            return None, f"outside select: {select}"
        name = name.removeprefix(prefix)
    for rule in rules:
        if isinstance(rule, DropRule):
            if re.fullmatch(rule.drop, name):
                return None, f"drop: {rule.drop}"
        elif matched := re.fullmatch(rule.rename, name):
            name = matched.expand(rule.to)
    return name, ""


def _disagreements(parameter: ParameterSpec, leaf: Leaf) -> list[str]:
    problems = []
    if tuple(leaf.shape) != parameter.shape:
        problems.append(
            f"leaf {leaf.name} has shape {list(leaf.shape)}, parameter {parameter.name} wants {list(parameter.shape)}"
        )
    if leaf.dtype.name != parameter.dtype:
        problems.append(f"leaf {leaf.name} is {leaf.dtype.name}, parameter {parameter.name} wants {parameter.dtype}")
    return problems


def _suggestion(name: str, candidates: set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(candidates), n=1)
    return f"; did you mean {close[0]}?" if close else ""
