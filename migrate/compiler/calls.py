"""What a caller gives an executable, against what it expects: jax's own words name neither argument nor shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from migrate.signature import ParameterSpec


def checked(argument: Any, numbers: Any, parameters: Sequence[ParameterSpec]) -> Any:
    """``argument`` with every leaf in the program's dtype; ``numbers`` are its HLO parameter numbers, as a tree.

    Numbers of another width are taken if none is lost. Raises TypeError that names the argument and what it should be,
    for another tree, shape or kind of dtype, or for whole numbers that do not fit.
    """
    expected, found = jax.tree.structure(numbers), jax.tree.structure(argument)
    if str(expected) != str(found):
        names = sorted({parameters[number].argument for number in jax.tree.leaves(numbers)})
        raise TypeError(f"argument {', '.join(names)}: expected the tree {expected}, got {found}")
    return jax.tree.map(lambda number, leaf: _as_expected(leaf, parameters[number]), numbers, argument)


def _as_expected(leaf: Any, parameter: ParameterSpec) -> Any:
    shape, dtype = np.shape(leaf), np.dtype(parameter.dtype)
    found = np.dtype(leaf.dtype) if hasattr(leaf, "dtype") else None
    if shape == parameter.shape and found == dtype:
        return leaf
    name = "/".join((parameter.argument, *parameter.path))
    if shape == parameter.shape and (found is None or found.kind == dtype.kind):
        with np.errstate(over="ignore"):
            cast = np.asarray(leaf).astype(dtype)
        if dtype.kind == "f" or np.array_equal(cast, np.asarray(leaf)):
            return cast
        raise TypeError(f"argument {name}: there are values that do not fit into {parameter.dtype}")
    got = f"{found or type(leaf).__name__}{list(shape)}"
    raise TypeError(f"argument {name}: expected {parameter.dtype}{list(parameter.shape)}, got {got}")
