"""The compile subprocess, watched: ``python -P .../migrate/compiler/observe.py REQUEST.json``.

Runs :mod:`migrate.compiler.worker` and writes down what its result depends on, for the compile cache: the files that
Python opened or imported, the shared libraries mapped, the names that imports looked for, directories that were listed
and environment variables that were read. It runs as a file and imports the standard library alone before the watch
begins, so that the imports of jax and of the model are seen too.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

INPUTS_FILE = "inputs.json"
# Their contents are no files: what a program makes of them is beyond a cache.
_NO_FILES = ("/proc/", "/sys/", "/dev/")
# Shared libraries of the operating system: their versions do not reach what a compiler writes.
_SYSTEM_LIBRARIES = ("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/", "/usr/local/lib/")
_LEAVES_THE_PROCESS = {
    "subprocess.Popen": "a process was started",
    "os.system": "a process was started",
    "os.exec": "a process was started",
    "os.posix_spawn": "a process was started",
    "os.fork": "a process was started",
    "os.forkpty": "a process was started",
    "socket.connect": "a network connection was opened",
    "socket.getaddrinfo": "a network address was looked up",
    "sqlite3.connect": "a database was opened",
}
# Through these modules code comes to os.environ.
_WRAPPERS = ("/os.py", "/_collections_abc.py", "<frozen os>", "<frozen _collections_abc>", __file__)
# Imported, if they exist, before this module is.
_AT_START = {"sitecustomize", "usercustomize"}


class Observer:
    """Collects what Python's audit events and ``os.environ`` tell, from :meth:`begin` on."""

    def __init__(self) -> None:
        self._read: dict[str, list[int]] = {}
        self._written: set[str] = set()
        self._listed: set[str] = set()
        self._imported: set[str] = set()
        self._variables: set[str] = set()
        self._unknowable: set[str] = set()
        self._watching = True
        paths = sysconfig.get_paths()
        self._standard = tuple({f"{paths[name]}/" for name in ("stdlib", "platstdlib")})

    def begin(self) -> None:
        """Watch this process from now on; there is no way back."""
        sys.addaudithook(self._hear)
        read = self._read_variable

        class Watched(type(os.environ)):  # type: ignore[misc]  # its type has no public name
            def __getitem__(self, name: str) -> str:
                read(name)
                value: str = super().__getitem__(name)
                return value

        os.environ.__class__ = Watched

    def end(self) -> dict[str, Any]:
        """What was seen, as plain data with absolute paths; see :class:`migrate.compiler.inputs.Inputs`."""
        self._watching = False
        modules = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        files = (
            set(self._read) | {name for name in modules if isinstance(name, str)} | {*_mapped_files(), *_path_files()}
        )
        return {
            "files": sorted(name for name in map(_real, files) if self._counts(name)),
            "stamps": {_real(name): stamp for name, stamp in self._read.items() if stamp},
            "listings": sorted(self._listed),
            "modules": self._searched(),
            "variables": sorted(self._variables),
            "unknowable": sorted(self._unknowable),
        }

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._watching:
            return
        if event == "open":
            self._hear_open(*arguments)
        elif event == "import":
            self._imported.add(arguments[0])
        elif event in {"os.listdir", "os.scandir"}:
            name, caller = arguments[0], _caller()
            if name is None or isinstance(name, str | bytes | os.PathLike):
                path = os.path.abspath(os.fsdecode(name if name is not None else "."))  # noqa: PTH100 -- no symlinks
                if not self._is_machinery(caller) and self._counts(f"{path}/"):
                    self._listed.add(path)
        elif event in _LEAVES_THE_PROCESS:
            self._unknowable.add(_LEAVES_THE_PROCESS[event])

    def _hear_open(self, name: Any, mode: str | None, flags: int) -> None:
        if not isinstance(name, str | bytes | os.PathLike):
            return  # a descriptor, whose opening was heard
        path = os.path.abspath(os.fsdecode(name))  # noqa: PTH100 -- symlinks are followed at the end
        if mode is None:
            writes, reads = bool(flags & (os.O_WRONLY | os.O_RDWR)), not flags & os.O_WRONLY
        else:
            writes, reads = bool(set(mode) & set("wax+")), not set(mode) & set("wax")
        if path.endswith(".pyc"):
            with contextlib.suppress(ValueError):  # a module without its source
                path = importlib.util.source_from_cache(path)
        elif Path(path).parent.name.endswith((".dist-info", ".egg-info")):
            return  # what is installed; what is imported of it counts
        if mode is None and not Path(os.fsdecode(name)).is_absolute() and not Path(path).exists():
            self._unknowable.add("a file was opened relative to an open directory")  # which one is not told
        if reads and path not in self._written and path not in self._read:
            self._read[path] = _stamp(path)
        if writes:
            self._written.add(path)

    def _read_variable(self, name: str) -> None:
        if self._watching and not self._is_standard(_caller()):
            self._variables.add(name)

    def _counts(self, path: str) -> bool:
        return not path.startswith(_NO_FILES) and not self._is_standard(path)

    def _is_standard(self, path: str) -> bool:
        """Whether ``path`` belongs to Python itself, which is identified by its version."""
        return path.startswith(("<frozen ", *self._standard)) and "-packages/" not in path

    def _is_machinery(self, path: str) -> bool:
        return self._is_standard(path) and ("importlib" in path or path.endswith(("/zipfile.py", "/pkgutil.py")))

    def _searched(self) -> dict[str, list[str]]:
        """Directory -> the names that imports looked for in it, found or not: a file put there changes the program."""
        searched: dict[str, set[str]] = {}
        for name in self._imported | _AT_START:
            parent, _, last = name.rpartition(".")
            folders = sys.path if not parent else getattr(sys.modules.get(parent), "__path__", ())
            for folder in map(os.fspath, folders):
                inside_a_package = parent and "-packages/" in f"{folder}/"
                if folder and not inside_a_package and self._counts(f"{folder}/") and Path(folder).is_dir():
                    searched.setdefault(folder, set()).add(last)
        return {folder: sorted(names) for folder, names in searched.items()}


def _caller() -> str:
    """File of the code that did what is being heard, past the modules that ``os.environ`` is made of."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.endswith(_WRAPPERS):
        frame = frame.f_back
    return frame.f_code.co_filename


def _stamp(path: str) -> list[int]:
    """What tells that a file was written again; empty if there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _real(path: str) -> str:
    return os.path.realpath(path)


def _mapped_files() -> Iterator[str]:
    """Programs and shared libraries in this process's memory, those of the system aside."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    except OSError:  # another operating system
        return
    for line in lines:
        name = line[line.find("/") :] if "/" in line else ""
        if name and not name.startswith(_SYSTEM_LIBRARIES) and Path(name).is_file():
            yield name


def _path_files() -> Iterator[str]:
    """What gave this process its search path, before it could be watched."""
    for folder in sys.path:
        if "-packages" in folder and Path(folder).is_dir():
            yield from map(str, Path(folder).glob("*.pth"))
    yield str(Path(sys.prefix) / "pyvenv.cfg")


def main(request_file: str) -> None:
    """Compile what ``request_file`` says; always leaves a result beside it, unless the process dies."""
    directory = Path(request_file).parent
    observer = Observer()
    observer.begin()
    try:
        from migrate.compiler import worker
    except ImportError as error:
        _refuse(directory, error)
        return
    worker.main(request_file)
    temporary = directory / (INPUTS_FILE + ".tmp")
    temporary.write_text(json.dumps(observer.end()))
    temporary.rename(directory / INPUTS_FILE)


def _refuse(directory: Path, error: ImportError) -> None:
    """Leave an error as the result: this interpreter lacks what the worker needs."""
    from migrate.errors import ToolchainError

    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    refused = ToolchainError(
        f"the interpreter {sys.executable} cannot compile: " + (f"it has no {missing}" if missing else str(error)),
        where="target.python",
        expected="Python 3.11 or newer with jax 0.7.2 or newer, pydantic, pyyaml and flatbuffers, and libtpu for TPUs",
        found=f"{type(error).__name__}: {error}",
        remedy=f"{sys.executable} -m pip install jax pydantic pyyaml flatbuffers",
    )
    temporary = directory / "result.json.tmp"
    temporary.write_text(json.dumps({"error": refused.to_json()}))
    temporary.rename(directory / "result.json")


if __name__ == "__main__":
    main(sys.argv[1])
