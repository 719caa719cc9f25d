"""Everything in the README and in docs/ that looks like a command or a program is run as it stands there.

A fenced block says what it is: ``bash`` (commands), ``console`` (``$ command`` lines and what they print), ``python``,
``yaml`` (a job, a fleet, or part of one), or ``text``, ``json`` and others, which are left alone. The blocks of a page
run in their order in one empty directory with the repository's ``configs``, ``examples`` and ``tests/data``. A first
line ``# name.py`` or ``# name.yaml`` makes a block a file there. Before a block an HTML comment can say

``<!-- not run: REASON -->``   it cannot run here; every such block is listed as a skipped test with its reason
``<!-- exit code N -->``       the last command ends so; in ``bash``, ``# exit code N`` behind a command says it

What ``console`` shows is compared line by line, but for times, rates and ids; ``...`` stands for lines left out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from migrate import config, errors, fleet, rules

REPOSITORY = Path(__file__).parent.parent
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
LANGUAGES = {"bash", "console", "python", "yaml"}
OTHER_LANGUAGES = {"text", "json", "dockerfile", "ini", "html"}
SLOW = {"tutorial.md", "fleet.md"}
"""Pages that take more than a minute."""


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str
    not_run: str
    exit_code: int

    def __str__(self) -> str:
        return f"{self.page.relative_to(REPOSITORY)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    found: list[Block] = []
    lines = page.read_text().splitlines()
    index = 0
    while index < len(lines):
        fence = re.fullmatch(r"( *)(`{3,})(\S*)", lines[index])
        if fence is None:
            index += 1
            continue
        end = lines.index(fence[1] + fence[2], index + 1)
        before = next((line for line in reversed(lines[:index]) if line.strip()), "")
        not_run = re.fullmatch(r"<!-- not run: (.+) -->", before.strip())
        code = re.fullmatch(r"<!-- exit code (\d+) -->", before.strip())
        text = "\n".join(line.removeprefix(fence[1]) for line in lines[index + 1 : end]) + "\n"
        found.append(Block(page, index + 1, fence[3], text, not_run[1] if not_run else "", int(code[1]) if code else 0))
        index = end + 1
    return found


BLOCKS = {page: blocks_of(page) for page in PAGES}


def page_parameters() -> list[Any]:
    return [
        pytest.param(page, id=page.name, marks=[pytest.mark.slow] if page.name in SLOW else [])
        for page, blocks in BLOCKS.items()
        if any(block.language in LANGUAGES and not block.not_run for block in blocks)
    ]


@pytest.mark.parametrize("page", page_parameters())
def test_page_runs(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    directory = workplace(tmp_path)
    if "fetch.py" in page.read_text():
        shutil.copytree(request.getfixturevalue("minilm"), directory / "out" / "minilm")
    for block in BLOCKS[page]:
        if block.not_run:
            continue
        name = re.match(r"# ([\w.-]+\.(?:py|yaml))\n", block.text)
        if name:
            (directory / name[1]).write_text(block.text)
        if block.language == "yaml":
            check_yaml(block, directory)
        elif block.language == "python" and name is None:
            run(block, [sys.executable, "-c", block.text], directory)
        elif block.language == "bash":
            lines = re.sub(r"^(.*?) +#.*exit code (\d+).*$", r"\1 || [ $? = \2 ]", block.text, flags=re.MULTILINE)
            run(block, ["bash", "-euc", lines], directory)
        elif block.language == "console":
            run_console(block, directory)


@pytest.mark.parametrize("block", [b for blocks in BLOCKS.values() for b in blocks if b.not_run], ids=str)
def test_not_run(block: Block) -> None:
    if block.language == "python":
        compile(block.text, str(block), "exec")
    pytest.skip(f"not run: {block.not_run}")


def test_every_block_says_what_it_is() -> None:
    wrong = [
        f"{block}: {block.language or 'no language'}"
        for blocks in BLOCKS.values()
        for block in blocks
        if block.language not in LANGUAGES | OTHER_LANGUAGES
    ]
    assert not wrong, f"a fenced block names its language, one of {sorted(LANGUAGES | OTHER_LANGUAGES)}"


def test_what_is_not_run_would_not_be_looked_at_otherwise() -> None:
    """Most of the documentation is run."""
    live = [block for blocks in BLOCKS.values() for block in blocks if block.language in LANGUAGES]
    assert sum(not block.not_run for block in live) > 2 * sum(bool(block.not_run) for block in live)


def workplace(directory: Path) -> Path:
    """A directory in which the repository's own paths work, and outputs stay out of the repository."""
    for name in ("configs", "examples"):
        shutil.copytree(REPOSITORY / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("tests", "benchmarks", "docs", "migrate", "pipelines"):
        (directory / name).symlink_to(REPOSITORY / name)
    (directory / ".venv").symlink_to(sys.prefix)
    return directory


def run(block: Block, command: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in {"XLA_FLAGS", "JAX_PLATFORMS"}}
    environment["HOME"] = str(directory)
    environment["PATH"] = f"{directory / '.venv' / 'bin'}{os.pathsep}{environment['PATH']}"
    # serving snippets that do not say so themselves run on eight CPU devices
    if command[0] == sys.executable:
        environment |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=directory, env=environment)
    assert done.returncode == block.exit_code, f"{block} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def run_console(block: Block, directory: Path) -> None:
    """Run each ``$ command`` and look for what the page shows below it."""
    parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    assert parts[0] == "", f"{block}: the first line is a command, after '$ '"
    for number, part in enumerate(parts[1:], 2):
        command, _, shown = part.partition("\n")
        while command.endswith("\\"):
            more, _, shown = shown.partition("\n")
            command = f"{command[:-1]} {more}"
        last = number == len(parts)
        expecting = block if last else Block(block.page, block.line, block.language, "", "", 0)
        done = run(expecting, ["bash", "-uc", command], directory)
        printed = {stable(line) for line in (done.stdout + done.stderr).splitlines()}
        missing = [line for line in shown.splitlines() if line.strip() != "..." and stable(line) not in printed]
        assert not missing, f"{block}: `{command}` printed no such lines:\n" + "\n".join(
            [*missing, "it printed:", done.stdout, done.stderr]
        )


_CHANGING = (
    (r"\x1b\[[0-9;]*m", ""),
    (r"\b\d{4}-\d\d-\d\dT[\d:]+Z", "WHEN"),
    (r"\b[0-9a-f]{8,64}\b", "ID"),
    (r"\b\d+(\.\d+)? (s|ms|min)\b", "TIME"),
    (r", \d+(\.\d+)? ([KMG]i)?B/s.*", ""),
    (r"compiled in TIME|from the compile cache", "COMPILED"),
    (r"\b\d\.\de-\d\d\b", "SMALL"),
    (r"\s+", " "),
)


def stable(line: str) -> str:
    """A line without what differs from run to run: times, rates, ids, rounding errors, widths of columns."""
    for pattern, replacement in _CHANGING:
        line = re.sub(pattern, replacement, line)
    return line.strip()


_WHOLE_JOB: dict[str, Any] = {
    "source": {"path": "checkpoint"},
    "program": {"entry": "model:step"},
    "target": {"topology": "v5e:2x4", "mesh": {"data": 2, "model": 4}},
    "output": "out",
}


def check_yaml(block: Block, directory: Path) -> None:
    """A whole job or fleet is read; part of one is completed first."""
    document = yaml.safe_load(block.text)
    assert isinstance(document, dict), f"{block}: a job or a fleet is a mapping"
    path = directory / "documentation.yaml"
    if "models" in document:
        path.write_text(block.text)
        assert fleet.load_fleet(path).cells
        return
    if set(document) & set(fleet._Sections.model_fields) - {"output"}:
        whole = {"output": "out", "targets": {"t": _WHOLE_JOB["target"]}, "models": {"m": dict(_WHOLE_JOB)}}
        del whole["models"]["m"]["target"], whole["models"]["m"]["output"]
        path.write_text(yaml.safe_dump(whole | document))
        assert fleet.load_fleet(path).cells
        return
    whole = {key: value for key, value in _WHOLE_JOB.items() if not (key == "program" and "programs" in document)}
    for key, value in document.items():
        merges = isinstance(value, dict) and isinstance(whole.get(key), dict) and key != "program"
        whole[key] = {**whole[key], **value} if merges else value
    assert config.job_problems(whole) == [], str(block)


@pytest.mark.parametrize(
    ("page", "sections"),
    [
        ("jobs.md", [config.Source, config.ProgramConfig, config.Target, config.Compile, config.Rewrite, config.Job]),
        ("jobs.md", list(rules.RULES.values())),
        (
            "fleet.md",
            [fleet._Sections, fleet._ModelKeys, fleet.Retention, fleet.Concurrency, fleet.Smoke, fleet.Notifications],
        ),
    ],
    ids=["job", "mapping", "fleet"],
)
def test_every_key_is_explained(page: str, sections: list[Any]) -> None:
    text = (REPOSITORY / "docs" / page).read_text()
    for section in sections:
        for name in section.model_fields:
            assert re.search(rf"`([\w.]+\.)?{name}\b|^ *{name}:", text, re.MULTILINE), f"docs/{page}: {name}"


def test_every_error_is_explained_with_its_exit_code() -> None:
    text = (REPOSITORY / "docs" / "troubleshooting.md").read_text()
    told: dict[str, int] = {}
    for names, code in re.findall(r"^\| (`\w+Error`(?:, `\w+Error`)*) \| (\d) \|", text, re.MULTILINE):
        told |= {name: int(code) for name in re.findall(r"\w+", names)}
    classes = {
        name: int(value.exit_code)
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.ReexportError)
    }
    del classes["ReexportError"], classes["SourceError"]  # bases of others
    assert told == classes


def test_links_lead_somewhere() -> None:
    """As seen on disk, where the README and the code's messages lead people; mkdocs checks those of the site."""
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            target, _, anchor = link.partition("#")
            if "://" in target or target.startswith("reference/"):
                continue
            file = (page.parent / target) if target else page
            assert file.exists(), f"{page.name}: {link}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
                slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
                assert anchor in slugs, f"{page.name}: {link}"


class _Assets(HTMLParser):
    """URLs that a browser loads without being asked."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag in {"script", "img", "iframe", "source"} and attributes.get("src"):
            self.found.append(str(attributes["src"]))
        if tag == "link" and attributes.get("rel") not in {"canonical", "next", "prev"}:
            self.found.append(str(attributes.get("href")))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="needs the packages of the docs group")
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(REPOSITORY / "configs" / "site.yml")]
    done = subprocess.run([*command, "-d", str(directory)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return directory


def test_site_needs_no_network(site: Path) -> None:
    pages = [page for page in site.rglob("*.html") if page.name != "404.html"]  # its paths are those of a server
    assert len(pages) > 15
    for page in pages:
        assets = _Assets()
        assets.feed(page.read_text())
        assert assets.found
        for url in assets.found:
            assert "//" not in url, f"{page.relative_to(site)} loads {url}"
            local = (page.parent / url.partition("?")[0]).resolve()
            assert local.exists(), f"{page.relative_to(site)}: {url}"
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(\s*[\"']?(https?:)?//", style.read_text()), style.name


@pytest.mark.parametrize("check", ["job", "fleet", "commands"])
def test_reference_is_complete(site: Path, check: str, section_names: Callable[[str], set[str]]) -> None:
    text = (site / "reference" / check / "index.html").read_text()
    for name in section_names(check):
        assert f">{name}<" in text, name


@pytest.fixture
def section_names() -> Callable[[str], set[str]]:
    from migrate.cli.main import cli

    def names(page: str) -> set[str]:
        if page == "job":
            return {*config.Job.model_fields, *config.Target.model_fields, *rules.RULES, "major_to_minor"}
        if page == "fleet":
            return {*fleet._Sections.model_fields, "keep", "grace", "webhook_env", "overrides"}
        return {f"reexport {name}" for name, command in cli.commands.items() if not hasattr(command, "commands")}

    return names
