"""The rewrite pipeline: one connected chain, items made by the driver, so that it runs alike on every Beam runner."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import apache_beam as beam

from migrate.commit import Work
from pipelines.runners import runner
from pipelines.transforms import Commit, Receipts, Rewrite, Verify


def run(jobs: Mapping[str, Work], *, runner_name: str = "local", workers: int | None = None) -> None:
    """Rewrite, verify and commit all ``jobs`` in one pipeline; returns when it has ended.

    Outcomes lie on storage: a job is committed, or its run directory holds the failures. Raises what Beam raises when
    the pipeline itself fails.
    """
    logging.getLogger("apache_beam").setLevel(logging.WARNING)  # at INFO two elements print 88 lines
    destinations = {name: work.destination for name, work in jobs.items()}
    requests = {name: work.request for name, work in jobs.items()}
    elements = [(name, item) for name, work in jobs.items() for item in work.items]
    chosen, options = runner(runner_name, workers)
    with beam.Pipeline(runner=chosen, options=options) as pipeline:
        _ = (
            pipeline
            | "Items" >> beam.Create(elements)
            | "Rewrite" >> Rewrite(destinations)
            | "Verify" >> Verify(destinations)
            | "Receipts" >> Receipts()
            | "Commit" >> Commit(requests, destinations)
        )
