"""A flipped bit in a chunk: noticed where the codec has a checksum, unnoticed elsewhere; docs/formats.md says which."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts

from migrate.errors import CorruptCheckpointError
from migrate.sources import open_checkpoint

FLIPS = 12
SHAPE = [128, 128]
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}


def zarr3(*codecs: dict[str, Any]) -> dict[str, Any]:
    return {"codecs": [BYTES, *codecs]}


def zstd(*, checksum: bool) -> dict[str, Any]:
    return {"name": "zstd", "configuration": {"level": 1, "checksum": checksum}}


CODECS: list[tuple[str, dict[str, Any], bool, bool]] = [
    # driver, metadata, in a database, whether flips are noticed
    ("zarr", {"compressor": None}, False, False),
    ("zarr", {"compressor": {"id": "zstd", "level": 1}}, False, False),  # Orbax and jax since 0.2.7 of Orbax
    ("zarr", {"compressor": {"id": "zstd", "level": 1}}, True, False),  # a database checks its nodes, not values
    ("zarr", {"compressor": {"id": "blosc"}}, False, False),  # TensorStore's own default
    ("zarr", {"compressor": {"id": "gzip", "level": 1}}, False, True),  # T5X, and some arrays of Orbax 0.1
    ("zarr", {"compressor": {"id": "zlib", "level": 1}}, False, True),
    ("zarr3", zarr3(), False, False),
    ("zarr3", zarr3(zstd(checksum=False)), False, False),  # Orbax
    ("zarr3", zarr3(zstd(checksum=False)), True, False),
    ("zarr3", zarr3(zstd(checksum=True)), False, True),
    ("zarr3", zarr3({"name": "gzip", "configuration": {"level": 1}}), False, True),
    ("zarr3", zarr3({"name": "crc32c"}), False, True),  # what this project writes
]


@pytest.mark.parametrize(("driver", "metadata", "ocdbt", "noticed"), CODECS)
def test_flipped_bits(tmp_path: Path, driver: str, metadata: dict[str, Any], ocdbt: bool, noticed: bool) -> None:
    values = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    base = {"driver": "file", "path": f"{tmp_path}/"}
    kvstore = {"driver": "ocdbt", "base": base, "path": "w/"} if ocdbt else {**base, "path": f"{tmp_path}/w/"}
    spec = {"driver": driver, "kvstore": kvstore, "metadata": metadata}
    ts.open(spec, create=True, dtype=ts.float32, shape=SHAPE).result().write(values).result()
    chunk = max((path for path in tmp_path.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    good = chunk.read_bytes()
    generator = random.Random(7)
    refused = changed = 0
    for _ in range(FLIPS):
        bit = generator.randrange(1000, 8 * len(good) - 1000)  # past what the codec itself interprets
        content = bytearray(good)
        content[bit // 8] ^= 1 << bit % 8
        chunk.write_bytes(content)
        try:
            changed += open_checkpoint(str(tmp_path)).leaf("w").read().tobytes() != values.tobytes()
        except CorruptCheckpointError:
            refused += 1
    assert refused + changed == FLIPS
    assert refused == FLIPS if noticed else refused < FLIPS // 4
