"""What driver and worker tell each other: plain data in files of one directory."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from migrate.config import ProgramConfig, Target
from migrate.signature import ParameterSpec

REQUEST_FILE = "request.json"
RESULT_FILE = "result.json"


@dataclass(frozen=True)
class Request:
    """What to compile; plain data."""

    program: ProgramConfig
    """The model's entry and its arguments."""
    target: Target
    """What to compile it for."""
    python_path: tuple[str, ...]
    """Directories searched for the entry's module."""
    libtpu: str = ""
    """Version of the libtpu that the worker's environment names; empty for CPU targets."""
    inherited: Mapping[str, str] = field(default_factory=dict)
    """Variables with flags that the worker's environment takes from the caller's."""
    shared: tuple[ParameterSpec, ...] = ()
    """What the primary program, compiled before this one, expects of the parameters it has."""
    copied: Mapping[str, tuple[ParameterSpec, ...]] = field(default_factory=dict)
    """Path of each signature that a layout policy pins -> its parameters."""

    def to_json(self) -> str:
        """JSON text that :meth:`from_json` reads back."""
        return json.dumps(
            {
                "program": self.program.model_dump(mode="json"),
                "target": self.target.model_dump(mode="json"),
                "python_path": self.python_path,
                "libtpu": self.libtpu,
                "inherited": dict(self.inherited),
                "shared": _specs().dump_python(self.shared, mode="json"),
                "copied": {uri: _specs().dump_python(specs, mode="json") for uri, specs in self.copied.items()},
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Request:
        """The request in ``text``."""
        document = json.loads(text)
        return cls(
            ProgramConfig.model_validate(document["program"]),
            Target.model_validate(document["target"]),
            tuple(document["python_path"]),
            document["libtpu"],
            document["inherited"],
            _specs().validate_python(document["shared"]),
            {uri: _specs().validate_python(specs) for uri, specs in document["copied"].items()},
        )


@functools.cache
def _specs() -> TypeAdapter[Any]:
    return TypeAdapter(tuple[ParameterSpec, ...])
