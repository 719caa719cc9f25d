"""Which leaf fills which parameter: rules, and every problem at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from migrate.box import Box
from migrate.errors import ConfigError, MappingError
from migrate.mapping import Dropped, Mapping, check_select, match
from migrate.rules import DropRule, RenameRule
from migrate.signature import ParameterSpec
from migrate.sources.base import Leaf, Placeholder


class NoReader:
    """Matching reads nothing."""

    def read(self, box: Box, *, storage_order: tuple[int, ...] | None = None) -> np.ndarray:
        raise AssertionError("matching read an array")

    def to_json(self) -> dict[str, object]:
        return {}


def leaf(name: str, shape: tuple[int, ...] = (4, 2), dtype: str = "float32") -> Leaf:
    return Leaf(tuple(name.split("/")), shape, np.dtype(dtype), NoReader(), shape)


def parameter(*path: str, shape: tuple[int, ...] = (4, 2), dtype: str = "float32") -> ParameterSpec:
    return ParameterSpec(0, "params", path, (False,) * len(path), shape, dtype, ((), ()), shape, (0, 1))


def pairs(mapping: Mapping) -> dict[str, str]:
    return {match.parameter.name: match.array.sources[0] for match in mapping.matches}


DROP_OPTIMIZER = DropRule(drop="opt/.*")
RULES = {
    "by path alone": ([], None, {"a/w": "a/w"}, ["a/w"]),
    "select takes the prefix off": ([], "params", {"a/w": "params/a/w"}, ["params/a/w", "opt/mu"]),
    "select with slashes around it": ([], "/params/", {"a/w": "params/a/w"}, ["params/a/w"]),
    # params_ema is not inside params
    "select is a path, not a text": ([], "params", {"a/w": "params/a/w"}, ["params/a/w", "params_ema/a/w"]),
    "drop": ([DROP_OPTIMIZER], None, {"a/w": "a/w"}, ["a/w", "opt/mu", "opt/nu"]),
    # a rule must match the whole path, or `opt/.*` would drop this one
    "drop matches whole paths": ([DROP_OPTIMIZER], None, {"not/opt/mu": "not/opt/mu"}, ["not/opt/mu"]),
    "rename with a group": ([RenameRule(rename="old/(.*)", to=r"new/\1")], None, {"new/w": "old/w"}, ["old/w"]),
    "rules apply in order": (
        [RenameRule(rename="a/(.*)", to=r"b/\1"), RenameRule(rename="b/(.*)", to=r"c/\1")],
        None,
        {"c/w": "a/w"},
        ["a/w"],
    ),
    "a renamed leaf can be dropped": (
        [RenameRule(rename="x/(.*)", to=r"opt/\1"), DROP_OPTIMIZER],
        None,
        {"a/w": "a/w"},
        ["a/w", "x/mu"],
    ),
    "what is dropped is not renamed": (
        [DROP_OPTIMIZER, RenameRule(rename="opt/(.*)", to="a/w")],
        None,
        {"a/w": "a/w"},
        ["a/w", "opt/mu"],
    ),
    "rules see paths without the prefix": (
        [RenameRule(rename="x", to="a/w")],
        "params",
        {"a/w": "params/x"},
        ["params/x"],
    ),
    "one rule for many leaves": (
        [RenameRule(rename="(a|b)/(w)", to=r"\2/\1")],
        None,
        {"w/a": "a/w", "w/b": "b/w"},
        ["a/w", "b/w"],
    ),
}


@pytest.mark.parametrize(("rules", "select", "expected", "leaves"), RULES.values(), ids=RULES)
def test_rules(
    rules: list[DropRule | RenameRule], select: str | None, expected: dict[str, str], leaves: list[str]
) -> None:
    parameters = [parameter(*name.split("/")) for name in expected]
    found = match([leaf(name) for name in leaves], parameters, rules=rules, select=select)
    assert pairs(found) == expected
    # rule 4: a leaf is rewritten or dropped by a rule
    assert {*pairs(found).values(), *(dropped.leaf for dropped in found.dropped)} == set(leaves)


def test_reasons_of_dropped_leaves() -> None:
    leaves = [leaf("params/w"), leaf("params/opt/mu"), leaf("step")]
    found = match(leaves, [parameter("w")], rules=[DROP_OPTIMIZER], select="params")
    assert found.dropped == (Dropped("params/opt/mu", "drop: opt/.*"), Dropped("step", "outside select: params"))


def test_matches_are_in_the_order_of_the_parameters() -> None:
    found = match([leaf("a"), leaf("b"), leaf("c")], [parameter("c"), parameter("a"), parameter("b")])
    assert list(pairs(found)) == ["c", "a", "b"]


def problems(error: MappingError) -> list[str]:
    return [line.strip() for line in error.found.splitlines() if line.strip()]


PROBLEMS = {
    "no leaf": ([], [parameter("a")], ["parameter a has no leaf"]),
    "no parameter": ([leaf("a")], [], ["leaf a has no parameter"]),
    "shape": (
        [leaf("a", (2, 4))],
        [parameter("a")],
        ["leaf a has shape [2, 4], parameter a wants [4, 2]"],
    ),
    # never cast silently
    "dtype": (
        [leaf("a", dtype="float64")],
        [parameter("a", dtype="bfloat16")],
        ["leaf a is float64, parameter a wants bfloat16"],
    ),
    "likely names": (
        [leaf("layers/kernel")],
        [parameter("layer/kernel")],
        [
            "parameter layer/kernel has no leaf; did you mean layers/kernel?",
            "leaf layers/kernel has no parameter; did you mean layer/kernel?",
        ],
    ),
    # a name that is matched already is no candidate
    "no suggestion of what is taken": (
        [leaf("kernel")],
        [parameter("kernel"), parameter("kernels")],
        ["parameter kernels has no leaf"],
    ),
    # two keys with a slash between, and one key that holds a slash
    "parameters of one name": (
        [leaf("a/b")],
        [parameter("a/b"), parameter("a", "b")],
        ["parameters ['a/b'] and ['a', 'b'] are both called a/b"],
    ),
    "all at once": (
        [leaf("a", (2, 4), "float64"), leaf("z")],
        [parameter("a"), parameter("q")],
        [
            "leaf a has shape [2, 4], parameter a wants [4, 2]",
            "leaf a is float64, parameter a wants float32",
            "parameter q has no leaf",
            "leaf z has no parameter",
        ],
    ),
}


@pytest.mark.parametrize(("leaves", "parameters", "expected"), PROBLEMS.values(), ids=PROBLEMS)
def test_every_problem_is_listed(leaves: list[Leaf], parameters: list[ParameterSpec], expected: list[str]) -> None:
    with pytest.raises(MappingError) as caught:
        match(leaves, parameters)
    assert problems(caught.value) == expected
    assert caught.value.what.startswith(f"{len(expected)} mismatch")


def test_two_leaves_that_map_to_one_name() -> None:
    rules = [RenameRule(rename="(a|b)", to="c")]
    with pytest.raises(MappingError, match="1 mismatch ") as caught:
        match([leaf("a"), leaf("b")], [parameter("c")], rules=rules)
    assert problems(caught.value) == ["a and b both map to c"]


@pytest.mark.parametrize("kind", ["none", "empty_dict", "string"])
def test_placeholder_where_a_leaf_should_be(kind: str) -> None:
    place = Placeholder(("params", "a"), kind)
    with pytest.raises(MappingError) as caught:
        match([leaf("params/b")], [parameter("a"), parameter("b")], select="params", placeholders=[place])
    assert problems(caught.value) == [f"parameter a has no leaf: the checkpoint holds {kind} there"]


def test_long_lists_are_cut_and_counted() -> None:
    with pytest.raises(MappingError, match="50 mismatches") as caught:
        match([leaf(f"l{n}") for n in range(50)], [])
    shown = problems(caught.value)
    assert len(shown) == 21
    assert shown[-1] == "and 30 more"


@pytest.mark.parametrize("select", ["param", "params/b", "Params"])
def test_select_that_matches_nothing_names_what_there_is(select: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_select([leaf("params/a"), leaf("opt/mu")], select)
    assert "opt, params" in caught.value.expected


@pytest.mark.parametrize("select", [None, "params", "params/", "/params/deep"])
def test_select_that_matches_something(select: str | None) -> None:
    check_select([leaf("params/deep/a"), leaf("opt/mu")], select)


def test_nothing_to_match() -> None:
    assert match([], []) == Mapping((), (), (), ())


NAMES = st.lists(st.sampled_from(["a", "b", "a/x", "b/x", "opt/a", "opt/b"]), unique=True)


@given(NAMES, NAMES, st.booleans())
def test_every_leaf_and_parameter_is_accounted_for(leaf_names: list[str], wanted: list[str], drop: bool) -> None:
    """Rule 4: rewritten, dropped by a rule, or an error; filled, or an error."""
    rules = [DROP_OPTIMIZER] if drop else []
    leaves, parameters = [leaf(name) for name in leaf_names], [parameter(*name.split("/")) for name in wanted]
    kept = {name for name in leaf_names if not (drop and name.startswith("opt/"))}
    if kept == set(wanted):
        found = match(leaves, parameters, rules=rules)
        assert pairs(found) == {name: name for name in wanted}
        assert {dropped.leaf for dropped in found.dropped} == set(leaf_names) - kept
    else:
        with pytest.raises(MappingError, match=f"{len(kept ^ set(wanted))} mismatch"):
            match(leaves, parameters, rules=rules)
