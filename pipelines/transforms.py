"""The steps of a rewrite as PTransforms. Elements are plain data; a failure is data too, so that a job fails alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import PCollection

from migrate import failures, ledger, rewrite
from migrate.commit import CommitRequest, commit
from migrate.errors import ReexportError
from migrate.planner import Item
from migrate.receipt import Destination, Failure, Receipt
from migrate.verify import verify_item

Outcome = tuple[str, Item, Receipt | Failure]
"""(job, item, what came of it)."""


def _attempt(item: Item, destination: Destination, action: Callable[[], Receipt]) -> Receipt | Failure:
    try:
        return action()
    except ReexportError as error:
        rewrite.stop(destination)
        return Failure(item.id, error)


class Rewrite(beam.PTransform[Any, Any]):
    """(job, item) -> (job, item, receipt or failure): writes the item's chunks."""

    def __init__(self, destinations: Mapping[str, Destination]) -> None:
        super().__init__()
        self._destinations = destinations

    def expand(self, items: PCollection[Any]) -> PCollection[Any]:
        """Apply the step."""
        outcome: PCollection[Any] = items | "Write chunks" >> beam.Map(_rewrite, self._destinations)
        return outcome


def _rewrite(element: tuple[str, Item], destinations: Mapping[str, Destination]) -> Outcome:
    job, item = element
    destination = destinations[job]
    return job, item, _attempt(item, destination, lambda: rewrite.rewrite_item(item, destination))


class Verify(beam.PTransform[Any, Any]):
    """(job, item, receipt) -> the same, after the chunks were read back and the receipt made durable."""

    def __init__(self, destinations: Mapping[str, Destination]) -> None:
        super().__init__()
        self._destinations = destinations

    def expand(self, written: PCollection[Any]) -> PCollection[Any]:
        """Apply the step."""
        outcome: PCollection[Any] = written | "Read back" >> beam.Map(_verify, self._destinations)
        return outcome


def _verify(element: Outcome, destinations: Mapping[str, Destination]) -> tuple[str, Receipt | Failure]:
    job, item, outcome = element
    if isinstance(outcome, Receipt):
        written, destination = outcome, destinations[job]
        outcome = _attempt(item, destination, lambda: verify_item(item, written, destination))
        if isinstance(outcome, Receipt):
            ledger.record(destination.ledger, item.nbytes)
    return job, outcome


class Receipts(beam.PTransform[Any, Any]):
    """All outcomes -> one dict of failures by job. Combines globally: a run with nothing left to do commits too."""

    def expand(self, outcomes: PCollection[Any]) -> PCollection[Any]:
        """Apply the step."""
        outcome: PCollection[Any] = outcomes | "Collect failures" >> beam.CombineGlobally(_CollectFailures())
        return outcome


class _CollectFailures(beam.CombineFn):
    def create_accumulator(self) -> dict[str, list[Failure]]:
        return {}

    def add_input(
        self, accumulator: dict[str, list[Failure]], element: tuple[str, Receipt | Failure]
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

    def __init__(self, requests: Mapping[str, CommitRequest], destinations: Mapping[str, Destination]) -> None:
        super().__init__()
        self._requests = requests
        self._destinations = destinations

    def expand(self, collected: PCollection[Any]) -> PCollection[Any]:
        """Apply the step."""
        outcome: PCollection[Any] = collected | "Publish" >> beam.FlatMap(_commit, self._requests, self._destinations)
        return outcome


def _commit(
    failed: Mapping[str, list[Failure]], requests: Mapping[str, CommitRequest], destinations: Mapping[str, Destination]
) -> Iterator[tuple[str, bool]]:
    for job, request in requests.items():
        errors = [failure.error for failure in failed.get(job, [])]
        if not errors:
            try:
                commit(request, destinations[job])
            except ReexportError as error:
                errors.append(error)
        if errors:
            failures.save(errors, destinations[job])
        yield job, not errors
