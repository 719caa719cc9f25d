"""Old checkpoints of every supported format, opened lazily and read box by box.

How a uri becomes arrays, one module a step:

- ``registry``: asks each format whether it recognises what lies there (:func:`open_checkpoint`);
- ``place``: what lies there, listed once;
- ``steps``: which step and item are meant;
- ``orbax``, ``orbax_tree``: Orbax: the tree files, and where each leaf's array lies;
- ``msgpack_tree``: trees and arrays in msgpack files;
- ``zarr_documents``: shapes, dtypes and chunks of all arrays, from their metadata documents;
- ``readers``, ``raw``: read a box of an array, through TensorStore or from a file's bytes;
- ``dtypes``, ``identity``: dtype names; the digest that tells whether a checkpoint was rewritten;
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
