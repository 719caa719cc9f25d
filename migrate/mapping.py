"""From a checkpoint's leaves to a program's parameters: select, apply the rules in order, match by path.

A rule turns the set of arrays into another one, whose arrays are views: nothing is read. At the end every leaf is
matched, carried or dropped by a rule, and every parameter filled with its shape and dtype; anything else is an error
that lists all problems at once.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from migrate import transforms
from migrate.cast import constant
from migrate.errors import ConfigError, MappingError
from migrate.rules import DropRule, InitRule, RenameRule, Rule, StackRule, TieRule, UnstackRule
from migrate.signature import ParameterSpec
from migrate.sources.base import Leaf, Placeholder
from migrate.transforms import Derived
from migrate.views import ConstantView
from migrate.zarr import STORABLE_DTYPES

_SHOWN = 20
"""Problems that a message spells out."""


@dataclass(frozen=True, slots=True)
class Match:
    """A parameter and the array that fills it."""

    parameter: ParameterSpec
    array: Derived


@dataclass(frozen=True, slots=True)
class Dropped:
    """A leaf that is left out, and the rule that says so."""

    leaf: str
    reason: str


@dataclass(frozen=True, slots=True)
class Mapping:
    """The outcome: every parameter with its array, in HLO order, and what happens to every other leaf."""

    matches: tuple[Match, ...]
    carried: tuple[Leaf, ...]
    """Leaves outside the program that the export keeps unchanged."""
    dropped: tuple[Dropped, ...]
    idle_rules: tuple[str, ...]
    """Rules that matched nothing: perhaps on purpose, perhaps a misspelt pattern."""


def match(
    leaves: Sequence[Leaf],
    parameters: Sequence[ParameterSpec],
    *,
    rules: Sequence[Rule] = (),
    select: str | Sequence[str] | None = None,
    carry: bool = False,
    placeholders: Sequence[Placeholder] = (),
) -> Mapping:
    """Pair ``leaves`` with ``parameters`` by path.

    ``select`` is a ``/``-joined prefix that is taken off, or several prefixes that stay; leaves outside are carried if
    ``carry`` says so, else dropped. Raises :class:`MappingError` that lists every leaf without parameter, parameter
    without leaf, rule that cannot be applied, and pair of different shape or dtype.
    """
    state = _State()
    selection = _Selection(select)
    carried: list[Leaf] = []
    for leaf in leaves:
        name = selection.name(leaf.name)
        if name is not None:
            state.add(name, Derived.of(leaf, name))
        elif carry:
            carried.append(leaf)
        else:
            state.dropped.append(Dropped(leaf.name, selection.reason))
    for rule in rules:
        state.apply(rule)
        if isinstance(rule, DropRule):
            # leaves outside the selection are not renamed, so a drop rule meets them under their own path
            kept = [leaf for leaf in carried if not re.fullmatch(rule.drop, leaf.name)]
            state.dropped += [Dropped(leaf.name, str(rule)) for leaf in carried if leaf not in kept]
            if len(kept) < len(carried):
                state.used.add(id(rule))
            carried = kept
    wanted = state.unique(parameters)
    state.fill([rule for rule in rules if isinstance(rule, InitRule)], wanted)
    empty = {selection.name("/".join(p.path)): p for p in placeholders}
    matches = state.pair(wanted, {name: p.kind for name, p in empty.items() if name is not None})
    unused = sorted(set(state.arrays) - set(wanted))
    if carry:
        by_name = {leaf.name: leaf for leaf in leaves}
        untouched = [name for name in unused if not state.arrays[name].steps and len(state.arrays[name].sources) == 1]
        carried += [by_name[state.arrays[name].sources[0]] for name in untouched]
        unused = [name for name in unused if name not in set(untouched)]
        state.problems += [
            f"{leaf.name} cannot be carried: {leaf.dtype.name} is not a dtype of Zarr v3 in TensorStore; drop it"
            for leaf in carried
            if leaf.dtype.name not in STORABLE_DTYPES
        ]
        state.problems += [
            f"{p.kind} {'/'.join(p.path)} cannot be carried: it has no array; drop it"
            for p in placeholders
            if p.kind == "string" and not any(isinstance(r, DropRule) and _drops(r, p, selection) for r in rules)
        ]
    state.problems += [
        f"leaf {state.arrays[name].origin} has no parameter{_suggestion(name, set(wanted) - set(state.arrays))}"
        for name in unused
        if state.failed.isdisjoint(state.arrays[name].sources)
    ]
    state.raise_problems()
    order = {leaf.name: number for number, leaf in enumerate(leaves)}
    return Mapping(
        matches=tuple(matches),
        carried=tuple(sorted(carried, key=lambda leaf: leaf.path)),
        dropped=tuple(sorted(state.dropped, key=lambda dropped: order[dropped.leaf])),
        idle_rules=tuple(str(rule) for rule in rules if id(rule) not in state.used),
    )


def _drops(rule: DropRule, placeholder: Placeholder, selection: _Selection) -> bool:
    name = "/".join(placeholder.path)
    return any(re.fullmatch(rule.drop, text) for text in (name, selection.name(name)) if text is not None)


def check_select(leaves: Sequence[Leaf], select: str | Sequence[str] | None) -> None:
    """Refuse a ``source.select`` that matches no leaf. Raises :class:`ConfigError` listing the subtrees there are."""
    for prefix in _Selection(select).prefixes:
        if not any(leaf.name.startswith(prefix) for leaf in leaves):
            roots = sorted({leaf.path[0] for leaf in leaves if leaf.path})
            raise ConfigError(
                "source.select matches no leaf of the checkpoint",
                where="source.select",
                expected=f"a subtree, such as {', '.join(roots[:_SHOWN])}",
                found=repr(prefix.rstrip("/")),
            )


class _Selection:
    """Which leaves take part, and the names by which the rules know them."""

    def __init__(self, select: str | Sequence[str] | None) -> None:
        self._strip = isinstance(select, str)
        chosen = [select] if isinstance(select, str) else list(select or ())
        self.prefixes = [prefix.strip("/") + "/" for prefix in chosen]
        self.reason = f"outside select: {', '.join(chosen)}"

    def name(self, leaf: str) -> str | None:
        """The leaf's name after selection, or None if it is outside."""
        if not self.prefixes:
            return leaf
        for prefix in self.prefixes:
            if leaf.startswith(prefix):
                return leaf.removeprefix(prefix) if self._strip else leaf
        return None


class _State:
    """The arrays as the rules so far have made them, and what went wrong."""

    def __init__(self) -> None:
        self.arrays: dict[str, Derived] = {}
        self.dropped: list[Dropped] = []
        self.problems: list[str] = []
        self.used: set[int] = set()
        self.failed: set[str] = set()
        """Leaves to which a rule could not be applied: one problem each is enough."""
        self.unmade: list[str] = []
        """Patterns of the names that failed rules would have made."""

    def add(self, name: str, array: Derived) -> None:
        """Put an array under ``name``, which must be free."""
        if name in self.arrays:
            self.problems.append(f"{self.arrays[name].origin} and {array.origin} both map to {name}")
        else:
            self.arrays[name] = array

    def apply(self, rule: Rule) -> None:
        """Apply one rule to every array whose name its pattern matches."""
        if isinstance(rule, InitRule):
            return  # these look at the parameters that are still missing, at the end
        pattern = re.compile(rule.pattern)
        found = [(name, m) for name in self.arrays if (m := pattern.fullmatch(name))]
        if found:
            self.used.add(id(rule))
        taken = [(self.arrays.pop(name), m) for name, m in found]
        if isinstance(rule, StackRule):
            self._stack(rule, taken)
            return
        for array, matched in taken:
            if isinstance(rule, DropRule):
                self.dropped += [Dropped(source, str(rule)) for source in array.sources]
                continue
            try:
                for name, made in _made(rule, array, matched):
                    self.add(name, made)
            except ValueError as error:
                if self.failed.isdisjoint(array.sources):
                    self.problems.append(f"{rule}: {array.origin}: {error}")
                self.failed.update(array.sources)
                if isinstance(rule, UnstackRule):
                    layers = matched.expand(rule.to).split("{layer}")
                    self.unmade.append(r"\d+".join(map(re.escape, layers)))
                else:
                    self.add(array.name, array)

    def _stack(self, rule: StackRule, taken: Sequence[tuple[Derived, re.Match[str]]]) -> None:
        layers: dict[str, dict[int, Derived]] = {}
        for array, matched in taken:
            number = matched["layer"]
            members = layers.setdefault(matched.expand(rule.to), {})
            if not number.isdecimal() or int(number) in members:
                self.unmade.append(re.escape(matched.expand(rule.to)))
                self.problems.append(f"{rule}: {array.origin}: layer {number!r} is not a number of its own")
            else:
                members[int(number)] = array
        for name, members in layers.items():
            if not members:
                continue
            try:
                self.add(name, transforms.stack(members, rule.axis, name))
            except ValueError as error:
                self.unmade.append(re.escape(name))
                if all(self.failed.isdisjoint(member.sources) for member in members.values()):
                    self.problems.append(f"{rule}: {name}: {error}")

    def unique(self, parameters: Sequence[ParameterSpec]) -> dict[str, ParameterSpec]:
        """The parameters by name; keys of a path may hold slashes, so two could share one."""
        wanted: dict[str, ParameterSpec] = {}
        for parameter in parameters:
            if (first := wanted.setdefault(parameter.name, parameter)) is not parameter:
                self.problems.append(
                    f"parameters {list(first.path)} and {list(parameter.path)} are both called {first.name}"
                )
        return wanted

    def fill(self, rules: Sequence[InitRule], wanted: dict[str, ParameterSpec]) -> None:
        """Give parameters that nothing fills the constant of the first rule that names them."""
        for rule in rules:
            for name, parameter in wanted.items():
                if name in self.arrays or not re.fullmatch(rule.init, name):
                    continue
                self.used.add(id(rule))
                dtype = np.dtype(parameter.dtype)
                try:
                    constant(rule.value, dtype)
                except ValueError as error:
                    self.problems.append(f"{rule}: {name}: {error}")
                reader = ConstantView(rule.value, dtype)
                chunk = tuple(max(1, extent) for extent in parameter.shape)
                recipe, steps = ("init", repr(rule.value)), (f"init {rule.value:g}",)
                self.arrays[name] = Derived(name, parameter.shape, dtype, reader, chunk, (), recipe, steps)

    def pair(self, wanted: dict[str, ParameterSpec], empty: dict[str, str]) -> list[Match]:
        """Each parameter with its array; ``empty`` names the kinds of tree positions without one."""
        matches = []
        free = set(self.arrays) - set(wanted)
        for name, parameter in wanted.items():
            if name in self.arrays:
                if self.failed.isdisjoint(self.arrays[name].sources):
                    self.problems += _disagreements(parameter, self.arrays[name])
                matches.append(Match(parameter, self.arrays[name]))
            elif any(re.fullmatch(pattern, name) for pattern in self.unmade):
                continue
            elif name in empty:
                self.problems.append(f"parameter {name} has no leaf: the checkpoint holds {empty[name]} there")
            else:
                self.problems.append(f"parameter {name} has no leaf{_suggestion(name, free)}")
        return matches

    def raise_problems(self) -> None:
        """Raise one :class:`MappingError` with all problems, if there are any."""
        count = len(self.problems)
        if not count:
            return
        shown = self.problems[:_SHOWN] + ([f"and {count - _SHOWN} more"] if count > _SHOWN else [])
        raise MappingError(
            f"{count} {'mismatch' if count == 1 else 'mismatches'} between checkpoint and program",
            expected="every leaf has a parameter of its shape and dtype, and every parameter a leaf",
            found="\n    ".join(["", *shown]),
            remedy="add rules under mapping:, or choose the subtree with source.select; see docs/jobs.md",
        )


def _made(rule: Any, array: Derived, matched: re.Match[str]) -> Iterator[tuple[str, Derived]]:
    """(name, array) of what a rule makes of one array. Raises ValueError if it cannot be applied."""
    if isinstance(rule, RenameRule):
        name = matched.expand(rule.to)
        yield name, replace(array, name=name)
    elif isinstance(rule, TieRule):
        for template in rule.to:
            name = matched.expand(template)
            yield name, replace(array, name=name)
    else:
        yield from transforms.apply(rule, array, matched)


def _disagreements(parameter: ParameterSpec, array: Derived) -> list[str]:
    problems = []
    if tuple(array.shape) != parameter.shape:
        problems.append(
            f"leaf {array.origin} has shape {list(array.shape)}, "
            f"parameter {parameter.name} wants {list(parameter.shape)}"
        )
    if array.dtype.name != parameter.dtype:
        problems.append(
            f"leaf {array.origin} is {array.dtype.name}, parameter {parameter.name} wants {parameter.dtype}"
        )
    return problems


def _suggestion(name: str, candidates: set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(candidates), n=1)
    return f"; did you mean {close[0]}?" if close else ""
