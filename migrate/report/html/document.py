"""What a report says, as plain data; the page only arranges it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from migrate.report.html.memory import Group, Waste

Kind = Literal["export", "plan", "signature", "difference"]


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a device under one program."""

    title: str
    groups: Sequence[Group]
    waste: Sequence[Waste]
    padded: int
    """How many parameters are padded at all."""
    nbytes: int
    """All parameters."""
    padding_bytes: int
    default_bytes: int | None
    figures: Sequence[tuple[str, int]]
    """The compiler's account: (what, bytes)."""
    device_bytes: int | None
    """What a program can use of a device; None if unknown."""


@dataclass(frozen=True, slots=True)
class FingerprintRow:
    """One field of the fingerprints, side by side."""

    name: str
    values: Sequence[str]
    differs: bool


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the run."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Verification:
    """What is known of the stored bytes."""

    state: Literal["good", "bad", "none"]
    headline: str
    facts: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Document:
    """A report."""

    kind: Kind
    title: str
    headline: str
    facts: Sequence[tuple[str, str]]
    memories: Sequence[Memory]
    sides: Sequence[str]
    """Headings of the fingerprints: programs, or A and B."""
    fingerprints: Sequence[FingerprintRow]
    data: Mapping[str, Any]
    """What the page's script reads."""
    stages: Sequence[Stage] = ()
    throughput: str = ""
    verification: Verification | None = None
    notes: Sequence[str] = field(default_factory=tuple)
    sums: Sequence[tuple[str, int, int]] = ()
    """Of a difference: (what, bytes before, bytes after)."""
