"""Arrays of another dtype: what is allowed, and what a value that does not fit becomes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np

from migrate.box import Box
from migrate.errors import CastOverflowError
from migrate.sources.base import ArrayReader

Overflow = Literal["error", "saturate", "round"]


@dataclass(frozen=True, slots=True)
class CastView:
    """``inner`` as ``dtype``, rounded to nearest; ``overflow`` says what a value beyond the dtype's range becomes."""

    inner: ArrayReader
    dtype: np.dtype[Any]
    overflow: Overflow
    name: str
    """The array's name, for messages."""

    def read(self, box: Box, *, storage_order: tuple[int, ...] | None = None) -> np.ndarray:
        """The elements of ``box``. Raises :class:`CastOverflowError` if one does not fit and that is an error."""
        values = self.inner.read(box, storage_order=storage_order)
        if self.overflow == "saturate":
            values = saturated(values, self.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            cast = values.astype(self.dtype)
        if self.overflow == "error" and (count := int(np.count_nonzero(_overflowed(values, cast)))):
            raise CastOverflowError(
                f"{count:,} of {values.size:,} elements do not fit into {self.dtype.name}",
                where=f"{self.name} {box}",
                expected=f"values within {_limits(self.dtype)[0]} to {_limits(self.dtype)[1]}",
                found=f"{values.dtype.name} values of magnitude up to {_magnitude(values)}",
                remedy="say overflow: saturate or overflow: round in the cast rule, or cast to a wider dtype",
            )
        return cast

    def to_json(self) -> dict[str, object]:
        """The view's description."""
        return {"view": "cast", "dtype": self.dtype.name, "overflow": self.overflow, "of": self.inner.to_json()}


def _kind(dtype: np.dtype[Any]) -> str:
    """``bool``, ``integer``, ``float`` or ``complex``; ml_dtypes hide theirs behind NumPy's kind V."""
    if dtype.kind in "biufc":
        return {"b": "bool", "i": "integer", "u": "integer", "f": "float", "c": "complex"}[dtype.kind]
    return "integer" if dtype.name.startswith(("int", "uint")) else "float"


def cast_problem(source: np.dtype[Any], target: np.dtype[Any], overflow: Overflow) -> str | None:
    """Why a cast from ``source`` to ``target`` is refused, or None: what it would lose is more than precision."""
    order = ["bool", "integer", "float", "complex"]
    kinds = _kind(source), _kind(target)
    if order.index(kinds[0]) > order.index(kinds[1]):
        return f"a cast from {source.name} to {target.name} would lose more than precision; do it in the model"
    if kinds == ("integer", "integer") and overflow == "round":
        return "overflow: round has no meaning between integers; say error or saturate"
    return None


def constant(value: float, dtype: np.dtype[Any]) -> np.ndarray:
    """``value`` as a scalar array of ``dtype``: rounded, if that is a float type, else exactly.

    Raises ValueError, in words for the user, for what the dtype does not have: 300 or 0.5 in int8, 1e39 in float32,
    -inf in float8_e4m3fn.
    """
    kind = _kind(dtype)
    if kind in {"bool", "integer"}:
        low, high = _limits(dtype)
        if not math.isfinite(value) or value != int(value) or not low <= int(value) <= high:
            raise ValueError(f"{dtype.name} has no value {value!r}; it holds whole numbers from {low} to {high}")
        return np.asarray(int(value)).astype(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        made = np.asarray(value).astype(dtype)
    back = complex(made).real if kind == "complex" else float(made)
    if math.isnan(back) != math.isnan(value) or math.isinf(back) != math.isinf(value):
        raise ValueError(
            f"{dtype.name} has no value {value!r}; it reaches from {_limits(dtype)[0]} to {_limits(dtype)[1]}"
        )
    return made


def _limits(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    kind = _kind(dtype)
    if kind == "bool":
        return 0, 1
    if kind == "complex":
        dtype = np.dtype(f"float{dtype.itemsize * 4}")
    info: Any = ml_dtypes.iinfo(dtype) if kind == "integer" else ml_dtypes.finfo(dtype)
    return info.min, info.max


def saturated(values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """``values`` with finite ones clipped to the finite range of ``dtype``; nothing is done where all fits."""
    kinds = _kind(values.dtype), _kind(dtype)
    if kinds[0] == "bool" or kinds[1] == "complex":
        return values
    low, high = (float(limit) if kinds[1] == "float" else int(limit) for limit in _limits(dtype))
    own_low, own_high = (float(limit) if kinds[0] == "float" else int(limit) for limit in _limits(values.dtype))
    if own_low >= low and own_high <= high:
        return values
    # limits that the values' own dtype cannot hold would not bound them
    bounds = [_toward_zero(limit, values.dtype) for limit in (max(low, own_low), min(high, own_high))]
    clipped: np.ndarray = np.clip(values, *bounds)
    if kinds[0] == "float":
        clipped = np.where(np.isfinite(values), clipped, values)
    return clipped


def _toward_zero(limit: float, dtype: np.dtype[Any]) -> np.ndarray:
    """The value of ``dtype`` next to ``limit`` that is not beyond it: 65504 in bfloat16 would round up to 65536."""
    value = np.asarray(limit).astype(dtype)
    if _kind(dtype) == "float" and abs(float(value)) > abs(limit):
        value = np.nextafter(value, np.zeros_like(value))
    return value


def _overflowed(values: np.ndarray, cast: np.ndarray) -> np.ndarray:
    if _kind(values.dtype) == "bool":
        return np.zeros(values.shape, bool)
    if _kind(cast.dtype) == "integer":
        low, high = _limits(cast.dtype)
        # sub-byte integers compare with small Python numbers only
        wide = values if values.dtype == np.uint64 else values.astype(np.int64)
        beyond: np.ndarray = (wide < low) | (wide > high)
    else:
        beyond = np.isfinite(values) & ~np.isfinite(cast)
    return beyond


def _magnitude(values: np.ndarray) -> Any:
    finite = np.abs(values[np.isfinite(values)].astype(np.complex128 if values.dtype.kind == "c" else np.float64))
    return finite.max() if finite.size else 0
