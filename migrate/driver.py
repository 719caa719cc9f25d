"""One job from its source to its committed export: prepare, then rewrite, verify and commit through the pipeline."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from migrate import export, failures, receipt, rewrite, storage
from migrate.collector import wait_for_collector
from migrate.commit import CommitRequest, Work
from migrate.config import Job
from migrate.environment import installed_versions
from migrate.errors import OutputConflictError, ReexportError, StorageError
from migrate.execution import execute
from migrate.export import Export, Paths
from migrate.lease import Lease
from migrate.manifest import (
    EXECUTABLE_FILE,
    EXPORTED_FILE,
    MANIFEST_KEY,
    PARAMETERS_KEY,
    SIGNATURE_FILE,
    FileRecord,
    ProgramRecord,
    SourceRecord,
)
from migrate.planner import Plan
from migrate.preparation import Prepared, Reporter, Silent, as_job, compile_directory, prepare
from migrate.receipt import Destination

_TOOLS = ("reexport", "jax", "jaxlib", "libtpu", "orbax-checkpoint", "tensorstore", "apache-beam", "numpy")


@dataclass(frozen=True)
class Result:
    """What a run achieved."""

    export: Export
    plan: Plan
    already_committed: bool
    """The output held this very export; nothing was written."""
    items_done: int
    """Items this run wrote; the others had receipts of an earlier run."""
    bytes_written: int
    """Logical bytes this run wrote."""
    seconds: float
    """Wall time of the whole job."""

    def to_json(self) -> dict[str, object]:
        """A JSON object for ``reexport run --json``."""
        return {
            "export": self.export.uri,
            "parameters": self.export.parameters_uri,
            "already_committed": self.already_committed,
            "items_done": self.items_done,
            "items": len(self.plan.items),
            "arrays": len(self.plan.arrays),
            "bytes": self.plan.nbytes,
            "bytes_written": self.bytes_written,
            "seconds": round(self.seconds, 3),
            "timings": {stage: round(seconds, 3) for stage, seconds in self.export.manifest.timings.items()},
        }


def run(
    job: Job | Mapping[str, Any] | str | Path, *, supersede: bool = False, reporter: Reporter | None = None
) -> Result:
    """Re-export one checkpoint: when this returns, the export is whole, verified and committed.

    An interrupted or failed run leaves nothing visible; the same call then repeats only items without a durable
    receipt. Running a finished job again writes nothing. ``supersede`` lets an output that already holds another
    export receive this one beside it, as the current one. Raises :class:`ReexportError`.
    """
    started = time.perf_counter()
    with compile_directory() as directory:
        prepared = prepare(as_job(job), directory, reporter)
        result = run_prepared(prepared, supersede=supersede, reporter=reporter)
    return replace(result, seconds=time.perf_counter() - started)


def run_prepared(
    prepared: Prepared, *, supersede: bool = False, publish: bool = True, reporter: Reporter | None = None
) -> Result:
    """What :func:`run` does once the plan is made; ``prepared`` must still have its compile directory.

    Without ``publish`` the export is committed, but LATEST stays as it is. Raises :class:`ReexportError`.
    """
    started = time.perf_counter()
    reporter = reporter or Silent()
    paths = Paths(prepared.job.output)
    reporter.planned(prepared)
    done = written = 0
    already = _already_committed(paths, prepared, supersede)
    if not already:
        done, written = _rewrite(paths, prepared, reporter, publish)
    elif publish:
        export.set_latest(paths.output, prepared.export_id)
    committed = export.open_export(paths.export(prepared.export_id))
    return Result(committed, prepared.plan, already, done, written, time.perf_counter() - started)


def _already_committed(paths: Paths, prepared: Prepared, supersede: bool) -> bool:
    current = export.latest(paths.output)
    directory = paths.export(prepared.export_id)
    if current not in {None, prepared.export_id} and not supersede:
        raise _conflict(export.open_export(paths.output), prepared)
    return export.is_export(directory)


def _conflict(found: Export, prepared: Prepared) -> OutputConflictError:
    differences = []
    source = found.manifest.source
    if source.identity != prepared.checkpoint.identity:
        differences.append(
            f"source {source.uri}, identity {source.identity[:12]} (now {prepared.checkpoint.identity[:12]})"
        )
    there, here = [program.name for program in found.manifest.programs], list(prepared.compiled)
    if there != here:
        differences.append(f"programs {', '.join(there)} (now {', '.join(here)})")
    for program in found.manifest.programs:
        if program.name not in prepared.compiled:
            continue
        old, new = program.fingerprint, prepared.compiled[program.name].signature.fingerprint
        of = f" of {program.name}" if len(there) > 1 else ""
        differences += [
            f"{_FIELDS[name]}{of} {_shown(getattr(old, name))} (now {_shown(getattr(new, name))})"
            for name in _FIELDS
            if getattr(old, name) != getattr(new, name)
        ]
    return OutputConflictError(
        "the output already holds an export of another identity",
        where=found.paths.output,
        found=f"export {found.manifest.export}; this job makes {prepared.export_id}. What differs:\n    "
        + ("\n    ".join(differences) or "the storage layout: mapping, chunk bound or compression"),
        remedy="choose another output, or run with --supersede to add this export beside it as the current one",
    )


_FIELDS = {
    "stablehlo_sha256": "program (SHA-256 of its StableHLO)",
    "topology": "topology",
    "mesh": "mesh",
    "jax": "jax",
    "jaxlib": "jaxlib",
    "libtpu": "libtpu",
    "flags": "flags",
    "layout_policy": "layout policy",
}
"""Fingerprint fields, as a person calls them."""


_DIGEST_CHARACTERS = 64


def _shown(value: object) -> str:
    """A fingerprint's value: digests shortened, pairs joined."""
    if isinstance(value, tuple):
        return " ".join(f"{name}={setting}" for name, setting in value) or "none"
    return str(value) if len(str(value)) != _DIGEST_CHARACTERS else str(value)[:16]


def _rewrite(paths: Paths, prepared: Prepared, reporter: Reporter, publish: bool) -> tuple[int, int]:
    """Write, verify and commit; (items, logical bytes) that were not there before."""
    plan, export_id = prepared.plan, prepared.export_id
    run_uri = paths.run(plan.parameter_set)
    lease = Lease(run_uri)
    ledger_directory = tempfile.mkdtemp(prefix="reexport-ledger-")
    try:
        wait_for_collector(paths.output)
        if export.is_export(paths.export(export_id)):
            return 0, 0  # another driver committed it before this one had the lease
        destination = Destination(
            paths.parameters(plan.parameter_set), paths.carried(plan.parameter_set), run_uri, ledger_directory
        )
        failures.take(destination)
        _delete_unfinished(paths, destination, export_id)
        programs = _store_programs(paths, prepared)
        items = plan.items
        if storage.exists(destination.parameters_uri, PARAMETERS_KEY):
            items = ()  # another export shares the set
        receipts = receipt.load_all(destination, [item.id for item in items])
        items = tuple(item for item in items if item.id not in receipts)
        nbytes = sum(item.nbytes for item in items)
        _check_free_space(paths.output, nbytes)
        request = CommitRequest(
            output=paths.output,
            export_id=export_id,
            plan=plan,
            source=_source_record(prepared),
            programs=programs,
            tools=installed_versions(_TOOLS),
            timings=prepared.timings,
            rewrite_began=time.time(),
            publish=publish,
        )
        reporter.started(len(items), nbytes, len(receipts))
        rewrite.allow(destination)

        def on_progress(done_items: int, done_bytes: int) -> None:
            reporter.progress(done_items, done_bytes)
            lease.renew()

        try:
            execute(
                paths.output,
                Work(items, request, destination),
                runner=prepared.job.rewrite.runner,
                workers=prepared.job.rewrite.workers,
                on_progress=on_progress,
            )
        finally:
            reporter.finished()
        if not export.is_export(paths.export(export_id)):
            raise _failure(failures.take(destination), destination)
        return len(items), nbytes
    finally:
        lease.release()
        storage.delete_empty_directory(storage.join(paths.output, "runs"))
        shutil.rmtree(ledger_directory, ignore_errors=True)


def _source_record(prepared: Prepared) -> SourceRecord:
    found, job = prepared.checkpoint, prepared.job
    reading = {
        **job.source.model_dump(mode="json", include={"select", "carry", "missing_chunks"}),
        "mapping": [rule.model_dump(mode="json", exclude_unset=True) for rule in job.mapping],
    }
    return SourceRecord(found.uri, found.format, found.version, found.identity, found.step, found.item, reading)


def _delete_unfinished(paths: Paths, destination: Destination, export_id: str) -> None:
    """What a killed run left half-written where this one will write; the lease says that nobody else does."""
    storage.delete_unfinished(paths.export(export_id))
    storage.delete_unfinished(destination.parameters_uri)
    storage.delete_unfinished(destination.carried_uri)
    storage.delete_unfinished(storage.join(destination.run_uri, "receipts"))


def _failure(found: list[ReexportError], destination: Destination) -> ReexportError:
    if not found:
        return ReexportError("the pipeline ended without committing", where=destination.run_uri)
    # the first failure stops the others, which then only say so
    causes = [error for error in found if not isinstance(error, rewrite.StoppedError)] or found
    first = causes[0]
    if len(causes) > 1:
        first.what = f"{first.what} (and {len(causes) - 1} more failures)"
    return first


def _store_programs(paths: Paths, prepared: Prepared) -> tuple[ProgramRecord, ...]:
    """Put the programs' files into the export's directory, which does not exist until COMMIT.json does."""
    storage.delete(paths.export(prepared.export_id), MANIFEST_KEY)  # of a run that died before its commit
    origins = {program.name: program.origin for program in prepared.job.programs}
    records = []
    for name, compiled in prepared.compiled.items():
        contents = {
            SIGNATURE_FILE: compiled.signature.to_json().encode(),
            EXECUTABLE_FILE: compiled.executable.read_bytes(),
            EXPORTED_FILE: compiled.exported.read_bytes(),
        }
        for file, data in contents.items():
            storage.write(paths.program(prepared.export_id, name), file, data)
        files = {file: FileRecord.of(data) for file, data in contents.items()}
        records.append(ProgramRecord(name, origins[name], compiled.signature.fingerprint, files))
    return tuple(records)


def _check_free_space(output: str, nbytes: int) -> None:
    """Refuse early what a disk cannot hold. Object stores tell no free space."""
    if not storage.is_local(output):
        return
    path = storage.local_path(output)
    free_bytes = shutil.disk_usage(next(p for p in (path, *path.parents) if p.exists())).free
    if nbytes > free_bytes:
        raise StorageError(
            "disk full: the arrays do not fit into the output's file system",
            where=output,
            expected=f"{nbytes:,} bytes free",
            found=f"{free_bytes:,} bytes free",
            remedy="free space at the output or choose another one",
        )
