"""Trees that stock Orbax builds from the metadata we write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorstore as ts

from migrate import orbax_metadata
from migrate.arrays import root_database
from migrate.manifest import ArrayRecord
from migrate.zarr import StoredArray

# path, and which of its keys are indices of a sequence
TREES: dict[str, tuple[list[tuple[str, ...]], list[bool], Any]] = {
    "dict": ([("a", "b"), ("a", "c")], [False, False], {"a": {"b": 0, "c": 1}}),
    # sorted as texts, 10 would come before 2
    "list of twelve": ([("l", str(n)) for n in range(12)], [False, True], {"l": list(range(12))}),
    # in any order: a commit lists the arrays of a database, not a tree
    "list backwards": ([("l", "1"), ("l", "0")], [False, True], {"l": [1, 0]}),
    # members that the program took, or that were None: no list has gaps
    "list with a gap": ([("l", "0"), ("l", "2")], [False, True], {"l": {"0": 0, "2": 1}}),
    "list at the root": ([("0",), ("1",)], [True], [0, 1]),
    "digits as keys of a dict": ([("d", "0"), ("d", "1")], [False, False], {"d": {"0": 0, "1": 1}}),
}


@pytest.mark.parametrize(("paths", "sequences", "expected"), TREES.values(), ids=TREES)
def test_tree(paths: list[tuple[str, ...]], sequences: list[bool], expected: Any, tmp_path: Path) -> None:
    records = []
    for number, path in enumerate(paths):
        stored = StoredArray(".".join(path), (), "int32", (), (), "none")
        spec = {
            "driver": "zarr3",
            "kvstore": {**root_database(str(tmp_path)), "path": stored.storage_name + "/"},
            "metadata": stored.zarr_metadata(),
            "store_data_equal_to_fill_value": True,
        }
        ts.open(spec, create=True).result().write(np.int32(number)).result()
        records.append(ArrayRecord("params", path, tuple(sequences), stored, "", ()))
    (tmp_path / orbax_metadata.TREE_METADATA_KEY).write_bytes(orbax_metadata.tree_metadata(records))
    (tmp_path / orbax_metadata.CHECKPOINT_METADATA_KEY).write_bytes(orbax_metadata.checkpoint_metadata())
    assert json.loads(json.dumps(ocp.StandardCheckpointer().restore(tmp_path), default=int)) == expected
