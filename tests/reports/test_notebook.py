"""What a notebook shows."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

import migrate
from migrate.difference import compare_signatures

from .conftest import small_job
from .signatures import HOSTILE, many, odd, parameter, signature


class Table(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert all(name == "style" and value and value.startswith("text-align: ") for name, value in attrs)
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def test_a_signature() -> None:
    shown = Table(signature([parameter("w"), parameter("keys", argument="cache", tiles=())])._repr_html_())
    assert "Program decode: 2 parameters, 1.6 MiB on each device; v5e:2x4, mesh data 2 x model 4" in shown.text
    assert shown.rows[1:] == [
        ["params/w", "bf16[16,320,40]{2,1,0:T(8,128)(2,1)}", "-,model,-", "1.2 MiB", "69 %"],
        ["cache/keys", "bf16[16,320,40]{2,1,0}", "-,model,-", "400.0 KiB", "0 %"],
    ]


def test_a_long_one_is_short() -> None:
    text = many(500)._repr_html_()
    assert len(Table(text).rows) == 21
    assert "and 480 more" in text


def test_a_difference() -> None:
    before, after = signature([parameter("w")]), signature([parameter("w", major_to_minor=(0, 2, 1))])
    shown = Table(compare_signatures(before, after)._repr_html_())
    assert shown.rows[1][:2] == ["params/w", "dimension order"]
    assert "rewrite 1 array" in shown.text
    assert "nothing to do" in Table(compare_signatures(before, before)._repr_html_()).text


def test_a_plan(checkpoint: Path, tmp_path: Path) -> None:
    shown = Table(migrate.plan(small_job(checkpoint, tmp_path / "out"))._repr_html_())
    assert "10 arrays, 1.6 KiB in 1 item" in shown.text
    assert len(shown.rows) == 11
    assert ["rank3/w", "float32", "4,6,2", "8 x 1,6,1"] in [row[:4] for row in shown.rows]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_only_text(name: str) -> None:
    hostile = signature([parameter(name, argument=name)], topology=name)
    for shown in (hostile._repr_html_(), compare_signatures(hostile, signature([]))._repr_html_()):
        assert Table(shown).tags <= {"div", "p", "b", "table", "thead", "tbody", "tr", "th", "td"}
        shown.encode()


def test_odd_layouts() -> None:
    assert len(Table(signature(odd())._repr_html_()).rows) == len(odd()) + 1
    assert Table(signature([])._repr_html_()).rows == []
