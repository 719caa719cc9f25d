"""Metadata documents, against TensorStore as the oracle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts

from migrate.errors import UnsupportedLeafError
from migrate.sources import zarr_documents
from migrate.sources.dtypes import logical_dtype
from migrate.sources.readers import absent_chunks
from migrate.sources.zarr_documents import Driver, Fetched

SHARDED = [
    {"name": "transpose", "configuration": {"order": [2, 0, 1]}},
    {
        "name": "sharding_indexed",
        "configuration": {"chunk_shape": [1, 2, 3], "codecs": [{"name": "bytes"}]},
    },
]
CASES: list[tuple[str, dict[str, Any]]] = [
    ("zarr", {"shape": [5, 7], "chunks": [2, 7], "dtype": "<f4"}),
    ("zarr", {"shape": [5, 7], "chunks": [2, 3], "dtype": ">i2", "dimension_separator": "/"}),
    ("zarr", {"shape": [], "chunks": [], "dtype": "|b1"}),
    ("zarr", {"shape": [0, 4], "chunks": [1, 4], "dtype": "bfloat16"}),
    ("zarr3", {"shape": [5, 7], "data_type": "int4"}),
    ("zarr3", {"shape": [], "data_type": "complex64"}),
    ("zarr3", {"shape": [6, 4, 5], "data_type": "uint8", "codecs": SHARDED}),
    ("zarr3", {"shape": [5], "data_type": "float64", "chunk_key_encoding": {"name": "v2"}}),
    (
        "zarr3",
        {
            "shape": [5],
            "data_type": "float8_e5m2",
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        },
    ),
]


@pytest.mark.parametrize(("driver", "metadata"), CASES)
def test_documents_say_what_tensorstore_says(tmp_path: Path, driver: Any, metadata: dict[str, Any]) -> None:
    spec = {"driver": driver, "kvstore": f"file://{tmp_path}/", "metadata": metadata}
    array = ts.open(spec, create=True).result()
    text = (tmp_path / zarr_documents.DOCUMENTS[driver]).read_bytes()
    document = zarr_documents.parse(Fetched(driver, text), "w")
    assert document.shape == array.shape
    assert document.dtype == array.dtype.numpy_dtype
    assert document.chunk_shape == tuple(max(extent, 1) for extent in array.chunk_layout.read_chunk.shape or ())
    assert document.stored_chunk_shape == tuple(max(extent, 1) for extent in array.chunk_layout.write_chunk.shape or ())
    absent, total = absent_chunks(json.loads(json.dumps(array.spec().to_json())))
    assert len(absent) == total
    array.with_transaction(None).write(np.ones(array.shape, array.dtype.numpy_dtype)).result()
    assert absent_chunks(json.loads(json.dumps(array.spec().to_json())))[0] == []
    assert set(document.chunk_keys()) == {
        str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file() and path.name[0] not in ".z"
    }


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "int4", "uint2", "float4_e2m1fn", "bool", "complex64"])
def test_names_of_dtypes(name: str) -> None:
    dtype = logical_dtype(name)
    assert dtype is not None
    assert dtype.name == name


@pytest.mark.parametrize("name", ["object", "O", "U8", "V4", "datetime64[s]", "float", "nonsense", "finfo"])
def test_what_is_no_number_is_none(name: str) -> None:
    dtype = logical_dtype(name)
    assert dtype is None or dtype.kind in "biufc"


@pytest.mark.parametrize("driver", ["zarr", "zarr3"])
def test_dtypes_that_tensorstore_does_not_read_are_refused(driver: Driver, tmp_path: Path) -> None:
    """Every dtype that a document may name opens in TensorStore, or is refused when the checkpoint is opened."""
    names = {name for name in dir(ml_dtypes) if logical_dtype(name) is not None}
    assert names > zarr_documents.NOT_IN_ZARR
    for name in names - {"finfo", "iinfo"}:
        spec = {"driver": driver, "kvstore": {"driver": "memory"}}
        try:
            ts.open(spec, create=True, dtype=name, shape=[2]).result()
        except (ValueError, TypeError):
            assert name in zarr_documents.NOT_IN_ZARR
        else:
            assert name not in zarr_documents.NOT_IN_ZARR
    document = b'{"chunks": [2], "dtype": "uint4", "shape": [2], "zarr_format": 2}'
    with pytest.raises(UnsupportedLeafError, match="'uint4'"):
        zarr_documents.parse(Fetched("zarr", document), "w")
