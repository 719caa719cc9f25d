"""Deletes what :mod:`migrate.retention` decides, in an order in which a crash leaves nothing half-visible.

An export loses its COMMIT.json before anything else; a parameter set its run's receipts, then parameters.json and the
manifests of its databases, then the rest: what is left of it counts as absent. The collector holds a lease of its own;
a job that starts meanwhile waits for it (:func:`wait_for_collector`), and the collector leaves alone what jobs hold
that started before.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

from migrate import lease, pointer, storage
from migrate.errors import NotAnExportError
from migrate.export import Paths, open_export
from migrate.lease import Lease
from migrate.manifest import COMMIT_KEY, MANIFEST, MANIFEST_KEY, PARAMETER_SET, PARAMETERS_KEY
from migrate.publication import committed_ids
from migrate.retention import Committed, Decision, Inventory, decide

_SERVICE_RUNS = frozenset({"gc", "reconcile"})
"""Names under runs/ that are no parameter sets."""
_WAIT_SECONDS = 600.0
_FIRST = (PARAMETERS_KEY, "manifest.ocdbt")


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection did, or would do."""

    output: str
    decision: Decision
    dry_run: bool
    freed_bytes: int
    """Logical bytes of the finished parameter sets among ``decision.delete_sets``."""
    kept_bytes: int
    """Logical bytes of the finished sets that stay."""

    def to_json(self) -> dict[str, object]:
        """A JSON object for ``reexport gc --json``."""
        decision = self.decision
        return {
            "output": self.output,
            "dry_run": self.dry_run,
            "kept": dict(decision.keep),
            "hidden": list(decision.hide),
            "waiting": {
                "exports": [*decision.waiting_exports, *decision.mark_exports],
                "parameter_sets": [*decision.waiting_sets, *decision.mark_sets],
            },
            "deleted": {"exports": list(decision.delete_exports), "parameter_sets": list(decision.delete_sets)},
            "freed_bytes": self.freed_bytes,
            "kept_bytes": self.kept_bytes,
        }


def collector_uri(output: str) -> str:
    """Where the collector's lease lies."""
    return Paths(output).run("gc")


def wait_for_collector(output: str) -> None:
    """Return when no collection deletes in ``output``; to be called by a job that has just taken its own lease.

    Raises :class:`migrate.errors.OutputConflictError` after ten minutes.
    """
    lease.wait_until_free(collector_uri(output), _WAIT_SECONDS)


def collect(output: str, *, keep: int, grace_seconds: float, dry_run: bool = False) -> Collected:
    """Hide all but the ``keep`` newest exports and the current one, and delete what was hidden ``grace_seconds`` ago.

    Raises :class:`migrate.errors.OutputConflictError` if another collection runs, :class:`NotAnExportError` if the
    output has no exports, or one is damaged: then nothing tells what it refers to.
    """
    output = storage.normalise(output)
    if pointer.read(output) is None and not committed_ids(output):
        raise NotAnExportError(
            "no exports lie here", where=output, expected="the output root of a finished run or reconcile"
        )
    if dry_run:
        return _sized(output, decide(_inventory(output), keep=keep, grace_seconds=grace_seconds, now=time.time()), True)
    held = Lease(collector_uri(output))
    try:
        # only now: a job that takes its lease after this waits for ours
        decision = decide(_inventory(output), keep=keep, grace_seconds=grace_seconds, now=time.time())
        collected = _sized(output, decision, False)
        _carry_out(Paths(output), decision, held.renew)
        return collected
    finally:
        held.release()
        for folder in (collector_uri(output), storage.join(output, "runs")):
            storage.delete_empty_directory(folder)


def _inventory(output: str) -> Inventory:
    paths = Paths(output)
    visible = committed_ids(output)
    committed = []
    for export_id in visible:
        manifest = open_export(paths.export(export_id)).manifest
        committed.append(Committed(export_id, manifest.created, manifest.parameter_set))
    hidden = {
        name: _set_of_hidden(paths, name) for name in _folders(storage.join(output, "exports")) if name not in visible
    }
    runs = set(_folders(storage.join(output, "runs"))) - _SERVICE_RUNS
    sets = runs.union(*(_folders(storage.join(output, kind)) for kind in ("params", "carried")))
    now = pointer.read(output)
    return Inventory(
        committed=tuple(committed),
        hidden=hidden,
        sets=frozenset(sets),
        current=now.export if now else None,
        published=frozenset((now.export, *now.previous, *now.rolled_back) if now else ()),
        running=frozenset(name for name in runs if lease.is_held(paths.run(name))),
        export_marks=_marks(output, "exports"),
        set_marks=_marks(output, "params"),
    )


def _set_of_hidden(paths: Paths, export_id: str) -> str | None:
    data = storage.read(paths.export(export_id), MANIFEST_KEY)
    try:
        return None if data is None else MANIFEST.load(data, export_id).parameter_set
    except NotAnExportError:
        return None


def _folders(uri: str) -> list[str]:
    return [name.rstrip("/") for name in storage.list_directory(uri) if name.endswith("/")]


def _marks_uri(output: str, kind: str) -> str:
    return storage.join(output, "retired", kind)


def _marks(output: str, kind: str) -> dict[str, float]:
    uri = _marks_uri(output, kind)
    found: dict[str, float] = {}
    for name in storage.list_directory(uri):
        data = storage.read(uri, name, max_bytes=4096) if name.endswith(".json") else None
        try:
            found[name.removesuffix(".json")] = float(json.loads(data or b"")["since"])
        except (ValueError, KeyError, TypeError):
            continue  # it is marked again, from now
    return found


def _sized(output: str, decision: Decision, dry_run: bool) -> Collected:
    paths = Paths(output)

    def nbytes(name: str) -> int:
        data = storage.read(paths.parameters(name), PARAMETERS_KEY)
        try:
            return 0 if data is None else PARAMETER_SET.load(data, name).nbytes
        except NotAnExportError:
            return 0

    gone = set(decision.delete_sets)
    kept = {name for name in _folders(storage.join(output, "params")) if name not in gone}
    return Collected(output, decision, dry_run, sum(map(nbytes, gone)), sum(map(nbytes, kept)))


def _carry_out(paths: Paths, decision: Decision, renew: Callable[[], None]) -> None:
    output, now = paths.output, json.dumps({"since": time.time()}).encode()
    restored = set()
    for export_id in decision.hide:
        storage.write(_marks_uri(output, "exports"), f"{export_id}.json", now, durable=True)
        if not _hide(paths, export_id):
            restored.add(export_id)
            storage.delete(_marks_uri(output, "exports"), f"{export_id}.json")
        renew()
    for kind, names in (("exports", decision.mark_exports), ("params", decision.mark_sets)):
        for name in set(names) - set(decision.hide):
            storage.write(_marks_uri(output, kind), f"{name}.json", now, durable=True)
    # an export that became current at this moment keeps its arrays, and all that are deleted with the others
    spared = {open_export(paths.export(export_id)).manifest.parameter_set for export_id in restored}
    for export_id in set(decision.delete_exports) - restored:
        _delete(paths.export(export_id), renew)
        storage.delete(_marks_uri(output, "exports"), f"{export_id}.json")
    for name in set(decision.delete_sets) - spared:
        for uri in (paths.run(name), paths.parameters(name), paths.carried(name)):
            _delete(uri, renew)
        storage.delete(_marks_uri(output, "params"), f"{name}.json")
    for kind, names in (("exports", decision.unmark_exports), ("params", decision.unmark_sets)):
        for name in names:
            storage.delete(_marks_uri(output, kind), f"{name}.json")
        storage.delete_empty_directory(_marks_uri(output, kind))
    storage.delete_empty_directory(storage.join(output, "retired"))


def _hide(paths: Paths, export_id: str) -> bool:
    """Take COMMIT.json away; False, and it is back, if the export became the current one at this moment."""
    uri = paths.export(export_id)
    data = storage.read(uri, COMMIT_KEY)
    storage.delete(uri, COMMIT_KEY)
    storage.flush_directory(uri)
    now = pointer.read(paths.output)
    if now is not None and now.export == export_id and data is not None:
        storage.create(uri, COMMIT_KEY, data)
        return False
    return True


def _delete(uri: str, renew: Callable[[], None]) -> None:
    """Delete everything below ``uri``: first what makes the rest count, then the rest."""
    keys = storage.list_keys(uri)
    names = {key: key.rsplit("/", 1)[-1] for key in keys}
    for key in sorted((key for key in keys if names[key] in _FIRST), key=lambda key: _FIRST.index(names[key])):
        storage.delete(uri, key)
    # after a power loss, too, what is half deleted must not count as whole
    storage.flush_directory(uri)
    for index, key in enumerate(key for key in keys if names[key] not in _FIRST):
        storage.delete(uri, key)
        if index % 100 == 0:
            renew()
    storage.delete_directory(uri)
