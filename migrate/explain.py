"""E0102 and its relatives, explained: which parameter, what each layout costs and why, the cause, the cure. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from migrate.layout import ArrayShape
from migrate.messages import Mismatch, Side, read_message
from migrate.padding import padding_words
from migrate.signature import Fingerprint, ParameterSpec, Signature


@dataclass(frozen=True, slots=True)
class ExplainedSide:
    """One side of a message, with its bytes recomputed."""

    stated: Side
    """What the message says."""
    nbytes: int | None
    """Device bytes of the shape and layout; None where the message gives no layout."""
    words: tuple[str, ...]
    """The padding arithmetic, a step a line."""

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
            "cause": self.cause,
            "cure": list(self.cure),
        }


def explain_error(
    text: str,
    signature: Signature | None = None,
    *,
    export: str = "EXPORT",
    installed: Mapping[str, str] | None = None,
) -> tuple[Explained, ...]:
    """Explain an error about layouts; ``text`` is the message, or a log that holds it.

    With the ``signature`` of the program's export the parameter gets its name, and the cause is found by comparison:
    of the message with the signature, and of the fingerprint with the ``installed`` versions of jax, jaxlib and libtpu.
    ``export`` is how the cure's commands name the export. Bytes are those of one device's buffer; JAX's own check
    speaks of whole arrays, and so do its bytes.

    Raises :class:`migrate.errors.UnknownMessageError` if the text holds no such message.
    """
    return tuple(
        _explain(mismatch, signature, export=export, installed=installed or {}) for mismatch in read_message(text)
    )


def _explain(
    mismatch: Mismatch, signature: Signature | None, *, export: str, installed: Mapping[str, str]
) -> Explained:
    parameter = None if signature is None else find_parameter(mismatch, signature)
    differences = tuple(_differences(mismatch))
    if signature is None:
        cause = _cause(mismatch)
        cure: tuple[str, ...] = (
            "reexport run JOB    with the code, flags, libtpu and topology of the process that raised this",
            "reexport explain --export EXPORT    names the parameter, if this came from an export's program",
        )
    else:
        cause, stale = _cause_by_signature(mismatch, parameter, signature, installed)
        cure = (
            (
                f"reexport check {export}",
                "reexport run JOB --supersede    with the job of that export, for this process",
            )
            if stale
            else (f"migrate.load({export!r})    puts every parameter into its executable's own layout",)
        )
    return Explained(
        mismatch=mismatch,
        expected=_side(mismatch.expected),
        found=_side(mismatch.found),
        differences=differences,
        parameter=parameter,
        cause=cause,
        cure=cure,
    )


def _side(side: Side) -> ExplainedSide:
    shape = side.shape
    if shape is None:
        return ExplainedSide(side, None, ())
    return ExplainedSide(side, None if shape.layout is None else shape.device_bytes, padding_words(shape))


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


def shape_differences(expected: ArrayShape, found: ArrayShape) -> dict[str, str]:
    """What differs between two shapes: aspect (``dtype``, ``shape``, ``dimension order``, ...) -> words."""

    def words(aspect: str, one: object, other: object) -> None:
        if one != other:
            different[aspect] = f"{aspect}: {one} expected, {other} found"

    different: dict[str, str] = {}
    words("dtype", expected.dtype, found.dtype)
    words("shape", list(expected.dimensions), list(found.dimensions))
    one, other = expected.layout, found.layout
    if one is not None and other is not None:
        words("dimension order", _order(one.minor_to_major), _order(other.minor_to_major))
        words("tiling", _tiles(one.tiles), _tiles(other.tiles))
        words("element bits", one.element_bits or "unpacked", other.element_bits or "unpacked")
        words("tail padding", one.tail_padding_elements, other.tail_padding_elements)
        words("memory space", f"S({one.memory_space})", f"S({other.memory_space})")
    return different


def _order(minor_to_major: tuple[int, ...]) -> str:
    return "{" + ",".join(map(str, minor_to_major)) + "} (minor to major)"


def _tiles(tiles: tuple[tuple[int, ...], ...]) -> str:
    return (
        "".join("(" + ",".join("*" if extent < 0 else str(extent) for extent in tile) + ")" for tile in tiles) or "none"
    )


_GENERAL = (
    "the buffer was laid out for another compile than the one that runs: libtpu, a flag, a default, the model code, "
    "the chip or the slice shape has changed since"
)


def _cause(mismatch: Mismatch) -> str:
    """The likely cause as far as the message alone tells."""
    if mismatch.form == "memory space":
        return (
            "the buffer lies in another memory of the device or host than the executable was compiled for: the memory "
            "kinds of the argument's sharding at compile time and at load time differ"
        )
    old, new = mismatch.expected.shape, mismatch.found.shape
    if old is None or new is None:
        if "Sharding(" in mismatch.expected.text:
            return "the array lies on the devices otherwise than the program was compiled for: mesh or partition differ"
        return _GENERAL
    return _cause_of_shapes(old, new, whole=mismatch.is_global)


def _cause_of_shapes(old: ArrayShape, new: ArrayShape, *, whole: bool) -> str:
    different = shape_differences(old, new)
    if "dtype" in different:
        return "the array has another dtype: the checkpoint or the model code has changed; a cast rule may be missing"
    if "shape" in different:
        return (
            "the array has another shape: the model code differs between compile and load"
            if whole
            else "the device's shard has another shape: the model code, the mesh or the partition differs between "
            "compile and load"
        )
    first_tiles = {shape.layout.tiles[0] for shape in (old, new) if shape.layout is not None and shape.layout.tiles}
    if set(different) == {"tiling"} and first_tiles == {(32, 128), (8, 128)}:
        return "only the tiling differs; for 8-bit types libtpu changed it between 0.0.37 and 0.0.40: " + _GENERAL
    if whole:
        return (
            "the array was put on the device in another layout than the compiled program wants: jax.device_put and "
            "Orbax use default layouts unless they are given a Format; or " + _GENERAL
        )
    return _GENERAL


def _cause_by_signature(
    mismatch: Mismatch, parameter: ParameterSpec | None, signature: Signature, installed: Mapping[str, str]
) -> tuple[str, bool]:
    """The likely cause, and whether the export is what has to change."""
    if parameter is None:
        return "the export's program has no such parameter: the message comes from another program", True
    if moved := _other_shape(mismatch, parameter, signature):
        return moved, True
    expected, found = (_fits(side.shape, parameter, mismatch) for side in (mismatch.expected, mismatch.found))
    versions = stale_versions(signature.fingerprint, installed)
    since = (
        f" Since then {' and '.join(versions)}."
        if versions
        else " The versions here are those of the export: compare flags, model code, mesh and topology."
    )
    if expected:
        return "the executable is the export's, but the buffer is not: it was loaded by other means.", False
    if found:
        return "the buffer is the export's, but the executable that runs is from another compile." + since, True
    if expected is None:
        return f"the message gives no layout to compare; {_cause(mismatch)}." + since, bool(versions)
    return (
        "neither side is what the export's signature says: executable and buffer are of other compiles." + since,
        True,
    )


_NAMES_SHOWN = 5


def _other_shape(mismatch: Mismatch, parameter: ParameterSpec, signature: Signature) -> str:
    """Words for a number whose parameter is no such array at all; empty if it is one, or nothing can be compared."""
    shapes = [side.shape for side in (mismatch.expected, mismatch.found) if side.shape is not None]
    wanted = {(shape.dtype, shape.dimensions) for shape in shapes}
    if mismatch.is_global or not wanted or (parameter.shard.dtype, parameter.shard_shape) in wanted:
        return ""
    names = ["/".join((p.argument, *p.path)) for p in signature.parameters if (p.shard.dtype, p.shard_shape) in wanted]
    if not names:
        return (
            "the export's program has no parameter whose shard has such a shape: the message comes from another "
            "program, or from this one compiled for another mesh"
        )
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return (
        "the export's parameter of that number has another shape: the message comes from another program, or from a "
        "jit that dropped unused arguments (keep_unused=False), which moves the numbers; parameters of that shape: "
        + ", ".join(names[:_NAMES_SHOWN])
        + more
    )


def _fits(shape: ArrayShape | None, parameter: ParameterSpec, mismatch: Mismatch) -> bool | None:
    """Whether a side of the message is what the signature says; None if it gives no layout."""
    if shape is None or shape.layout is None:
        return None
    if mismatch.is_global:
        same = shape.dimensions == parameter.shape and shape.dtype == parameter.shard.dtype
        return same and shape.layout == parameter.layout
    return shape == parameter.shard


def stale_versions(fingerprint: Fingerprint, installed: Mapping[str, str]) -> list[str]:
    """What has changed since the compile: ``libtpu 0.0.42 became 0.0.52``; packages that are not known are left out."""
    compiled_with = {"jax": fingerprint.jax, "jaxlib": fingerprint.jaxlib, "libtpu": fingerprint.libtpu}
    return [
        f"{name} {version} became {installed[name]}"
        for name, version in compiled_with.items()
        if version and name in installed and installed[name] != version
    ]
