"""Keys of a job's target, set from outside: ``topology=v6e:2x4``, ``mesh.data=4``, ``flags.xla_tpu_x=true``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from migrate.config import Job, Target, job_from_mapping
from migrate.errors import ConfigError


def override_target(job: Job, settings: Sequence[str], *, where: str = "override") -> Job:
    """The job with other values of its target; each setting is ``key=value``.

    ``mesh.AXIS`` and ``flags.NAME`` set one entry, and an empty value removes a key. Raises :class:`ConfigError`,
    naming ``where``, for a key or value that a target does not have.
    """
    if not settings:
        return job
    # mappings are copied: a job is frozen
    document: dict[str, Any] = {
        key: dict(value) if isinstance(value, dict) else value
        for key, value in job.target.model_dump(mode="json", exclude_unset=True).items()
    }
    for setting in settings:
        _set(document, setting, where)
    return job.model_copy(update={"target": _target(document, where)})


def _set(document: dict[str, Any], setting: str, where: str) -> None:
    name, separator, text = setting.partition("=")
    keys = name.strip().split(".", 1)
    if not separator or not all(keys):
        raise ConfigError(
            f"{setting!r} sets nothing", where=where, expected="key=value, such as topology=v5e:2x4 or mesh.data=4"
        )
    if len(keys) > 1 and not isinstance(document.setdefault(keys[0], {}), dict):
        raise ConfigError(f"target.{keys[0]} has no entries to set", where=f"{where}: {setting}")
    holder = document if len(keys) == 1 else document[keys[0]]
    if not text.strip():
        holder.pop(keys[-1], None)
        return
    # a version or a topology is a text, whatever YAML makes of it
    holder[keys[-1]] = _value(text, where) if len(keys) > 1 or text.lstrip().startswith(("{", "[")) else text.strip()


def _value(text: str, where: str) -> object:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{text!r} is no value", where=where, found=" ".join(str(error).split())) from error


def _target(document: dict[str, Any], where: str) -> Target:
    whole = {"source": {"path": "."}, "program": {"entry": "module:function"}, "output": ".", "target": document}
    return job_from_mapping(whole, where=where).target
