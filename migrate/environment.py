"""What a process needs to run a program, and what this environment has; found without importing jax here."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from migrate.errors import EnvironmentMismatchError
from migrate.signature import Fingerprint, Signature

COMPILERS = ("jax", "jaxlib", "libtpu")

FLAG_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
"""Environment variables that set compiler flags for whatever a process compiles."""

_DEVICE_COUNT = "xla_force_host_platform_device_count"

_LIST_DEVICES = (
    "import json, jax; found = jax.devices(); print(json.dumps([found[0].platform, found[0].device_kind, len(found)]))"
)


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices that a process sees."""

    platform: str
    """``cpu`` or ``tpu``, as jax names it."""
    kind: str
    """Name of the first one's kind."""
    count: int

    def __str__(self) -> str:
        return f"{self.count} {self.platform} devices ({self.kind})"


def installed_versions(names: tuple[str, ...] = COMPILERS) -> dict[str, str]:
    """Versions of those packages that are installed in this interpreter's environment."""
    found: dict[str, str] = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def visible_devices(timeout_seconds: float = 300) -> Devices:
    """The devices that a jax started now would see; a subprocess starts it, with this process's environment.

    On a TPU that another process uses this waits or fails as any jax does. Raises :class:`EnvironmentMismatchError`
    with jax's words if it sees none.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", _LIST_DEVICES], capture_output=True, text=True, check=False, timeout=timeout_seconds
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentMismatchError(f"jax did not list its devices within {timeout_seconds:g} seconds") from None
    if done.returncode != 0:
        words = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise EnvironmentMismatchError("jax cannot be started here", found=words[0])
    platform, kind, count = json.loads(done.stdout.splitlines()[-1])
    return Devices(platform, kind, count)


def flags_here(environment: Mapping[str, str], platform: str) -> dict[str, str]:
    """Flags that the environment sets for a process on ``platform``, by ``VARIABLE/name``; devices' count aside."""
    found: dict[str, str] = {}
    for variable in FLAG_VARIABLES if platform == "tpu" else FLAG_VARIABLES[:1]:
        text = environment.get(variable, "")
        try:
            tokens = shlex.split(text)
        except ValueError:  # a quotation that is not closed
            tokens = text.split()
        for token in tokens:
            name, equals, value = token.lstrip("-").partition("=")
            if name != _DEVICE_COUNT:
                found[f"{variable}/{name}"] = value if equals else "true"
    return found


def flag_differences(fingerprint: Fingerprint, environment: Mapping[str, str]) -> list[str]:
    """In which flags a compile in this process would differ from the fingerprint's, in words.

    An executable keeps the flags of its compile: they do not keep it from being loaded.
    """
    here = flags_here(environment, required_platform(fingerprint))
    compiled = dict(fingerprint.flags)
    # a flag of the job and the same one in a variable are the same to the compiler
    by_name = {name.rpartition("/")[2]: value for name, value in compiled.items()}
    texts = []
    for name, value in here.items():
        old = compiled.get(name, by_name.get(name.rpartition("/")[2]))
        if old != value:
            texts.append(f"{name}={value} here, {'not set' if old is None else old} at compile time")
    set_here = {name.rpartition("/")[2] for name in here}
    texts += [
        f"{name}={value} at compile time, not set here"
        for name, value in compiled.items()
        if name.rpartition("/")[2] not in set_here
    ]
    return texts


def required_platform(fingerprint: Fingerprint) -> str:
    """``cpu`` or ``tpu``: the jax platform of the devices that a program was compiled for."""
    return "cpu" if fingerprint.topology.partition(":")[0] == "cpu" else "tpu"


def required_versions(fingerprint: Fingerprint) -> dict[str, str]:
    """The versions that a process must have to load an executable with this fingerprint."""
    versions = {"jax": fingerprint.jax, "jaxlib": fingerprint.jaxlib}
    return versions | ({"libtpu": fingerprint.libtpu} if required_platform(fingerprint) == "tpu" else {})


def check_devices(signature: Signature, found: Devices) -> None:
    """Raises :class:`EnvironmentMismatchError` if these are not the devices that the program was compiled for."""
    fingerprint, wanted = signature.fingerprint, signature.device_count
    platform = required_platform(fingerprint)
    # a CPU process may have been given more devices than the program wants; a slice is used as a whole
    enough = found.count >= wanted if platform == "cpu" else found.count == wanted
    if found.platform != platform or not enough:
        raise EnvironmentMismatchError(
            "this process does not have the devices that the export was compiled for",
            where=f"topology {fingerprint.topology}",
            expected=f"{wanted} {platform} devices",
            found=str(found),
            remedy=f"set XLA_FLAGS=--xla_force_host_platform_device_count={wanted} before jax starts"
            if platform == "cpu"
            else "run on that slice, or re-export for this one",
        )


def check_versions(fingerprint: Fingerprint) -> None:
    """Raises :class:`EnvironmentMismatchError` if an executable with this fingerprint cannot be loaded here."""
    wanted = required_versions(fingerprint)
    here = installed_versions(tuple(wanted))
    if here != wanted:
        raise EnvironmentMismatchError(
            "this process has other versions than the export was compiled with",
            where=f"topology {fingerprint.topology}",
            expected=", ".join(f"{name} {version}" for name, version in wanted.items()),
            found=", ".join(f"{name} {here.get(name, 'missing')}" for name in wanted),
            remedy="install those versions, or run the job again with these",
        )
