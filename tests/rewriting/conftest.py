"""A run on real storage, without Beam: a checkpoint, and the steps up to its committed export."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts

from migrate import commit, mapping, orbax_metadata, planner, rewrite, sources, verify
from migrate.export import Export, Paths
from migrate.manifest import ArrayRecord, ProgramRecord, SourceRecord
from migrate.receipt import Destination, Receipt
from migrate.signature import DeviceMemory, Fingerprint, ParameterSpec, Signature
from migrate.sources import SourceCheckpoint
from migrate.zarr import StoredArray

FINGERPRINT = Fingerprint(
    stablehlo_sha256="ab" * 32,
    topology="v5e:2x2",
    mesh=(("data", 1), ("model", 4)),
    jax="0.10.2",
    jaxlib="0.10.2",
    libtpu="0.0.42.1",
    flags=(("xla_tpu_scoped_vmem_limit_kib", "65536"),),
    layout_policy="auto",
)


def parameter(
    path: tuple[str, ...],
    shape: tuple[int, ...],
    dtype: str = "float32",
    *,
    shard_shape: tuple[int, ...] | None = None,
    order: tuple[int, ...] | None = None,
    number: int = 0,
) -> ParameterSpec:
    """What an executable expects; unsharded and row-major where nothing else is said."""
    shard = shape if shard_shape is None else shard_shape
    return ParameterSpec(
        number=number,
        argument="params",
        path=path,
        sequence_levels=(False,) * len(path),
        shape=shape,
        dtype=dtype,
        partition=tuple(() if a == b else ("model",) for a, b in zip(shape, shard, strict=True)),
        shard_shape=shard,
        major_to_minor=tuple(range(len(shape))) if order is None else order,
        tiles=((8, 128),) if len(shape) > 1 else (),
        is_weight=True,
    )


def random_array(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Elements of any dtype, zeros among them, whose bytes survive a round trip."""
    values = np.random.default_rng(seed).integers(-7, 8, shape)
    with np.errstate(all="ignore"):
        if dtype.startswith("complex"):
            return np.asarray(values + 1j * values[::-1] if values.ndim else values).astype(dtype)
        if dtype.startswith("uint"):
            values = abs(values)
        return np.asarray(values).astype(np.dtype(dtype))


def write_checkpoint(
    directory: Path, arrays: Mapping[tuple[str, ...], np.ndarray], chunks: Mapping[tuple[str, ...], tuple[int, ...]]
) -> SourceCheckpoint:
    """An Orbax checkpoint (Zarr v3 in OCDBT) in C order, cut as ``chunks`` says or not at all."""
    records = []
    for path, array in arrays.items():
        shape = tuple(max(1, extent) for extent in array.shape)
        stored = StoredArray(
            ".".join(path), array.shape, array.dtype.name, chunks.get(path, shape), tuple(range(array.ndim)), "none"
        )
        database = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{directory}/"}}
        spec = {
            "driver": "zarr3",
            "kvstore": {**database, "path": stored.storage_name + "/"},
            "metadata": stored.zarr_metadata(),
            "store_data_equal_to_fill_value": True,
        }
        ts.open(spec, create=True, delete_existing=True).result().write(array).result()
        records.append(ArrayRecord("params", path, (False,) * len(path), stored, "", ()))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / orbax_metadata.TREE_METADATA_KEY).write_bytes(orbax_metadata.tree_metadata(records))
    return sources.open_checkpoint(str(directory))


@dataclass(frozen=True)
class Run:
    """A planned job and where it writes."""

    checkpoint: SourceCheckpoint
    plan: planner.Plan
    paths: Paths

    @property
    def destination(self) -> Destination:
        set_id = self.plan.parameter_set
        return Destination(self.paths.parameters(set_id), self.paths.carried(set_id), self.paths.run(set_id))

    @property
    def request(self) -> commit.CommitRequest:
        source = self.checkpoint
        return commit.CommitRequest(
            output=self.paths.output,
            export_id="e0" + self.plan.parameter_set[:14],
            plan=self.plan,
            source=SourceRecord(source.uri, source.format, source.version, source.identity, source.step, source.item),
            programs=(ProgramRecord("main", "model:step", FINGERPRINT, {}),),
            tools={"reexport": "0.1.0"},
            timings={"plan": 0.5},
            rewrite_began=time.time(),
        )

    def do(self, item: planner.Item) -> Receipt:
        """Rewrite and verify one item."""
        return verify.verify_item(item, rewrite.rewrite_item(item, self.destination), self.destination)

    def commit(self) -> Export:
        return commit.commit(self.request, self.destination)


def make_run(
    directory: Path,
    arrays: Mapping[tuple[str, ...], np.ndarray],
    *,
    source_chunks: Mapping[tuple[str, ...], tuple[int, ...]] | None = None,
    shards: Mapping[tuple[str, ...], tuple[int, ...]] | None = None,
    orders: Mapping[tuple[str, ...], tuple[int, ...]] | None = None,
    max_item_bytes: int = 1 << 20,
    max_chunk_bytes: int = 1 << 20,
    compression: str = "none",
) -> Run:
    """A checkpoint that holds ``arrays``, and the plan that rewrites them for the given shards and dimension orders."""
    checkpoint = write_checkpoint(directory / "checkpoint", arrays, source_chunks or {})
    shards, orders = shards or {}, orders or {}
    parameters = [
        parameter(
            path, array.shape, array.dtype.name, shard_shape=shards.get(path), order=orders.get(path), number=number
        )
        for number, (path, array) in enumerate(arrays.items())
    ]
    plan = planner.make_plan(
        mapping.match(checkpoint.leaves, parameters),
        source_identity=checkpoint.identity,
        max_item_bytes=max_item_bytes,
        max_chunk_bytes=max_chunk_bytes,
        compression=compression,
    )
    return Run(checkpoint, plan, Paths(str(directory / "output")))


def crc32c(data: bytes) -> bytes:
    """CRC-32C (Castagnoli), little-endian, bit by bit: independent of the code under test."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return (crc ^ 0xFFFFFFFF).to_bytes(4, "little")


@pytest.fixture
def new_process() -> Iterator[Callable[[str], None]]:
    """Makes this process write under another writer name, as the next run of a job would."""
    original = rewrite.writer_id

    def become(name: str) -> None:
        rewrite.writer_id = lambda: name

    yield become
    rewrite.writer_id = original


@pytest.fixture
def two_arrays(tmp_path: Path) -> Run:
    """A sharded, transposed matrix in many chunks and items, and a bias; OCDBT would inline values below 100 bytes."""
    arrays = {
        ("layer", "kernel"): random_array((40, 12), "bfloat16"),
        ("layer", "bias"): random_array((60,), "float32"),
    }
    return make_run(
        tmp_path,
        arrays,
        source_chunks={("layer", "kernel"): (15, 5)},
        shards={("layer", "kernel"): (40, 3)},
        orders={("layer", "kernel"): (1, 0)},
        max_item_bytes=240,
    )


@pytest.fixture
def signature() -> Signature:
    """Of one sharded parameter."""
    table = replace(parameter(("embed", "table"), (16, 8), shard_shape=(16, 2)), dtype="bfloat16")
    memory = DeviceMemory(table.device_bytes, 64, 2048, 4096)
    return Signature(program="main", parameters=(table,), fingerprint=FINGERPRINT, memory=memory)


def database_of(run: Run, writer: str) -> Any:
    """The OCDBT database that a writer of ``run`` filled, for damaging it."""
    base = f"{run.destination.parameters_uri}/ocdbt.process_{writer}/"
    return ts.KvStore.open({"driver": "ocdbt", "base": {"driver": "file", "path": base}}).result()
