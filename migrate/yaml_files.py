"""YAML files that people write: read whole, keys unique, and the line of every key kept for error messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from migrate.errors import ConfigError

Location = tuple[str | int, ...]
"""Keys and indices that lead to a value: ``("mapping", 0, "to")``."""


@dataclass(frozen=True, slots=True)
class YamlFile:
    """A mapping read from a file."""

    path: str
    """As it was given."""
    document: dict[str, Any]
    lines: Mapping[Location, int]
    """Line, from 1, of each key and list entry."""

    def line(self, location: Location) -> int | None:
        """Line of the key at ``location``; where the file has no such key, of the nearest one that would hold it."""
        for length in range(len(location), 0, -1):
            if location[:length] in self.lines:
                return self.lines[location[:length]]
        return None

    def where(self, location: Location) -> str:
        """File, line and key of ``location``, for a message."""
        line = self.line(location)
        at = self.path if line is None else f"{self.path}, line {line}"
        return f"{at}: {key_text(location)}" if location else at


def key_text(location: Location) -> str:
    """A location as a person writes it.

    >>> key_text(("mapping", 0, "to"))
    'mapping[0].to'
    """
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def load_yaml(path: str | Path, *, kind: str, expected: str, text: str | None = None) -> YamlFile:
    """The mapping in a YAML file of this ``kind`` (``job``, ``fleet``); ``expected`` says what is in such a one.

    ``text`` is its content, where that was read already.

    Raises :class:`ConfigError` that names the file, and the line where there is one.
    """
    file = Path(path)
    try:
        text = file.read_text() if text is None else text
    except FileNotFoundError:
        raise ConfigError(f"there is no {kind} file {file}", remedy=f"give the path of a YAML {kind} file") from None
    except IsADirectoryError:
        raise ConfigError(
            f"{file} is a directory, not a {kind} file",
            remedy=f"give a YAML {kind} file; `reexport inspect` takes the path of a checkpoint or an export",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the {kind} file {file} cannot be read", found=str(error)) from error
    lines: dict[Location, int] = {}
    try:
        loader = _UniqueKeyLoader(text)
        loader.name = str(path)
        node = loader.get_single_node()
        document = None if node is None else loader.construct_document(node)
        if node is not None:
            _collect(loader, node, (), lines, set())
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{file} is not YAML", found=" ".join(str(error).split())) from error
    if not isinstance(document, dict):
        raise ConfigError(f"{file} is not a {kind}", expected=expected)
    return YamlFile(str(path), document, lines)


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML's safe loader, but a key given twice is an error: PyYAML would let the last one win silently.

    And a key is its own text where PyYAML, which knows YAML 1.1 only, would read ``on``, ``off``, ``yes`` or ``no`` as
    a truth value.
    """

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:bool":
                key.tag = "tag:yaml.org,2002:str"
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key, (key_node, _) in zip(keys, node.value, strict=True):
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", key_node.start_mark)
        return super().construct_mapping(node, deep)


def _collect(
    loader: yaml.SafeLoader, node: yaml.Node, location: Location, lines: dict[Location, int], above: set[int]
) -> None:
    """Fill ``lines``; an alias has the lines of its anchor. ``above`` are the nodes around this one."""
    if id(node) in above:
        return
    above = above | {id(node)}
    if isinstance(node, yaml.MappingNode):
        for key_node, value in node.value:
            key = loader.construct_object(key_node, deep=True)
            if isinstance(key, str | int):
                lines.setdefault((*location, key), key_node.start_mark.line + 1)
                _collect(loader, value, (*location, key), lines, above)
    elif isinstance(node, yaml.SequenceNode):
        for index, entry in enumerate(node.value):
            lines.setdefault((*location, index), entry.start_mark.line + 1)
            _collect(loader, entry, (*location, index), lines, above)
