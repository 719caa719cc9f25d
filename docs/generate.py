"""Reference pages of the site, made from the program itself: a hook of mkdocs, named in ``configs/site.yml``.

Job and fleet files are described by their pydantic models, commands by click. ``python docs/generate.py DIRECTORY``
writes the pages for a look at them.
"""

from __future__ import annotations

import re
import sys
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from migrate import config, fleet, layout_rules, rules

if typing.TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

_JOB_SECTIONS = {
    "source": config.Source,
    "program": config.ProgramConfig,
    "target": config.Target,
    "compile": config.Compile,
    "rewrite": config.Rewrite,
}
_FLEET_SECTIONS = {
    "retention": fleet.Retention,
    "concurrency": fleet.Concurrency,
    "smoke": fleet.Smoke,
    "notifications": fleet.Notifications,
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages to those that lie in the folder (mkdocs calls this)."""
    from mkdocs.structure.files import File

    for name, page in PAGES.items():
        files.append(File.generated(config, name, content=page()))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Of a link to a file outside this folder only its name stays: the site has no such page (mkdocs calls this)."""
    return re.sub(r"\[([^\]]+)\]\(\.\./[^)]+\)", r"\1", markdown)


def job_reference() -> str:
    """Every key of a job file."""
    lines = [
        "# Job reference",
        "",
        "Every key of a job file, as the program that reads it describes them. [Job files](../jobs.md) explains them "
        "with examples. An unknown key is an error, which names it and the closest one that exists.",
        "",
        *_table(config.Job),
    ]
    for name, section in _JOB_SECTIONS.items():
        lines += ["", f"## {name}", "", _sentence(section), "", *_table(section)]
    lines += ["", "## layouts", "", _sentence(layout_rules.LayoutRule), "", *_table(layout_rules.LayoutRule)]
    for policy in (layout_rules.CopiedLayout, layout_rules.StatedLayout):
        lines += ["", _sentence(policy), "", *_table(policy)]
    lines += [
        "",
        "## mapping",
        "",
        "A list of rules, applied in the order they are written. A rule is told by its first key, a regular expression "
        "that must match the whole path of an array. [Mapping](../mapping.md) has recipes.",
    ]
    for name, rule in rules.RULES.items():
        lines += ["", f"### {name}", "", _sentence(rule), "", *_table(rule)]
    return "\n".join(lines) + "\n"


def fleet_reference() -> str:
    """Every key of a fleet file."""
    lines = [
        "# Fleet reference",
        "",
        "Every key of a fleet file, as the program that reads it describes them. [A fleet](../fleet.md) explains them. "
        "Keys of a job are those of the [job reference](job.md); `source.latest_under`, a directory of steps, may "
        "stand in place of `source.path`.",
        "",
        *_table(fleet._Sections),
        "",
        "## models",
        "",
        "Beside the keys of a job, without `output`:",
        "",
        *_table(fleet._ModelKeys),
    ]
    for name, section in _FLEET_SECTIONS.items():
        lines += ["", f"## {name}", "", _sentence(section), "", *_table(section)]
    return "\n".join(lines) + "\n"


def command_reference() -> str:
    """Every command with its options."""
    from migrate.cli.main import cli
    from migrate.cli.options import EXIT_CODES

    codes = EXIT_CODES.replace("\b\n", "").removeprefix("Exit codes:\n")
    lines = [
        "# Command line",
        "",
        "What `--help` says. The exit codes are the same for all commands:",
        "",
        "```text",
        *(line.removeprefix("  ") for line in codes.rstrip().splitlines()),
        "```",
    ]
    for path, command in _commands(cli, ("reexport",)):
        if isinstance(command, click.Group) and not command.invoke_without_command:
            continue
        lines += ["", f"## {' '.join(path)}", "", *_command(command, path)]
    return "\n".join(lines) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "reference/job.md": job_reference,
    "reference/fleet.md": fleet_reference,
    "reference/commands.md": command_reference,
}


def _sentence(section: type[BaseModel]) -> str:
    return re.sub(r"``(.*?)``", r"`\1`", " ".join((section.__doc__ or "").split()))


def _table(section: type[BaseModel]) -> list[str]:
    rows = ["| key | values | default | meaning |", "| --- | --- | --- | --- |"]
    for name, field in section.model_fields.items():
        meaning = field.description or _inner_description(field) or ""
        cells = (f"`{name}`", _values(field.annotation, field), _default(field), meaning)
        rows.append(f"| {' | '.join(map(_cell, cells))} |")
    return rows


def _inner_description(field: FieldInfo) -> str | None:
    members = [member for member in (field.annotation, *typing.get_args(field.annotation)) if member is not type(None)]
    sections = [member for member in members if isinstance(member, type) and issubclass(member, BaseModel)]
    return _sentence(sections[0]) if sections else None


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if default is PydanticUndefined or default is None or isinstance(default, BaseModel):
        return ""
    if _is_time(field) and default % 86400 == 0:
        return f"`{default / 86400:g}d`"
    return f"`{_yaml(default)}`"


def _is_time(field: FieldInfo) -> bool:
    return any("parse_seconds" in repr(entry) for entry in field.metadata)


def _yaml(value: Any) -> str:
    """A default as one would write it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, int) and value >= 1 << 20 and value % (1 << 20) == 0:
        return f"{value >> 30}GiB" if value % (1 << 30) == 0 else f"{value >> 20}MiB"
    return str(value)


_PLAIN = {str: "text", int: "integer", float: "number", bool: "`true`, `false`", Any: "any"}


def _values(annotation: Any, field: FieldInfo | None = None) -> str:  # noqa: PLR0911 -- one answer a kind of type
    """What a key takes, in words."""
    if field and any("parse_bytes" in repr(entry) for entry in field.metadata):
        return "bytes, such as `64MiB`"
    if field and _is_time(field):
        return "a time, such as `90`, `30m`, `6h`, `1d`"
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        if "parse_bytes" in repr(arguments[1:]):
            return "bytes, such as `64MiB`"
        return _values(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (typing.Union, types.UnionType):
        known = [_values(argument) for argument in arguments if argument is not type(None)]
        return ", or ".join(dict.fromkeys(known)) if len(known) < 6 else "one of the kinds below"
    if origin in (tuple, list):
        return f"list of {_values(arguments[0])}"
    if origin is dict:
        return f"mapping of names to {_values(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _SECTION_WORDS.get(annotation, "keys")
    return _PLAIN.get(annotation, str(annotation))


_SECTION_WORDS: dict[type[BaseModel], str] = {
    layout_rules.CopiedLayout: "`{pinned: PATH}`",
    layout_rules.StatedLayout: "`{major_to_minor: [...]}`",
    layout_rules.LayoutRule: "[rules](#layouts)",
    config.ProgramConfig: "[keys](#program)",
    **{section: f"[keys](#{name})" for name, section in {**_JOB_SECTIONS, **_FLEET_SECTIONS}.items()},
}


def _commands(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, child in sorted(command.commands.items()):
            yield from _commands(child, (*path, name))


def _command(command: click.Command, path: tuple[str, ...]) -> list[str]:
    context = click.Context(command, info_name=path[-1], max_content_width=120)
    words = [" ".join(path), *command.collect_usage_pieces(context)]
    lines = ["```text", " ".join(words), "```"]
    for paragraph in re.split(r"\n\s*\n", (command.help or "").replace("\b\n", "")):
        lines += ["", " ".join(paragraph.split())]
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    rows = [record for record in records if record and record[1] and "--help" not in record[0]]
    if rows:
        lines += ["", "| option | meaning |", "| --- | --- |"]
        for names, meaning in rows:
            lines.append(f"| `{_cell(names)}` | {_cell(meaning)} |")
    example = re.search(r"Example:\n((?:  .*\n)+)", command.epilog or "")
    if example:
        lines += ["", "```bash", *(line.strip() for line in example.group(1).splitlines()), "```"]
    return lines


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    for page_name, make in PAGES.items():
        target = Path(sys.argv[1]) / page_name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(make())
