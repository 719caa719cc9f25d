"""The mapping rules of a job file: their keys, and which kind a rule is. What they do is in :mod:`migrate.mapping`."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from migrate.errors import LayoutSyntaxError
from migrate.layout import xla_dtype

Pattern = Annotated[str, Field(min_length=1, description="Regular expression that must match the whole path.")]


class Section(BaseModel):
    """Part of a job file: an unknown key is an error, and nothing changes after it was read."""

    # in JSON, infinities and NaN are texts, which a number may be read from again; by default they become null
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")


class _PatternRule(Section):
    """A rule for every array whose path a regular expression matches."""

    @property
    def pattern(self) -> str:
        """The regular expression: the value of the key that names the rule's kind."""
        kind = rule_kind(self)
        assert kind is not None
        value: str = getattr(self, kind)
        return value

    @model_validator(mode="after")
    def _compiles(self) -> _PatternRule:
        try:
            compiled = re.compile(self.pattern)
            for template in self.templates():
                compiled.sub(template, "")  # reads the template, also where nothing matches
        except (re.error, IndexError) as error:
            raise ValueError(f"{self.pattern!r} is not a usable regular expression: {error}") from error
        self.check(compiled)
        return self

    def templates(self) -> tuple[str, ...]:
        """The texts in which ``\\1`` stands for the pattern's first group."""
        to = getattr(self, "to", ())
        return (to,) if isinstance(to, str) else tuple(to)

    def check(self, compiled: re.Pattern[str]) -> None:
        """Raise ValueError if the rule's keys contradict each other."""

    def __str__(self) -> str:
        return " ".join(f"{key}: {_text(value)}" for key, value in self.model_dump(exclude_defaults=True).items())


def _text(value: Any) -> str:
    return "[" + ", ".join(map(str, value)) + "]" if isinstance(value, tuple) else str(value)


class DropRule(_PatternRule):
    """Leave arrays out on purpose."""

    drop: Pattern


class RenameRule(_PatternRule):
    """Give arrays another path."""

    rename: Pattern
    to: str = Field(description=r"The new path; `\1` stands for the first group.")


class CastRule(_PatternRule):
    """Change the dtype. Allowed from bool to integer to float to complex and within each kind, never back."""

    cast: Pattern
    dtype: str = Field(description="NumPy or ml_dtypes name, e.g. `bfloat16`.")
    overflow: Literal["error", "saturate", "round"] = Field(
        "error",
        description="What a finite value beyond the dtype's range does: end the run, become the largest finite value, "
        "or become what IEEE rounding makes of it (infinity, or NaN where the dtype has none).",
    )

    def check(self, compiled: re.Pattern[str]) -> None:
        """The dtype must be one that XLA has."""
        try:
            xla_dtype(self.dtype)
        except LayoutSyntaxError as error:
            raise ValueError(str(error)) from error


class TransposeRule(_PatternRule):
    """Permute the dimensions, as `numpy.transpose`."""

    transpose: Pattern
    axes: tuple[Annotated[int, Field(ge=0)], ...] = Field(description="A permutation of 0, 1, ...")

    def check(self, compiled: re.Pattern[str]) -> None:
        """The axes must be a permutation."""
        if sorted(self.axes) != list(range(len(self.axes))):
            raise ValueError(f"axes should be a permutation of 0 to {len(self.axes) - 1}")


class ReshapeRule(_PatternRule):
    """Merge or split dimensions, in C order, as `numpy.reshape`."""

    reshape: Pattern
    shape: tuple[Annotated[int, Field(ge=-1)], ...] = Field(description="The new shape; one extent may be -1.")

    def check(self, compiled: re.Pattern[str]) -> None:
        """At most one extent may be left open."""
        if self.shape.count(-1) > 1:
            raise ValueError("shape should have -1 at most once")


class StackRule(_PatternRule):
    """Stack per-layer arrays into one along a new dimension."""

    stack: Pattern
    to: str = Field(description=r"The stacked array's path; `\1` stands for the first group.")
    axis: int = Field(0, ge=0, description="Where the new dimension goes.")

    def check(self, compiled: re.Pattern[str]) -> None:
        """The layer number must be named."""
        if "layer" not in compiled.groupindex:
            raise ValueError(r"should name the layer number's group: layers/(?P<layer>\d+)/...")


class UnstackRule(_PatternRule):
    """Cut an array along a dimension into one array a layer."""

    unstack: Pattern
    to: str = Field(description=r"The layers' paths, with `{layer}` for the number, e.g. `layers/{layer}/\1`.")
    axis: int = Field(0, ge=0, description="The dimension to cut, which goes away.")

    def check(self, compiled: re.Pattern[str]) -> None:
        """The layers' paths must differ."""
        if "{layer}" not in self.to:
            raise ValueError("to should contain {layer}")


class SliceRule(_PatternRule):
    """Keep a range of one dimension."""

    slice: Pattern
    axis: int = Field(0, ge=0, description="The dimension.")
    start: int = Field(0, ge=0, description="First index kept.")
    stop: int = Field(ge=0, description="One past the last index kept.")


class PadRule(_PatternRule):
    """Lengthen one dimension at its end, e.g. a vocabulary."""

    pad: Pattern
    axis: int = Field(0, ge=0, description="The dimension.")
    length: int = Field(ge=0, description="The extent afterwards.")
    fill: int | float = Field(description="The value of the new elements; it must be stated, and the dtype have it.")


class TieRule(_PatternRule):
    """Let one array fill several parameters. Its own path is one of them only if it is listed."""

    tie: Pattern
    to: tuple[str, ...] = Field(min_length=1, description=r"The paths; `\1` stands for the first group.")


class InitRule(_PatternRule):
    """Fill parameters that the checkpoint does not have with a constant; shape and dtype are the parameter's."""

    init: Pattern
    value: int | float = Field(description="The value of every element, which the dtype must have.")


RULES: dict[str, type[_PatternRule]] = {
    "drop": DropRule,
    "rename": RenameRule,
    "cast": CastRule,
    "transpose": TransposeRule,
    "reshape": ReshapeRule,
    "stack": StackRule,
    "unstack": UnstackRule,
    "slice": SliceRule,
    "pad": PadRule,
    "tie": TieRule,
    "init": InitRule,
}


def rule_kind(value: Any) -> str | None:
    """The kind of a rule, given as its mapping or object: the one of :data:`RULES` whose key it has."""
    if isinstance(value, dict):
        return next((kind for kind in RULES if kind in value), None)
    return next((kind for kind, model in RULES.items() if isinstance(value, model)), None)


Rule = Annotated[
    Annotated[DropRule, Tag("drop")]
    | Annotated[RenameRule, Tag("rename")]
    | Annotated[CastRule, Tag("cast")]
    | Annotated[TransposeRule, Tag("transpose")]
    | Annotated[ReshapeRule, Tag("reshape")]
    | Annotated[StackRule, Tag("stack")]
    | Annotated[UnstackRule, Tag("unstack")]
    | Annotated[SliceRule, Tag("slice")]
    | Annotated[PadRule, Tag("pad")]
    | Annotated[TieRule, Tag("tie")]
    | Annotated[InitRule, Tag("init")],
    Discriminator(
        rule_kind,
        custom_error_type="rule_kind",
        custom_error_message=f"should have one of the keys {', '.join(RULES)}",
    ),
]
"""Any rule, told apart by its first key."""
