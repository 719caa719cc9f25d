"""A job's hold on its output while its arrays are written: lease, receipts, ledger, and the work that is left."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
import uuid
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from migrate import export, failures, ledger, receipt, reuse, rewrite, storage
from migrate.collector import wait_for_collector
from migrate.commit import CommitRequest, Work
from migrate.environment import installed_versions
from migrate.errors import OutputConflictError, ReexportError, StorageError
from migrate.export import Paths
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
from migrate.preparation import Prepared
from migrate.receipt import Destination

_TOOLS = ("reexport", "jax", "jaxlib", "libtpu", "orbax-checkpoint", "tensorstore", "apache-beam", "numpy")


class Session:
    """Entered, it holds the lease and knows the work; left, it gives back all but durable receipts.

    ``work`` is None if another driver committed the export before the lease was had.
    """

    def __init__(self, prepared: Prepared, *, publish: bool = True) -> None:
        self._prepared = prepared
        self._publish = publish
        self._paths = Paths(prepared.job.output)
        self._held = ExitStack()
        self._error: ReexportError | None = None
        self.work: Work | None = None
        self.nbytes = 0
        """Logical bytes of the items that are left."""
        self.reused_items = 0
        """Items that have receipts of an earlier run."""
        self.copied_bytes = 0
        """Of :attr:`nbytes`, those of arrays that the current export holds already, and that are copied from there."""

    def __enter__(self) -> Self:
        """Take the lease and look at what is left to do.

        Raises :class:`migrate.errors.OutputConflictError` if another driver writes the same parameter set, and
        :class:`StorageError` if the output cannot be written or is too small.
        """
        with self._held as undo_on_error:
            self._begin()
            self._held = undo_on_error.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._held.close()

    def _begin(self) -> None:
        prepared, paths = self._prepared, self._paths
        plan, export_id = prepared.plan, prepared.export_id
        run_uri = paths.run(plan.parameter_set)
        self._held.callback(storage.delete_empty_directory, storage.join(paths.output, "runs"))
        self._lease = Lease(run_uri)
        self._held.callback(self._lease.release)
        wait_for_collector(paths.output)
        if export.is_export(paths.export(export_id)):
            return
        ledger_directory = tempfile.mkdtemp(prefix="reexport-ledger-")
        self._held.callback(shutil.rmtree, ledger_directory, ignore_errors=True)
        destination = Destination(
            paths.parameters(plan.parameter_set),
            paths.carried(plan.parameter_set),
            run_uri,
            ledger_directory,
            attempt=uuid.uuid4().hex,
        )
        failures.take(destination)
        _delete_unfinished(paths, destination, export_id)
        programs = _store_programs(paths, prepared)
        # another export may share the set
        items = () if storage.exists(destination.parameters_uri, PARAMETERS_KEY) else plan.items
        receipts = receipt.load_all(destination, [item.id for item in items])
        items = tuple(item for item in items if item.id not in receipts)
        if items:
            plan, copied = reuse.with_committed(plan, prepared.checkpoint.identity, paths.output)
            left = {item.id for item in items}
            items = tuple(item for item in plan.items if item.id in left)
            self.copied_bytes = reuse.copied_bytes(items, copied)
        self.nbytes, self.reused_items = sum(item.nbytes for item in items), len(receipts)
        _check_free_space(paths.output, self.nbytes)
        request = CommitRequest(
            output=paths.output,
            export_id=export_id,
            plan=plan,
            source=_source_record(prepared),
            programs=programs,
            tools=installed_versions(_TOOLS),
            timings=prepared.timings,
            rewrite_began=time.time(),
            publish=self._publish,
            bytes_copied=self.copied_bytes,
        )
        self.work = Work(items, request, destination, prepared.job.rewrite.item_timeout_seconds)

    def progress(self) -> tuple[int, int]:
        """(items, logical bytes) done so far; renews the lease. A lost lease stops this job's items, no others."""
        if self.work is None or self._error is not None:
            return 0, 0
        try:
            self._lease.renew()
        except ReexportError as error:
            self._error = error
            rewrite.stop(self.work.destination)
        directory = self.work.destination.ledger
        return ledger.read(directory) if directory else (0, 0)

    def blame(self, error: ReexportError) -> None:
        """Say what ended the pipeline, for :meth:`check` to raise if the export was not committed before."""
        self._error = self._error or error

    def check(self) -> None:
        """Raises what kept the export from being committed: the first failure that is a cause of others."""
        if self.work is None:
            return
        if export.is_export(self._paths.export(self._prepared.export_id)):
            # workers may have died in the commit, or repeated an item after it
            storage.delete_directory(self.work.destination.run_uri)
            return
        raise self._error or _failure(failures.take(self.work.destination), self.work.destination)


def tidy(prepared: Prepared) -> None:
    """Delete what is left of a run whose process died between its commit and its end.

    Raises :class:`StorageError`.
    """
    run_uri = Paths(prepared.job.output).run(prepared.plan.parameter_set)
    if storage.list_keys(run_uri):
        with contextlib.suppress(OutputConflictError):  # another export of these arrays is being made
            lease = Lease(run_uri)
            storage.delete_directory(run_uri)
            lease.release()
        storage.delete_empty_directory(storage.join(prepared.job.output, "runs"))


def _failure(found: list[ReexportError], destination: Destination) -> ReexportError:
    if not found:
        return ReexportError("the pipeline ended without committing", where=destination.run_uri)
    # the first failure stops the others, which then only say so
    causes = [error for error in found if not isinstance(error, rewrite.StoppedError)] or found
    first = causes[0]
    if len(causes) > 1:
        first.what = f"{first.what} (and {len(causes) - 1} more failures)"
    return first


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
