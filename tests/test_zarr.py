"""How an array lies in an export; TensorStore is the oracle of the document."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st

from migrate.errors import UnsupportedLeafError
from migrate.zarr import ZARR_METADATA_KEY, StoredArray, array_digest

STORABLE = [
    "bool",
    "int2",
    "int4",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "float8_e3m4",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e4m3b11fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn",
    "complex64",
    "complex128",
]


def stored(dtype: str = "float32", compression: str = "none") -> StoredArray:
    return StoredArray("a.b", (5, 4), dtype, (5, 2), (1, 0), compression)


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("dtype", STORABLE)
def test_tensorstore_takes_the_document_and_keeps_every_byte(dtype: str, compression: str, tmp_path: Path) -> None:
    array = stored(dtype, compression)
    (tmp_path / ZARR_METADATA_KEY).write_bytes(array.zarr_json())
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{tmp_path}/"}}
    store = ts.open(spec, open=True).result()
    # bits of every element set somewhere; some dtypes hold fewer
    raw = np.arange(20 * array.item_bytes, dtype=np.uint8) % {"bool": 2, "int2": 2, "int4": 8, "float4_e2m1fn": 16}.get(
        dtype, 127
    )
    given_ = raw.view(np.dtype(dtype)).reshape(5, 4)
    store.write(given_).result()
    assert store.shape == (5, 4)
    assert store.chunk_layout.write_chunk.shape == (5, 2)
    assert store.dtype.name == dtype
    assert store.read().result().tobytes() == given_.tobytes()


@pytest.mark.parametrize("dtype", STORABLE)
def test_item_bytes_are_numpys(dtype: str) -> None:
    assert stored(dtype).item_bytes == np.dtype(dtype).itemsize
    assert stored(dtype).nbytes == 20 * np.dtype(dtype).itemsize


UNSTORABLE = [
    "uint4",  # TensorStore has the signed one only
    "uint2",
    "float8_e4m3",  # differs from float8_e4m3fn, which is fine
    "object",  # no number at all
]


@pytest.mark.parametrize("dtype", UNSTORABLE)
def test_other_dtypes_are_refused_by_name(dtype: str) -> None:
    with pytest.raises(UnsupportedLeafError, match=dtype) as caught:
        stored(dtype)
    assert caught.value.where == "a.b"
    assert "bfloat16" in caught.value.expected


def test_every_ml_dtype_is_either_stored_or_refused() -> None:
    """A type that a new ml_dtypes brings must not slip through as something else."""
    names = [name for name in dir(ml_dtypes) if isinstance(getattr(ml_dtypes, name), type)]
    for name in names:
        if name not in STORABLE and name not in {"finfo", "iinfo"}:
            with pytest.raises(UnsupportedLeafError):
                stored(name)


KEYS = [
    ((), (), ["c"]),  # a scalar's only chunk has no coordinates
    ((3,), (2,), ["c/0", "c/1"]),  # ragged end
    ((2, 2), (1, 2), ["c/0/0", "c/1/0"]),  # C order of the grid
    ((0, 3), (1, 3), []),  # no elements, no chunks
]


@pytest.mark.parametrize(("shape", "chunk_shape", "keys"), KEYS)
def test_chunk_keys(shape: tuple[int, ...], chunk_shape: tuple[int, ...], keys: list[str]) -> None:
    array = StoredArray("a", shape, "float32", chunk_shape, tuple(range(len(shape))), "none")
    assert list(array.chunk_keys()) == keys


def test_document_holds_the_dimension_order_and_checksum_last() -> None:
    codecs = json.loads(stored(compression="zstd").zarr_json())["codecs"]
    assert [codec["name"] for codec in codecs] == ["transpose", "bytes", "zstd", "crc32c"]
    assert codecs[0]["configuration"]["order"] == [1, 0]


def test_equal_arrays_have_equal_documents() -> None:
    assert stored().zarr_json() == stored().zarr_json()
    assert stored().zarr_json() != stored(compression="zstd").zarr_json()


@given(st.lists(st.binary(max_size=8).map(lambda data: hashlib.sha256(data).hexdigest()), max_size=5))
def test_array_digest_depends_on_every_chunk_and_its_place(digests: list[str]) -> None:
    whole = array_digest(digests)
    assert whole == hashlib.sha256("".join(digests).encode()).hexdigest()
    assert array_digest([*digests, "0" * 64]) != whole
    if digests != digests[::-1]:
        assert array_digest(digests[::-1]) != whole
