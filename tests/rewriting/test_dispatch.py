"""Work on its way to the workers: what the job graph carries, and what is read from the run's directory."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from migrate import dispatch, rewrite
from migrate.commit import Work
from tests.rewriting.conftest import Run, make_run, random_array


def work_of(run: Run, *, without: tuple[int, ...] = ()) -> Work:
    items = tuple(item for number, item in enumerate(run.plan.items) if number not in without)
    return Work(items, run.request, run.destination)


def test_ranges_are_the_items_that_are_still_to_do(two_arrays: Run) -> None:
    _, ranges = dispatch.dispatch("job", work_of(two_arrays, without=(1,)))
    found = [number for chosen in ranges for number in dispatch.numbers(chosen)]
    assert found == [("job", number) for number in range(len(two_arrays.plan.items)) if number != 1]


def test_a_large_plan_travels_in_few_ranges_of_equal_length(two_arrays: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_MAX_RANGES", 3)
    _, ranges = dispatch.dispatch("job", work_of(two_arrays))
    lengths = [stop - start for _, start, stop in ranges]
    assert len(ranges) <= 3
    assert sum(lengths) == len(two_arrays.plan.items)
    assert len(set(lengths[:-1])) <= 1


def test_what_a_step_carries_does_not_grow_with_the_plan(tmp_path: Path) -> None:
    sizes = []
    for count in (1, 300):
        arrays = {(f"w{number}",): random_array((4,), "float32") for number in range(count)}
        run = make_run(tmp_path / str(count), arrays)
        sent, _ = dispatch.dispatch("job", work_of(run))
        sizes.append(len(pickle.dumps(sent)))
    assert sizes[1] - sizes[0] < 20  # the paths differ in length


def test_workers_find_the_items_of_the_plan(two_arrays: Run) -> None:
    sent, _ = dispatch.dispatch("job", work_of(two_arrays))
    found = [dispatch.item(sent, number) for number in range(len(two_arrays.plan.items))]
    assert found == list(two_arrays.plan.items)
    assert dispatch.request(sent).plan.parameter_set == two_arrays.plan.parameter_set


def test_another_plan_than_the_drivers_is_not_unpickled(two_arrays: Run, tmp_path: Path) -> None:
    sent, _ = dispatch.dispatch("job", work_of(two_arrays))

    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (tmp_path / "sprung",)

    stored = next(Path(two_arrays.destination.run_uri).glob("*.pickle"))
    stored.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(dispatch.PlanGoneError, match="another plan"):
        dispatch.request(sent)
    assert not (tmp_path / "sprung").exists()
    stored.unlink()
    with pytest.raises(dispatch.PlanGoneError, match="no file"):
        dispatch.request(sent)


def test_a_stopped_run_reads_no_plan(two_arrays: Run) -> None:
    sent, _ = dispatch.dispatch("job", work_of(two_arrays))
    rewrite.stop(sent.destination)
    with pytest.raises(rewrite.StoppedError):
        dispatch.item(sent, 0)
