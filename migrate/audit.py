"""A full check of an export: everything it consists of, against the digests it was committed with."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from migrate import arrays, verify
from migrate.errors import VerificationError
from migrate.export import Export, open_export
from migrate.manifest import ArrayRecord
from migrate.zarr import ZARR_METADATA_KEY


@dataclass(frozen=True, slots=True)
class Checked:
    """What a full check of an export read."""

    arrays: int
    chunks: int
    nbytes: int
    """Logical bytes of the arrays."""
    files: int
    """Files of the programs, and those that Orbax reads beside the arrays."""

    def to_json(self) -> dict[str, object]:
        """A JSON object for ``reexport verify --json``."""
        return {"arrays": self.arrays, "chunks": self.chunks, "bytes": self.nbytes, "files": self.files}


def verify_export(
    export: Export | str | os.PathLike[str],
    *,
    workers: int = 2,
    on_array: Callable[[ArrayRecord], None] | None = None,
) -> Checked:
    """Read everything an export (or the one at a path or URI) consists of and compare it with its digests.

    ``on_array`` is called after each array. Holds ``workers`` chunks at a time. Raises :class:`VerificationError`
    naming every array and file that differs.
    """
    if not isinstance(export, Export):
        export = open_export(export)
    parameter_set = export.parameter_set()
    databases = {
        "params": arrays.root_database(export.parameters_uri),
        "carried": arrays.root_database(export.carried_uri),
    }
    problems: list[VerificationError] = []

    def check(record: ArrayRecord) -> None:
        database = databases[record.tree]
        try:
            stored_metadata = (
                arrays.open_database(database).read(f"{record.stored.storage_name}/{ZARR_METADATA_KEY}").result()
            )
        except (ValueError, OSError) as error:
            found = str(error).splitlines()[0][:300]
            raise VerificationError(f"the database of {record.name} cannot be read", found=found) from error
        if bytes(stored_metadata.value) != record.stored.zarr_json():
            raise VerificationError(f"{ZARR_METADATA_KEY} of {record.name} differs from what was committed")
        verify.verify_array(record.stored, database, record.name, record.chunk_digests)
        if on_array:
            on_array(record)

    with ThreadPoolExecutor(workers) as pool:
        for future in [pool.submit(check, record) for record in parameter_set.arrays]:
            try:
                future.result()
            except VerificationError as error:
                problems.append(error)
    program_files = [(program, file) for program in export.manifest.programs for file in program.files]
    reads = [functools.partial(export.read_file, program, file) for program, file in program_files]
    reads += [functools.partial(export.read_orbax_file, parameter_set, name) for name in parameter_set.files]
    for read in reads:
        try:
            read()
        except VerificationError as error:
            problems.append(error)
    if problems:
        first = problems[0]
        raise VerificationError(
            first.what if len(problems) == 1 else f"{len(problems)} parts of the export differ: {first.what}",
            where=first.where or export.uri,
            expected=first.expected,
            found=first.found if len(problems) == 1 else "\n    ".join(["", *(p.what for p in problems[:20])]),
            remedy="restore the export from a copy, or run the job again into another output",
        )
    return Checked(
        arrays=len(parameter_set.arrays),
        chunks=sum(len(record.chunk_digests) for record in parameter_set.arrays),
        nbytes=parameter_set.nbytes,
        files=len(reads),
    )
