"""Tables for terminals of any width."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from migrate.report.tables import fold, print_facts, print_table, table

COLUMNS = [("parameter", False), ("shard in XLA's terms", False), ("per device", True)]
ROWS = [
    ("layers/0/attention/query/kernel", "bf16[16,1280,40]{1,2,0:T(8,128)(2,1)}", "1.6 MiB"),
    ("embed", "f32[8]{0}\n-> f32[16]{0}", "512 B"),
]


def printed(width: int, rows: list[tuple[str, ...]] = ROWS, *, terminal: bool = True) -> str:
    out = Console(file=io.StringIO(), force_terminal=terminal, color_system=None, width=width if terminal else 10_000)
    print_table(out, table(COLUMNS, rows))
    return out.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_wide_enough() -> None:
    assert printed(100).splitlines() == [
        "parameter                        shard in XLA's terms                   per device",
        "layers/0/attention/query/kernel  bf16[16,1280,40]{1,2,0:T(8,128)(2,1)}     1.6 MiB",
        "embed                            f32[8]{0}                                   512 B",
        "                                 -> f32[16]{0}",
    ]


def test_a_narrower_terminal_folds_cells_at_separators() -> None:
    assert printed(64).splitlines() == [
        "parameter                  shard in XLA's terms       per device",
        "layers/0/attention/query/  bf16[16,1280,40]{1,2,0:T(     1.6 MiB",
        "kernel                     8,128)(2,1)}",
        "embed                      f32[8]{0}                       512 B",
        "                           -> f32[16]{0}",
    ]


def test_a_very_narrow_one_shows_a_paragraph_a_row() -> None:
    assert printed(40).splitlines() == [
        "parameter:",
        "layers/0/attention/query/kernel",
        "  shard in XLA's terms",
        "    bf16[16,1280,40]{1,2,0:T(8,128)(2,",
        "    1)}",
        "  per device 1.6 MiB",
        "embed",
        "  shard in XLA's terms",
        "    f32[8]{0}",
        "    -> f32[16]{0}",
        "  per device 512 B",
    ]


def test_a_pipe_gets_whole_lines_and_no_styles() -> None:
    wide = [("x" * 300, "y" * 300, "1 B")]
    assert printed(0, wide, terminal=False).splitlines()[1] == f"{'x' * 300}  {'y' * 300}         1 B"


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@given(st.lists(st.tuples(TEXTS, TEXTS, st.sampled_from(["512 B", "1.6 MiB"])), max_size=5), st.integers(30, 130))
def test_no_line_is_wider_than_the_terminal_and_none_moves_the_cursor(rows: list[tuple[str, ...]], width: int) -> None:
    lines = printed(width, rows).split("\n")
    assert max(map(cell_len, lines)) <= width
    assert all(line.isprintable() for line in lines)


@given(st.text(max_size=80), st.integers(2, 40))
def test_folding_loses_only_spaces(text: str, width: int) -> None:
    lines = fold(text, width)
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert all(cell_len(line) <= width for line in lines) or cell_len(text) <= width


def test_an_escape_sequence_in_a_name_is_shown() -> None:
    assert "\\x1b[2Jw" in printed(100, [("\x1b[2Jw", "f32[]", "4 B")])


@pytest.mark.parametrize("width", [30, 60, 200])
def test_facts_go_on_below_their_beginning(width: int) -> None:
    out = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=width)
    print_facts(out, [("source", "a/b (orbax, " + "word " * 10 + ")"), ("to", "x")])
    lines = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert all(len(line) <= width for line in lines)
    assert lines[0].startswith("source  a/b")
    assert all(line.startswith(" " * 8) for line in lines[1:-1])
    assert lines[-1] == "to      x"


def on_a_terminal(width: int, *arguments: str, **environment: str) -> str:
    """What a command prints on a terminal of ``width`` columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    variables = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES", "NO_COLOR"}}
    with subprocess.Popen(
        [sys.executable, "-m", "migrate.cli", *arguments],
        stdout=theirs,
        stderr=theirs,
        stdin=subprocess.DEVNULL,
        env=variables | {"TERM": "xterm-256color"} | environment,
    ):
        os.close(theirs)
        parts = []
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # how Linux says that the other side is closed
                break
            if not part:
                break
            parts.append(part)
    os.close(ours)
    return b"".join(parts).decode()


@pytest.mark.parametrize("width", [30, 60, 200])
def test_a_command_on_terminals(width: int, checkpoint: Path) -> None:
    text = on_a_terminal(width, "inspect", str(checkpoint))
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text).replace("\r", "")
    assert "params/quant/scale_f16" in plain
    assert all(cell_len(line) <= width for line in plain.split("\n")), plain
    assert plain.split("\n")[0].startswith("path")


def test_no_color(checkpoint: Path) -> None:
    coloured = r"\x1b\[[0-9;]*(3|4|9|10)[0-9]"
    assert not re.search(coloured, on_a_terminal(60, "inspect", str(checkpoint), NO_COLOR="1"))
    assert "\x1b" not in on_a_terminal(60, "inspect", str(checkpoint), TERM="dumb")
