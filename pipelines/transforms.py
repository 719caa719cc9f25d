"""The steps of a rewrite as PTransforms. Elements are plain data; a failure is data too, so that a job fails alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection

from migrate import deadline, dispatch, failures, ledger, rewrite
from migrate.commit import commit
from migrate.dispatch import Dispatched, PlanGoneError
from migrate.errors import ItemTimeoutError, ReexportError
from migrate.export import is_export
from migrate.planner import Item
from migrate.receipt import Destination, Failure, Receipt
from migrate.verify import verify_item

Outcome = tuple[str, int, Receipt | Failure | None]
"""(job, number of the item, what came of it); None for :data:`migrate.dispatch.NOTHING`."""
Jobs = Mapping[str, Dispatched]
"""The work of each job, by its name."""


def _attempt(sent: Dispatched, number: int, action: Callable[[Item, Destination], Receipt]) -> Receipt | Failure:
    try:
        item = dispatch.item(sent, number)
        return deadline.within(
            sent.item_timeout_seconds, lambda: action(item, sent.destination), lambda: _late(sent, item)
        )
    except ReexportError as error:
        rewrite.stop(sent.destination)
        return Failure(number, error)


def _late(sent: Dispatched, item: Item) -> ItemTimeoutError:
    first = item.parts[0]
    return ItemTimeoutError(
        "an item of work was not finished in time",
        where=f"{first.array.name} {first.box}" + (" and others" if len(item.parts) > 1 else ""),
        expected=f"at most {sent.item_timeout_seconds:g} s to write it or to read it back",
        found="no end of it",
        remedy="check that source and output answer; if they are only slow, raise rewrite.item_timeout_seconds. The "
        "same command goes on where it stopped",
    )


class Rewrite(beam.PTransform[Any, Any]):
    """(job, item) -> (job, item, receipt or failure): writes the item's chunks."""

    def __init__(self, jobs: Jobs) -> None:
        super().__init__()
        self._jobs = jobs

    def expand(self, items: PCollection[Any]) -> PCollection[Any]:
        """Apply the step."""
        outcome: PCollection[Any] = items | "Write chunks" >> beam.Map(_rewrite, self._jobs)
        return outcome


def _rewrite(element: tuple[str, int], jobs: Jobs) -> Outcome:
    job, number = element
    return job, number, _attempt(jobs[job], number, rewrite.rewrite_item) if job in jobs else None


class Verify(beam.PTransform[Any, Any]):
    """(job, item, receipt) -> (job, receipt), after the chunks were read back and the receipt made durable."""

    def __init__(self, jobs: Jobs) -> None:
        super().__init__()
        self._jobs = jobs

    def expand(self, written: PCollection[Any]) -> PCollection[Any]:
        """Apply the step."""
        outcome: PCollection[Any] = written | "Read back" >> beam.Map(_verify, self._jobs)
        return outcome


def _verify(element: Outcome, jobs: Jobs) -> tuple[str, Receipt | Failure | None]:
    job, number, outcome = element
    if isinstance(outcome, Receipt):
        written = outcome
        outcome = _attempt(jobs[job], number, lambda item, destination: verify_item(item, written, destination))
        if isinstance(outcome, Receipt):
            ledger.record(jobs[job].destination.ledger, outcome.nbytes)
    return job, outcome


class Receipts(beam.PTransform[Any, Any]):
    """One or more outcomes -> one dict of failures by job.

    Of no outcomes a combine would make a default through a side input, which on Dask is a second, disconnected graph.
    """

    def expand(self, outcomes: PCollection[Any]) -> PCollection[Any]:
        """Apply the step."""
        combine = beam.CombineGlobally(_CollectFailures()).without_defaults()
        outcome: PCollection[Any] = outcomes | "Collect failures" >> combine
        return outcome


class _CollectFailures(beam.CombineFn):
    def create_accumulator(self) -> dict[str, list[Failure]]:
        return {}

    def add_input(
        self, accumulator: dict[str, list[Failure]], element: tuple[str, Receipt | Failure | None]
    ) -> dict[str, list[Failure]]:
        job, outcome = element
        if isinstance(outcome, Failure):
            accumulator.setdefault(job, []).append(outcome)
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[dict[str, list[Failure]]]) -> dict[str, list[Failure]]:
        merged: dict[str, list[Failure]] = {}
        for accumulator in accumulators:
            for job, found in accumulator.items():
                merged.setdefault(job, []).extend(found)
        return merged

    def extract_output(self, accumulator: dict[str, list[Failure]]) -> dict[str, list[Failure]]:
        return accumulator


class Commit(beam.PTransform[Any, Any]):
    """Failures by job -> (job, committed): commits each job without failures, records the failures of the others."""

    def __init__(self, jobs: Jobs) -> None:
        super().__init__()
        self._jobs = jobs

    def expand(self, collected: PCollection[Any]) -> PCollection[Any]:
        """Apply the step."""
        outcome: PCollection[Any] = collected | "Publish" >> beam.FlatMap(_commit, self._jobs)
        return outcome


def _commit(failed: Mapping[str, list[Failure]], jobs: Jobs) -> Iterator[tuple[str, bool]]:
    for job, sent in jobs.items():
        errors = [failure.error for failure in failed.get(job, [])]
        if not errors:
            try:
                commit(dispatch.request(sent), sent.destination)
            except PlanGoneError as error:
                if not is_export(sent.export_uri):  # where it is, a commit that was faster has tidied up
                    errors.append(error)
            except ReexportError as error:
                errors.append(error)
        if errors:
            failures.save(errors, sent.destination)
        yield job, not errors
