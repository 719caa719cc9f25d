"""What the parts of a mismatch have in common and differ in, and what is likely to have caused it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from migrate.layout import ArrayShape
from migrate.messages import Mismatch, Side
from migrate.padding import orders_of_size
from migrate.signature import Fingerprint, ParameterSpec, Signature


@dataclass(frozen=True, slots=True)
class Known:
    """What is known besides the message."""

    signature: Signature
    owner: str
    """Whose signature it is, in words: ``the export``, ``the job``."""
    since: tuple[str, ...]
    """What has changed since its compile."""


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


def cause_of_message(mismatch: Mismatch) -> str:
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


def cause_by_signature(mismatch: Mismatch, parameter: ParameterSpec | None, known: Known) -> tuple[str, bool]:
    """The likely cause, and whether it is the export or the job that has to change."""
    owner = known.owner
    if parameter is None:
        return f"{owner}'s program has no such parameter: the message comes from another program", True
    if moved := _other_shape(mismatch, parameter, known):
        return moved, True
    expected, found = (_fits(side, parameter, mismatch) for side in (mismatch.expected, mismatch.found))
    since = (
        f" Since then {' and '.join(known.since)}."
        if known.since
        else f" The versions here are those of {owner}: compare flags, model code, mesh and topology."
    )
    sizes = mismatch.expected.shape is None and _sizes(mismatch, parameter)
    by = f" (by the sizes alone; {sizes})" if sizes else ""
    if expected:
        return f"the executable is {owner}'s, but the buffer is not: it was loaded by other means{by}.", False
    if found:
        return f"the buffer is {owner}'s, but the executable that runs is from another compile{by}." + since, True
    if expected is None:
        return f"the message gives no layout to compare; {cause_of_message(mismatch)}." + since, bool(known.since)
    return (
        f"neither side is what {owner}'s signature says: executable and buffer are of other compiles{by}." + since,
        True,
    )


def _sizes(mismatch: Mismatch, parameter: ParameterSpec) -> str:
    """What the sizes of a message without layouts could be of, among the layouts of that parameter."""
    texts = []
    for name, nbytes in (("expected", mismatch.expected.nbytes), ("found", mismatch.found.nbytes)):
        if nbytes is None:
            continue
        if nbytes == parameter.device_bytes:
            texts.append(f"{nbytes:,} bytes {name} are those of the signature's layout")
        elif orders := orders_of_size(parameter.shard, nbytes):
            listed = ", ".join(_order(order) for order in orders[:_NAMES_SHOWN])
            texts.append(f"{nbytes:,} bytes {name} are those of the dimension order {listed}")
        elif nbytes == ArrayShape(parameter.shard.dtype, parameter.shard_shape).dense_bytes:
            texts.append(f"{nbytes:,} bytes {name} are those of its elements without padding")
        else:
            texts.append(f"{nbytes:,} bytes {name} are those of no dimension order with these tiles")
    return "; ".join(texts)


_NAMES_SHOWN = 5


def _other_shape(mismatch: Mismatch, parameter: ParameterSpec, known: Known) -> str:
    """Words for a number whose parameter is no such array at all; empty if it is one, or nothing can be compared."""
    shapes = [side.shape for side in (mismatch.expected, mismatch.found) if side.shape is not None]
    wanted = {(shape.dtype, shape.dimensions) for shape in shapes}
    if mismatch.is_global or not wanted or (parameter.shard.dtype, parameter.shard_shape) in wanted:
        return ""
    names = [
        "/".join((p.argument, *p.path)) for p in known.signature.parameters if (p.shard.dtype, p.shard_shape) in wanted
    ]
    if not names:
        return (
            f"{known.owner}'s program has no parameter whose shard has such a shape: the message comes from another "
            "program, or from this one compiled for another mesh"
        )
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return (
        f"{known.owner}'s parameter of that number has another shape: the message comes from another program, or from "
        "a jit that dropped unused arguments (keep_unused=False), which moves the numbers; parameters of that shape: "
        + ", ".join(names[:_NAMES_SHOWN])
        + more
    )


def _fits(side: Side, parameter: ParameterSpec, mismatch: Mismatch) -> bool | None:
    """Whether a side of the message is what the signature says, by its size if it gives no layout; None if neither."""
    shape = side.shape
    if shape is None or shape.layout is None:
        return None if side.nbytes is None or side.text else side.nbytes == parameter.device_bytes
    if mismatch.is_global:
        same = shape.dimensions == parameter.shape and shape.dtype == parameter.shard.dtype
        return same and shape.layout == parameter.layout
    return shape == parameter.shard


def fingerprint_changes(before: Fingerprint, after: Fingerprint) -> list[str]:
    """What differs between two compiles: ``libtpu 0.0.42 became 0.0.52``, ``the program itself has changed``."""

    def text(value: object) -> str:
        if isinstance(value, tuple):
            return ", ".join(f"{name}={entry}" for name, entry in value) or "none"
        return str(value) or "none"

    pairs = [(name, getattr(before, name), getattr(after, name)) for name in Fingerprint.__dataclass_fields__]
    return [
        "the program itself has changed"
        if name == "stablehlo_sha256"
        else f"{name.replace('_', ' ')} {text(old)} became {text(new)}"
        for name, old, new in pairs
        if old != new
    ]


def stale_versions(fingerprint: Fingerprint, installed: Mapping[str, str]) -> list[str]:
    """What has changed since the compile: ``libtpu 0.0.42 became 0.0.52``; packages that are not known are left out."""
    compiled_with = {"jax": fingerprint.jax, "jaxlib": fingerprint.jaxlib, "libtpu": fingerprint.libtpu}
    return [
        f"{name} {version} became {installed[name]}"
        for name, version in compiled_with.items()
        if version and name in installed and installed[name] != version
    ]
