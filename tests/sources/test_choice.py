"""Which format, step and item a path means, and what is said when it means none or several."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from migrate.errors import (
    AmbiguousCheckpointError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    SourceError,
    UncommittedCheckpointError,
    UnknownFormatError,
)
from migrate.sources import FORMATS, open_checkpoint

MANAGED = "orbax_0128_manager_items"


def test_the_latest_step_is_chosen(fixture: Callable[[str], Any]) -> None:
    path = fixture(MANAGED).path
    latest = open_checkpoint(str(path), item="params")
    assert (latest.step, latest.item, latest.uri) == (2, "params", f"{path}/2/params")
    assert latest.details["steps"] == "1, 2"
    assert latest.details["items"] == "params, state, extra (no tree)"
    assert open_checkpoint(str(path), step=1, item="params").uri == f"{path}/1/params"


def test_a_step_or_item_can_be_the_path(fixture: Callable[[str], Any]) -> None:
    path = fixture(MANAGED).path
    step = open_checkpoint(f"{path}/1", item="state")
    item = open_checkpoint(f"{path}/1/state/")
    assert (step.step, step.item, item.step, item.item) == (1, "state", None, None)
    assert step.leaves == item.leaves
    assert step.identity == item.identity
    assert open_checkpoint(f"file://{path}/1", step=1, item="state").leaves == item.leaves


@pytest.mark.parametrize(
    ("name", "step", "item"),
    [
        ("orbax_0523_manager_default", 3, "default"),  # ckpt_000003/default
        ("flax_01212_orbax", 10, None),  # checkpoint_10 is the item
        ("orbax_01130_v1", None, "pytree"),  # a step without a number
        ("orbax_0128_v1_ckptables", 5, "state"),
        ("orbax_027_manager_default", 3, "default"),
    ],
)
def test_the_only_item_is_chosen(fixture: Callable[[str], Any], name: str, step: int | None, item: str | None) -> None:
    found = open_checkpoint(str(fixture(name).path))
    assert (found.step, found.item) == (step, item)


REFUSED: list[tuple[str, dict[str, Any], type[SourceError], list[str]]] = [
    # below the fixture, arguments, error, what its message holds
    ("", {}, AmbiguousCheckpointError, ["2 items", "params, state, extra (no tree)"]),
    ("", {"step": 3}, CheckpointNotFoundError, ["no step 3", "steps 1, 2"]),
    ("", {"item": "optimizer"}, CheckpointNotFoundError, ["'optimizer'", "params, state, extra (no tree)"]),
    ("", {"item": "extra"}, CheckpointNotFoundError, ["'extra'", "params, state"]),
    ("2", {"step": 1}, CheckpointNotFoundError, ["no step 1", "of step 2"]),
    ("2/params", {"step": 2}, CheckpointNotFoundError, ["no step 2", "a single checkpoint"]),
    ("2/params", {"item": "params"}, CheckpointNotFoundError, ["'params'", "without items"]),
    ("3", {}, CheckpointNotFoundError, ["nothing lies at this path", "/3"]),
    ("2/extra", {}, UnknownFormatError, ["metadata", "_METADATA", *(known.name for known in FORMATS)]),
    ("2/extra/metadata", {}, UnknownFormatError, ["a file"]),
]


@pytest.mark.parametrize(("below", "arguments", "kind", "said"), REFUSED)
def test_what_cannot_be_chosen_is_refused(
    fixture: Callable[[str], Any], below: str, arguments: dict[str, Any], kind: type[SourceError], said: list[str]
) -> None:
    with pytest.raises(kind) as caught:
        open_checkpoint(f"{fixture(MANAGED).path}/{below}", **arguments)
    for text in said:
        assert text in str(caught.value)


def test_an_empty_directory_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormatError, match="an empty directory"):
        open_checkpoint(str(tmp_path))


def test_unfinished_steps_are_passed_over(copy_of: Callable[[str], Path]) -> None:
    root = copy_of(MANAGED)
    (root / "2").rename(root / "2.orbax-checkpoint-tmp-17")
    assert open_checkpoint(str(root), item="params").step == 1
    with pytest.raises(UncommittedCheckpointError, match="step 2 is not finished"):
        open_checkpoint(str(root), step=2, item="params")
    with pytest.raises(UncommittedCheckpointError, match=r"orbax-checkpoint-tmp-17"):
        open_checkpoint(str(root / "2.orbax-checkpoint-tmp-17"), item="params")
    shutil.rmtree(root / "1")
    with pytest.raises(UncommittedCheckpointError, match="no step is finished"):
        open_checkpoint(str(root))


def test_unfinished_items_are_refused(copy_of: Callable[[str], Path]) -> None:
    root = copy_of(MANAGED)
    (root / "2" / "params").rename(root / "2" / "params.orbax-checkpoint-tmp-17")
    assert open_checkpoint(str(root)).item == "state"
    with pytest.raises(UncommittedCheckpointError, match="the item is not finished"):
        open_checkpoint(str(root), item="params")


def test_step_names(copy_of: Callable[[str], Path]) -> None:
    root = copy_of(MANAGED)
    (root / "1").rename(root / "step_000000100")
    (root / "2").rename(root / "run-7_20")
    found = open_checkpoint(str(root), item="params")
    assert (found.step, found.details["steps"]) == (100, "20, 100")
    shutil.copytree(root / "step_000000100", root / "100")
    with pytest.raises(AmbiguousCheckpointError, match=r"100, step_000000100"):
        open_checkpoint(str(root), item="params")


def test_items_that_end_in_a_number_are_no_steps(copy_of: Callable[[str], Path]) -> None:
    root = copy_of("orbax_011_manager_items") / "2"  # old: nothing marks a step
    (root / "params").rename(root / "params_2")
    assert open_checkpoint(str(root), item="params_2").item == "params_2"


def test_a_copy_beside_the_steps(fixture: Callable[[str], Any], tmp_path: Path) -> None:
    item = fixture("orbax_0128_ocdbt").path
    for name in ("checkpoint_1", "checkpoint_2", "best"):  # steps without items
        shutil.copytree(item, tmp_path / "plain" / name)
    with pytest.raises(AmbiguousCheckpointError, match="best, checkpoint_1, checkpoint_2"):
        open_checkpoint(str(tmp_path / "plain"))
    assert open_checkpoint(str(tmp_path / "plain"), step=2).step == 2
    assert open_checkpoint(str(tmp_path / "plain"), item="best").item == "best"
    shutil.copytree(fixture(MANAGED).path, tmp_path / "managed")
    shutil.copytree(item, tmp_path / "managed" / "best")
    assert open_checkpoint(str(tmp_path / "managed"), item="params").step == 2


def test_an_item_of_an_unfinished_step(copy_of: Callable[[str], Path]) -> None:
    root = copy_of(MANAGED)
    (root / "2").rename(root / "2.orbax-checkpoint-tmp-17")
    with pytest.raises(UncommittedCheckpointError, match="orbax-checkpoint-tmp-17"):
        open_checkpoint(str(root / "2.orbax-checkpoint-tmp-17" / "params"))


class TestObjectStore:
    """The same questions where only whole keys can be listed; the store is a local directory under another name."""

    @pytest.fixture(autouse=True)
    def store(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from migrate import storage

        original = storage.kvstore_spec

        def spec(uri: str) -> dict[str, Any]:
            scheme, _, path = uri.partition("://")
            return {"driver": "file", "path": f"{path.rstrip('/')}/"} if scheme in ("gs", "s3") else original(uri)

        monkeypatch.setattr(storage, "kvstore_spec", spec)

    @pytest.mark.parametrize("scheme", ["gs", "s3"])
    @pytest.mark.parametrize("name", [MANAGED, "orbax_0128_zarr3", "orbax_018_aggregate", "orbax_035_ocdbt"])
    def test_the_same_leaves_are_found(self, copy_of: Callable[[str], Path], scheme: str, name: str) -> None:
        root = copy_of(name)
        arguments = {"item": "params"} if name == MANAGED else {}
        (root / "commit_success.txt").touch()
        local = open_checkpoint(str(root), **arguments)
        remote = open_checkpoint(f"{scheme}://{root}", **arguments)
        assert [leaf.path for leaf in remote.leaves] == [leaf.path for leaf in local.leaves]
        for a, b in zip(remote.leaves, local.leaves, strict=True):
            assert a.read().tobytes() == b.read().tobytes()
        assert (remote.step, remote.item, remote.placeholders) == (local.step, local.item, local.placeholders)

    def test_a_step_without_its_commit_file_is_unfinished(self, copy_of: Callable[[str], Path]) -> None:
        root = copy_of(MANAGED)
        assert open_checkpoint(f"s3://{root}", item="params").step == 2
        (root / "2" / "commit_success.txt").unlink()
        # The step's own metadata still gives the time of its commit.
        assert open_checkpoint(f"s3://{root}", item="params").step == 2
        (root / "2" / "_CHECKPOINT_METADATA").write_text('{"init_timestamp_nsecs": 1}')
        for scheme in ("gs", "s3"):
            with pytest.raises(UncommittedCheckpointError, match=r"commit_success.txt is missing"):
                open_checkpoint(f"{scheme}://{root}", item="params")

    def test_a_copy_of_a_renamed_checkpoint_needs_none(self, fixture: Callable[[str], Any]) -> None:
        path = fixture("orbax_027_ocdbt_clean").path
        assert len(open_checkpoint(f"s3://{path}").leaves) == 40
        with pytest.raises(UncommittedCheckpointError):
            open_checkpoint(f"gs://{path}")

    @pytest.mark.parametrize("scheme", ["gs", "s3"])
    @pytest.mark.parametrize("item", ["params", "table", "jax_key", "numpy_mapping"])
    def test_items_that_are_no_trees(self, copy_of: Callable[[str], Path], scheme: str, item: str) -> None:
        root = copy_of("items_orbax_0128")
        local = open_checkpoint(str(root), item=item)
        remote = open_checkpoint(f"{scheme}://{root}", item=item)
        assert (remote.step, remote.details, remote.placeholders) == (4, local.details, local.placeholders)
        for a, b in zip(remote.leaves, local.leaves, strict=True):
            assert (a.path, a.kind, a.read().tobytes()) == (b.path, b.kind, b.read().tobytes())

    def test_steps_of_several_formats(self, fixture: Callable[[str], Any], tmp_path: Path) -> None:
        shutil.copy(fixture("flax_085_msgpack").path / "checkpoint_10", tmp_path / "checkpoint_10")
        shutil.copytree(fixture("orbax_0128_ocdbt").path, tmp_path / "checkpoint_20")
        shutil.copytree(fixture("t5x_style_v3").path / "checkpoint_1000", tmp_path / "checkpoint_5")
        found = {step: open_checkpoint(f"s3://{tmp_path}", step=step) for step in (5, 10, 20, None)}
        assert [opened.format for opened in found.values()] == [
            "t5x",
            "flax-msgpack",
            "orbax-zarr2-ocdbt",
            "orbax-zarr2-ocdbt",
        ]
        assert found[None].details["steps"] == "5, 10, 20"

    @pytest.mark.parametrize("name", ["orbax_027_zarr", "orbax_0128_zarr3"])
    def test_a_lost_tree_file(self, copy_of: Callable[[str], Path], name: str) -> None:
        root = copy_of(name)
        for file in ("checkpoint", "_METADATA"):
            (root / file).unlink(missing_ok=True)
        with pytest.raises(CorruptCheckpointError) as caught:
            open_checkpoint(f"s3://{root}")
        assert "_METADATA" in (caught.value.expected or "")

    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointNotFoundError, match="credentials"):
            open_checkpoint(f"s3://{tmp_path}/none")
