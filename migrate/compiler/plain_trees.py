"""Trees of plain containers in place of a model library's own, for what is written as a ``jax.export`` artifact.

An artifact may hold only node types that are registered for serialization; those of Flax NNX (``State``, ``Param``) and
of many model libraries are not. Names and order of the leaves stay, so that the artifact can be read without them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.tree_util import SequenceKey

from migrate.compiler.arguments import key_text


def plain_function(function: Callable[..., Any], arguments: Sequence[Any]) -> Callable[..., Any]:
    """``function`` of the :func:`plain_tree` of each of ``arguments``, whose results are plain trees, too."""
    structures = [jax.tree.structure(argument) for argument in arguments]

    def plain(*values: Any) -> Any:
        own = [jax.tree.unflatten(tree, jax.tree.leaves(value)) for tree, value in zip(structures, values, strict=True)]
        return plain_tree(function(*own))

    plain.__name__ = getattr(function, "__name__", "plain")
    return plain


def plain_tree(tree: Any) -> Any:
    """The same leaves, by the same keys as text and in the same order, in lists and ordered dictionaries.

    A sequence some of whose members hold no leaf becomes a dictionary, since its numbers must stay.
    """
    return _nested([(keys, leaf) for keys, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]])


def _nested(flat: list[tuple[tuple[Any, ...], Any]]) -> Any:
    if len(flat) == 1 and not flat[0][0]:
        return flat[0][1]
    # leaves below one key follow each other
    groups: OrderedDict[str, list[tuple[tuple[Any, ...], Any]]] = OrderedDict()
    for keys, leaf in flat:
        groups.setdefault(key_text(keys[0]), []).append((keys[1:], leaf))
    is_list = bool(flat) and isinstance(flat[0][0][0], SequenceKey) and list(groups) == [*map(str, range(len(groups)))]
    members = [(key, _nested(group)) for key, group in groups.items()]
    return [member for _, member in members] if is_list else OrderedDict(members)
