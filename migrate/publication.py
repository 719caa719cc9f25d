"""Which export of an output is current: publish one, go back to an earlier one, wait for one; and a list of them all.

Publishing and the collection of old exports may meet: whoever makes an export current looks afterwards whether it is
still there, and the collector, after it has hidden one, looks whether that has become current. One of them sees it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from migrate import pointer, storage
from migrate.errors import ConfigError, NotAnExportError, NotPublishedError, StorageError
from migrate.export import Export, Paths, open_export
from migrate.manifest import COMMIT_KEY, Manifest
from migrate.signature import Fingerprint

_POLL_SECONDS = 1.0
_SHORTEST_PREFIX = 8


@dataclass(frozen=True, slots=True)
class Listed:
    """A committed export of an output."""

    manifest: Manifest
    state: str
    """``current``, ``previous`` (was current), ``rolled back`` (was left by a rollback), or ``never current``."""

    @property
    def id(self) -> str:
        """Its id."""
        return self.manifest.export

    def to_json(self) -> dict[str, object]:
        """A JSON object for ``reexport list --json``."""
        manifest = self.manifest
        return {
            "export": self.id,
            "state": self.state,
            "created": manifest.created,
            "parameter_set": manifest.parameter_set,
            "bytes_written": manifest.bytes_written,
            "source": {"uri": manifest.source.uri, "step": manifest.source.step, "identity": manifest.source.identity},
            "programs": [
                {
                    "name": program.name,
                    "fingerprint": program.fingerprint.digest,
                    "topology": program.fingerprint.topology,
                    "jax": program.fingerprint.jax,
                    "libtpu": program.fingerprint.libtpu,
                }
                for program in manifest.programs
            ],
        }


def committed_ids(output: str) -> list[str]:
    """Ids of the committed exports of an output, in no order of time."""
    exports = storage.join(output, "exports")
    names = [name.rstrip("/") for name in storage.list_directory(exports) if name.endswith("/")]
    return [name for name in names if storage.exists(storage.join(exports, name), COMMIT_KEY)]


def list_exports(output: str) -> tuple[Listed, ...]:
    """The committed exports of an output, newest first.

    Raises :class:`NotAnExportError` if it has none, or one is damaged.
    """
    output = storage.normalise(output)
    now = pointer.read(output)
    manifests = [open_export(Paths(output).export(export_id)).manifest for export_id in committed_ids(output)]
    if not manifests:
        raise _no_exports(output)
    manifests.sort(key=lambda manifest: (manifest.created, manifest.export), reverse=True)
    return tuple(Listed(manifest, _state(manifest.export, now)) for manifest in manifests)


def _state(export_id: str, now: pointer.Pointer | None) -> str:
    if now is None:
        return "never current"
    if export_id == now.export:
        return "current"
    if export_id in now.rolled_back:
        return "rolled back"
    return "previous" if export_id in now.previous else "never current"


def publish(output: str, export_id: str, *, expected: str | None) -> None:
    """Make a committed export the current one, if ``expected`` (None: none) still is.

    Raises :class:`migrate.errors.OutputConflictError` if another one became current meanwhile, :class:`StorageError`
    if the export is gone.
    """
    before = pointer.move(output, export_id, expected=expected)
    _require(output, export_id, before)


def roll_back(output: str, to: str | None = None) -> tuple[str, str]:
    """Make an earlier export current again: (id before, id now).

    ``to`` is its id, or the beginning of it; default: the one that was current before the present one. What is rolled
    back from does not become current again by itself: ``reconcile`` leaves it alone until its inputs change.

    Raises :class:`NotAnExportError` if the output has no exports or no such one, :class:`ConfigError` if ``to`` fits
    several.
    """
    output = storage.normalise(output)
    now = pointer.read(output)
    if now is None:
        raise _no_exports(output)
    ids = committed_ids(output)
    if to is None:
        earlier = [export_id for export_id in now.previous if export_id in ids]
        if not earlier:
            raise NotAnExportError(
                "no earlier export is left to go back to",
                where=output,
                found=f"{now.export} is current; committed: {', '.join(sorted(ids))}",
                remedy="`reexport list` shows what there is; name one with --to",
            )
        chosen = earlier[0]
    else:
        chosen = _named(output, to, ids)
    if chosen == now.export:
        return chosen, chosen
    # going forward again, to what was rolled back from, is no judgement about the export that is left
    before = pointer.move(output, chosen, expected=now.export, rolled_back=chosen not in now.rolled_back)
    _require(output, chosen, before)
    return now.export, chosen


def _named(output: str, text: str, ids: list[str]) -> str:
    found = sorted(export_id for export_id in ids if export_id.startswith(text))
    if text in found or len(found) == 1:
        return text if text in found else found[0]
    if found:
        raise ConfigError("several exports begin like this", where=f"--to {text}", found=", ".join(found))
    raise NotAnExportError(
        f"the output holds no committed export {text}",
        where=output,
        expected=f"one of {', '.join(sorted(ids))}" if ids else "an export",
        remedy="`reexport list` shows what there is",
    )


def _require(output: str, export_id: str, before: pointer.Pointer | None) -> None:
    if storage.exists(Paths(output).export(export_id), COMMIT_KEY):
        return
    pointer.restore(output, before, instead_of=export_id)
    raise StorageError(
        "the export was deleted at the moment it became current",
        where=Paths(output).export(export_id),
        remedy="run its job again",
    )


def wait_for(
    output_root: str, fingerprint: str | Fingerprint, timeout_seconds: float, *, poll_seconds: float = _POLL_SECONDS
) -> Export:
    """Return the current export of an output as soon as one of its programs has ``fingerprint``.

    For rollouts: a serving process that was built for a new toolchain waits until the fleet has re-exported for it.
    ``fingerprint`` is a :class:`Fingerprint`, its hexadecimal digest, or at least 8 digits of its beginning. LATEST is
    read every ``poll_seconds``.

    Raises :class:`migrate.errors.NotPublishedError` after ``timeout_seconds``, :class:`ConfigError` for what is no
    fingerprint, and what :func:`migrate.open_export` raises for a damaged output.
    """
    output = storage.normalise(output_root)
    wanted = fingerprint.digest if isinstance(fingerprint, Fingerprint) else str(fingerprint).lower()
    if len(wanted) < _SHORTEST_PREFIX or set(wanted) - set("0123456789abcdef"):
        raise ConfigError(
            "not a fingerprint",
            where="fingerprint",
            expected=f"a SHA-256 in hexadecimal, or at least {_SHORTEST_PREFIX} digits of its beginning",
            found=repr(fingerprint),
        )
    deadline = time.monotonic() + timeout_seconds
    seen, found = None, "no export"
    while True:
        now = pointer.read(output)
        if now is not None and now.export != seen:
            export = open_export(Paths(output).export(now.export))
            digests = [program.fingerprint.digest for program in export.manifest.programs]
            if any(digest.startswith(wanted) for digest in digests):
                return export
            seen, found = now.export, f"export {now.export} of fingerprint {', '.join(d[:16] for d in digests)}"
        left = deadline - time.monotonic()
        if left <= 0:
            raise NotPublishedError(
                f"no export of this fingerprint became current within {timeout_seconds:g} seconds",
                where=output,
                expected=wanted[:16],
                found=found,
                remedy="see whether the job or `reexport reconcile` that makes it runs, or failed",
            )
        time.sleep(min(poll_seconds, left))


def _no_exports(output: str) -> NotAnExportError:
    return NotAnExportError(
        "no exports lie here",
        where=output,
        expected="the output root of a finished `reexport run` or `reexport reconcile`",
    )
