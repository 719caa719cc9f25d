"""What changes between two executables: parameters, device bytes, and which stored arrays must be rewritten. Pure.

:func:`migrate.signature.diff` finds the fields; this module says what follows from them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from migrate.chunking import choose_chunk_shape
from migrate.layout import ArrayShape
from migrate.signature import Change, ParameterSpec, Signature, diff

Kind = Literal["nothing to do", "recompile only", "rewrite"]

DEFAULT_MAX_CHUNK_BYTES = 64 << 20
"""Bound of a stored chunk where no job says another."""

_ASPECTS = {
    "shape": "shape",
    "dtype": "dtype",
    "partition": "sharding",
    "shard_shape": "sharding",
    "major_to_minor": "dimension order",
    "tiles": "tiling",
    "element_bits": "tiling",
    "memory_kind": "memory space",
}


@dataclass(frozen=True, slots=True)
class ParameterChange:
    """A parameter that the two executables do not expect alike."""

    before: ParameterSpec | None
    """None: the first program has no such parameter."""
    after: ParameterSpec | None
    """None: the second program has no such parameter."""
    aspects: tuple[str, ...]
    """What differs: ``shape``, ``dtype``, ``sharding``, ``dimension order``, ``tiling``, ``memory space``; or
    ``added``, ``removed``."""
    rewrite: bool
    """Whether its stored array must be written again."""

    @property
    def name(self) -> str:
        """``argument/path``."""
        known = self.before or self.after
        return "" if known is None else "/".join((known.argument, *known.path))

    def to_json(self) -> dict[str, object]:
        """A JSON object; shapes are those of one device's shard, as XLA prints them."""
        return {
            "parameter": self.name,
            "aspects": list(self.aspects),
            "before": _parameter_json(self.before),
            "after": _parameter_json(self.after),
            "rewrite": self.rewrite,
        }


def _parameter_json(parameter: ParameterSpec | None) -> dict[str, object] | None:
    if parameter is None:
        return None
    return {
        "shard": str(parameter.shard),
        "shape": list(parameter.shape),
        "sharding": [list(axes) for axes in parameter.partition],
        "memory_kind": parameter.memory_kind,
        "device_bytes": parameter.device_bytes,
        "bytes": parameter.nbytes,
    }


@dataclass(frozen=True, slots=True)
class Difference:
    """What changes from one signature to another."""

    before: Signature
    after: Signature
    fingerprint: tuple[Change, ...]
    """Fields of the fingerprint that differ."""
    parameters: tuple[ParameterChange, ...]
    """Parameters that differ, in the order of the first signature, then new ones."""
    set_changes: bool
    """Whether the stored parameter set becomes another one; a run then writes all of its arrays."""

    @property
    def same_layouts(self) -> bool:
        """Whether every parameter is expected alike, so that buffers of one program fit the other."""
        return not self.parameters

    @property
    def rewritten(self) -> tuple[ParameterSpec, ...]:
        """The weights whose stored array differs in shape, dtype, chunks or dimension order, as they will be."""
        return tuple(change.after for change in self.parameters if change.rewrite and change.after is not None)

    @property
    def kind(self) -> Kind:
        """What there is to do."""
        if self.set_changes:
            return "rewrite"
        return "recompile only" if self.parameters or self.fingerprint else "nothing to do"

    def changed_device_bytes(self) -> tuple[int, int]:
        """Device bytes of the parameters that differ: before and after."""
        return (
            sum(change.before.device_bytes for change in self.parameters if change.before is not None),
            sum(change.after.device_bytes for change in self.parameters if change.after is not None),
        )

    def _repr_html_(self) -> str:
        """A short table, which notebooks show."""
        from migrate.report.notebook import difference_html

        return difference_html(self)

    def to_json(self) -> dict[str, object]:
        """A JSON object for ``reexport diff --json``; byte counts are per device unless named otherwise."""
        changed = self.changed_device_bytes()
        return {
            "same_layouts": self.same_layouts,
            "verdict": self.kind,
            "rewrite": {
                "arrays": ["/".join(parameter.path) for parameter in self.rewritten],
                "bytes": sum(parameter.nbytes for parameter in self.rewritten),
                "set_changes": self.set_changes,
                "set_bytes": sum(parameter.nbytes for parameter in self.after.weights),
            },
            "fingerprint": {c.field: {"before": c.before, "after": c.after} for c in self.fingerprint},
            "parameters": [change.to_json() for change in self.parameters],
            "before": _side_json(self.before, changed[0]),
            "after": _side_json(self.after, changed[1]),
        }


def _side_json(signature: Signature, changed: int) -> dict[str, object]:
    return {
        "program": signature.program,
        "parameters": len(signature.parameters),
        "device_bytes": signature.device_bytes,
        "changed_device_bytes": changed,
        "memory": asdict(signature.memory),
    }


def compare_signatures(
    before: Signature, after: Signature, *, max_chunk_bytes: int = DEFAULT_MAX_CHUNK_BYTES
) -> Difference:
    """What changes when the executable of ``after`` takes the place of that of ``before``.

    A weight must be rewritten if its stored array becomes another one: by its shape, dtype or dimension order, or by
    its chunks, which are chosen by the planner's rule (the shard, cut to at most ``max_chunk_bytes`` logical bytes).
    Tiling and memory space are not part of what is stored.
    """
    grouped: dict[str, list[str]] = {}
    fingerprint: list[Change] = []
    for change in diff(before, after):
        if change.where == "fingerprint":
            fingerprint.append(change)
        else:
            grouped.setdefault(change.where, []).append(change.field)
    old, new = _by_name(before), _by_name(after)
    parameters = tuple(
        ParameterChange(
            before=old.get(where),
            after=new.get(where),
            aspects=_aspects(fields, old.get(where)),
            rewrite=_rewrite(old.get(where), new.get(where), max_chunk_bytes),
        )
        for where, fields in grouped.items()
    )
    return Difference(
        before=before,
        after=after,
        fingerprint=tuple(fingerprint),
        parameters=parameters,
        # a set is addressed by its arrays in their order
        set_changes=[_stored(p, max_chunk_bytes) for p in before.weights]
        != [_stored(p, max_chunk_bytes) for p in after.weights],
    )


def _by_name(signature: Signature) -> dict[str, ParameterSpec]:
    return {"/".join((p.argument, *p.path)): p for p in signature.parameters}


def _aspects(fields: list[str], before: ParameterSpec | None) -> tuple[str, ...]:
    if "parameter" in fields:
        return ("added" if before is None else "removed",)
    # a shard that changes with the whole array is no change of the sharding
    if "shape" in fields and "partition" not in fields:
        fields = [field for field in fields if field != "shard_shape"]
    return tuple(dict.fromkeys(_ASPECTS[field] for field in fields))


def _rewrite(before: ParameterSpec | None, after: ParameterSpec | None, max_chunk_bytes: int) -> bool:
    if after is None or not after.is_weight:
        return False
    return before is None or not before.is_weight or _stored(before, max_chunk_bytes) != _stored(after, max_chunk_bytes)


def _stored(parameter: ParameterSpec, max_chunk_bytes: int) -> tuple[object, ...]:
    """What decides the stored bytes of a weight, given its elements."""
    item_bytes = ArrayShape(parameter.shard.dtype, ()).dense_bytes
    return (
        parameter.path,
        parameter.shape,
        parameter.dtype,
        parameter.major_to_minor,
        choose_chunk_shape(
            parameter.shape, parameter.shard_shape, parameter.major_to_minor, item_bytes, max_chunk_bytes
        ),
    )
