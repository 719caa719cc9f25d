"""From receipts to an export that exists, or does not."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tensorstore as ts

from migrate import arrays, commit, export, receipt, rewrite, storage, verify
from migrate.audit import verify_export
from migrate.errors import (
    CheckpointNotFoundError,
    NotAnExportError,
    RewriteVerificationError,
    SourceError,
    StorageError,
    VerificationError,
)
from migrate.export import open_export
from migrate.manifest import COMMIT_KEY, MANIFEST_KEY, PARAMETERS_KEY

from .conftest import Run, crc32c, database_of, make_run, random_array, write_checkpoint


def rewrite_all(run: Run) -> None:
    for item in run.plan.items:
        run.do(item)


def files(root: str) -> dict[str, bytes]:
    return {key: (Path(root) / key).read_bytes() for key in storage.list_keys(root)}


def assert_invisible(run: Run) -> None:
    """No reader finds an export."""
    with pytest.raises(NotAnExportError):
        open_export(run.paths.output)
    with pytest.raises(NotAnExportError):
        open_export(run.paths.export(run.request.export_id))


def test_export_holds_the_source_and_stands_every_check(two_arrays: Run) -> None:
    rewrite_all(two_arrays)
    found = two_arrays.commit()
    checked = verify_export(found)
    assert (checked.arrays, checked.chunks, checked.nbytes) == (2, 5, 40 * 12 * 2 + 60 * 4)
    assert found.manifest.bytes_written == two_arrays.plan.nbytes
    assert open_export(two_arrays.paths.output) == found == open_export(found.uri)
    for record in found.parameter_set().arrays:
        store = arrays.open_array(record.stored, arrays.root_database(found.parameters_uri))
        expected = two_arrays.checkpoint.leaf(record.source_name).read()
        np.testing.assert_array_equal(store.read().result(), expected)


def test_committing_twice_gives_the_same_export(two_arrays: Run) -> None:
    rewrite_all(two_arrays)
    first = two_arrays.commit()
    before = files(two_arrays.paths.output)
    assert two_arrays.commit() == first
    assert files(two_arrays.paths.output) == before


def test_committing_twice_at_once_gives_one_export(two_arrays: Run) -> None:
    rewrite_all(two_arrays)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: two_arrays.commit(), range(4)))
    assert len({e.manifest.created for e in found}) == 1
    verify_export(found[0])


def test_commit_that_loses_to_another_one_takes_over_its_result(
    two_arrays: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other commit deletes the run's receipts at its end, between this one's first look and its second."""
    rewrite_all(two_arrays)
    load_all = receipt.load_all

    def lose(*arguments: object) -> object:
        monkeypatch.setattr(receipt, "load_all", load_all)
        two_arrays.commit()
        return load_all(*arguments)

    monkeypatch.setattr(receipt, "load_all", lose)
    verify_export(two_arrays.commit())


def test_the_runs_own_state_is_gone_after_the_commit(two_arrays: Run) -> None:
    rewrite_all(two_arrays)
    two_arrays.commit()
    assert not storage.list_keys(two_arrays.destination.run_uri)


@pytest.mark.parametrize("lost", [0, -1], ids=["first item", "last item"])
def test_an_item_without_a_receipt_refuses(two_arrays: Run, lost: int) -> None:
    rewrite_all(two_arrays)
    item = two_arrays.plan.items[lost]
    storage.delete(receipt.receipts_uri(two_arrays.destination), f"{item.id}.json")
    with pytest.raises(StorageError, match="1 of 5 items have no receipt") as caught:
        two_arrays.commit()
    assert item.parts[0].array.name in caught.value.where
    assert_invisible(two_arrays)
    two_arrays.do(item)
    verify_export(two_arrays.commit())


def touch(run: Run) -> None:
    for key in storage.list_keys(run.checkpoint.uri):
        os.utime(Path(run.checkpoint.uri) / key, ns=(1, 1))


def overwrite(run: Run) -> None:
    write_checkpoint(Path(run.checkpoint.uri), {("layer", "bias"): random_array((6,), "float32", seed=1)}, {})


@pytest.mark.parametrize("change", [touch, overwrite])
def test_a_source_that_changed_refuses(two_arrays: Run, change: Callable[[Run], None]) -> None:
    rewrite_all(two_arrays)
    change(two_arrays)
    with pytest.raises(SourceError, match="changed while it was read"):
        two_arrays.commit()
    assert_invisible(two_arrays)
    assert not storage.exists(two_arrays.destination.parameters_uri, PARAMETERS_KEY)


def test_a_source_that_vanished_refuses(two_arrays: Run) -> None:
    rewrite_all(two_arrays)
    storage.delete_directory(two_arrays.checkpoint.uri)
    with pytest.raises(CheckpointNotFoundError):
        two_arrays.commit()
    assert_invisible(two_arrays)


def test_what_a_killed_writer_left_is_deleted(two_arrays: Run, new_process: Callable[[str], None]) -> None:
    new_process("killed")
    rewrite.rewrite_item(two_arrays.plan.items[0], two_arrays.destination)
    directory = Path(two_arrays.destination.parameters_uri)
    (directory / "ocdbt.process_killed/d/0123456789abcdef.__lock").touch()
    (directory / "manifest.ocdbt.__lock").touch()
    new_process("alive")
    rewrite_all(two_arrays)
    # killed while it wrote further chunks; its receipts are good
    (directory / "ocdbt.process_alive/d/0123456789abcdef.__lock").touch()
    found = two_arrays.commit()
    assert not [key for key in storage.list_keys(found.parameters_uri) if "killed" in key or key.endswith(".__lock")]
    verify_export(found)


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")], ids=["bad one first", "bad one last"])
def test_chunk_that_failed_verification_is_not_taken_from_its_writer(
    two_arrays: Run, new_process: Callable[[str], None], order: tuple[str, str]
) -> None:
    """Its writer has good receipts of other items, so its database is merged too; the item was redone elsewhere."""
    failing, redoing = order
    item, *others = two_arrays.plan.items
    new_process(failing)
    for other in others:
        two_arrays.do(other)
    written = rewrite.rewrite_item(item, two_arrays.destination)
    database, key = database_of(two_arrays, failing), "layer.kernel/c/0/0"
    dense = bytes(database.read(key).result().value)[:-4]
    wrong = bytes([dense[0] ^ 1]) + dense[1:]
    database.write(key, wrong + crc32c(wrong)).result()
    with pytest.raises(RewriteVerificationError):
        verify.verify_item(item, written, two_arrays.destination)

    new_process(redoing)
    two_arrays.do(item)
    verify_export(two_arrays.commit())


def test_verified_chunk_that_is_lost_is_not_replaced_by_another_writers(
    two_arrays: Run, new_process: Callable[[str], None]
) -> None:
    item, *others = two_arrays.plan.items
    new_process("a")
    for other in others:
        two_arrays.do(other)
    rewrite.rewrite_item(item, two_arrays.destination)  # never verified
    new_process("b")
    two_arrays.do(item)
    database_of(two_arrays, "b").write("layer.kernel/c/0/0", None).result()
    with pytest.raises(VerificationError, match="exactly the planned chunks") as caught:
        two_arrays.commit()
    assert "1 absent, 0 unplanned: layer.kernel/c/0/0" in caught.value.found
    assert_invisible(two_arrays)


def test_unplanned_key_refuses(two_arrays: Run) -> None:
    rewrite_all(two_arrays)
    database_of(two_arrays, rewrite.writer_id()).write("other/c/0", b"x").result()
    with pytest.raises(VerificationError) as caught:
        two_arrays.commit()
    assert "0 absent, 1 unplanned: other/c/0" in caught.value.found
    assert_invisible(two_arrays)


def test_commit_resumes_after_dying_between_the_records(two_arrays: Run) -> None:
    """A crash after the manifest, before COMMIT.json: the manifest that lies there stays, its timings with it."""
    rewrite_all(two_arrays)
    found = two_arrays.commit()
    manifest = storage.read(found.uri, MANIFEST_KEY)
    storage.delete(found.uri, COMMIT_KEY)
    storage.delete(two_arrays.paths.output, "LATEST")
    assert_invisible(two_arrays)
    again = two_arrays.commit()
    assert storage.read(found.uri, MANIFEST_KEY) == manifest
    assert again == found


def test_second_export_shares_the_parameter_set(two_arrays: Run) -> None:
    rewrite_all(two_arrays)
    first = two_arrays.commit()
    arrays_before = files(first.parameters_uri)
    second = commit.commit(dataclasses.replace(two_arrays.request, export_id="ffff"), two_arrays.destination)
    assert files(first.parameters_uri) == arrays_before
    assert second.manifest.bytes_written == 0
    assert export.latest(two_arrays.paths.output) == "ffff"
    assert open_export(first.uri) == first  # the first one stays


ODD_TREES = {
    # no chunk exists, only zarr.json
    "no elements": {("a",): (0, 3)},
    "scalar": {("a",): ()},
    # Haiku's module names hold slashes
    "slash in a key": {("mlp/~/linear", "w"): (2, 2)},
}


@pytest.mark.parametrize("shapes", ODD_TREES.values(), ids=ODD_TREES)
def test_trees_at_the_edge(shapes: dict[tuple[str, ...], tuple[int, ...]], tmp_path: Path) -> None:
    given = {path: random_array(shape, "float32") for path, shape in shapes.items()}
    run = make_run(tmp_path, given)
    rewrite_all(run)
    found = run.commit()
    assert verify_export(found).arrays == len(given)
    for record in found.parameter_set().arrays:
        store = ts.open(
            {
                "driver": "zarr3",
                "kvstore": {
                    **arrays.root_database(found.parameters_uri),
                    "path": record.stored.storage_name + "/",
                },
            }
        ).result()
        np.testing.assert_array_equal(store.read().result(), given[record.path])
