"""Old checkpoints of every supported format, opened lazily and read box by box.

How a uri becomes arrays, one module a step:

- ``registry``: asks each format whether it recognises what lies there (:func:`open_checkpoint`);
- ``place``, ``steps``: what lies there, listed once; which step and item are meant;
- the formats: ``orbax`` (its items: ``orbax_items``, its tree files: ``orbax_tree``), ``t5x``, ``flax_msgpack``,
  ``safetensors``, and ``jax_arrays`` for jax's own array serialization (its tree file: ``jax_pytreedef``);
- ``msgpack_tree``: trees in msgpack files, whose arrays are left in the file;
- ``arrays``, ``zarr_documents``: find Zarr arrays, in files or databases, by their metadata documents;
- ``readers``, ``raw``: read a box of an array, through TensorStore or from a file's bytes;
- ``ocdbt``: which files of a database are lost, once a read has failed;
- ``dtypes``, ``identity``: names of dtypes; the digest that tells whether a checkpoint was rewritten;
- ``base``: what all formats offer: :class:`Leaf`, :class:`SourceCheckpoint` and the protocols.
"""

from migrate.sources.base import ArrayReader, Leaf, MissingChunks, Placeholder, SourceCheckpoint, SourceFormat
from migrate.sources.registry import FORMATS, open_checkpoint

__all__ = [
    "FORMATS",
    "ArrayReader",
    "Leaf",
    "MissingChunks",
    "Placeholder",
    "SourceCheckpoint",
    "SourceFormat",
    "open_checkpoint",
]
