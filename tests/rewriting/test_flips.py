"""One flipped bit anywhere in a committed export is found by a check of it, and named."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from migrate import arrays, commit, storage
from migrate.audit import verify_export
from migrate.errors import NotAnExportError, ReexportError, VerificationError
from migrate.export import Export, open_export
from migrate.manifest import EXECUTABLE_FILE, EXPORTED_FILE, SIGNATURE_FILE, FileRecord, ProgramRecord
from migrate.signature import DeviceMemory, Signature

from .conftest import FINGERPRINT, make_run, parameter, random_array


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Export:
    """Two arrays in several chunks, and a program with all of its files."""
    run = make_run(
        tmp_path_factory.mktemp("flips"),
        {("kernel",): random_array((40, 12), "bfloat16"), ("bias",): random_array((60,), "float32")},
        shards={("kernel",): (40, 3)},
        orders={("kernel",): (1, 0)},
    )
    kernel = replace(parameter(("kernel",), (40, 12), shard_shape=(40, 3)), dtype="bfloat16")
    signature = Signature("main", (kernel,), FINGERPRINT, DeviceMemory(kernel.device_bytes, 64, 2048, 4096))
    files = {
        SIGNATURE_FILE: signature.to_json().encode(),
        EXECUTABLE_FILE: random.Random(0).randbytes(500),
        EXPORTED_FILE: random.Random(1).randbytes(300),
    }
    for name, data in files.items():
        storage.write(run.paths.program(run.request.export_id, "main"), name, data)
    records = {name: FileRecord.of(data) for name, data in files.items()}
    for item in run.plan.items:
        run.do(item)
    program = ProgramRecord("main", "model:step", FINGERPRINT, records)
    return commit.commit(replace(run.request, programs=(program,)), run.destination)


def live_ranges(export: Export, path: Path) -> list[range]:
    """The bytes of a file that the parameter set consists of.

    Of what a writer process filled, the root database refers to the values alone: the process's own manifest, and the
    nodes of its tree, are no longer read by anybody.
    """
    data = path.read_bytes()
    if not path.relative_to(export.parameters_uri).parts[0].startswith("ocdbt.process_"):
        return [range(len(data))]
    root = arrays.open_database(arrays.root_database(export.parameters_uri))
    values = [bytes(root.read(key).result().value) for key in root.list().result()]
    return [range(at, at + len(value)) for value in values if (at := data.find(value)) >= 0]


@contextmanager
def flipped(path: Path, bit: int) -> Iterator[None]:
    original = path.read_bytes()
    damaged = bytearray(original)
    damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(damaged)
    try:
        yield
    finally:
        path.write_bytes(original)


def noticed(export: Export) -> ReexportError | None:
    try:
        verify_export(open_export(export.uri))
    except (VerificationError, NotAnExportError) as error:
        return error
    return None


FILES = ["COMMIT.json", "manifest.json", SIGNATURE_FILE, EXECUTABLE_FILE, EXPORTED_FILE]


@pytest.mark.parametrize("name", FILES)
def test_flips_in_the_records_and_the_program(export: Export, name: str) -> None:
    (path,) = Path(export.uri).rglob(name)
    bits = path.stat().st_size * 8
    for bit in random.Random(name).sample(range(bits), 60):
        with flipped(path, bit):
            error = noticed(export)
        assert error is not None, f"{name}: bit {bit}"
        # the record of a digest and what it is the digest of accuse each other
        assert name in str(error) or name == "COMMIT.json", str(error)
    assert noticed(export) is None


def test_flips_in_the_arrays(export: Export) -> None:
    """In every chunk, in what says where it lies, and in what stock Orbax reads of it."""
    paths = [path for path in Path(export.parameters_uri).rglob("*") if path.is_file()]
    tried: dict[str, int] = {}
    rng = random.Random(2)
    for path in paths:
        for live in live_ranges(export, path):
            for bit in rng.sample(range(live.start * 8, live.stop * 8), 60):
                with flipped(path, bit):
                    assert noticed(export) is not None, f"{path.relative_to(export.parameters_uri)}: bit {bit}"
                tried[path.parent.name if path.parent.name == "d" else path.name] = bit
    assert set(tried) == {"d", "manifest.ocdbt", "parameters.json", "_METADATA", "_CHECKPOINT_METADATA"}
    assert noticed(export) is None
