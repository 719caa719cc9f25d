"""A box read equals the same slice of the whole, in every storage order, for both kinds of reader."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from migrate.box import Box
from migrate.errors import CorruptCheckpointError
from migrate.sources import Leaf, open_checkpoint, raw
from migrate.sources.raw import RawReader, Segment

# Zarr v2 and v3, in files and in a database, and arrays inside a msgpack file.
NAMES = ("orbax_0128_ocdbt", "orbax_0128_zarr3", "orbax_0523_zarr", "orbax_018_aggregate")


@pytest.fixture(scope="module")
def leaves(fixture: Callable[[str], Any]) -> list[tuple[Leaf, np.ndarray]]:
    opened = [open_checkpoint(str(fixture(name).path)) for name in NAMES]
    return [(leaf, leaf.read()) for checkpoint in opened for leaf in checkpoint.leaves]


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    """Any box within ``shape``, empty ones included."""
    bounds = [sorted((draw(st.integers(0, extent)), draw(st.integers(0, extent)))) for extent in shape]
    return Box(tuple(a for a, _ in bounds), tuple(b for _, b in bounds))


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_box_is_a_slice_of_the_whole(leaves: list[tuple[Leaf, np.ndarray]], data: st.DataObject) -> None:
    leaf, whole = data.draw(st.sampled_from(leaves))
    box = data.draw(boxes(leaf.shape))
    order = data.draw(st.none() | st.permutations(range(len(leaf.shape))).map(tuple))
    found = leaf.reader.read(box, storage_order=order)
    expected = whole[box.slices] if order is None else whole[box.slices].transpose(order)
    assert (found.dtype, found.shape) == (leaf.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()
    assert found.flags.c_contiguous


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_plain_bytes_are_read_in_any_cut(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Small bounds make every path run: long rows read in part, short rows in groups, segments crossed."""
    shape = tuple(data.draw(st.lists(st.integers(1, 6), max_size=4)))
    dtype = data.draw(st.sampled_from([np.dtype(np.int16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.int64)]))
    whole = np.arange(int(np.prod(shape)), dtype=np.int64).astype(dtype).reshape(shape)
    cuts = sorted({0, whole.size, *data.draw(st.lists(st.integers(0, whole.size), max_size=3))})
    content, segments = b"", []
    for first, stop in itertools.pairwise(cuts):
        content += b"#" * data.draw(st.integers(0, 3))
        segments.append(Segment(first, len(content), stop - first))
        content += whole.reshape(-1)[first:stop].tobytes()
    root = tmp_path_factory.mktemp("raw")
    (root / "file").write_bytes(content)
    reader = RawReader(str(root), "file", "w", dtype.name, shape, tuple(segments))
    box = data.draw(boxes(shape))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raw, "READ_BYTES", data.draw(st.integers(1, 64)))
        patch.setattr(raw, "_WORTH_A_READ_BYTES", data.draw(st.integers(1, 64)))
        found = reader.read(box)
    assert found.tobytes() == whole[box.slices].tobytes()


def test_a_file_that_shrank_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\0" * 30)
    reader = RawReader(str(tmp_path), "file", "some/leaf", "float32", (8,), (Segment(0, 0, 8),))
    with pytest.raises(CorruptCheckpointError, match="some/leaf is cut short") as caught:
        reader.read(Box((0,), (8,)))
    assert (caught.value.expected, caught.value.found) == ("32 bytes", "30 bytes")


@pytest.mark.parametrize("value", [True, 7, -3, 2**63, 0.1, 1 + 2j])
def test_numbers_keep_their_value(value: complex) -> None:
    reader = raw.value_reader(value)
    assert reader is not None
    assert reader.read(Box((), ()))[()] == value


def test_integers_beyond_64_bits_are_none() -> None:
    assert raw.value_reader(2**64) is None


@settings(deadline=None)
@given(st.lists(st.integers(0, 5000), max_size=4).map(tuple), st.integers(1, 16))
def test_raw_chunks_are_bounded_rows(shape: tuple[int, ...], itemsize: int) -> None:
    chunk = raw.chunk_shape(shape, itemsize)
    assert all(1 <= c <= max(s, 1) for c, s in zip(chunk, shape, strict=True))
    assert int(np.prod(chunk)) * itemsize <= raw.READ_BYTES
