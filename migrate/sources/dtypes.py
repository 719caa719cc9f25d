"""Names that checkpoint formats give to dtypes, as NumPy dtypes."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np

_PLATFORM_DEPENDENT = "gG"  # long double, whose bytes differ between machines
_EXTENDED = re.compile(r"(bfloat|float|int|uint)\d+[a-z0-9_]*")


def logical_dtype(name: str) -> np.dtype[np.generic] | None:
    """The native-endian dtype called ``name``, or None for one that cannot be carried.

    Takes NumPy names (``float32``), zarr v2 codes (``<f4``) and ml_dtypes names (``bfloat16``, ``int4``).

    >>> logical_dtype("<f4"), logical_dtype("bfloat16"), logical_dtype("object")
    (dtype('float32'), dtype(bfloat16), None)
    """
    if _EXTENDED.fullmatch(name) and hasattr(ml_dtypes, name):
        extended: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, name))
        return extended
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError):
        return None
    native: np.dtype[np.generic] = dtype.newbyteorder("=")
    return native if dtype.kind in "biufc" and dtype.char not in _PLATFORM_DEPENDENT else None


def dtype_named(name: str) -> np.dtype[np.generic]:
    """The dtype called ``name``, which :func:`logical_dtype` knows; raises ValueError otherwise."""
    dtype = logical_dtype(name)
    if dtype is None:
        raise ValueError(f"no dtype is called {name!r}")
    return dtype
