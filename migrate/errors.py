"""Every error a user can meet.

An error says what happened, where (array path, box, file and key), what was expected, what was found and what
to do next. The command line prints exactly that; Python callers catch the types. Each type carries the exit
code of the command that ends with it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import ClassVar


class ExitCode(enum.IntEnum):
    """Exit codes of the ``reexport`` command."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    MISMATCH = 3
    INTERRUPTED = 130


class ReexportError(Exception):
    """Base of all errors of this package: ``what`` happened, and optionally where, expected, found and remedy."""

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        expected: str | None = None,
        found: str | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.expected = expected
        self.found = found
        self.remedy = remedy

    def fields(self) -> list[tuple[str, str]]:
        """The parts that are known, as (label, text), in the order a reader wants them."""
        parts = [
            ("where", self.where),
            ("expected", self.expected),
            ("found", self.found),
            ("do this", self.remedy),
        ]
        return [(label, text) for label, text in parts if text]

    def to_json(self) -> dict[str, str]:
        """A JSON object with ``error`` (the type's name), ``what`` and the known parts."""
        return {"error": type(self).__name__, "what": self.what, **dict(self.fields())}

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by the parts: Beam and subprocesses carry errors across process borders."""
        return (_rebuild, (type(self), self.what, self.where, self.expected, self.found, self.remedy))

    def __str__(self) -> str:
        lines = [self.what, *(f"  {label}: {text}" for label, text in self.fields())]
        return "\n".join(lines)


def from_json(fields: Mapping[str, str]) -> ReexportError:
    """The error that :meth:`ReexportError.to_json` described, of the same type."""
    kinds = [ReexportError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    kind = next((k for k in kinds if k.__name__ == fields.get("error")), ReexportError)
    return kind(
        fields["what"],
        where=fields.get("where"),
        expected=fields.get("expected"),
        found=fields.get("found"),
        remedy=fields.get("do this"),
    )


def _rebuild(  # noqa: PLR0917 -- pickle calls it with positional arguments
    kind: type[ReexportError],
    what: str,
    where: str | None,
    expected: str | None,
    found: str | None,
    remedy: str | None,
) -> ReexportError:
    return kind(what, where=where, expected=expected, found=found, remedy=remedy)


class ConfigError(ReexportError):
    """A job file, or a value in it, cannot be used. ``where`` names the file and the key."""

    exit_code = ExitCode.USAGE


class TargetError(ConfigError):
    """The target cannot exist: unknown topology, or a mesh that does not fit its devices."""


class ProgramError(ConfigError):
    """The model entry cannot be imported, called, or does not return a usable :class:`migrate.Program`."""


class LayoutSyntaxError(ReexportError, ValueError):
    """A text is not an XLA shape or layout."""


class UnknownMessageError(ReexportError):
    """A text is not an error message about layouts that :func:`migrate.explain_error` knows."""

    exit_code = ExitCode.USAGE


class SourceError(ReexportError):
    """The source checkpoint cannot be read."""


class CheckpointNotFoundError(SourceError):
    """Nothing lies at the given path."""


class UnknownFormatError(SourceError):
    """Something lies at the path, but no known checkpoint format recognises it."""


class AmbiguousCheckpointError(SourceError):
    """The path holds several checkpoints (steps or items) and nothing says which one is meant."""


class UncommittedCheckpointError(SourceError):
    """The checkpoint is still being written, or its writer died before finishing it."""


class CorruptCheckpointError(SourceError):
    """The checkpoint's metadata or data is damaged: truncated, unreadable, or chunks are absent."""


class UnsupportedLeafError(SourceError):
    """A leaf exists that cannot be carried into an export."""


class MappingError(ReexportError):
    """Leaves and parameters do not fit together; lists every problem at once."""


class CastOverflowError(MappingError):
    """An element does not fit into the dtype that a cast rule asks for, and the rule says that this is an error."""


class CompileError(ReexportError):
    """The target's compiler refused the program or died; carries its words and the path of its log."""


class ToolchainError(CompileError):
    """The libtpu version that a target names cannot be had, or does not work with this jax."""


class StorageError(ReexportError):
    """The output cannot be written or read: disk full, permission, network."""


class ItemTimeoutError(StorageError):
    """An item of work was not finished in time: storage that hangs, or one that is far slower than expected."""


class OutputConflictError(ReexportError):
    """The output already holds an export of another identity, or another driver is writing it."""


class VerificationError(ReexportError):
    """What lies on storage is not what was read from the source or recorded in the manifest."""

    exit_code = ExitCode.MISMATCH


class RewriteVerificationError(VerificationError):
    """A chunk read back right after it was written differs; the run fails and commits nothing."""

    exit_code = ExitCode.FAILED


class NotAnExportError(ReexportError):
    """The path holds no committed export."""


class SmokeTestError(ReexportError):
    """The fleet's smoke command did not succeed with a new export, which therefore does not become the current one."""


class NotPublishedError(ReexportError, TimeoutError):
    """The export that was waited for did not become the current one in time."""


class EnvironmentMismatchError(ReexportError):
    """This process cannot run the export: other devices, jax, jaxlib or libtpu than it was compiled for."""

    exit_code = ExitCode.MISMATCH
