"""The compile cache as the driver uses it: which cache a job has, under which key, and what goes into it."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from migrate.compiler.cache import FORMAT, CompileCache, Entry
from migrate.compiler.digests import FileDigests
from migrate.compiler.inputs import Inputs, NotKnowableError, Roots
from migrate.compiler.observe import INPUTS_FILE
from migrate.compiler.request import Request
from migrate.compiler.toolchains import Toolchain, cache_directory
from migrate.config import Compile, Job
from migrate.errors import StorageError
from migrate.signature import canonical_digest

# Python and XLA read these themselves.
_READ_UNSEEN = ("PYTHON", "JAX_", "XLA_", "LIBTPU_")

_log = logging.getLogger(__name__)


def user_cache() -> str:
    """Directory of the user's own cache: ``compile`` below the directory of the toolchains."""
    return str(cache_directory() / "compile")


def cache_of(settings: Compile) -> CompileCache | None:
    """The cache that a job names; None if it wants none."""
    if settings.cache is False:
        return None
    return CompileCache(settings.cache if isinstance(settings.cache, str) else user_cache())


@dataclass(frozen=True)
class Lookup:
    """One compile, asked for in one cache. What the store refuses is a warning: the compile goes on without it."""

    cache: CompileCache
    key: str
    roots: Roots
    environment: Mapping[str, str]
    directory: Path
    digests: FileDigests
    max_bytes: int

    @classmethod
    def of(
        cls, job: Job, request: Request, directory: Path, environment: Mapping[str, str], toolchain: Toolchain | None
    ) -> Lookup | None:
        """For ``request`` in ``directory``; None if the job wants no cache, or its flags name files."""
        cache = cache_of(job.compile)
        if cache is None or _names_files(request):
            return None
        digests = FileDigests(cache_directory())
        roots = Roots.of(directory, request.python_path)
        seen_by_python = {
            name: roots.relative(value) for name, value in environment.items() if name.startswith(_READ_UNSEEN)
        }
        host = _host(request, seen_by_python, toolchain, digests)
        key = canonical_digest([FORMAT, _request(request), host])
        return cls(cache, key, roots, environment, directory, digests, job.compile.cache_max_bytes)

    def find(self) -> Entry | None:
        """The entry with the compile's results, which are in the directory then; None if it must be done."""
        try:
            return self.cache.find(self.key, self.roots, self.environment, self.digests, self.directory)
        except StorageError as error:
            _log.warning("the compile cache cannot be read, so the program is compiled: %s", error)
            return None
        finally:
            self.digests.save()

    def keep(self, program: str, names: list[str], seconds: float, began: float) -> str | None:
        """Store the results called ``names`` of a compile that began at the Unix time ``began`` and took ``seconds``.

        Gives the reason if they cannot be found again by what was read, and are not stored.
        """
        try:
            seen = json.loads((self.directory / INPUTS_FILE).read_bytes())
            inputs = Inputs.measure(seen, self.roots, self.environment, self.digests, began)
            results = {name: (self.directory / name).read_bytes() for name in names}
            self.cache.store(self.key, program, inputs, results, seconds)
            self.cache.keep_below(self.max_bytes)
        except NotKnowableError as error:
            return str(error)
        except (OSError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        except StorageError as error:
            _log.warning("the compile cannot be put into the cache: %s", error)
            return error.what
        finally:
            self.digests.save()
        return None


def _request(request: Request) -> object:
    """The request without what is compared by content: the artifact's path, and where the model's code lies."""
    document = json.loads(request.to_json())
    document["python_path"] = len(request.python_path)
    document["program"]["exported"] = document["program"].get("exported") is not None
    return document


def _host(
    request: Request, variables: Mapping[str, str], toolchain: Toolchain | None, digests: FileDigests
) -> dict[str, object]:
    """What else the result depends on and no watch sees: Python, ``variables`` that are read early, libtpu, the CPU."""
    return {
        "python": sys.version,
        "machine": platform.machine(),
        "libtpu": toolchain and digests.digest(str(toolchain.library)),
        "variables": dict(variables),
        # an executable for CPUs uses the instructions of the one that compiled
        "cpu": _cpu() if request.target.topology.startswith("cpu") else "",
    }


def _cpu() -> str:
    try:
        processor = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return platform.processor()
    kept = [line for line in processor.splitlines() if line.startswith(("model name", "flags", "Features", "CPU "))]
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()


def _names_files(request: Request) -> bool:
    """Whether a flag makes the compiler read or write files, which a hit would not do."""
    flags = {**request.target.flags, **request.inherited}
    return any("dump" in name or "dump" in str(value) or "/" in str(value) for name, value in flags.items())
