"""The files that let stock Orbax restore a parameter set: the tree metadata of its PyTree format.

Written as plain JSON rather than through Orbax, which would import jax into a commit that may run on a Beam worker;
tests restore the result with Orbax's own checkpointers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from migrate.manifest import ArrayRecord

# orbax.checkpoint._src.metadata.tree.KeyType
_SEQUENCE_KEY = 1
_DICT_KEY = 2

TREE_METADATA_KEY = "_METADATA"
CHECKPOINT_METADATA_KEY = "_CHECKPOINT_METADATA"
ARRAY_METADATA_KEY = "array_metadatas/process_0"
COMMIT_SUCCESS_KEY = "commit_success.txt"
"""Where directories cannot be renamed, on object stores, Orbax takes only a directory with this file for finished."""


def tree_metadata(arrays: Sequence[ArrayRecord]) -> bytes:
    """The ``_METADATA`` document that lists every leaf with the kind of each of its keys.

    A sequence of which only some members are there is written as a mapping, since Orbax builds no list with gaps.
    """
    members: dict[tuple[str, ...], set[str]] = {}
    for array in arrays:
        for depth, key in enumerate(array.path):
            members.setdefault(array.path[:depth], set()).add(key)

    def is_sequence(array: ArrayRecord, depth: int) -> bool:
        siblings = members[array.path[:depth]]
        return array.sequence_levels[depth] and siblings == {str(number) for number in range(len(siblings))}

    def position(array: ArrayRecord) -> list[tuple[int, str]]:
        """Orbax appends to a list as it goes: 10 must come after 9."""
        return [(int(key), "") if is_sequence(array, depth) else (0, key) for depth, key in enumerate(array.path)]

    leaves = {}
    for array in sorted(arrays, key=position):
        keys = [
            {"key": key, "key_type": _SEQUENCE_KEY if is_sequence(array, depth) else _DICT_KEY}
            for depth, key in enumerate(array.path)
        ]
        # Orbax looks a leaf up by the text of its key tuple
        leaves[str(array.path)] = {
            "key_metadata": keys,
            "value_metadata": {
                # "jax.Array" would make a restore without arguments ask for the devices of another topology
                "value_type": "np.ndarray",
                "skip_deserialize": False,
                "write_shape": list(array.stored.chunk_shape),
            },
        }
    document = {
        "tree_metadata": leaves,
        "use_ocdbt": True,
        "use_zarr3": True,
        "store_array_data_equal_to_fill_value": True,
        "custom_metadata": None,
    }
    return json.dumps(document).encode()


def array_metadata(arrays: Sequence[ArrayRecord]) -> bytes:
    """The ``array_metadatas/process_0`` document: without it random keys would come back as plain uint32."""
    entries = [
        {
            "array_metadata": {
                "param_name": array.stored.storage_name,
                "write_shape": list(array.stored.chunk_shape),
                "chunk_shape": list(array.stored.chunk_shape),
                "ext_metadata": {"random_key_impl": array.prng_impl} if array.prng_impl else None,
            }
        }
        for array in arrays
    ]
    return json.dumps({"array_metadatas": entries}).encode()


def checkpoint_metadata() -> bytes:
    """The ``_CHECKPOINT_METADATA`` document: which Orbax handler reads the directory."""
    document: dict[str, object] = {
        "item_handlers": "orbax.checkpoint._src.handlers.pytree_checkpoint_handler.PyTreeCheckpointHandler",
        "metrics": {},
        "performance_metrics": {},
        "init_timestamp_nsecs": None,
        "commit_timestamp_nsecs": None,
        "custom_metadata": {},
    }
    return json.dumps(document).encode()
