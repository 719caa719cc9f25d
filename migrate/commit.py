"""From verified items to an export that exists: merge the writers' databases, write the records, publish.

Every step may run twice, also at once: later steps read what earlier ones created, and only conditional writes make
anything visible. Until COMMIT.json exists, no reader sees any of it.
"""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from migrate import arrays, export, orbax_metadata, receipt, sources, storage
from migrate.content import ContentSum
from migrate.errors import SourceError, StorageError, VerificationError
from migrate.export import Export, Paths
from migrate.manifest import (
    COMMIT,
    COMMIT_KEY,
    FORMAT_VERSION,
    MANIFEST,
    MANIFEST_KEY,
    PARAMETER_SET,
    PARAMETERS_KEY,
    ArrayRecord,
    Commit,
    FileRecord,
    Manifest,
    ParameterSet,
    ProgramRecord,
    SourceRecord,
)
from migrate.planner import Item, Plan
from migrate.receipt import Destination, Receipt
from migrate.zarr import TREES, ZARR_METADATA_KEY, Tree


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """Everything a commit needs besides the receipts; plain data."""

    output: str
    export_id: str
    plan: Plan
    source: SourceRecord
    programs: tuple[ProgramRecord, ...]
    """Their files lie in place already."""
    tools: dict[str, str]
    timings: dict[str, float]
    """Seconds of each stage before the rewrite."""
    rewrite_began: float
    """Unix time in seconds."""
    publish: bool = True
    """Whether the export becomes the current one."""
    bytes_copied: int = 0
    """Logical bytes that come from the export before, not from the source."""

    @property
    def paths(self) -> Paths:
        """Where the parts of the output lie."""
        return Paths(self.output)


@dataclass(frozen=True, slots=True)
class Work:
    """What a pipeline is asked to do for one job."""

    items: tuple[Item, ...]
    """Items without a durable receipt; may be empty."""
    request: CommitRequest
    destination: Destination
    item_timeout_seconds: float = math.inf
    """After this time an item that is being written, or read back, has failed."""


def commit(request: CommitRequest, destination: Destination) -> Export:
    """Make the export exist and, unless the request says otherwise, the current one.

    Raises :class:`StorageError` if an item has no durable receipt or the output cannot be written,
    :class:`SourceError` if the source was changed since it was opened, :class:`VerificationError` if the merged
    database does not hold exactly the planned keys. Nothing is visible then.
    """
    plan, directory = request.plan, request.paths.parameters(request.plan.parameter_set)
    written = 0
    data = storage.read(directory, PARAMETERS_KEY)
    if data is None:
        _check_source(request.source)
        written = plan.nbytes
        data = _commit_parameters(plan, destination)
    # a run that died here before may have left a manifest with other timings: it names the same digests
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        export=request.export_id,
        parameter_set=plan.parameter_set,
        parameters=FileRecord.of(data),
        source=request.source,
        programs=request.programs,
        dropped=plan.dropped,
        tools=request.tools,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        timings={**request.timings, "rewrite": time.time() - request.rewrite_began},
        bytes_written=written,
        bytes_copied=min(request.bytes_copied, written),
    )
    uri = request.paths.export(request.export_id)
    manifest_data = _create_or_keep(uri, MANIFEST_KEY, MANIFEST.dump(manifest))
    record = Commit(FORMAT_VERSION, request.export_id, FileRecord.of(manifest_data).sha256)
    storage.flush(uri)
    _create_or_keep(uri, COMMIT_KEY, COMMIT.dump(record))
    if request.publish:
        export.set_latest(request.output, request.export_id)
    storage.delete_directory(destination.run_uri)
    return export.open_export(uri)


def _create_or_keep(uri: str, key: str, value: bytes) -> bytes:
    if storage.create(uri, key, value) == "created":
        return value
    present = storage.read(uri, key)
    if present is None:
        raise StorageError(f"{key} was deleted while the export was committed", where=uri)
    return present


def _check_source(source: SourceRecord) -> None:
    found = sources.open_checkpoint(source.uri, step=None, item=None).identity
    if found != source.identity:
        raise SourceError(
            "the source checkpoint changed while it was read",
            where=source.uri,
            expected=f"identity {source.identity[:16]}",
            found=f"identity {found[:16]}",
            remedy="nothing was committed; run the job again when nobody writes the checkpoint",
        )


def _commit_parameters(plan: Plan, destination: Destination) -> bytes:
    receipts = receipt.load_all(destination, [item.id for item in plan.items])
    missing = [item for item in plan.items if item.id not in receipts]
    if missing:
        # a commit of the same run that was faster has deleted the receipts
        if (done := storage.read(destination.parameters_uri, PARAMETERS_KEY)) is not None:
            return done
        part = missing[0].parts[0]
        raise StorageError(
            f"{len(missing)} of {len(plan.items)} items have no receipt",
            where=f"{part.array.name} {part.box} and others",
            remedy="run the same command again: it does only these items",
        )
    _check_databases(plan, receipts, destination)
    records = _array_records(plan, receipts)
    owners = _chunk_owners(plan, receipts)
    files: dict[str, FileRecord] = {}
    for tree in TREES:
        members = tuple(record for record in records if record.tree == tree)
        if members or tree == "params":
            written = _commit_tree(destination.directory(tree), members, owners[tree])
            files |= {f"{tree}/{name}": FileRecord.of(content) for name, content in written.items()}
    parameter_set = ParameterSet(FORMAT_VERSION, plan.parameter_set, records, files)
    return _create_or_keep(destination.parameters_uri, PARAMETERS_KEY, PARAMETER_SET.dump(parameter_set))


_FILES_AT_ONCE = 32


def _check_databases(plan: Plan, receipts: Mapping[str, Receipt], destination: Destination) -> None:
    """Look whether what was verified is there still: a merge copies no values, so it would not miss any.

    A file that was cut short, as by a disk that lost what it had confirmed, costs the receipts that rely on it.
    """
    writers = {(part.array.tree, receipts[item.id].writer) for item in plan.items for part in item.parts}
    problems: dict[str, str] = {}
    for tree, writer in sorted(writers):
        uri = storage.join(destination.directory(tree), arrays.writer_directory(writer))
        try:
            needed = arrays.data_files(uri)
        except (ValueError, OSError) as error:
            problems[writer] = str(storage.storage_error("the database cannot be read", uri, error))
            continue
        with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
            whole = list(pool.map(lambda file: _reaches(uri, *file), needed.items()))  # noqa: B023 -- used up here
        short = [file for file, reaches in zip(needed, whole, strict=True) if not reaches]
        if short:
            problems[writer] = f"{uri}/{short[0]} has less than {needed[short[0]]:,} bytes, or is gone"
    if problems:
        lost = [item.id for item in plan.items if receipts[item.id].writer in problems]
        receipt.forget(destination, lost)
        raise StorageError(
            f"chunks of {len(lost)} of {len(plan.items)} items were damaged after they had been verified",
            where=destination.parameters_uri,
            found=next(iter(problems.values())),
            remedy="check the storage's health; the same command writes these items again",
        )


def _reaches(uri: str, file: str, nbytes: int) -> bool:
    return len(storage.read_range(uri, file, nbytes - 1, nbytes)) == 1


def _commit_tree(directory: str, records: tuple[ArrayRecord, ...], owners: Mapping[str, str]) -> dict[str, bytes]:
    """Make one Orbax checkpoint of what the writers left in ``directory``; returns Orbax's own files by name."""
    _merge(directory, owners, records)
    _delete_leftovers(directory, set(owners.values()))
    files = {orbax_metadata.TREE_METADATA_KEY: orbax_metadata.tree_metadata(records)}
    if any(record.prng_impl for record in records):
        files[orbax_metadata.ARRAY_METADATA_KEY] = orbax_metadata.array_metadata(records)
    files[orbax_metadata.CHECKPOINT_METADATA_KEY] = orbax_metadata.checkpoint_metadata()
    if not storage.is_local(directory):
        files[orbax_metadata.COMMIT_SUCCESS_KEY] = b""
    for name, content in files.items():
        storage.write(directory, name, content)
    storage.flush(directory)
    return files


def _array_records(plan: Plan, receipts: Mapping[str, Receipt]) -> tuple[ArrayRecord, ...]:
    digests: dict[tuple[Tree, str], dict[tuple[int, ...], str]] = {(a.tree, a.name): {} for a in plan.arrays}
    contents = {key: ContentSum() for key in digests}
    for item in plan.items:
        done = receipts[item.id]
        for part, part_digests, content in zip(item.parts, done.digests, done.contents, strict=True):
            key = (part.array.tree, part.array.name)
            digests[key].update(zip(part.array.stored.grid.indices(part.box), part_digests, strict=True))
            contents[key] += ContentSum.from_hex(content)
    return tuple(
        ArrayRecord(
            tree=array.tree,
            path=array.path,
            sequence_levels=array.sequence_levels,
            stored=array.stored,
            source_name=array.source_name,
            recipe=array.recipe,
            chunk_digests=tuple(digests[array.tree, array.name][index] for index in array.stored.grid.indices()),
            prng_impl=array.prng_impl,
            content=contents[array.tree, array.name].hex(),
        )
        for array in plan.arrays
    )


def _chunk_owners(plan: Plan, receipts: Mapping[str, Receipt]) -> dict[Tree, dict[str, str]]:
    """For each tree and key of a chunk the writer whose database holds the chunk that was verified."""
    owners: dict[Tree, dict[str, str]] = {tree: {} for tree in TREES}
    for item in plan.items:
        for part in item.parts:
            stored = part.array.stored
            for index in stored.grid.indices(part.box):
                key = f"{stored.storage_name}/{stored.chunk_key(index)}"
                owners[part.array.tree][key] = receipts[item.id].writer
    return owners


def _merge(directory: str, owners: Mapping[str, str], records: tuple[ArrayRecord, ...]) -> None:
    """Copy the chunks of every writer's database, and each ``zarr.json``, into the root in one atomic transaction.

    A database may also hold chunks whose item failed its verification or was repeated by another writer; those are
    copied once more, from their owner.
    """
    import tensorstore as ts

    root = arrays.open_database(arrays.root_database(directory))
    transaction = ts.Transaction(atomic=True)
    target = root.with_transaction(transaction)
    absent = set(owners)
    try:
        databases = {
            w: arrays.open_database(arrays.writer_database(directory, w)) for w in sorted(set(owners.values()))
        }
        strays: set[str] = set()
        for writer, database in databases.items():
            # copying a whole database at once is 100 times faster than key by key
            database.experimental_copy_range_to(target).result()
            for key in map(bytes.decode, database.list().result()):
                if owners.get(key) == writer:
                    absent.discard(key)
                else:
                    strays.add(key)
        for key in strays & set(owners):
            only = ts.KvStore.KeyRange(key, key + "\0")
            databases[owners[key]].experimental_copy_range_to(target, only).result()
        for record in records:
            key = f"{record.stored.storage_name}/{ZARR_METADATA_KEY}"
            target.write(key, record.stored.zarr_json()).result()
        transaction.commit_async().result()
        found = {key.decode() for key in root.list().result()} - absent
    except (ValueError, OSError) as error:
        raise storage.storage_error("the writers' databases cannot be merged", directory, error) from error
    expected = {
        f"{record.stored.storage_name}/{key}"
        for record in records
        for key in (ZARR_METADATA_KEY, *record.stored.chunk_keys())
    }
    if found != expected:
        raise VerificationError(
            "the merged database does not hold exactly the planned chunks",
            where=directory,
            expected=f"{len(expected)} keys",
            found=f"{len(expected - found)} absent, {len(found - expected)} unplanned: "
            + ", ".join(sorted(expected ^ found)[:5]),
            remedy="nothing was committed; delete this directory and run the job again",
        )


def _delete_leftovers(directory: str, writers: set[str]) -> None:
    """Delete what killed writers left: databases that no receipt names, and lock files in the others.

    Nobody writes into these any more. A lock file of the root database may be another commit's, at this moment.
    """
    keep = {arrays.writer_directory(writer) + "/" for writer in writers}
    for name in storage.list_directory(directory):
        if name in keep:
            storage.delete_unfinished(storage.join(directory, name))
        elif name.startswith(arrays.WRITER_PREFIX):
            storage.delete_directory(storage.join(directory, name))
