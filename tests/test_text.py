"""Numbers, shapes and errors as short text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from migrate.box import Grid
from migrate.errors import ReexportError
from migrate.report.text import format_bytes, format_error, format_grid, format_seconds, format_shape, plural

BYTES = [
    (0, "0 B"),
    (1023, "1023 B"),
    (1024, "1.0 KiB"),
    (5242880, "5.0 MiB"),
    (1048575, "1.0 MiB"),  # rounds up to a whole unit, not to 1024.0 of the one below
    (1 << 40, "1.0 TiB"),
    (1 << 70, "1048576.0 PiB"),  # no unit above
    (1536.0, "1.5 KiB"),  # rates are floats
]


@pytest.mark.parametrize(("nbytes", "text"), BYTES)
def test_format_bytes(nbytes: float, text: str) -> None:
    assert format_bytes(nbytes) == text


@given(st.integers(0, 1 << 59))
def test_bytes_have_at_most_four_digits_before_the_point(nbytes: int) -> None:
    number = float(re.fullmatch(r"(\d+(?:\.\d)?) (B|[KMGTP]iB)", format_bytes(nbytes)).group(1))
    assert number < 1024


SECONDS = [
    (0.04, "0.0 s"),
    (1.94, "1.9 s"),
    (59.94, "59.9 s"),
    (59.96, "1:00"),  # never 60.0 s
    (125, "2:05"),
    (3599.6, "1:00:00"),
    (3725, "1:02:05"),
    (360000, "100:00:00"),
]


@pytest.mark.parametrize(("seconds", "text"), SECONDS)
def test_format_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


SHAPES = [((), "scalar"), ((16, 1280), "16,1280"), ((0,), "0")]


@pytest.mark.parametrize(("shape", "text"), SHAPES)
def test_format_shape(shape: tuple[int, ...], text: str) -> None:
    assert format_shape(shape) == text


GRIDS = [
    (Grid((16, 640), (2, 640)), "8 x 2,640"),
    (Grid((), ()), "scalar"),
    (Grid((0, 4), (1, 4)), "0 x 1,4"),
]


@pytest.mark.parametrize(("grid", "text"), GRIDS)
def test_format_grid(grid: Grid, text: str) -> None:
    assert format_grid(grid) == text


PLURALS = [(0, "0 items"), (1, "1 item"), (2, "2 items"), (12345, "12,345 items")]


@pytest.mark.parametrize(("count", "text"), PLURALS)
def test_plural(count: int, text: str) -> None:
    assert plural(count, "item") == text


def test_errors_are_aligned_and_leave_out_what_is_unknown() -> None:
    error = ReexportError("it broke", where="a [0:4]", found="3 bytes", remedy="restore it")
    assert format_error(error).splitlines() == [
        "error: it broke",
        "  where:    a [0:4]",
        "  found:    3 bytes",
        "  do this:  restore it",
    ]
