"""The model: a function, its abstract arguments, and which of them a checkpoint fills.

A job names it as ``entry: "package.module:function"``: a callable that takes a :class:`jax.sharding.Mesh` (and the
job's ``arguments`` as keywords) and returns a :class:`Program`. ``migrate.demo.model`` is a worked example.
"""

from __future__ import annotations

import importlib
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from migrate.errors import ProgramError

if TYPE_CHECKING:
    from jax.sharding import Mesh


@dataclass(frozen=True)
class Program:
    """A function to compile and the arguments to compile it for."""

    function: Callable[..., Any]
    """A function of positional arguments that ``jax.jit`` accepts."""
    arguments: tuple[Any, ...]
    """One pytree of ``jax.ShapeDtypeStruct`` an argument. The struct's ``sharding`` is a ``NamedSharding`` on the
    given mesh (none: replicated); a ``jax.experimental.layout.Format`` with a concrete layout there pins the layout,
    whatever the target's layout policy."""
    parameters: int = 0
    """Which argument a checkpoint fills."""
    donated: tuple[int, ...] = ()
    """Arguments whose buffers the results may reuse, as in ``jax.jit(donate_argnums=...)``."""


def resolve(entry: str, mesh: Mesh, arguments: Mapping[str, Any], python_path: Sequence[str] = ()) -> Program:
    """Import ``package.module:function`` and call it with ``mesh`` and the keyword ``arguments``.

    ``python_path`` directories are searched before the installed packages. Raises :class:`ProgramError` if the entry
    cannot be imported or called, or returns something else than a usable :class:`Program`.
    """
    module_name, separator, function_name = entry.partition(":")
    if not (separator and module_name and function_name):
        raise ProgramError(
            "the program's entry is malformed",
            where="program.entry",
            expected="package.module:function",
            found=repr(entry),
        )
    sys.path[:0] = [path for path in python_path if path not in sys.path]
    try:
        function = importlib.import_module(module_name)
        for attribute in function_name.split("."):
            function = getattr(function, attribute)
    except (Exception, SystemExit) as error:  # whatever the user's module raises while it is imported
        line = user_line(error)
        raise ProgramError(
            f"the program's entry {entry!r} cannot be imported",
            where=line or "program.entry",
            found=f"{type(error).__name__}: {error}",
            remedy="importing the module in Python shows the same error"
            if line
            else "check the name; modules are searched beside the job file, in python_path and among the installed "
            "packages",
        ) from error
    try:
        program = function(mesh, **arguments)  # type: ignore[operator]  # checked by calling it
    except (Exception, SystemExit) as error:  # whatever the user's function raises
        raise ProgramError(
            f"the program's entry {entry!r} failed when it was called with the mesh",
            where=user_line(error) or "program.entry",
            found=f"{type(error).__name__}: {error}",
            remedy="call it yourself with a jax.sharding.Mesh and the job's program.arguments",
        ) from error
    if not isinstance(program, Program):
        raise ProgramError(
            f"the program's entry {entry!r} returned something else than a migrate.Program",
            where="program.entry",
            expected="migrate.Program",
            found=type(program).__name__,
        )
    if not isinstance(program.arguments, tuple):
        raise ProgramError(
            f"the program's entry {entry!r} gives its arguments in something else than a tuple",
            where="Program.arguments",
            expected="a tuple with one tree an argument of the function",
            found=type(program.arguments).__name__,
        )
    count = len(program.arguments)
    if not 0 <= program.parameters < count or not all(0 <= d < count for d in program.donated):
        raise ProgramError(
            f"the program's entry {entry!r} names arguments it does not have",
            where="Program.parameters or Program.donated",
            expected=f"argument numbers from 0 to {count - 1}",
            found=f"parameters={program.parameters}, donated={program.donated}",
        )
    return program


def user_line(error: BaseException) -> str | None:
    """``file:line`` of what the user's code did wrong: of the syntax error, or of the innermost frame outside Python's
    own library, jax and this package; None if there is none."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename}:{error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not _is_machinery(Path(frame.filename)):
            return f"{frame.filename}:{frame.lineno}"
    return None


_PACKAGE = Path(__file__).parent
_STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))


def _is_machinery(path: Path) -> bool:
    if path.is_relative_to(_PACKAGE):
        return not path.is_relative_to(_PACKAGE / "demo")  # a model like any other
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    if not installed and path.is_relative_to(_STANDARD_LIBRARY):
        return True
    return bool({"jax", "jaxlib", "_src"} & set(path.parts)) or str(path).startswith("<frozen ")
