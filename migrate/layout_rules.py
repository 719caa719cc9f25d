"""The layout policies of a job file: their keys. What they do is in :mod:`migrate.compiler.policies`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, WrapValidator, field_validator

from migrate.rules import Pattern, Section

Named = Literal["auto", "default", "auto-bounded"]


class CopiedLayout(Section):
    """``{pinned: PATH}``: what another signature says."""

    pinned: str = Field(min_length=1, description="A signature file, an export, or an output.")


class StatedLayout(Section):
    """``{major_to_minor: [1, 0]}``: a dimension order; the compiler adds the tiles."""

    major_to_minor: tuple[int, ...] = Field(description="Every dimension once, the one that changes slowest first.")

    @field_validator("major_to_minor")
    @classmethod
    def _is_permutation(cls, order: tuple[int, ...]) -> tuple[int, ...]:
        if sorted(order) != list(range(len(order))):
            raise ValueError("should hold every dimension once")
        return order


def _in_words(text: str) -> Callable[[Any, Callable[[Any], Any]], Any]:
    """A validator that says ``text`` instead of what each member of a union has to complain about."""

    def validate(value: Any, inner: Callable[[Any], Any]) -> Any:
        try:
            return inner(value)
        except ValidationError:
            raise ValueError(f"should be {text}") from None

    return validate


Policy = Annotated[
    Named | CopiedLayout, WrapValidator(_in_words("auto, default, auto-bounded, or {pinned: PATH of a signature}"))
]
"""How the layouts of a whole program are decided."""

ParameterPolicy = Annotated[
    Named | CopiedLayout | StatedLayout,
    WrapValidator(
        _in_words("auto, default, auto-bounded, {pinned: PATH of a signature}, or {major_to_minor: [every dimension]}")
    ),
]
"""How the layout of some parameters is decided."""


class LayoutRule(Section):
    """A policy for some of a program's arrays."""

    parameters: Pattern
    layout: ParameterPolicy = Field(description="Who decides the layout of these arrays.")

    @field_validator("parameters")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"is not a usable regular expression: {error}") from error
        return pattern
