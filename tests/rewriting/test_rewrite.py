"""One item: the bytes that end up on storage, and what verification notices."""

from __future__ import annotations

import dataclasses
import itertools
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorstore as ts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from migrate import arrays, receipt, rewrite, storage, verify
from migrate.box import Box
from migrate.errors import CorruptCheckpointError, RewriteVerificationError, StorageError
from migrate.zarr import StoredArray

from .conftest import Run, crc32c, database_of, make_run, random_array

DTYPES = {
    # name: why it is here
    "float32": "the plain case",
    "bfloat16": "an ml_dtypes type, the usual one of a checkpoint",
    "int4": "a byte an element on disk, although the type has four bits",
    "bool": "not a number",
    "float8_e4m3fn": "no zero-cost NumPy operations",
    "complex64": "its fill value is a pair of numbers",
    "int64": "wider than the rest",
}


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """An array, how it is cut in the source, its shards, its dimension order, and bounds small enough to matter."""
    # rank 0 has a single chunk with the key "c"; an extent of 0 has none at all
    shape = tuple(draw(st.lists(st.integers(0, 7), max_size=3)))
    shards = tuple(
        # only sizes that divide evenly: JAX shards no others
        extent // draw(st.sampled_from([n for n in (1, 2, 3) if extent % n == 0]))
        for extent in shape
    )
    return {
        "shape": shape,
        "dtype": draw(st.sampled_from(sorted(DTYPES))),
        "source_chunks": tuple(draw(st.integers(1, max(1, extent))) for extent in shape),
        "shards": shards,
        "order": tuple(draw(st.permutations(range(len(shape))))),
        # below one row, a few chunks, everything
        "max_chunk_bytes": draw(st.sampled_from([16, 40, 10_000])),
        "max_item_bytes": draw(st.sampled_from([16, 100, 10_000])),
    }


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Any]:
    numbers = itertools.count()
    return lambda: tmp_path_factory.mktemp(f"run{next(numbers)}")


@given(case=cases())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_stored_bytes_are_the_chunk_in_the_executables_order(case: dict[str, Any], folders: Callable[[], Any]) -> None:
    array = random_array(case["shape"], case["dtype"])
    run = make_run(
        folders(),
        {("w",): array},
        source_chunks={("w",): case["source_chunks"]},
        shards={("w",): case["shards"]},
        orders={("w",): case["order"]},
        max_item_bytes=case["max_item_bytes"],
        max_chunk_bytes=case["max_chunk_bytes"],
    )
    for item in run.plan.items:
        run.do(item)

    stored = run.plan.arrays[0].stored
    database = arrays.writer_database(run.destination.parameters_uri, rewrite.writer_id())
    found = {key.decode() for key in arrays.open_database(database).list().result()} if run.plan.items else set()
    assert found == {f"w/{key}" for key in stored.chunk_keys()}
    for index, key in zip(stored.grid.indices(), stored.chunk_keys(), strict=True):
        value = arrays.open_database(database).read(f"w/{key}").result().value
        assert bytes(value) == encoded(array, stored, index)


@given(case=cases(), read_bytes=st.sampled_from([1, 16, 64, 300]))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_part_read_in_pieces_is_the_part(case: dict[str, Any], read_bytes: int, folders: Callable[[], Any]) -> None:
    array = random_array(case["shape"], case["dtype"])
    run = make_run(
        folders(),
        {("w",): array},
        source_chunks={("w",): case["source_chunks"]},
        shards={("w",): case["shards"]},
        orders={("w",): case["order"]},
        max_item_bytes=case["max_item_bytes"],
        max_chunk_bytes=case["max_chunk_bytes"],
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rewrite, "_READ_BYTES", read_bytes)
        for part in (part for item in run.plan.items for part in item.parts):
            pieces = list(rewrite._source_pieces(part))
            source_chunk = part.array.source_chunk_bytes
            assert max(piece.size for piece in pieces) * array.itemsize <= max(read_bytes, source_chunk)
            elements = rewrite._elements(part)
            expected = array[part.box.slices].transpose(part.array.stored.major_to_minor)
            assert elements.flags.c_contiguous
            assert (elements.shape, elements.dtype) == (expected.shape, expected.dtype)
            assert elements.tobytes() == expected.tobytes()


def encoded(array: np.ndarray, stored: StoredArray, index: tuple[int, ...]) -> bytes:
    """A chunk as Zarr v3 defines it: padded to its full shape, transposed, little-endian, then the CRC."""
    box = stored.grid.box(index)
    full = np.zeros(stored.chunk_shape, array.dtype)
    full[tuple(slice(0, extent) for extent in box.shape)] = array[box.slices]
    dense = full.transpose(stored.major_to_minor).tobytes()
    assert len(dense) == math.prod(stored.chunk_shape) * array.itemsize
    return dense + crc32c(dense)


def test_zstd_is_applied_below_the_checksum(tmp_path: Any) -> None:
    array = np.zeros((64, 64), np.float32)  # compresses well
    run = make_run(tmp_path, {("w",): array}, compression="zstd")
    run.do(run.plan.items[0])
    value = bytes(database_of(run, rewrite.writer_id()).read("w/c/0/0").result().value)
    assert len(value) < array.nbytes // 10
    assert value[-4:] == crc32c(value[:-4])


def test_doing_an_item_twice_gives_equal_digests_and_bytes(two_arrays: Run, new_process: Callable[[str], None]) -> None:
    digests, databases = [], []
    for name in ("first", "second"):
        new_process(name)
        digests.append([run_item.digests for run_item in map(two_arrays.do, two_arrays.plan.items)])
        database = database_of(two_arrays, name)
        databases.append({key: bytes(database.read(key).result().value) for key in database.list().result()})
    assert digests[0] == digests[1]
    assert databases[0] == databases[1]


def test_a_retry_in_the_same_process_changes_nothing(two_arrays: Run) -> None:
    item = two_arrays.plan.items[0]
    first, second = two_arrays.do(item), two_arrays.do(item)
    assert dataclasses.replace(first, seconds=0) == dataclasses.replace(second, seconds=0)


def test_items_and_receipts_travel_by_pickle(two_arrays: Run) -> None:
    for item in two_arrays.plan.items:
        assert pickle.loads(pickle.dumps(item)) == item
    done = two_arrays.do(pickle.loads(pickle.dumps(two_arrays.plan.items[0])))
    assert pickle.loads(pickle.dumps(done)) == done


def test_zarr_json_is_not_written_by_workers(two_arrays: Run) -> None:
    for item in two_arrays.plan.items:
        two_arrays.do(item)
    keys = database_of(two_arrays, rewrite.writer_id()).list().result()
    assert not [key for key in keys if key.endswith(b"zarr.json")]


def test_receipt_is_durable_only_after_verification(two_arrays: Run) -> None:
    item = two_arrays.plan.items[0]
    written = rewrite.rewrite_item(item, two_arrays.destination)
    assert receipt.load_all(two_arrays.destination, [item.id]) == {}
    verified = verify.verify_item(item, written, two_arrays.destination)
    assert receipt.load_all(two_arrays.destination, [item.id]) == {item.id: verified}


def flip(value: bytes) -> bytes:
    """A bit flip on the medium: the checksum no longer fits."""
    return bytes([value[0] ^ 1]) + value[1:]


def flip_and_checksum(value: bytes) -> bytes:
    """Wrong elements under a right checksum: only our own digest can tell."""
    dense = bytes([value[0] ^ 1]) + value[1:-4]
    return dense + crc32c(dense)


DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "flipped bit": flip,
    "wrong elements, right checksum": flip_and_checksum,
    "absent": lambda value: None,
    "empty": lambda value: b"",
    "cut short": lambda value: value[:-5],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("key", ["layer.kernel/c/0/0", "layer.bias/c/0"])
def test_verification_notices(two_arrays: Run, damage: Callable[[bytes], bytes | None], key: str) -> None:
    name = key.split("/", maxsplit=1)[0].replace(".", "/")
    item = next(i for i in two_arrays.plan.items if i.parts[0].array.name == name)
    written = rewrite.rewrite_item(item, two_arrays.destination)
    database = database_of(two_arrays, written.writer)
    database.write(key, damage(bytes(database.read(key).result().value))).result()

    with pytest.raises(RewriteVerificationError) as caught:
        verify.verify_item(item, written, two_arrays.destination)
    assert f"{name} {item.parts[0].box}" in caught.value.where
    assert receipt.load_all(two_arrays.destination, [item.id]) == {}


def test_absent_source_chunk_stops_the_item_and_leaves_nothing(two_arrays: Run) -> None:
    base = {"driver": "file", "path": f"{two_arrays.checkpoint.uri}/"}
    source = ts.KvStore.open({"driver": "ocdbt", "base": base}).result()
    source.write("layer.kernel/c/0/0", None).result()
    item = two_arrays.plan.items[0]
    with pytest.raises(CorruptCheckpointError, match="layer/kernel"):
        rewrite.rewrite_item(item, two_arrays.destination)
    assert not storage.list_keys(two_arrays.destination.parameters_uri)


def test_output_that_cannot_be_written_is_a_storage_error(two_arrays: Run) -> None:
    storage.write(two_arrays.paths.output, "params", b"a file where the directory should be")
    with pytest.raises(StorageError, match="layer/kernel") as caught:
        rewrite.rewrite_item(two_arrays.plan.items[0], two_arrays.destination)
    assert caught.value.where == two_arrays.destination.parameters_uri


@pytest.mark.parametrize("other", [{"run_uri": "elsewhere"}, {"attempt": "the next"}])
def test_a_stopped_attempt_begins_no_item_and_others_go_on(two_arrays: Run, other: dict[str, str]) -> None:
    """Another job's work, and the same job's when it is run again: a worker may outlive the attempt that failed."""
    item = two_arrays.plan.items[0]
    rewrite.stop(two_arrays.destination)
    with pytest.raises(rewrite.StoppedError):
        rewrite.rewrite_item(item, two_arrays.destination)
    assert rewrite.rewrite_item(item, dataclasses.replace(two_arrays.destination, **other)).item == item.id


def test_verify_array_counts_bytes_and_refuses_a_digest_list_of_another_length(two_arrays: Run) -> None:
    for item in two_arrays.plan.items:
        done = two_arrays.do(item)
    bias = two_arrays.plan.arrays[1].stored
    database = arrays.writer_database(two_arrays.destination.parameters_uri, done.writer)
    digests = done.digests[-1]
    assert verify.verify_array(bias, database, "layer/bias", digests) == 60 * 4
    with pytest.raises(verify.VerificationError, match="do not fit"):
        verify.verify_array(bias, database, "layer/bias", (*digests, "00"))
    with pytest.raises(verify.VerificationError, match="1 of 1 chunks of layer/bias"):
        verify.verify_array(bias, database, "layer/bias", ("00",))


def test_differences_name_only_the_chunks_that_differ(two_arrays: Run) -> None:
    for item in two_arrays.plan.items:
        two_arrays.do(item)
    receipts = receipt.load_all(two_arrays.destination, [item.id for item in two_arrays.plan.items])
    kernel = two_arrays.plan.arrays[0].stored
    boxes = [part.box for item in two_arrays.plan.items for part in item.parts if part.array.stored == kernel]
    digests = [receipts[item.id].digests[0][0] for item in two_arrays.plan.items[: len(boxes)]]
    writer = rewrite.writer_id()
    storage_key = "layer.kernel/c/0/2"
    database = database_of(two_arrays, writer)
    database.write(storage_key, flip(bytes(database.read(storage_key).result().value))).result()
    spec = arrays.writer_database(two_arrays.destination.parameters_uri, writer)
    assert [box for box, *_ in verify.differences(kernel, spec, boxes, digests)] == [Box((0, 6), (40, 9))]
