"""A document as one HTML file: no network, no other file, nothing that runs except our own script.

Names come from checkpoints, so they are hostile: jinja2 escapes what the template shows, the table's data lies in a
script element that is not JavaScript and has no ``<`` in it, our script sets text only, and a content security policy
with the digests of our style and script forbids everything else.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from importlib import resources
from typing import TYPE_CHECKING

from migrate.report.html.document import Document
from migrate.report.text import format_bytes, format_seconds, plural
from migrate.report.words import percent

if TYPE_CHECKING:
    from jinja2 import Template

SCRIPTS = ("drawing.js", "table.js", "report.js")


def render(document: Document) -> bytes:
    """The page, UTF-8; equal documents give equal bytes."""
    style, script = _read("report.css"), "\n".join(map(_read, SCRIPTS))
    page = _template().render(
        document=document,
        style=style,
        script=script,
        policy=f"default-src 'none'; style-src '{_source(style)}'; script-src '{_source(script)}'; "
        "base-uri 'none'; form-action 'none'",
        data=_inert_json(document.data),
    )
    return page.encode("utf-8", "xmlcharrefreplace")


def _inert_json(value: object) -> str:
    """JSON that cannot end the element it lies in."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _source(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _read(name: str) -> str:
    return resources.files(__package__ or "migrate.report.html").joinpath(name).read_text(encoding="utf-8")


@functools.cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"nbytes": format_bytes, "seconds": format_seconds, "plural": plural}
    environment.globals["percent"] = percent
    environment.globals["width"] = _width
    environment.globals["change"] = _change
    return environment.from_string(_read("report.html"))


def _width(part: float, whole: float) -> str:
    """Percent for an SVG attribute."""
    return f"{100 * part / whole if whole else 0:.3f}%"


def _change(before: int, after: int) -> str:
    """``+34.2 KiB (14 % more)``."""
    if before == after:
        return "none"
    text = f"{'+' if after > before else '−'}{format_bytes(abs(after - before))}"  # noqa: RUF001 -- a minus sign
    return f"{text} ({percent(abs(after - before), before)} {'more' if after > before else 'less'})" if before else text
