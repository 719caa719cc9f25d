"""Which version of libtpu changed what a job's executable expects, in a range of published ones."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from migrate import storage
from migrate.bisect import Change, first_change, most_looks
from migrate.compiler import toolchains
from migrate.compiler.releases import in_range
from migrate.difference import DEFAULT_MAX_CHUNK_BYTES, Difference, compare_signatures
from migrate.errors import CompileError, ConfigError
from migrate.export import is_export
from migrate.sides import Side, is_job, open_side

_WHEEL_MB = "135 to 230 MB"


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What was found in a range of versions."""

    versions: tuple[str, ...]
    """The versions of the range that were searched, oldest first."""
    left_out: tuple[str, ...]
    """Versions of the range that this jax was never seen to drive."""
    failed: tuple[str, ...]
    """Versions that could not compile the job, or could not be had."""
    change: Change[str] | None
    """The versions between which the expectations change; None if the ends of the range are alike."""
    difference: Difference
    """Of the two versions of ``change``; of the range's ends without one."""
    later: bool
    """Whether the range's last version expects yet something else than the first one that differs."""

    def to_json(self) -> dict[str, object]:
        """A JSON object for ``reexport diff --libtpu OLD..NEW --json``."""
        change = self.change
        return {
            "versions": list(self.versions),
            "left_out": list(self.left_out),
            "failed": list(self.failed),
            "change": None
            if change is None
            else {
                "before": change.before,
                "after": change.after,
                "skipped": list(change.skipped),
                "changes_again": self.later,
            },
            **self.difference.to_json(),
        }


def find_change(
    job: str | os.PathLike[str],
    versions: str,
    settings: Sequence[str] = (),
    *,
    program: str | None = None,
    where: str = "--target",
    say: Callable[[str], None] = lambda text: None,
) -> Upgrade:
    """Search the range ``versions`` (``0.0.37..0.0.52``) for the libtpu that changed what the job expects.

    ``job`` is a job file, or an export, whose saved program is compiled.

    Both ends are compiled, then the middle of what remains; a version in between that cannot compile the job is
    skipped. ``settings`` are overrides of the job's target, ``where`` how errors name them; ``say`` hears a line
    about each step. Versions that are not here are downloaded, and stay in the cache.

    Raises :class:`ConfigError` for a text that is no range or holds fewer than two versions, and for what is no job;
    :class:`CompileError` if one of the ends cannot compile it.
    """
    if not (is_job(job) or is_export(storage.normalise(os.fspath(job)))):
        raise ConfigError(
            "only a job or an export can be compiled with one version of libtpu after another",
            where=os.fspath(job),
            expected="a job file, or an export or its output",
        )
    inside, left_out = in_range(versions)
    search = _Search(job, settings, program, where, say)
    search.announce(inside, left_out)
    search.compile(inside[0])
    say(f"libtpu {inside[0]}: compiled in {search.seconds:.1f} s")
    change = first_change(inside, lambda version: search.differs(version, inside))
    before, after = (inside[0], inside[-1]) if change is None else (change.before, change.after)
    return Upgrade(
        versions=inside,
        left_out=left_out,
        failed=tuple(search.failed),
        change=change,
        difference=search.difference(before, after),
        later=change is not None and not search.difference(after, inside[-1]).same_layouts,
    )


class _Search:
    """The sides that were compiled so far."""

    def __init__(
        self,
        job: str | os.PathLike[str],
        settings: Sequence[str],
        program: str | None,
        where: str,
        say: Callable[[str], None],
    ) -> None:
        self._job, self._settings, self._program, self._where, self._say = job, tuple(settings), program, where, say
        self._sides: dict[str, Side] = {}
        self.failed: list[str] = []
        self.seconds = 0.0

    def announce(self, inside: Sequence[str], left_out: Sequence[str]) -> None:
        """Say what is ahead, before the first download."""
        if left_out:
            self._say(f"left out, {toolchains.working_range()}: {', '.join(left_out)}")
        here = {toolchain.version for toolchain in toolchains.available()}
        looks = 1 + most_looks(len(inside))
        self._say(
            f"{len(inside)} versions from {inside[0]} to {inside[-1]}, {len(here & set(inside))} of them here: "
            f"{looks} compiles at most unless some fail; each missing version is a download of {_WHEEL_MB}, kept in "
            f"{toolchains.cache_directory()}"
        )

    def compile(self, version: str) -> Side:
        """The side of ``version``. Raises what compiling a job raises."""
        if version not in self._sides:
            here = version in {toolchain.version for toolchain in toolchains.available()}
            self._say(f"libtpu {version}: compiling" if here else f"libtpu {version}: downloading, then compiling")
            started = time.monotonic()
            self._sides[version] = open_side(
                self._job, (*self._settings, f"libtpu={version}"), program=self._program, where=self._where
            )
            self.seconds = time.monotonic() - started
        return self._sides[version]

    def differs(self, version: str, inside: Sequence[str]) -> bool | None:
        """Whether ``version`` expects other parameters than the first one; None if it cannot compile the job.

        Raises what compiling a job raises if it is the last version.
        """
        try:
            self.compile(version)
        except (CompileError, ConfigError) as error:  # a flag that this version does not have is a ConfigError
            if version == inside[-1]:
                raise
            self.failed.append(version)
            more = f" ({error.remedy})" if error.remedy else ""
            self._say(f"libtpu {version}: skipped: {error.what}{more}")
            return None
        same = self.difference(inside[0], version).same_layouts
        self._say(f"libtpu {version}: {'like' if same else 'differs from'} {inside[0]} ({self.seconds:.1f} s)")
        return not same

    def difference(self, before: str, after: str) -> Difference:
        """What changes from one compiled version to another."""
        one, other = self._sides[before], self._sides[after]
        limit = other.max_chunk_bytes or DEFAULT_MAX_CHUNK_BYTES
        return compare_signatures(one.signature, other.signature, max_chunk_bytes=limit)
