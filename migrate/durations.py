"""Spans of time as people write them: ``90``, ``30s``, ``10m``, ``6h``, ``1d``. Pure."""

from __future__ import annotations

import re

_UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse_seconds(value: object) -> float:
    """Seconds from a number or a text with a unit. Raises ValueError.

    >>> parse_seconds("1.5h")
    5400.0
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = float(value)
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(value))
        if match is None or match.group(2) not in _UNITS:
            raise ValueError("expected a span of time such as 90, 30s, 10m, 6h or 1d")
        seconds = float(match.group(1)) * _UNITS[match.group(2)]
    if not 0 <= seconds < float("inf"):
        raise ValueError("expected a span of time of at least 0 seconds")
    return seconds


def format_span(seconds: float) -> str:
    """A span in its largest whole unit and the next: ``1 d 2 h``, ``5 min``, ``40 s``."""
    rest = round(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])
