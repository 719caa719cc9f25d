"""How an array lies in an export: shape, chunks, dimension order, codecs, and its Zarr v3 document. Pure."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from migrate.box import Grid
from migrate.errors import UnsupportedLeafError
from migrate.layout import dtype_bits, xla_dtype

# Zarr v3 data types that TensorStore writes (its zarr3 driver's documentation), with their zero as Zarr v3 writes it.
_FILL_VALUES: dict[str, bool | int | float | list[float]] = {
    "bool": False,
    **dict.fromkeys(["int2", "int4", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"], 0),
    **dict.fromkeys(["float16", "bfloat16", "float32", "float64"], 0.0),
    **dict.fromkeys(
        ["float8_e3m4", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e5m2", "float8_e5m2fnuz"], 0.0
    ),
    "float4_e2m1fn": 0.0,
    "float8_e8m0fnu": 1.0,  # it has no zero
    "complex64": [0.0, 0.0],
    "complex128": [0.0, 0.0],
}
Tree = Literal["params", "carried"]
"""Which tree of an export an array belongs to: the program's parameters, or leaves that are kept beside them."""

STORABLE_DTYPES = tuple(_FILL_VALUES)
"""The dtypes that TensorStore writes as Zarr v3; without uint2, uint4 and float8_e4m3."""
TREES: tuple[Tree, ...] = get_args(Tree)

ZARR_METADATA_KEY = "zarr.json"
_ZSTD_LEVEL = 1


@dataclass(frozen=True, slots=True)
class StoredArray:
    """How an array lies in an export."""

    storage_name: str
    """Key prefix in the database."""
    shape: tuple[int, ...]
    """Logical shape."""
    dtype: str
    """NumPy or ml_dtypes name."""
    chunk_shape: tuple[int, ...]
    """Shape of a chunk."""
    major_to_minor: tuple[int, ...]
    """Dimension order of the stored bytes."""
    compression: str
    """``none`` or ``zstd``."""

    def __post_init__(self) -> None:
        if self.dtype not in _FILL_VALUES:
            raise UnsupportedLeafError(
                f"dtype {self.dtype} cannot be stored in Zarr v3 by TensorStore",
                where=self.storage_name,
                expected=", ".join(_FILL_VALUES),
                remedy="drop the leaf, or store it as another dtype in the checkpoint and the model",
            )

    @property
    def item_bytes(self) -> int:
        """Stored bytes of one element; sub-byte ones take a whole byte."""
        return max(8, dtype_bits(xla_dtype(self.dtype))) // 8

    @property
    def nbytes(self) -> int:
        """Logical bytes of the array."""
        return math.prod(self.shape) * self.item_bytes

    @property
    def grid(self) -> Grid:
        """The stored chunks."""
        return Grid(self.shape, self.chunk_shape)

    def zarr_metadata(self) -> dict[str, Any]:
        """The ``zarr.json`` document (Zarr v3 core specification, with TensorStore's extra data types)."""
        codecs: list[dict[str, Any]] = [
            {"name": "transpose", "configuration": {"order": list(self.major_to_minor)}},
            {"name": "bytes", "configuration": {"endian": "little"}},
        ]
        if self.compression == "zstd":
            codecs.append({"name": "zstd", "configuration": {"level": _ZSTD_LEVEL, "checksum": False}})
        codecs.append({"name": "crc32c"})
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": self.dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(self.chunk_shape)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": _FILL_VALUES[self.dtype],
            "codecs": codecs,
            "attributes": {},
        }

    def chunk_keys(self) -> Iterator[str]:
        """Key of each chunk below the array's prefix, in C order of the grid (``default`` chunk key encoding)."""
        return map(self.chunk_key, self.grid.indices())

    def chunk_key(self, index: tuple[int, ...]) -> str:
        """Key below the array's prefix of the chunk with grid coordinates ``index``."""
        return "/".join(["c", *map(str, index)])

    def zarr_json(self) -> bytes:
        """:meth:`zarr_metadata` as the bytes that are stored."""
        return json.dumps(self.zarr_metadata(), sort_keys=True).encode()


def array_digest(chunk_digests: Sequence[str]) -> str:
    """Hex SHA-256 of the chunk digests of an array, in C order of the chunk grid."""
    return hashlib.sha256("".join(chunk_digests).encode()).hexdigest()
