"""The mapping rules: each by example, and random sequences of them compared with the same done in NumPy."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from migrate.box import Box
from migrate.errors import MappingError
from migrate.mapping import Mapping as Outcome
from migrate.mapping import match
from migrate.rules import RULES, Rule, rule_kind
from migrate.signature import ParameterSpec, canonical_digest
from migrate.sources.base import Leaf, Placeholder

Tree = dict[str, np.ndarray]
RULE: TypeAdapter[Any] = TypeAdapter(Rule)


class InMemory:
    """A leaf's reader; those of storage have tests of their own."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def read(self, box: Box, *, storage_order: tuple[int, ...] | None = None) -> np.ndarray:
        part = self._array[box.slices]
        return np.array(part if storage_order is None else part.transpose(storage_order), order="C")

    def to_json(self) -> dict[str, object]:
        return {}


def leaves_of(tree: Mapping[str, np.ndarray]) -> list[Leaf]:
    return [
        Leaf(tuple(name.split("/")), a.shape, a.dtype, InMemory(a), tuple(max(1, e) for e in a.shape))
        for name, a in tree.items()
    ]


def parameters_of(tree: Mapping[str, np.ndarray]) -> list[ParameterSpec]:
    return [
        ParameterSpec(
            n,
            "params",
            tuple(name.split("/")),
            (),
            a.shape,
            a.dtype.name,
            ((),) * a.ndim,
            a.shape,
            tuple(range(a.ndim)),
        )
        for n, (name, a) in enumerate(tree.items())
    ]


def mapped(tree: Tree, rules: list[dict[str, Any]], expected: Tree, **options: Any) -> Outcome:
    parsed = [RULE.validate_python(rule) for rule in rules]
    return match(leaves_of(tree), parameters_of(expected), rules=parsed, **options)


def check(outcome: Outcome, expected: Tree) -> None:
    assert [m.parameter.name for m in outcome.matches] == list(expected)
    for m in outcome.matches:
        array = m.array.reader.read(Box.whole(m.array.shape))
        assert array.dtype == expected[m.parameter.name].dtype
        np.testing.assert_array_equal(array, expected[m.parameter.name])


def numbers(*shape: int, start: int = 0, dtype: Any = np.float32) -> np.ndarray:
    return (np.arange(np.prod(shape, dtype=int)) + start).reshape(shape).astype(dtype)


W, V = numbers(4, 6), numbers(4, 6, start=100)
BF16 = ml_dtypes.bfloat16
EXAMPLES: dict[str, tuple[Tree, list[dict[str, Any]], Tree]] = {
    "cast": ({"w": W}, [{"cast": ".*", "dtype": "bfloat16"}], {"w": W.astype(BF16)}),
    "transpose": ({"w": W}, [{"transpose": "w", "axes": [1, 0]}], {"w": W.T}),
    "reshape splits": ({"w": W}, [{"reshape": "w", "shape": [4, 2, 3]}], {"w": W.reshape(4, 2, 3)}),
    "reshape merges": ({"w": W}, [{"reshape": "w", "shape": [-1]}], {"w": W.reshape(-1)}),
    "slice": ({"w": W}, [{"slice": "w", "axis": 1, "start": 2, "stop": 5}], {"w": W[:, 2:5]}),
    "pad a vocabulary": (
        {"w": W},
        [{"pad": "w", "axis": 0, "length": 8, "fill": -1}],
        {"w": np.concatenate([W, np.full((4, 6), -1, np.float32)])},
    ),
    # layer numbers are numbers: 10 comes after 9
    "stack per-layer leaves": (
        {f"layers/{n}/w": W + n for n in (10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)},
        [{"stack": r"layers/(?P<layer>\d+)/(.*)", "to": r"blocks/\2"}],
        {"blocks/w": np.stack([W + n for n in range(11)])},
    ),
    "stack along another axis": (
        {"l0/w": W, "l1/w": V, "l0/b": W[0], "l1/b": V[0]},
        [
            {"stack": r"l(?P<layer>\d)/w", "to": "w", "axis": 1},
            {"stack": r"l(?P<layer>\d)/b", "to": "b", "axis": 1},
        ],
        {"w": np.stack([W, V], 1), "b": np.stack([W[0], V[0]], 1)},
    ),
    "unstack": (
        {"blocks/w": np.stack([W, V], 1)},
        [{"unstack": "blocks/(.*)", "to": r"layers/{layer}/\1", "axis": 1}],
        {"layers/0/w": W, "layers/1/w": V},
    ),
    "tie the embedding to the head": (
        {"embed": W},
        [{"tie": "embed", "to": ["embed", "head"]}, {"transpose": "head", "axes": [1, 0]}],
        {"embed": W, "head": W.T},
    ),
    "init what is new": (
        {"w": W},
        [{"init": "adapter/.*", "value": 0.5}],
        {"w": W, "adapter/scale": np.full((3,), 0.5, BF16), "adapter/n": np.full((), 0.5, np.float32)},
    ),
    # a leaf that is there is never overwritten by a constant
    "init only what is missing": ({"w": W}, [{"init": ".*", "value": 7}], {"w": W}),
    "they compose": (
        {"layers/0/qkv": W, "layers/1/qkv": V},
        [
            {"reshape": "layers/.*", "shape": [4, 3, 2]},
            {"transpose": "layers/.*", "axes": [1, 0, 2]},
            {"stack": r"layers/(?P<layer>\d+)/qkv", "to": "attention"},
            {"unstack": "attention", "to": "attention/{layer}", "axis": 1},
            {"rename": "attention/0", "to": "attention/q"},
            {"drop": r"attention/\d"},
            {"cast": "attention/q", "dtype": "float16"},
        ],
        {"attention/q": np.stack([a.reshape(4, 3, 2)[:, 0] for a in (W, V)]).astype(np.float16)},
    ),
}


@pytest.mark.parametrize(("tree", "rules", "expected"), EXAMPLES.values(), ids=EXAMPLES)
def test_examples(tree: Tree, rules: list[dict[str, Any]], expected: Tree) -> None:
    check(mapped(tree, rules, expected), expected)


def test_the_plan_can_say_where_a_parameter_comes_from() -> None:
    outcome = mapped(
        {"layers/0/w": W, "layers/1/w": V},
        [
            {"stack": r"layers/(?P<layer>\d+)/w", "to": "w"},
            {"cast": "w", "dtype": "bfloat16", "overflow": "saturate"},
            {"drop": "nothing/.*"},
        ],
        {"w": np.stack([W, V]).astype(BF16)},
    )
    assert outcome.matches[0].array.origin == "layers/0/w and 1 more | stack 0 | cast bfloat16 (saturate)"
    assert outcome.idle_rules == ("drop: nothing/.*",)


FAULTS: dict[str, tuple[Tree, list[dict[str, Any]], str]] = {
    "a layer is missing": (
        {"l/0": W, "l/2": W},
        [{"stack": r"l/(?P<layer>\d)", "to": "w"}],
        "layer 1 of 0 to 2 is missing",
    ),
    "layers differ": (
        {"l/0": W, "l/1": W.T},
        [{"stack": r"l/(?P<layer>\d)", "to": "w"}],
        "l/1 is float32[6, 4], l/0 is float32[4, 6]",
    ),
    "no number": ({"l/a": W}, [{"stack": r"l/(?P<layer>.)", "to": "w"}], "layer 'a' is not a number of its own"),
    "rank": ({"w": W}, [{"transpose": "w", "axes": [0, 2, 1]}], "3 axes for an array of 2 dimensions"),
    "size": ({"w": W}, [{"reshape": "w", "shape": [5, -1]}], "24 elements, which do not fit into [5, -1]"),
    "window": ({"w": W}, [{"slice": "w", "stop": 5}], "[0:5] is not within dimension 0 of [4, 6]"),
    "shorter pad": ({"w": W}, [{"pad": "w", "length": 3, "fill": 0}], "use slice to shorten"),
    "no such axis": ({"w": W}, [{"unstack": "w", "to": "w{layer}", "axis": 2}], "there is no dimension 2"),
    "quantising cast": ({"w": W}, [{"cast": "w", "dtype": "int8"}], "do it in the model"),
    "a rule after it": (
        {"v": W},
        [{"cast": "v", "dtype": "int8"}, {"rename": "v", "to": "w"}, {"reshape": "w", "shape": [5]}],
        "do it in the model",
    ),
    "a stack after it": (
        {"l/0": W, "l/1": V},
        [{"slice": "l/0", "stop": 9}, {"slice": "l/1", "stop": 2}, {"stack": r"l/(?P<layer>\d)", "to": "w"}],
        "[0:9] is not within dimension 0",
    ),
    "layers of nothing": (
        {"v": W},
        [{"unstack": "v", "to": "w{layer}", "axis": 2}, {"init": "w", "value": 0}],
        "there is no dimension 2",
    ),
    "two tied to one": ({"a": W, "b": V}, [{"tie": "(a|b)", "to": ["w"]}], "a and b both map to w"),
}


@pytest.mark.parametrize(("tree", "rules", "words"), FAULTS.values(), ids=FAULTS)
def test_rules_that_do_not_fit(tree: Tree, rules: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(MappingError) as caught:
        mapped(tree, rules, {"w": W})
    assert words in str(caught.value.found)
    # a parameter that the rule would have made has no leaf because of it: that is not told, too
    made = not any("unstack" in rule for rule in rules) or len(rules) > 1
    assert caught.value.what.startswith("1 mismatch " if made else "2 mismatches ")


def test_what_a_failed_unstack_would_have_made_is_not_missed() -> None:
    with pytest.raises(MappingError, match="1 mismatch ") as caught:
        mapped({"w": W}, [{"unstack": "w", "to": "l/{layer}", "axis": 2}], {"l/0": W, "l/1": W})
    assert "there is no dimension 2" in str(caught.value.found)


UNUSABLE: list[tuple[dict[str, Any], str]] = [
    ({"stack": r"l/\d", "to": "w"}, "should name the layer number's group"),
    ({"unstack": "w", "to": "w"}, "should contain {layer}"),
    ({"transpose": "w", "axes": [0, 0]}, "permutation"),
    ({"reshape": "w", "shape": [-1, -1]}, "at most once"),
    ({"cast": "w", "dtype": "bf16"}, "no element type for dtype 'bf16'; did you mean bfloat16?"),
    ({"cast": "w", "dtype": "f8e4m3fn"}, "did you mean float8_e4m3fn?"),
    ({"cast": "w", "dtype": "float_16"}, "did you mean float16?"),
    ({"drop": "("}, "'(' is not a usable regular expression"),
    ({"pad": "w", "length": 8}, "Field required"),  # the fill is the user's to state
    ({"tie": "w", "to": []}, "at least 1"),
    ({"drop": ""}, "at least 1"),
]


@pytest.mark.parametrize(("rule", "words"), UNUSABLE)
def test_unusable_rules(rule: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(words)):
        RULE.validate_python(rule)


@pytest.mark.parametrize("kind", RULES)
def test_a_rule_is_told_by_its_key(kind: str) -> None:
    assert rule_kind({kind: "x", "to": "y"}) == kind
    assert rule_kind({"other": "x"}) is None


def test_carry_keeps_what_no_parameter_takes() -> None:
    tree = {"params/w": W, "params/extra": V, "opt/mu/w": V, "opt/nu/w": V, "step": numbers(1)[0]}
    outcome = mapped(tree, [{"drop": "opt/nu/.*"}], {"w": W}, select="params", carry=True)
    check(outcome, {"w": W})
    assert [leaf.name for leaf in outcome.carried] == ["opt/mu/w", "params/extra", "step"]
    assert [(d.leaf, d.reason) for d in outcome.dropped] == [("opt/nu/w", "drop: opt/nu/.*")]


def test_carry_refuses_what_it_cannot_keep() -> None:
    strings = [Placeholder(("note",), "string", "hello"), Placeholder(("none",), "none")]
    with pytest.raises(MappingError, match="1 mismatch") as caught:
        mapped({"w": W}, [], {"w": W}, carry=True, placeholders=strings)
    assert "string note cannot be carried" in str(caught.value.found)
    mapped({"w": W}, [{"drop": "note"}], {"w": W}, carry=True, placeholders=strings)
    mapped({"w": W}, [], {"w": W}, placeholders=strings)  # without carry nobody asked for it


def test_select_several_subtrees_keeps_their_names() -> None:
    tree = {"params/w": W, "ema_params/w": V, "opt/w": W}
    expected = {"params/w": W, "ema_params/w": V}
    outcome = mapped(tree, [], expected, select=["params", "ema_params"])
    check(outcome, expected)
    assert [d.reason for d in outcome.dropped] == ["outside select: params, ema_params"]


# --- random trees, random rules -----------------------------------------------------------------------------------

Step = Callable[[Tree, st.DataObject], tuple[dict[str, Any], Tree]]


def _pick(tree: Tree, data: st.DataObject, suitable: Callable[[np.ndarray], bool] = lambda _: True) -> str | None:
    names = [name for name, array in tree.items() if suitable(array)]
    return data.draw(st.sampled_from(names)) if names else None


def _axis(array: np.ndarray, data: st.DataObject) -> int:
    return data.draw(st.integers(0, array.ndim - 1))


def one_rule(tree: Tree, data: st.DataObject) -> tuple[dict[str, Any], Tree] | None:
    """A rule that fits the tree, and the tree after the same in NumPy; None if the kind that was drawn does not fit."""
    kind = data.draw(st.sampled_from(sorted(set(RULES) - {"init"})))
    name = _pick(tree, data, lambda a: a.ndim > 0 if kind in {"unstack", "slice", "pad", "reshape"} else True)
    if name is None:
        return None
    array, rest, exactly = tree[name], {n: a for n, a in tree.items() if n != name}, re.escape(name)
    if kind == "drop":
        return {"drop": exactly}, rest
    # a name that is taken would be an error, which has its own test
    if {f"new/{name}", f"{name}_2", f"{name}_0"} & set(tree):
        return None
    if kind == "rename":
        return {"rename": f"({exactly})", "to": r"new/\1"}, {**rest, f"new/{name}": array}
    if kind == "tie":
        return {"tie": exactly, "to": [name, f"{name}_2"]}, {**rest, name: array, f"{name}_2": array}
    if kind == "cast":
        return {"cast": exactly, "dtype": "float64"}, {**rest, name: array.astype(np.float64)}
    if kind == "transpose":
        axes = list(data.draw(st.permutations(range(array.ndim))))
        return {"transpose": exactly, "axes": axes}, {**rest, name: array.transpose(axes)}
    if kind == "reshape":
        axis = _axis(array, data)
        shape = [*array.shape[:axis], 1, array.shape[axis], *array.shape[axis + 1 :]]
        if data.draw(st.booleans()):
            shape = [int(np.prod(array.shape[: axis + 1])), *array.shape[axis + 1 :]]
        return {"reshape": exactly, "shape": shape}, {**rest, name: array.reshape(shape)}
    if kind == "slice":
        axis = _axis(array, data)
        start = data.draw(st.integers(0, array.shape[axis]))
        stop = data.draw(st.integers(start, array.shape[axis]))
        window = (slice(None),) * axis + (slice(start, stop),)
        return {"slice": exactly, "axis": axis, "start": start, "stop": stop}, {**rest, name: array[window]}
    if kind == "pad":
        axis = _axis(array, data)
        more = data.draw(st.integers(0, 2))
        widths = [(0, more if d == axis else 0) for d in range(array.ndim)]
        rule = {"pad": exactly, "axis": axis, "length": array.shape[axis] + more, "fill": 3}
        return rule, {**rest, name: np.pad(array, widths, constant_values=3)}
    if kind == "unstack":
        axis = _axis(array, data)
        parts = {f"{name}_{n}": array.take(n, axis) for n in range(array.shape[axis])}
        return {"unstack": f"({exactly})", "to": r"\1_{layer}", "axis": axis}, {**rest, **parts}
    # stack: whatever has the shape of the one that was picked
    alike = [n for n, a in tree.items() if (a.shape, a.dtype) == (array.shape, array.dtype)]
    if any("stacked" in n for n in tree):
        return None
    axis = data.draw(st.integers(0, array.ndim))
    for number, member in enumerate(alike):
        rest.pop(member, None)
        rest[f"layer {number}"] = tree[member]
    return {"renames": alike, "axis": axis}, rest


trees = st.dictionaries(
    st.sampled_from(["a", "b", "c/d", "e.f"]),
    st.lists(st.integers(0, 4), max_size=3).map(lambda shape: numbers(*shape, dtype=np.int32)),
    min_size=1,
)


@given(trees, st.data())
def test_random_rules_do_what_numpy_does(tree: Tree, data: st.DataObject) -> None:
    rules: list[dict[str, Any]] = []
    expected = dict(tree)
    for _ in range(data.draw(st.integers(0, 6))):
        step = one_rule(expected, data)
        if step is None or len(step[1]) > 12:
            continue
        rule, after = step
        if "renames" in rule:
            rules += [{"rename": re.escape(n), "to": f"layer {i}"} for i, n in enumerate(rule["renames"])]
            rules.append({"stack": r"layer (?P<layer>\d+)", "to": "stacked", "axis": rule["axis"]})
            members = [after.pop(f"layer {i}") for i in range(len(rule["renames"]))]
            after["stacked"] = np.stack(members, rule["axis"])
        else:
            rules.append(rule)
        expected = after
    outcome = mapped(tree, rules, expected)
    check(outcome, expected)
    # a box of it, in a storage order, is the same box
    for m in outcome.matches:
        array = expected[m.parameter.name]
        order = tuple(data.draw(st.permutations(range(array.ndim))))
        box = Box(tuple(e // 3 for e in array.shape), array.shape)
        found = m.array.reader.read(box, storage_order=order)
        np.testing.assert_array_equal(found, array[box.slices].transpose(order))


LAYERS = {f"layers/{n}/w": numbers(4, start=10 * n) for n in range(4)}
STACK = {"stack": r"layers/(?P<layer>\d)/w", "to": "out"}
FIRST = {"rename": "layers/0/w", "to": "out"}


def pad(fill: float) -> dict[str, Any]:
    return {"pad": "layers/0/w", "axis": 0, "length": 6, "fill": fill}


def cast_twice(dtype: str) -> list[dict[str, Any]]:
    return [{"cast": "layers/1/w", "dtype": dtype}, {"cast": "layers/1/w", "dtype": "float32"}]


OTHER_ELEMENTS = {
    # shape of the parameter, and sequences of rules that fill it with different elements
    "other members of a stack": (
        (3, 4),
        [
            [{"drop": "layers/3/w"}, STACK],
            [{"drop": "layers/2/w"}, {"rename": "layers/3/w", "to": "layers/2/w"}, STACK],
        ],
    ),
    "one member made otherwise": ((4, 4), [[STACK], [*cast_twice("float16"), STACK], [*cast_twice("bfloat16"), STACK]]),
    "last digits of a fill": ((6,), [[pad(0.12345678), FIRST], [pad(0.12345679), FIRST]]),
    "sign of a zero": ((6,), [[pad(0.0), FIRST], [pad(-0.0), FIRST]]),
    "last digits of a constant": ((4,), [[{"init": "out", "value": v}] for v in (1.0000001, 1.0000002)]),
    "another layer": ((4,), [[FIRST], [{"rename": "layers/1/w", "to": "out"}]]),
}


@pytest.mark.parametrize("name", OTHER_ELEMENTS)
def test_recipes_tell_other_elements_apart(name: str) -> None:
    """They go into the ids of parameter sets and items: two contents under one id would be taken for each other."""
    shape, sequences = OTHER_ELEMENTS[name]
    expected = {"out": np.zeros(shape, np.float32)}
    found = [mapped(LAYERS, rules, expected, carry=True).matches[0].array.recipe for rules in sequences]
    assert len({canonical_digest(recipe) for recipe in found}) == len(sequences)


def test_recipes_do_not_tell_names_apart() -> None:
    """Two ways to the same elements of the same leaf share their stored arrays."""
    twice = [{"rename": "layers/0/w", "to": "a"}, {"rename": "a", "to": "out"}]
    expected = {"out": numbers(4)}
    found = [mapped(LAYERS, rules, expected, carry=True).matches[0].array.recipe for rules in ([FIRST], twice)]
    assert found[0] == found[1] == ("leaf", "layers", "0", "w")


CONSTANTS: list[tuple[float, str, float | None]] = [
    # value, dtype, what it becomes; None: refused
    (127, "int8", 127),
    (128, "int8", None),
    (-1, "uint8", None),
    (3.7, "int32", None),
    (2**53 + 1, "int64", 2**53 + 1),
    (math.nan, "uint8", None),
    (7, "int4", 7),
    (8, "int4", None),
    (1, "bool", True),
    (0.1, "bool", None),
    (0.1, "bfloat16", float(ml_dtypes.bfloat16(0.1))),
    (1e39, "float32", None),
    (-math.inf, "float32", -math.inf),
    (math.nan, "float8_e4m3fn", math.nan),
    (math.inf, "float8_e4m3fn", None),
    (70000, "float16", None),
    (1e300, "complex64", None),
    (2.5, "complex64", 2.5),
]


@pytest.mark.parametrize(("value", "dtype", "becomes"), CONSTANTS)
@pytest.mark.parametrize("rule", ["init", "pad"])
def test_constants_are_what_they_say(rule: str, value: float, dtype: str, becomes: float | None) -> None:
    """A value that the dtype does not have is refused before anything is read, never wrapped or cut."""
    expected = {"out": np.zeros(3, np.dtype(dtype))}
    if rule == "init":
        tree, rules = {}, [{"init": "out", "value": value}]
    else:
        tree, rules = {"out": np.zeros(1, np.dtype(dtype))}, [{"pad": "out", "length": 3, "fill": value}]
    if becomes is None:
        with pytest.raises(MappingError, match="has no value"):
            mapped(tree, rules, expected)
        return
    (found,) = mapped(tree, rules, expected).matches
    last = found.array.reader.read(Box((2,), (3,)))[0]
    assert np.asarray(last).tobytes() == np.asarray(becomes).astype(np.dtype(dtype)).tobytes()
    # as it travels through the manifest, for a later comparison with the source
    (parsed,) = (RULE.validate_python(r) for r in rules)
    again = RULE.validate_python(json.loads(json.dumps(parsed.model_dump(mode="json", exclude_unset=True))))
    assert repr(again) == repr(parsed)
