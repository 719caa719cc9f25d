"""What the layouts of a program cost on a device: against the default ones, and against those it would choose. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from migrate.signature import ParameterSpec, Signature


def conflicts(signature: Signature) -> tuple[ParameterSpec, ...]:
    """Parameters that lie as another program wants them, and not as this one would choose."""
    return tuple(p for p in signature.parameters if p.chosen_by == "primary")


def refused(signature: Signature) -> tuple[ParameterSpec, ...]:
    """Parameters whose layout the compiler chose was padded above the bound; they have the default one."""
    return tuple(p for p in signature.parameters if p.chosen_by == "bound")


def unlike_default(signature: Signature) -> tuple[ParameterSpec, ...]:
    """Parameters that take other bytes than in their default layout, those that differ most first."""
    found = [p for p in signature.parameters if p.default_device_bytes not in {None, p.device_bytes}]
    return tuple(sorted(found, key=lambda p: -abs(p.device_bytes - (p.default_device_bytes or 0))))


def to_json(signatures: Sequence[Signature]) -> list[dict[str, object]]:
    """A JSON object a program, the primary one first; bytes are those of one device, tile padding included."""
    return [
        {
            "name": signature.program,
            "primary": number == 0,
            "layout_policy": signature.fingerprint.layout_policy,
            "device_bytes": signature.device_bytes,
            "default_device_bytes": signature.default_device_bytes,
            "memory": asdict(signature.memory),
            "free_memory": None if signature.free_memory is None else asdict(signature.free_memory),
            "conflicts": _prescribed(conflicts(signature)),
            "refused": _prescribed(refused(signature)),
            "unlike_default": [
                {
                    "parameter": f"{p.argument}/{p.name}",
                    "layout": str(p.layout),
                    "device_bytes": p.device_bytes,
                    "default_device_bytes": p.default_device_bytes,
                }
                for p in unlike_default(signature)
            ],
        }
        for number, signature in enumerate(signatures)
    ]


def _prescribed(parameters: Iterable[ParameterSpec]) -> list[dict[str, object]]:
    return [
        {
            "parameter": f"{p.argument}/{p.name}",
            "layout": str(p.layout),
            "device_bytes": p.device_bytes,
            "wanted": str(p.wanted),
            "wanted_device_bytes": p.wanted_device_bytes,
            "unpadded_bytes": p.unpadded_bytes,
        }
        for p in parameters
    ]
