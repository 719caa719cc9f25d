"""What tracing and compiling raise, as typed errors with the compiler's own words."""

from __future__ import annotations

import re
from collections.abc import Mapping

from migrate.errors import CompileError, ConfigError, ProgramError, ReexportError
from migrate.program import user_line

_MAX_MESSAGE_CHARACTERS = 4000
# "No such compile option: 'NAME'" and "Failed to parse 'VALUE' into flag NAME: ..."
_BAD_FLAG = re.compile(
    r"No such compile option: '?([\w.-]+)'?|into flag ([\w.-]+)|[Ff]lag '?([\w.-]+)'?: (?:Illegal|Unrec)"
    r"|While setting option ([\w.-]+),"
)


def compile_failure(error: Exception, flags: Mapping[str, object], where: str) -> ReexportError:
    """The typed form of what ``lowered.compile`` raised: a wrong flag is the user's, the rest the compiler's."""
    message = trim(str(error))
    match = _BAD_FLAG.search(message)
    name = match and next(group for group in match.groups() if group)
    if name in flags:
        return ConfigError(
            f"the compiler does not take the flag {name}",
            where=f"target.flags.{name}",
            found=message,
            remedy="flags come and go between libtpu versions and differ by platform; check name and value",
        )
    if "RESOURCE_EXHAUSTED" in message:
        what, remedy = (
            "the program does not fit the target's device memory",
            "use more devices, shard more dimensions, donate buffers or make the batch smaller",
        )
    else:
        what, remedy = "the target's compiler refused the program", "another libtpu version may take it"
    return CompileError(what, where=where, found=f"{type(error).__name__}: {message}", remedy=remedy)


def trace_failure(error: BaseException) -> ProgramError:
    """The typed form of what the user's function raised while jax traced it, with the line of the user's code."""
    return ProgramError(
        "the program's function failed while it was traced",
        where=user_line(error) or "Program.function",
        found=f"{type(error).__name__}: {trim(str(error))}",
        remedy="jax.jit(function).lower(*arguments) shows the same error",
    )


def trim(message: str) -> str:
    """``message`` with its middle left out if it is too long to read; XLA can print whole programs."""
    message = message.strip()
    if len(message) <= _MAX_MESSAGE_CHARACTERS:
        return message
    half = _MAX_MESSAGE_CHARACTERS // 2
    return f"{message[:half]}\n... {len(message) - 2 * half} characters ...\n{message[-half:]}"
