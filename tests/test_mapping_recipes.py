"""The recipes of docs/mapping.md do what they say: each is applied to arrays and compared with the same in NumPy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import yaml
from pydantic import TypeAdapter

from migrate.box import Box
from migrate.mapping import match
from migrate.rules import Rule
from migrate.signature import ParameterSpec
from migrate.sources.base import Leaf

Tree = dict[str, np.ndarray]
RULES: TypeAdapter[Any] = TypeAdapter(tuple[Rule, ...])


class InMemory:
    """A leaf's reader."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def read(self, box: Box, *, storage_order: tuple[int, ...] | None = None) -> np.ndarray:
        part = self._array[box.slices]
        return np.array(part if storage_order is None else part.transpose(storage_order), order="C")

    def to_json(self) -> dict[str, object]:
        return {}


def recipes(repository: Path) -> list[dict[str, Any]]:
    text = (repository / "docs" / "mapping.md").read_text()
    return [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]


def apply(recipe: dict[str, Any], tree: Tree, expected: Tree) -> Tree:
    leaves = [Leaf(tuple(name.split("/")), a.shape, a.dtype, InMemory(a), a.shape) for name, a in tree.items()]
    parameters = [
        ParameterSpec(
            number,
            "params",
            tuple(name.split("/")),
            (),
            array.shape,
            array.dtype.name,
            ((),) * array.ndim,
            array.shape,
            tuple(range(array.ndim)),
            (),
            0,
            "device",
            is_weight=True,
        )
        for number, (name, array) in enumerate(expected.items())
    ]
    source = recipe.get("source", {})
    outcome = match(
        leaves,
        parameters,
        select=source.get("select"),
        carry=source.get("carry", False),
        rules=RULES.validate_python(recipe.get("mapping", ())),
    )
    assert not outcome.idle_rules
    return {found.parameter.name: found.array.reader.read(Box.whole(found.array.shape)) for found in outcome.matches}


def numbers(*shape: int, start: int = 0, dtype: Any = np.int16) -> np.ndarray:
    return (np.arange(int(np.prod(shape))) + start).astype(dtype).reshape(shape)


LAYERS = [numbers(3, 2, start=100 * layer) for layer in range(12)]
WIDE = numbers(12, 768, 768)
QKV = [numbers(12, 768, 768, start=start) for start in (0, 3, 7)]
TABLE = numbers(50_257, 3)
PADDED = np.concatenate([TABLE, np.zeros((47, 3), np.int16)])
KERNEL = numbers(4, 4, dtype=np.float32)

CASES: list[tuple[Tree, Tree]] = [
    ({f"layers_{layer}/w": array for layer, array in enumerate(LAYERS)}, {"layers/w": np.stack(LAYERS)}),
    ({"layers/w": np.stack(LAYERS)}, {f"layers_{layer}/w": array for layer, array in enumerate(LAYERS)}),
    ({"model.layers.3.mlp.up.weight": LAYERS[0]}, {"layers/3/mlp.up/kernel": LAYERS[0].T}),
    (
        {"layers/attention/key": WIDE, "layers/attention/out": WIDE.reshape(12, 12, 64, 768)},
        {"layers/attention/key": WIDE.reshape(12, 768, 12, 64), "layers/attention/out": WIDE},
    ),
    (
        {"layers/qkv": np.concatenate(QKV, axis=2)},
        dict(zip(("layers/query", "layers/key", "layers/value"), QKV, strict=True)),
    ),
    (
        dict(zip(("layers/query", "layers/key", "layers/value"), QKV, strict=True)),
        {"layers/qkv": np.concatenate(QKV, axis=2)},
    ),
    ({"embed/table": TABLE}, {"embed/table": PADDED, "head/kernel": PADDED.T}),
    (
        {"params/mlp/kernel": KERNEL + 1, "ema/mlp/kernel": KERNEL, "step": numbers()},
        {"mlp/kernel": KERNEL.astype(ml_dtypes.bfloat16)},
    ),
    ({"mlp/kernel": KERNEL}, {"mlp/kernel": KERNEL, "mlp/adapter/scale": np.ones(4, np.float32)}),
    ({"params/mlp/kernel": KERNEL, "opt/mu": KERNEL}, {"mlp/kernel": KERNEL}),
]


def test_every_recipe_has_a_case(repository: Path) -> None:
    assert len(recipes(repository)) == len(CASES)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_recipe(repository: Path, number: int) -> None:
    tree, expected = CASES[number]
    found = apply(recipes(repository)[number], tree, expected)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array, err_msg=name)
