"""T5X checkpoints: every fixture, steps, and damage."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import msgpack
import pytest

from migrate.errors import CheckpointNotFoundError, CorruptCheckpointError, UncommittedCheckpointError
from migrate.sources import open_checkpoint


def test_every_leaf_has_the_saved_bytes(
    t5x_name: str, fixture: Callable[[str], Any], check_leaf: Callable[..., None]
) -> None:
    saved = fixture(t5x_name)
    opened = open_checkpoint(str(saved.path))
    assert (opened.format, opened.step) == ("t5x", 1000)
    assert opened.version == f"t5x checkpoint version {t5x_name[-1]}"
    assert {leaf.path for leaf in opened.leaves} == saved.leaves.keys()
    for leaf in opened.leaves:
        check_leaf(pickle.loads(pickle.dumps(leaf)), saved.leaves[leaf.path])


def test_bfloat16_stored_as_uint16(fixture: Callable[[str], Any]) -> None:
    leaf = open_checkpoint(str(fixture("t5x_style_v2").path)).leaf("target/encoder/layers_0/mlp/wi/kernel")
    assert leaf.dtype == ml_dtypes.bfloat16
    assert leaf.reader.to_json()["view_as"] == "bfloat16"


def test_steps(copy_of: Callable[[str], Path]) -> None:
    root = copy_of("t5x_style_v3")
    shutil.copytree(root / "checkpoint_1000", root / "checkpoint_2000")
    shutil.copytree(root / "checkpoint_1000", root / "checkpoint_3000.tmp-1700000000")
    assert open_checkpoint(str(root)).step == 2000
    assert open_checkpoint(str(root), step=1000).uri.endswith("checkpoint_1000")
    assert open_checkpoint(str(root / "checkpoint_1000")).step == 1000
    with pytest.raises(UncommittedCheckpointError, match="step 3000 is not finished"):
        open_checkpoint(str(root), step=3000)
    with pytest.raises(CheckpointNotFoundError, match="steps 1000, 2000"):
        open_checkpoint(str(root), step=4000)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"driver": "zarr", "kvstore": {"driver": "file", "path": "lost/"}}, "the array lost is missing"),
        ({"driver": "zarr", "kvstore": {"driver": "file", "path": "/etc/"}}, "no path below the checkpoint"),
        ({"driver": "zarr", "kvstore": {"driver": "file", "path": "../x"}}, "no path below the checkpoint"),
        ({"driver": "zarr", "kvstore": "file:///etc/"}, "no path below the checkpoint"),
    ],
)
def test_broken_specs(copy_of: Callable[[str], Path], spec: dict[str, Any], said: str) -> None:
    root = copy_of("t5x_style_v3") / "checkpoint_1000"
    (root / "checkpoint").write_bytes(msgpack.packb({"version": 3, "optimizer": {"target": {"w": spec}}}))
    with pytest.raises(CorruptCheckpointError, match=said) as caught:
        open_checkpoint(str(root))
    assert "target/w" in str(caught.value)


def test_two_leaves_with_one_array(copy_of: Callable[[str], Path]) -> None:
    root = copy_of("t5x_style_v3") / "checkpoint_1000"
    spec = {"driver": "zarr", "kvstore": {"driver": "gcs", "bucket": "b", "path": "target.decoder.logits_dense.kernel"}}
    tree = {"version": 3, "optimizer": {"a": spec, "b": spec}}
    (root / "checkpoint").write_bytes(msgpack.packb(tree))
    with pytest.raises(CorruptCheckpointError, match="a and b"):
        open_checkpoint(str(root))


def test_a_truncated_tree(copy_of: Callable[[str], Path]) -> None:
    root = copy_of("t5x_style_v3")
    file = root / "checkpoint_1000" / "checkpoint"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CorruptCheckpointError, match="not a whole msgpack tree"):
        open_checkpoint(str(root))
