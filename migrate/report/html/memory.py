"""Where a device's memory goes: groups of parameters, and the layouts that lose most to tile padding. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from migrate.layout import ArrayShape, Layout, xla_dtype
from migrate.padding import padding_words
from migrate.report.text import printable
from migrate.report.words import parameter_name
from migrate.signature import ParameterSpec

MOST_GROUPS = 14
"""Bars that a reader can still compare."""
_WORTH_SPLITTING = 0.05
"""Share of the whole below which a group stays one bar."""


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters under one name."""

    name: str
    """Beginning of their paths; numbers are ``*``."""
    count: int
    dense_bytes: int
    """Bytes on each device, without padding."""
    padding_bytes: int

    @property
    def nbytes(self) -> int:
        """Bytes on each device."""
        return self.dense_bytes + self.padding_bytes


@dataclass(frozen=True, slots=True)
class Waste:
    """A layout that several parameters share, and what its padding costs."""

    name: str
    """Their path; numbers in which they differ are ``*``."""
    count: int
    layout: str
    """A shard as XLA prints it."""
    nbytes: int
    """Bytes of all of them on each device."""
    padding_bytes: int
    default_bytes: int | None
    """Bytes of all of them in default layouts; None if unknown."""
    why: str
    """The steps of the arithmetic that pad."""


def sizes(parameter: ParameterSpec) -> tuple[int, int]:
    """Bytes of a parameter on each device, with and without padding; worked out once for each layout."""
    p = parameter
    return _sizes(p.dtype, p.shard_shape, p.major_to_minor, p.tiles, p.element_bits)


@functools.lru_cache(maxsize=1 << 16)
def _sizes(
    dtype: str,
    shard_shape: tuple[int, ...],
    major_to_minor: tuple[int, ...],
    tiles: tuple[tuple[int, ...], ...],
    element_bits: int,
) -> tuple[int, int]:
    tiled, dense = (
        ArrayShape(xla_dtype(dtype), shard_shape, Layout(major_to_minor[::-1], of, element_bits=element_bits))
        for of in (tiles, ())
    )
    return tiled.device_bytes, dense.device_bytes


def split_groups(parameters: Iterable[ParameterSpec], most: int = MOST_GROUPS) -> list[Group]:
    """At most ``most`` groups by the beginnings of their paths (more only if there are more arguments), largest first.

    The largest group is split again and again, as long as the number allows and it is worth a bar.
    """
    members = [_Member.of(parameter) for parameter in parameters]
    total = sum(member.nbytes for member in members)
    groups: dict[tuple[str, ...], list[_Member]] = {}
    for member in members:
        groups.setdefault(member.path[:1], []).append(member)
    final: set[tuple[str, ...]] = set()
    while open_groups := [prefix for prefix in groups if prefix not in final]:
        prefix = max(open_groups, key=lambda p: sum(member.nbytes for member in groups[p]))
        found = groups[prefix]
        children: dict[tuple[str, ...], list[_Member]] = {}
        for member in found:
            children.setdefault(member.path[: len(prefix) + 1], []).append(member)
        fits = len(groups) - 1 + len(children) <= most
        if prefix in children or not fits or sum(member.nbytes for member in found) < _WORTH_SPLITTING * total:
            final.add(prefix)
            continue
        del groups[prefix]
        groups |= children
    made = [
        Group(
            _named(prefix, found),
            len(found),
            sum(member.dense for member in found),
            sum(member.nbytes - member.dense for member in found),
        )
        for prefix, found in groups.items()
    ]
    return sorted(made, key=lambda group: (-group.nbytes, group.name))


@dataclass(frozen=True, slots=True)
class _Member:
    path: tuple[str, ...]
    """With ``*`` for numbers."""
    own: tuple[str, ...]
    """As it is."""
    dense: int
    nbytes: int

    @classmethod
    def of(cls, parameter: ParameterSpec) -> _Member:
        own = (parameter.argument, *parameter.path)
        nbytes, dense = sizes(parameter)
        return cls(_general(parameter), own, dense, nbytes)


def _named(prefix: tuple[str, ...], found: list[_Member]) -> str:
    """The beginning that all of ``found`` share; numbers are ``*`` only where they differ."""
    keys = [{member.own[level] for member in found} for level in range(len(prefix))]
    return printable("/".join(key if len(own) > 1 else own.pop() for key, own in zip(prefix, keys, strict=True)))


def most_wasted(parameters: Iterable[ParameterSpec], most: int = 12) -> list[Waste]:
    """The layouts that lose most bytes to padding, equal ones of like-named parameters together; at most ``most``."""
    together: dict[tuple[object, ...], list[ParameterSpec]] = {}
    for p in parameters:
        nbytes, dense = sizes(p)
        if nbytes > dense:
            layout = (p.shard_shape, p.dtype, p.major_to_minor, p.tiles, p.element_bits, p.default_device_bytes)
            together.setdefault((_general(p), layout), []).append(p)
    lost = {key: (sizes(found[0])[0] - sizes(found[0])[1]) * len(found) for key, found in together.items()}
    ranked = sorted(lost, key=lambda key: (-lost[key], str(key)))[:most]
    return [_waste(together[key], lost[key]) for key in ranked]


def _waste(found: list[ParameterSpec], lost: int) -> Waste:
    first = found[0]
    name = parameter_name(first) if len(found) == 1 else "/".join(_general(first))
    lines = [line for line in padding_words(first.shard) if "padded" in line and "nothing is padded" not in line]
    default = first.default_device_bytes
    return Waste(
        name=printable(name),
        count=len(found),
        layout=str(first.shard),
        nbytes=sizes(first)[0] * len(found),
        padding_bytes=lost,
        default_bytes=None if default is None else default * len(found),
        why="; ".join(lines) or "the elements of this dtype take more bits in this layout",
    )


def _general(parameter: ParameterSpec) -> tuple[str, ...]:
    """The path with every number as ``*``, so that the layers of a model are one."""
    return (parameter.argument, *(re.sub(r"\d+", "*", key) for key in parameter.path))
