"""A new export in an output that holds one already: arrays whose layout stays are copied, the others made anew."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import migrate
from migrate import arrays
from migrate.comparison import compare_with_source
from migrate.conflict import Outlook, outlook
from migrate.export import Paths
from migrate.preparation import as_job, compile_directory, prepare
from migrate.reuse import CommittedArray, with_committed

from .conftest import reexport, small_job, write_job
from .test_load import assert_equal_trees, checkpoint_tree


@pytest.fixture
def moved(old_checkpoint: Path, tmp_path: Path) -> dict[str, Any]:
    """A job whose checkpoint is its own, so that it can be damaged."""
    job = small_job(shutil.copytree(old_checkpoint, tmp_path / "checkpoint"), tmp_path / "out", "cpu:8")
    return {**job, "rewrite": {"max_item_bytes": 256}}


def with_mesh(job: dict[str, Any], data: int, model: int) -> dict[str, Any]:
    return {**job, "target": {**job["target"], "mesh": {"data": data, "model": model}}}


def test_only_what_changes_is_made_anew(moved: dict[str, Any], old_checkpoint: Path) -> None:
    """Another mesh: some arrays are sharded otherwise, others lie as before. All of it is counted in bytes."""
    first = migrate.run(moved)
    assert first.bytes_copied == 0
    before = {r.name: (r.stored, r.chunk_digests) for r in first.export.parameter_set().arrays}
    second = migrate.run(with_mesh(moved, 4, 2), supersede=True)
    records = second.export.parameter_set().arrays
    same = [record for record in records if before[record.name][0] == record.stored]
    changed = [record for record in records if before[record.name][0] != record.stored]
    assert same
    assert changed
    assert second.bytes_copied == sum(record.stored.nbytes for record in same)
    assert second.bytes_written == second.bytes_copied + sum(record.stored.nbytes for record in changed)
    assert second.export.manifest.bytes_copied == second.bytes_copied
    assert all(before[record.name] == (record.stored, record.chunk_digests) for record in same)

    migrate.verify_export(second.export)
    assert compare_with_source(second.export).differences == ()
    assert_equal_trees(migrate.load(second.export.uri).params, checkpoint_tree(old_checkpoint, "params"))
    # and again
    assert migrate.run(with_mesh(moved, 4, 2), supersede=True).already_committed


def readers(plan: migrate.Plan) -> dict[str, CommittedArray]:
    return {array.name: array.source for array in plan.arrays if isinstance(array.source, CommittedArray)}


def test_what_was_copied_really_came_from_the_export(moved: dict[str, Any]) -> None:
    first = migrate.run(moved)
    identity, output = first.export.manifest.source.identity, moved["output"]
    wanted = migrate.plan(with_mesh(moved, 4, 2))
    plan, keys = with_committed(wanted, identity, output)
    found = readers(plan)
    assert {("params", name) for name in found} == keys
    assert plan.parameter_set == wanted.parameter_set
    assert [item.id for item in plan.items] == [item.id for item in wanted.items]
    by_name = {array.name: array for array in wanted.arrays}
    for name, reader in found.items():
        for item in plan.items:
            for part in (part for part in item.parts if part.array.name == name):
                for order in (None, reader.stored.major_to_minor, tuple(reversed(range(part.box.rank)))):
                    expected = by_name[name].source.read(part.box, storage_order=order)
                    np.testing.assert_array_equal(
                        reader.read(part.box, storage_order=order).view(np.uint8), expected.view(np.uint8)
                    )
    # another checkpoint, or an output without an export: nothing to copy
    assert with_committed(wanted, "another identity", output) == (wanted, frozenset())
    assert with_committed(wanted, identity, output + "-elsewhere") == (wanted, frozenset())


def test_a_damaged_export_is_not_carried_on(moved: dict[str, Any], old_checkpoint: Path) -> None:
    """Every chunk of the current export is overwritten: what it would give is made from the source instead."""
    first = migrate.run(moved)
    database = arrays.root_database(first.export.parameters_uri)
    for record in first.export.parameter_set().arrays:
        store = arrays.open_array(record.stored, database)
        store[...].write(np.zeros(record.stored.shape, np.dtype(record.stored.dtype))).result()
    second = migrate.run(with_mesh(moved, 4, 2), supersede=True)
    migrate.verify_export(second.export)
    assert compare_with_source(second.export).differences == ()
    assert_equal_trees(migrate.load(second.export.uri).params, checkpoint_tree(old_checkpoint, "params"))


def test_a_lost_export_is_no_obstacle(moved: dict[str, Any], old_checkpoint: Path) -> None:
    """Its arrays are gone, its records are there."""
    first = migrate.run(moved)
    shutil.rmtree(Path(first.export.parameters_uri) / "d")
    for directory in Path(first.export.parameters_uri).glob("ocdbt.process_*"):
        shutil.rmtree(directory)
    second = migrate.run(with_mesh(moved, 4, 2), supersede=True)
    migrate.verify_export(second.export)
    assert second.export.uri == Paths(moved["output"]).export(second.export.manifest.export)
    assert jax.tree.leaves(migrate.load(second.export.uri).params)


def test_the_plan_tells_what_a_run_would_meet(moved: dict[str, Any], tmp_path: Path) -> None:
    elsewhere = with_mesh(moved, 4, 2)
    assert outlook_of(moved).state == "empty"
    first = migrate.run(moved)
    assert outlook_of(moved) == Outlook("committed", first.export.manifest.export, 0, 0)
    found = outlook_of(elsewhere)
    assert found.state == "conflict"
    shown = reexport("plan", write_job(elsewhere, tmp_path)).stdout
    assert "--supersede" in shown
    second = migrate.run(elsewhere, supersede=True)
    assert (found.written_bytes, found.copied_bytes) == (second.bytes_written, second.bytes_copied)
    # another program over the same arrays
    changed = {**elsewhere, "program": {**elsewhere["program"], "arguments": {"batch": 16}}}
    assert outlook_of(changed) == Outlook("conflict", second.export.manifest.export, 0, 0)


def outlook_of(job: dict[str, Any]) -> Outlook:
    with compile_directory() as directory:
        return outlook(prepare(as_job(job), directory))
