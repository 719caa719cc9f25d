"""Job files: YAML in, a validated :class:`Job` out. An unknown or wrong key is an error that names file and key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import pydantic
from pydantic import BeforeValidator, Field
from pydantic_core import ErrorDetails

from migrate import storage
from migrate.errors import ConfigError
from migrate.layout_rules import CopiedLayout, LayoutRule, Policy
from migrate.rules import RULES, Rule, Section
from migrate.yaml_files import Location, key_text, load_yaml

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parse_bytes(value: object) -> int:
    """A byte count from a number or a text such as ``64MiB``. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(value))
    if match is None or match.group(2).upper() not in _UNITS:
        raise ValueError("expected a number of bytes such as 67108864, 64MiB or 64MB")
    return int(Fraction(match.group(1)) * _UNITS[match.group(2).upper()])


Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(ge=1)]


class Source(Section):
    """The old checkpoint."""

    path: str = Field(min_length=1, description="Path or URI of the checkpoint; relative paths start at the job file.")
    step: int | None = Field(None, description="Training step; default: the latest committed one.")
    item: str | None = Field(None, description="Item (checkpointable) of the step, where it holds several.")
    select: str | tuple[str, ...] | None = Field(
        None,
        description="Subtree that becomes the root, e.g. `params`; or a list of subtrees, which keep their names. The "
        "leaves outside are not rewritten.",
    )
    carry: bool = Field(
        False, description="Keep leaves that no parameter takes, such as optimizer state, unchanged beside the export."
    )
    missing_chunks: Literal["error", "zeros"] = Field(
        "error", description="What an absent chunk means, where the format lets a writer omit chunks of zeros."
    )


class ProgramConfig(Section):
    """The model: its code, or what `jax.export` saved of it."""

    entry: str | None = Field(
        None, description="`package.module:function`; it takes a mesh and returns a `migrate.Program`."
    )
    arguments: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the entry.")
    exported: str | None = Field(
        None, min_length=1, description="Instead of an entry: a `jax.export` artifact, or an export that holds one."
    )
    parameters: int = Field(0, ge=0, description="Of a bare artifact: the argument that the checkpoint fills.")
    donated: tuple[Annotated[int, Field(ge=0)], ...] = Field((), description="Of a bare artifact: donated arguments.")
    name: str = Field("main", pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="Name of the program in the export.")
    primary: bool = Field(
        False,
        description="Of several programs: the one that chooses the layouts of what they share; default: the first.",
    )
    layout: Policy | None = Field(None, description="This program's layout policy; default: the target's.")
    layouts: tuple[LayoutRule, ...] = Field((), description="Policies by parameter, before those of the target.")

    @property
    def origin(self) -> str:
        """Where the model comes from, in the job's words."""
        return self.entry or self.exported or ""

    @pydantic.model_validator(mode="after")
    def _one_origin(self) -> ProgramConfig:
        if (self.entry is None) == (self.exported is None):
            raise ValueError("should have one of the keys entry, exported")
        return self


class Target(Section):
    """What the program is compiled for."""

    topology: str = Field(description="`v5e-8`, `v4-32` and the like, `v5e:2x4` as libtpu names it, or `cpu:8`.")
    mesh: dict[str, Annotated[int, Field(ge=1)]] = Field(description="Mesh axes and sizes, in order.")
    flags: dict[str, str | bool | int | float] = Field(
        default_factory=dict, description="XLA compiler options, e.g. `xla_tpu_scoped_vmem_limit_kib: 65536`."
    )
    inherit: tuple[Literal["XLA_FLAGS", "LIBTPU_INIT_ARGS"], ...] = Field(
        (), description="Environment variables whose flags are taken from the caller; default: none."
    )
    libtpu: str | None = Field(
        None,
        pattern=r"^\d+(\.\d+){1,4}$",
        description="Version of libtpu that compiles; default: the installed one. Downloaded when it is first used.",
    )
    jax: str | None = Field(
        None,
        pattern=r"^\d+(\.\d+){2,3}$",
        description="Version of jax that compiles, with the libtpu of its time; default: the installed one. Put into "
        "an environment of its own when it is first used.",
    )
    python: str | None = Field(
        None, min_length=1, description="Interpreter that compiles, with the jax, jaxlib and libtpu installed for it."
    )
    layout: Policy = Field(
        "auto",
        description="`auto`: XLA chooses the layouts; `default`: those of `jax.device_put`; `auto-bounded`: XLA "
        "chooses, but nothing that is padded above max_padding; `{pinned: PATH}`: those of another signature.",
    )
    max_padding: float = Field(
        1.5,
        ge=1,
        allow_inf_nan=False,
        description="Of `auto-bounded`: device bytes of a shard over its bytes unpadded.",
    )
    layouts: tuple[LayoutRule, ...] = Field((), description="Policies by parameter; the first that matches decides.")

    @pydantic.model_validator(mode="after")
    def _one_jax(self) -> Target:
        if self.jax is not None and self.python is not None:
            raise ValueError("should have at most one of the keys jax, python")
        return self


class Compile(Section):
    """Bounds of the compile subprocess."""

    timeout_seconds: float = Field(3600, gt=0, description="The compile is ended after this many seconds.")
    memory_bytes: Bytes = Field(
        1 << 30, description="What one compile is expected to need; so many run at once as fit into memory."
    )
    max_memory_bytes: Bytes | None = Field(
        None, description="The compile is ended when its resident memory passes this; default: no limit."
    )
    cache: bool | Annotated[str, Field(min_length=1)] = Field(
        True, description="Directory or URI of the compile cache; `true`: the user's own, `false`: none."
    )
    cache_max_bytes: Bytes = Field(
        10 << 30, description="A cache on a local disk that grows above this evicts what was not used for longest."
    )


class Rewrite(Section):
    """How the arrays are rewritten."""

    max_item_bytes: Bytes = Field(64 << 20, description="Upper bound of the bytes one unit of Beam work holds.")
    max_chunk_bytes: Bytes = Field(64 << 20, description="A device shard above this is stored as several chunks.")
    compression: Literal["none", "zstd"] = Field("none", description="Compression of the stored chunks.")
    workers: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Parallel workers of `local` and of `dask` without a scheduler; default: CPU count."
    )
    runner: str = Field(
        "local",
        min_length=1,
        description="Where the pipeline runs: `local` (threads of this process), `dask`, or the name of any Beam "
        "runner; see docs/runners.md.",
    )
    runner_options: tuple[str, ...] = Field(
        (), description="Options of the runner, such as `--region=us-central1`; those after `--` are added."
    )
    item_timeout_seconds: float = Field(
        1800, gt=0, description="An item that is not written by then, or not read back, fails the job."
    )


class Job(Section):
    """One checkpoint to re-export for one target."""

    source: Source
    programs: tuple[ProgramConfig, ...] = Field(
        description="The model's programs; a job file may say `program` instead, with one."
    )
    target: Target
    output: str = Field(
        min_length=1, description="Directory or URI that receives the export; relative paths start at the job file."
    )
    mapping: tuple[Rule, ...] = Field((), description="Rules, applied in order; see docs/jobs.md.")
    compile: Compile = Compile()
    rewrite: Rewrite = Rewrite()
    python_path: tuple[str, ...] = Field(
        (), description="Directories searched for the entry's module, after the job file's own."
    )

    @property
    def program(self) -> ProgramConfig:
        """The primary program: it chooses the layouts of the parameters that several programs share."""
        return next((program for program in self.programs if program.primary), self.programs[0])

    def find_program(self, name: str | None) -> ProgramConfig:
        """The program ``name``; the primary one for None, and the only one by any name.

        Raises :class:`ConfigError` listing those there are.
        """
        if name is None or len(self.programs) == 1:
            return self.program
        for program in self.programs:
            if program.name == name:
                return program
        raise ConfigError(
            f"the job has no program {name!r}",
            where="programs",
            expected=f"one of {', '.join(program.name for program in self.programs)}",
        )

    @property
    def secondary_programs(self) -> tuple[ProgramConfig, ...]:
        """The other programs, in the job's order."""
        return tuple(program for program in self.programs if program is not self.program)

    def only(self, program: ProgramConfig) -> Job:
        """The same job with one program."""
        return self.model_copy(update={"programs": (program,)})

    @pydantic.model_validator(mode="before")
    @classmethod
    def _one_program_is_a_list(cls, document: Any) -> Any:
        if not isinstance(document, dict) or "program" not in document:
            return document
        if "programs" in document:
            raise ValueError("should have one of the keys program, programs")
        return {
            ("programs" if key == "program" else key): [value] if key == "program" else value
            for key, value in document.items()
        }

    @pydantic.model_validator(mode="after")
    def _programs_differ(self) -> Job:
        if not self.programs:
            raise ValueError("should have at least one program")
        names = [program.name for program in self.programs]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"should give programs names of their own; {', '.join(repeated)} is given more than once")
        if sum(program.primary for program in self.programs) > 1:
            raise ValueError("should have one primary program at most")
        return self


def load_job(path: str | Path) -> Job:
    """The job in the YAML file at ``path``, with relative paths made absolute.

    Raises :class:`ConfigError` that names the file and every wrong key.
    """
    file = load_yaml(path, kind="job", expected="a mapping with source, program, target and output")
    return _job(file.document, Path(path).parent, file.where)


def job_from_mapping(document: dict[str, Any], *, base: Path | None = None, where: str = "job") -> Job:
    """The job in a plain mapping; relative paths start at ``base`` (default: the working directory).

    Raises :class:`ConfigError`.
    """
    return _job(document, base or Path(), lambda location: f"{where}: {key_text(location)}".removesuffix(": "))


def _job(document: dict[str, Any], base: Path, where: Callable[[Location], str]) -> Job:
    problems = job_problems(document)
    if problems:
        raise config_error(problems, where, "job", "docs/jobs.md describes every key")
    job = Job.model_validate(document)
    folder = base.absolute()
    return job.model_copy(
        update={
            "source": job.source.model_copy(update={"path": absolute_uri(job.source.path, folder)}),
            "programs": tuple(
                _with_absolute_layouts(program, folder).model_copy(
                    update={"exported": program.exported and absolute_uri(program.exported, folder)}
                )
                for program in job.programs
            ),
            "target": _with_absolute_layouts(job.target, folder).model_copy(
                update={"python": job.target.python and absolute_uri(job.target.python, folder)}
            ),
            "compile": job.compile.model_copy(
                update={"cache": absolute_uri(job.compile.cache, folder)} if isinstance(job.compile.cache, str) else {}
            ),
            "output": absolute_uri(job.output, folder),
            "python_path": (str(folder), *(str(folder / path) for path in job.python_path)),
        }
    )


_HasLayouts = TypeVar("_HasLayouts", ProgramConfig, Target)


def _with_absolute_layouts(section: _HasLayouts, folder: Path) -> _HasLayouts:
    """``section`` with the paths of its pinned layouts made absolute."""

    def absolute(policy: Any) -> Any:
        return CopiedLayout(pinned=absolute_uri(policy.pinned, folder)) if isinstance(policy, CopiedLayout) else policy

    changed: dict[str, Any] = {}
    if isinstance(section.layout, CopiedLayout):
        changed["layout"] = absolute(section.layout)
    if section.layouts:
        changed["layouts"] = tuple(
            rule.model_copy(update={"layout": absolute(rule.layout)}) for rule in section.layouts
        )
    return section.model_copy(update=changed)


def absolute_uri(uri: str, folder: Path) -> str:
    """``uri``, a relative local path starting at ``folder``."""
    return storage.normalise(str(folder / uri) if "://" not in uri and not uri.startswith("~") else uri)


def job_problems(document: dict[str, Any]) -> list[tuple[Location, str]]:
    """What is wrong with a job, as (where in ``document``, what); empty if it can be used."""
    try:
        Job.model_validate(document)
    except pydantic.ValidationError as error:
        found = error.errors(include_url=False)
        return [(_location(problem["loc"], "program" in document), _problem(problem)) for problem in found]
    return []


def config_error(
    problems: Sequence[tuple[Location, str]], where: Callable[[Location], str], kind: str, remedy: str
) -> ConfigError:
    """One error of several problems of a file; ``where`` words a location in it."""
    texts = [f"{key_text(location)}: {what}".removeprefix(": ") for location, what in problems]
    if len(problems) == 1:
        return ConfigError(texts[0], where=where(problems[0][0]), remedy=remedy)
    return ConfigError(
        f"{len(problems)} keys of the {kind} cannot be used",
        where=", ".join(dict.fromkeys(where(location) for location, _ in problems)),
        found="\n    ".join(["", *texts]),
        remedy=remedy,
    )


def _location(found: tuple[int | str, ...], one_program: bool) -> Location:
    """A location as it is in the file: pydantic names a rule's kind after its index, too."""
    parts: list[int | str] = []
    after_index = False
    for part in found:
        if isinstance(part, int) or not (after_index and part in RULES):
            parts.append(part)
        after_index = isinstance(part, int)
    if one_program and parts[:2] == ["programs", 0]:
        parts[:2] = ["program"]
    if parts == ["programs"] and not one_program:
        parts = ["program"]
    return tuple(parts)


def _problem(problem: ErrorDetails) -> str:
    """What is wrong with one key, in the words of a job file."""
    if problem["type"] == "missing":
        return "is missing"
    if problem["type"] == "extra_forbidden":
        return unknown_key(str(problem["loc"][-1]), _fields_at(problem["loc"]))
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if not problem["loc"]:
        return f"a job {message}"
    if problem["type"] == "value_error" and isinstance(problem["input"], dict):
        return message  # about a whole section, which would say nothing that the message does not
    return f"{message}, not {problem['input']!r}"


def unknown_key(key: str, known: Sequence[str]) -> str:
    """The words for a key that is none of ``known``."""
    close = difflib.get_close_matches(key, known, n=1)
    return "is unknown; " + (f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}")


def _fields_at(location: tuple[int | str, ...]) -> list[str]:
    """Keys that are known where ``location`` ends."""
    model: Any = Job
    for part in location[:-1]:
        if part == "mapping" or isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        model = field.annotation if field is not None else RULES[str(part)]
        model = next(iter(get_args(model)), model)  # of a tuple of sections
    return [*model.model_fields, *(["program"] if model is Job else [])]
