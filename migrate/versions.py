"""Versions of what compiles: those installed here, without importing any of it, and those of a fingerprint."""

from __future__ import annotations

import importlib.metadata

from migrate.signature import Fingerprint

COMPILERS = ("jax", "jaxlib", "libtpu")


def installed_versions(names: tuple[str, ...] = COMPILERS) -> dict[str, str]:
    """Versions of those packages that are installed in this interpreter's environment."""
    found: dict[str, str] = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def platform(fingerprint: Fingerprint) -> str:
    """``cpu`` or ``tpu``: the jax platform of the devices that a program was compiled for."""
    return "cpu" if fingerprint.topology.partition(":")[0] == "cpu" else "tpu"


def required_versions(fingerprint: Fingerprint) -> dict[str, str]:
    """The versions that a process must have to load an executable with this fingerprint."""
    versions = {"jax": fingerprint.jax, "jaxlib": fingerprint.jaxlib}
    return versions | ({"libtpu": fingerprint.libtpu} if platform(fingerprint) == "tpu" else {})
