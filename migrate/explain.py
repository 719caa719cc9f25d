"""E0102 and its relatives, explained: which parameter, what each layout costs and why, the cause, the cure. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from migrate.causes import (
    Known,
    cause_by_signature,
    cause_of_message,
    fingerprint_changes,
    shape_differences,
    stale_versions,
)
from migrate.layout import ArrayShape
from migrate.messages import Mismatch, Side, read_message
from migrate.padding import padding_words
from migrate.signature import ParameterSpec, Signature


@dataclass(frozen=True, slots=True)
class ExplainedSide:
    """One side of a message, with its bytes recomputed."""

    stated: Side
    """What the message says."""
    nbytes: int | None
    """Device bytes of the shape and layout; None where the message gives no layout."""
    words: tuple[str, ...]
    """The padding arithmetic, a step a line."""
    assumed: ArrayShape | None = None
    """The shape that was counted, where the message leaves out tiles that its size shows to be there."""

    @property
    def agrees(self) -> bool | None:
        """Whether the message's size is the recomputed one; None if one of the two is unknown."""
        return None if self.nbytes is None or self.stated.nbytes is None else self.nbytes == self.stated.nbytes

    def to_json(self) -> dict[str, object]:
        """A JSON object; ``bytes`` are those of the message, ``device_bytes`` the recomputed ones."""
        return {
            "text": self.stated.text,
            "bytes": self.stated.nbytes,
            "device_bytes": self.nbytes,
            "agrees": self.agrees,
            "assumed": None if self.assumed is None else str(self.assumed),
            "padding": list(self.words),
        }


@dataclass(frozen=True, slots=True)
class Explained:
    """One mismatch, explained."""

    mismatch: Mismatch
    expected: ExplainedSide
    found: ExplainedSide
    differences: tuple[str, ...]
    """What differs, e.g. ``dimension order: {2,1,0} expected, {1,2,0} found``."""
    parameter: ParameterSpec | None
    """The parameter of the signature that this is, where one was given."""
    today: ParameterSpec | None
    """The same parameter as the job's executable wants it now, where a job was given beside an export."""
    cause: str
    """The likely cause."""
    cure: tuple[str, ...]
    """What to do, a command a line."""

    def to_json(self) -> dict[str, object]:
        """A JSON object for ``reexport explain --json``."""
        known = self.parameter
        return {
            "form": self.mismatch.form,
            "executable": self.mismatch.executable,
            "number": self.mismatch.number,
            "argument": self.mismatch.argument,
            "expected": self.expected.to_json(),
            "found": self.found.to_json(),
            "differences": list(self.differences),
            "parameter": None
            if known is None
            else {
                "number": known.number,
                "argument": known.argument,
                "path": list(known.path),
                "shard": str(known.shard),
                "shape": list(known.shape),
                "device_bytes": known.device_bytes,
            },
            "today": None
            if self.today is None
            else {"shard": str(self.today.shard), "device_bytes": self.today.device_bytes},
            "cause": self.cause,
            "cure": list(self.cure),
        }


def explain_error(
    text: str,
    signature: Signature | None = None,
    *,
    export: str | None = None,
    job: str | None = None,
    today: Signature | None = None,
    installed: Mapping[str, str] | None = None,
) -> tuple[Explained, ...]:
    """Explain an error about layouts; ``text`` is the message, or a log that holds it.

    With a ``signature``, that of an export or of a job, the parameter gets its name, and the cause is found by
    comparison: of the message with the signature, and of its fingerprint with that of ``today``, the signature of the
    export's job as it is compiled now, or else with the ``installed`` versions of jax, jaxlib and libtpu. ``export``
    and ``job`` are how the cure's commands name them; without ``export``, the signature is taken for the job's if
    there is one. Bytes are those of one device's buffer; JAX's own check speaks of whole arrays, and so do its bytes.

    Raises :class:`migrate.errors.UnknownMessageError` if the text holds no such message.
    """
    known = None
    if signature is not None:
        since = (
            stale_versions(signature.fingerprint, installed or {})
            if today is None
            else fingerprint_changes(signature.fingerprint, today.fingerprint)
        )
        known = Known(signature, "the job" if export is None and job is not None else "the export", tuple(since))
    return tuple(
        _explain(_with_tiles(mismatch), known, today, export=export, job=job) for mismatch in read_message(text)
    )


def _explain(
    mismatch: Mismatch, known: Known | None, today: Signature | None, *, export: str | None, job: str | None
) -> Explained:
    parameter = None if known is None else find_parameter(mismatch, known.signature)
    run = f"reexport run {job or 'JOB'}"
    if known is None:
        cause = cause_of_message(mismatch)
        cure: tuple[str, ...] = (
            f"{run}    with the code, flags, libtpu and topology of the process that raised this",
            "reexport explain --export EXPORT    names the parameter, if this came from an export's program",
            "reexport explain --job JOB    names it, if this came from a program that no export holds",
        )
    else:
        cause, stale = cause_by_signature(mismatch, parameter, known)
        if not stale:
            load = f"migrate.load({export or 'OUTPUT'!r})    puts every parameter into its executable's own layout"
            cure = (
                (load,) if known.owner == "the export" else (f"{run}    writes the parameters as it wants them", load)
            )
        elif known.owner == "the job":
            cure = (f"{run}    with target and model code as in the process that raised this",)
        else:
            check = f"reexport check {export or 'EXPORT'}" + (f" --job {job}" if job else "")
            cure = (check, f"{run} --supersede    with the job of that export, for this process")
    return Explained(
        mismatch=mismatch,
        expected=_side(mismatch.expected),
        found=_side(mismatch.found),
        differences=tuple(_differences(mismatch)),
        parameter=parameter,
        today=None if today is None else find_parameter(mismatch, today),
        cause=cause,
        cure=cure,
    )


def _with_tiles(mismatch: Mismatch) -> Mismatch:
    """Some runtimes print a layout without its tiles: they are those of the other side if the sizes say so."""

    def completed(side: Side, other: Side) -> Side:
        layout = None if side.shape is None else side.shape.layout
        theirs = None if other.shape is None else other.shape.layout
        if side.shape is None or layout is None or theirs is None or layout.tiles or not theirs.tiles:
            return side
        tiled = replace(side.shape, layout=replace(layout, tiles=theirs.tiles, element_bits=theirs.element_bits))
        return replace(side, shape=tiled) if tiled.device_bytes == side.nbytes != side.shape.device_bytes else side

    expected, found = mismatch.expected, mismatch.found
    return replace(mismatch, expected=completed(expected, found), found=completed(found, expected))


def _side(side: Side) -> ExplainedSide:
    shape = side.shape
    if shape is None:
        return ExplainedSide(side, None, ())
    assumed = shape if shape.layout is not None and shape.layout.tiles and ":" not in side.text else None
    return ExplainedSide(side, None if shape.layout is None else shape.device_bytes, padding_words(shape), assumed)


_KEYS = re.compile(r"\[(?P<item>[^\]]*)\]|\.(?P<field>\w+)")


def find_parameter(mismatch: Mismatch, signature: Signature) -> ParameterSpec | None:
    """The parameter of ``signature`` that a message means, by its number or by JAX's name; None if it has none such."""
    if mismatch.number is not None:
        return next((p for p in signature.parameters if p.number == mismatch.number), None)
    name = re.match(r"\w*", mismatch.argument)
    path = tuple(
        (key["item"] if key["field"] is None else key["field"]).strip("'\"")
        for key in _KEYS.finditer(mismatch.argument, name.end() if name else 0)
    )
    same_path = [p for p in signature.parameters if p.path == path]
    named = [p for p in same_path if name is not None and p.argument == name.group()]
    candidates = named or same_path
    return candidates[0] if len(candidates) == 1 else None


def _differences(mismatch: Mismatch) -> list[str]:
    old, new = mismatch.expected.shape, mismatch.found.shape
    if old is None or new is None:
        texts = mismatch.expected.text, mismatch.found.text
        if mismatch.form == "memory space" and texts[1]:
            return [f"memory space: the buffer lies in {texts[1]!r}"]
        if all(texts):
            return [f"sharding or layout: {texts[0]} expected, {texts[1]} found"] if texts[0] != texts[1] else []
        return ["size: the message gives no layouts"]
    return list(shape_differences(old, new).values())
