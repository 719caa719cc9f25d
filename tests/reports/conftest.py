"""A headless Chromium for the pages; where there is none, their tests are skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import migrate
from migrate.report.html.document import Document
from migrate.report.html.page import render

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def checkpoint(repository: Path) -> Path:
    """Orbax 0.2.7 of 2023, as it lies in the repository."""
    return repository / "tests/data/orbax_0.2.7"


def small_job(checkpoint: Path, output: Path, topology: str = "v5e:2x4") -> dict[str, Any]:
    """Ten small arrays for eight chips."""
    return {
        "source": {"path": str(checkpoint), "select": "params"},
        "program": {"entry": "migrate.demo.tiny:next_token_step"},
        "target": {"topology": topology, "mesh": {"data": 2, "model": 4}},
        "output": str(output),
    }


@pytest.fixture(scope="session")
def export(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> migrate.Export:
    """A committed export."""
    return migrate.run(small_job(checkpoint, tmp_path_factory.mktemp("export"))).export


def reexport(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    command = [sys.executable, "-m", "migrate.cli", *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if name not in {"XLA_FLAGS", "JAX_PLATFORMS"}}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, **options)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # not for the session: playwright keeps an event loop running, in which others cannot call asyncio.run
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # root has no sandbox in a container
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"] if not os.getuid() else [])
        yield browser
        browser.close()


@dataclass
class Opened:
    """A page, and what it did that it should not."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def texts(self, selector: str) -> list[str]:
        """The text of each element."""
        return self.page.locator(selector).all_text_contents()

    def column(self, title: str) -> list[str]:
        """The cells of a column of the parameters, as far as they are drawn."""
        titles = self.texts("#table thead button")
        return self.texts(f"#table tbody tr:not(.space) td:nth-child({titles.index(title) + 1})")

    def expect(self, selector: str, text: str) -> None:
        """Wait until an element has this text."""
        from playwright.sync_api import expect

        expect(self.page.locator(selector)).to_have_text(text)


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Document or file -> the page of it. At the end of the test: no page complained, and none asked for anything."""
    opened: list[Opened] = []

    def show(document: Document | Path, **options: object) -> Opened:
        path = tmp_path / "report.html"
        if isinstance(document, Path):
            path = document
        else:
            path.write_bytes(render(document))
        page = browser.new_page(**options)  # type: ignore[arg-type]
        found = Opened(page)
        opened.append(found)
        page.on("console", lambda message: found.complaints.append(message.text))
        page.on("pageerror", lambda error: found.complaints.append(str(error)))
        page.on("dialog", lambda dialog: found.complaints.append(f"dialog {dialog.message}"))
        page.on("request", lambda request: found.requests.append(request.url))
        page.goto(path.as_uri())
        return found

    yield show
    for found in opened:
        assert found.complaints == []
        assert found.requests == [found.page.url]
        found.page.close()
