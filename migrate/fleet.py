"""Fleet files: models x targets, each pair a :class:`migrate.config.Job`. Errors name file, line and key.

What a pair's job says is merged from, weakest first: ``defaults``, the target, the model, and the model's
``overrides`` for that target. Mappings are merged key by key; everything else is replaced.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BeforeValidator, Field

from migrate import retention, storage
from migrate.config import Job, Target, absolute_uri, config_error, job_from_mapping, job_problems, unknown_key
from migrate.durations import parse_seconds
from migrate.errors import ConfigError
from migrate.rules import Section
from migrate.yaml_files import Location, YamlFile, load_yaml

Seconds = Annotated[float, BeforeValidator(parse_seconds), Field(ge=0)]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_REMEDY = "docs/fleet.md describes every key"


class Retention(Section):
    """What a reconcile deletes in an output after it has published."""

    keep: int = Field(retention.DEFAULT_KEEP, ge=1, description="Newest exports that stay.")
    grace: Seconds = Field(
        retention.DEFAULT_GRACE_SECONDS, description="How long hidden exports stay readable: 90, 30m, 6h, 1d."
    )


class Concurrency(Section):
    """How much runs at once."""

    compiles: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Compiles at once; default: one a CPU, and no more than fit into memory."
    )
    rewrites: int = Field(1, ge=1, description="Models x targets whose arrays are rewritten at once.")


class Smoke(Section):
    """A command that must succeed with a new export before it becomes the current one."""

    command: tuple[str, ...] | str = Field(
        description="A list of words, run as they are, or a text for `sh -c`. The export's path is the last argument "
        "($1 of the text) and the variable REEXPORT_EXPORT."
    )
    timeout_seconds: Seconds = Field(600, description="The command is ended after this time, and has failed.")

    @pydantic.model_validator(mode="after")
    def _not_empty(self) -> Smoke:
        if not self.command or not self.command[0].strip():
            raise ValueError("should have a command")
        return self


class Notifications(Section):
    """Who hears of a reconcile that changed something or failed."""

    webhook: str | None = Field(None, pattern=r"^https?://", description="URL that receives a JSON document by POST.")
    webhook_env: str | None = Field(None, description="Instead: the environment variable that holds the URL.")
    on: tuple[Literal["change", "failure"], ...] = Field(("change", "failure"), description="What is told.")
    timeout_seconds: float = Field(10, gt=0, description="Time limit of each of two tries.")

    @pydantic.model_validator(mode="after")
    def _one_url(self) -> Notifications:
        if self.webhook and self.webhook_env:
            raise ValueError("should have one of the keys webhook, webhook_env")
        return self

    def url(self) -> str | None:
        """Where to send, or None. Raises :class:`ConfigError` if the variable is not set."""
        if not self.webhook_env:
            return self.webhook
        url = os.environ.get(self.webhook_env, "")
        if not re.match(r"https?://", url):
            raise ConfigError(
                f"the environment variable {self.webhook_env} holds no http(s) URL",
                where="notifications.webhook_env",
                remedy="set it, or take the key out",
            )
        return url


class _Sections(Section):
    """The fleet file itself; what belongs to jobs is checked once it is merged."""

    output: str = Field(min_length=1, description="Directory or URI; the output of a pair is OUTPUT/MODEL/TARGET.")
    defaults: dict[str, Any] = Field(default_factory=dict, description="Keys of a job, for all models.")
    targets: dict[str, dict[str, Any]] = Field(min_length=1, description="Name -> keys of a job's target.")
    models: dict[str, dict[str, Any]] = Field(min_length=1, description="Name -> keys of a job, and those of a model.")
    retention: Retention = Retention()
    concurrency: Concurrency = Concurrency()
    notifications: Notifications = Notifications()
    smoke: Smoke | None = Field(None, description="Run before any export becomes current; a model may have its own.")


class _ModelKeys(Section):
    """Keys of a model that are none of a job."""

    targets: tuple[str, ...] | None = Field(None, description="Names of the targets it is exported for; default: all.")
    overrides: dict[str, dict[str, Any]] = Field(default_factory=dict, description="Target's name -> keys of a job.")
    retention: Retention | None = None
    smoke: Smoke | None = None
    allow_older_source: bool = Field(
        False,
        description="With `source.latest_under`: an older step than that of the current export is taken, too; default: "
        "that pair is held.",
    )


@dataclass(frozen=True, slots=True)
class Cell:
    """One model for one target."""

    model: str
    target: str
    job: Job
    retention: Retention
    smoke: Smoke | None
    only_newer: bool = False
    """The source is the latest step of a directory, and one older than the current export's is not taken."""

    @property
    def name(self) -> str:
        """``model/target``."""
        return f"{self.model}/{self.target}"


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet file that can be used."""

    path: str
    output: str
    """URI of the root below which every cell has its output."""
    cells: tuple[Cell, ...]
    concurrency: Concurrency
    notifications: Notifications

    def select(self, models: Sequence[str] = (), targets: Sequence[str] = ()) -> tuple[Cell, ...]:
        """The cells of these models and targets; nothing named means all. Raises :class:`ConfigError`."""
        for option, names, known in (
            ("--model", models, [cell.model for cell in self.cells]),
            ("--target", targets, [cell.target for cell in self.cells]),
        ):
            for name in names:
                if name not in known:
                    raise ConfigError(
                        f"the fleet has no {option[2:]} {name}",
                        where=option,
                        expected=f"one of {', '.join(dict.fromkeys(known))}",
                    )
        chosen = [c for c in self.cells if (not models or c.model in models) and (not targets or c.target in targets)]
        if not chosen:
            raise ConfigError("no model has such a target", where=f"--model {', '.join(models)}", remedy=_REMEDY)
        return tuple(chosen)


def is_fleet(path: str | Path) -> bool:
    """Whether the YAML file at ``path`` is about models x targets, and not one job.

    Raises :class:`ConfigError` if it is neither.
    """
    return (
        "models" in load_yaml(path, kind="job", expected="a mapping with source, program, target and output").document
    )


def load_fleet(path: str | Path) -> Fleet:
    """The fleet in the YAML file at ``path``; relative paths start at its folder.

    A URI may be given as well; then every path in the file should be one. Raises :class:`ConfigError` that names the
    file, and line and key of everything that is wrong.
    """
    remote = "://" in str(path)
    text = _read_remote(str(path)) if remote else None
    file = load_yaml(path, kind="fleet", expected="a mapping with output, targets and models", text=text)
    folder = Path("/") if remote else Path(path).absolute().parent
    problems = _problems(_Sections, file.document, ())
    if problems:
        raise _error(file, problems)
    sections = _Sections.model_validate(file.document)
    found: list[tuple[Location, str]] = []
    cells = []
    for kind, names in (("models", sections.models), ("targets", sections.targets)):
        found += [((kind, name), _BAD_NAME) for name in names if not _NAME.fullmatch(str(name))]
    for name in sections.models:
        cells += _model_cells(sections, name, folder, file, found)
    if found:
        raise _error(file, list(dict.fromkeys(found)))
    return Fleet(
        str(path), absolute_uri(sections.output, folder), tuple(cells), sections.concurrency, sections.notifications
    )


def _read_remote(uri: str) -> str:
    parent, _, name = uri.rpartition("/")
    data = storage.read(parent, name)
    if data is None:
        raise ConfigError(f"there is no fleet file {uri}", remedy="give the path or URI of a YAML fleet file")
    return data.decode(errors="replace")


_BAD_NAME = "should be at most 64 letters, digits, '.', '_' and '-': it becomes part of a path"


def _error(file: YamlFile, problems: Sequence[tuple[Location, str]]) -> ConfigError:
    if len(problems) == 1:
        return config_error(problems, file.where, "fleet", _REMEDY)
    told = [(location, f"{what} (line {file.line(location) or 1})") for location, what in problems]
    return config_error(told, file.where, "fleet", _REMEDY)


def _problems(section: type[Section], document: Mapping[str, Any], at: Location) -> list[tuple[Location, str]]:
    """What is wrong with a section of the fleet file itself."""
    try:
        section.model_validate(document)
    except pydantic.ValidationError as error:
        found = []
        for problem in error.errors(include_url=False):
            location = (*at, *_without_kinds(problem["loc"], document))
            if problem["type"] == "extra_forbidden":
                what = unknown_key(str(location[-1]), _known(section, problem["loc"]))
            elif problem["type"] == "missing":
                what = "is missing"
            else:
                what = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
                what = f"{what}, not {_shortened(problem['input'])}"
            found.append((location, what))
        return found
    return []


def _shortened(value: object) -> str:
    text = repr(value)
    # a URL may hold a secret
    return "this text" if "://" in text else text if len(text) < 100 else f"{text[:80]}..."


def _without_kinds(location: tuple[int | str, ...], document: Any) -> Location:
    """Only what is in the file: pydantic names the members of a union, too."""
    parts: list[int | str] = []
    for index, part in enumerate(location):
        holds = isinstance(document, Mapping) and (part in document or index == len(location) - 1)
        if holds or (isinstance(document, list) and isinstance(part, int)):
            parts.append(part)
            document = document.get(part) if isinstance(document, Mapping) else document[int(part)]
    return tuple(parts)


def _known(section: Any, location: tuple[int | str, ...]) -> list[str]:
    for part in location[:-1]:
        field = section.model_fields.get(part) if hasattr(section, "model_fields") else None
        if field is None:
            break
        members = [field.annotation, *getattr(field.annotation, "__args__", ())]
        section = next(member for member in members if hasattr(member, "model_fields"))
    return list(section.model_fields)


def _model_cells(
    sections: _Sections, name: str, folder: Path, file: YamlFile, found: list[tuple[Location, str]]
) -> list[Cell]:
    """The cells of one model; what is wrong is added to ``found``."""
    at: Location = ("models", name)
    document = sections.models[name]
    own = {key: value for key, value in document.items() if key in _ModelKeys.model_fields}
    if problems := _problems(_ModelKeys, own, at):
        found += problems
        return []
    keys = _ModelKeys.model_validate(own)
    for target in (*(keys.targets or ()), *keys.overrides):
        if target not in sections.targets:
            place = (*at, "overrides", target) if target in keys.overrides else (*at, "targets")
            found.append((place, f"names {target}, which is none of the targets {', '.join(sections.targets)}"))
    cells = []
    for target in keys.targets or sections.targets:
        if target not in sections.targets:
            continue
        layers: list[tuple[Location, Mapping[str, Any]]] = [
            (("defaults",), sections.defaults),
            (("targets", target), {"target": sections.targets[target]}),
            (at, {key: value for key, value in document.items() if key not in own}),
            ((*at, "overrides", target), keys.overrides.get(target, {})),
        ]
        merged = _Merged(at)
        for place, layer in layers:
            merged.add(place, layer)
        problems = merged.problems()
        if problems:
            # what lies outside the model is wrong for some models, maybe not for others
            found += [
                (location, what if location[0] == "targets" or location[:2] == at else f"{what} (for model {name})")
                for location, what in problems
            ]
            continue
        whole = {**merged.document, "output": f"{sections.output.rstrip('/')}/{name}/{target}"}
        job = job_from_mapping(whole, base=folder, where=file.path)
        smoke = keys.smoke if "smoke" in own else sections.smoke
        only_newer = merged.latest and not keys.allow_older_source
        cells.append(Cell(name, target, job, keys.retention or sections.retention, smoke, only_newer))
    return cells


class _Merged:
    """A job merged from several places of the file, and where each of its keys came from."""

    def __init__(self, model: Location) -> None:
        self.document: dict[str, Any] = {}
        self._model = model
        self._origins: dict[Location, Location] = {}
        self._wrong: list[tuple[Location, str]] = []
        self.latest = False
        """Whether the source is the latest step of a directory; known after :meth:`problems`."""

    def add(self, place: Location, layer: Mapping[str, Any]) -> None:
        """Put a layer over what there is."""
        for key in ("output", "targets", "overrides", "retention", "smoke", "allow_older_source"):
            if key in layer:
                self._wrong.append(((*place, key), "has no place here"))
        for one, other in (("program", "programs"), ("programs", "program")):
            if one in layer:
                self.document.pop(other, None)
        # a target's own keys lie beside each other, not under `target`
        start: Location = ("target",) if place[0] == "targets" else ()
        self._merge(self.document, layer, (), place, start)

    def _merge(
        self, into: dict[str, Any], layer: Mapping[str, Any], at: Location, place: Location, hidden: Location
    ) -> None:
        for key, value in layer.items():
            here = (*at, key)
            self._origins[here] = (*place, *here[len(hidden) :]) if here[: len(hidden)] == hidden else place
            if isinstance(value, dict) and isinstance(into.get(key), dict):
                self._merge(into[key], value, here, place, hidden)
            elif isinstance(value, dict):
                into[key] = {}
                self._merge(into[key], value, here, place, hidden)
            else:
                into[key] = value

    def problems(self) -> list[tuple[Location, str]]:
        """What is wrong with the job, where it is in the file; settles ``source.latest_under``."""
        if self._wrong:
            return self._wrong
        source = self.document.get("source")
        if isinstance(source, dict) and "latest_under" in source:
            if "path" in source or "step" in source:
                origin = self._origin(("source", "latest_under"))
                return [(origin, "means the latest committed step under a directory; leave path and step out")]
            self.latest = True
            source["path"] = source.pop("latest_under")
            self._origins["source", "path"] = self._origins.pop(("source", "latest_under"))
        found = job_problems({**self.document, "output": "."})
        return [(self._origin(location), what) for location, what in found]

    def _origin(self, location: Location) -> Location:
        for length in range(len(location), 0, -1):
            if location[:length] in self._origins:
                origin = (*self._origins[location[:length]], *location[length:])
                absent = length < len(location) and origin[0] == "defaults"
                return (*self._model, *location) if absent else origin
        return (*self._model, *location)


__all__ = ["Cell", "Concurrency", "Fleet", "Notifications", "Retention", "Smoke", "Target", "load_fleet"]
