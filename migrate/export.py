"""An export on storage: where its files lie, opening a committed one, and checking all of it.

OUTPUT/LATEST                      names the current export
OUTPUT/exports/<id>/COMMIT.json    makes it exist; written last, once
                   manifest.json   see migrate.manifest
                   programs/<name>/signature.json, executable.bin, program.jax_export
OUTPUT/params/<set>/               an Orbax checkpoint: Zarr v3 arrays in one OCDBT database, parameters.json
OUTPUT/carried/<set>/              the same for leaves outside the program, if the job carries them along
OUTPUT/runs/<set>/                 receipts and lease of an unfinished run
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

from migrate import pointer, storage
from migrate.errors import NotAnExportError, VerificationError
from migrate.manifest import (
    COMMIT,
    COMMIT_KEY,
    LATEST_KEY,
    MANIFEST,
    MANIFEST_KEY,
    PARAMETER_SET,
    PARAMETERS_KEY,
    SIGNATURE_FILE,
    Manifest,
    ParameterSet,
    ProgramRecord,
)
from migrate.signature import Signature


@dataclass(frozen=True, slots=True)
class Paths:
    """Where the parts of an output lie."""

    output: str
    """URI of the output root."""

    def export(self, export_id: str) -> str:
        """Directory of one export."""
        return storage.join(self.output, "exports", export_id)

    def program(self, export_id: str, name: str) -> str:
        """Directory of one program's files."""
        return storage.join(self.export(export_id), "programs", name)

    def parameters(self, set_id: str) -> str:
        """Directory of one parameter set; stock Orbax restores it."""
        return storage.join(self.output, "params", set_id)

    def carried(self, set_id: str) -> str:
        """Directory of the leaves that are kept beside a parameter set; an Orbax checkpoint too."""
        return storage.join(self.output, "carried", set_id)

    def run(self, set_id: str) -> str:
        """Directory of an unfinished run's own state."""
        return storage.join(self.output, "runs", set_id)


@dataclass(frozen=True, slots=True)
class Export:
    """A committed export."""

    paths: Paths
    manifest: Manifest

    @property
    def uri(self) -> str:
        """Directory of the export."""
        return self.paths.export(self.manifest.export)

    @property
    def parameters_uri(self) -> str:
        """Directory of its parameter set: a checkpoint that stock Orbax restores."""
        return self.paths.parameters(self.manifest.parameter_set)

    @property
    def carried_uri(self) -> str:
        """Directory of the leaves that were carried along; it exists only if the job said ``carry``."""
        return self.paths.carried(self.manifest.parameter_set)

    def program(self, name: str | None = None) -> ProgramRecord:
        """The program ``name``, or the primary one, which is the first.

        Raises :class:`NotAnExportError` listing those there are.
        """
        programs = {program.name: program for program in self.manifest.programs}
        if name is None and programs:
            return self.manifest.programs[0]
        if name not in programs:
            raise NotAnExportError(
                f"the export has no program {name!r}" if name else "the export has no program",
                where=self.uri,
                expected=f"one of {', '.join(programs)}",
            )
        return programs[name]

    def read_file(self, program: ProgramRecord, file: str) -> bytes:
        """A program file, after its SHA-256 was compared with the manifest's. Raises :class:`VerificationError`."""
        uri = self.paths.program(self.manifest.export, program.name)
        return _read_checked(uri, file, program.files[file].sha256, max_bytes=program.files[file].nbytes)

    def signature(self, name: str | None = None) -> Signature:
        """The signature of a program. Raises :class:`VerificationError`."""
        return Signature.from_json(self.read_file(self.program(name), SIGNATURE_FILE), where=f"{self.uri}: signature")

    def parameter_set(self) -> ParameterSet:
        """The record of the stored arrays. Raises :class:`VerificationError`."""
        record = self.manifest.parameters
        data = _read_checked(self.parameters_uri, PARAMETERS_KEY, record.sha256, max_bytes=record.nbytes)
        return PARAMETER_SET.load(data, storage.join(self.parameters_uri, PARAMETERS_KEY))

    def read_orbax_file(self, parameters: ParameterSet, name: str) -> bytes:
        """One of ``parameters.files``, after its digest was compared. Raises :class:`VerificationError`."""
        tree, _, key = name.partition("/")
        record = parameters.files[name]
        uri = self.parameters_uri if tree == "params" else self.carried_uri
        return _read_checked(uri, key, record.sha256, max_bytes=record.nbytes)


def _read_checked(uri: str, key: str, sha256: str, *, max_bytes: int) -> bytes:
    where = storage.join(uri, key)
    data = storage.read(uri, key, max_bytes=max(max_bytes, 1) * 2)
    if data is None:
        raise VerificationError(
            "a file of the export is missing",
            where=where,
            remedy="restore the export from a copy, or run the job again into another output",
        )
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise VerificationError(
            "a file of the export is not the one that was committed",
            where=where,
            expected=f"SHA-256 {sha256}",
            found=f"SHA-256 {found}",
            remedy="restore the export from a copy, or run the job again into another output",
        )
    return data


def is_export(uri: str) -> bool:
    """Whether a committed export, or an output root that names one, lies at ``uri``."""
    return storage.exists(uri, COMMIT_KEY) or storage.exists(uri, LATEST_KEY)


def open_export(uri: str | os.PathLike[str]) -> Export:
    """The committed export at ``uri``: an export's directory, or an output root, whose LATEST is followed.

    Raises :class:`NotAnExportError`; :class:`VerificationError` if the manifest is not the committed one.
    """
    uri = storage.normalise(os.fspath(uri))
    export_id = latest(uri)
    if export_id is not None:
        output = uri
    else:
        parent, _, export_id = uri.rpartition("/")
        output, _, folder = parent.rpartition("/")
        if folder != "exports":
            raise _not_an_export(uri)
    paths = Paths(output)
    directory = paths.export(export_id)
    commit_data = storage.read(directory, COMMIT_KEY)
    if commit_data is None:
        raise _not_an_export(directory)
    commit = COMMIT.load(commit_data, storage.join(directory, COMMIT_KEY))
    data = _read_checked(directory, MANIFEST_KEY, commit.manifest_sha256, max_bytes=storage.MAX_METADATA_BYTES)
    manifest = MANIFEST.load(data, storage.join(directory, MANIFEST_KEY))
    if not manifest.export == commit.export == export_id:
        raise VerificationError(
            "the export lies under another id than its own", where=directory, expected=manifest.export, found=export_id
        )
    return Export(paths, manifest)


def find_signature(uri: str | os.PathLike[str], program: str | None = None) -> Signature | None:
    """The signature at ``uri``: a file, a directory with a ``signature.json``, or of an export or an output; else None.

    Of an export with several programs that of ``program``, or of the primary one where it has none of that name.
    Raises :class:`migrate.errors.ReexportError` if a file there is not a signature, and what :func:`open_export` does.
    """
    uri = storage.normalise(os.fspath(uri))
    if storage.is_local(uri):
        path = storage.local_path(uri)
        file = path / SIGNATURE_FILE if path.is_dir() else path
        if file.suffix == ".json" and file.is_file():
            return Signature.from_json(file.read_bytes(), where=str(file))
    if not is_export(uri):
        return None
    found = open_export(uri)
    names = [record.name for record in found.manifest.programs]
    return found.signature(program if program in names else None)


def latest(output: str) -> str | None:
    """Id of the current export of an output root, or None if it has none. Raises :class:`NotAnExportError`."""
    found = pointer.read(output)
    return found.export if found else None


def set_latest(output: str, export_id: str) -> None:
    """Make ``export_id`` the current export, atomically. Raises :class:`migrate.errors.StorageError`."""
    pointer.move(output, export_id)


def _not_an_export(uri: str) -> NotAnExportError:
    return NotAnExportError(
        "no committed export lies here",
        where=uri,
        expected=f"{COMMIT_KEY} (an export) or {LATEST_KEY} (an output root)",
        remedy="give the output of a finished `reexport run`",
    )
