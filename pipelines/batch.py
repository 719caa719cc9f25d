"""The rewrite pipeline: one connected chain, cut by the driver, so that it runs alike on every Beam runner."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import apache_beam as beam

from migrate.allocator import kept_buffers
from migrate.commit import Work
from migrate.dispatch import dispatch, numbers
from pipelines.runners import runner
from pipelines.transforms import Commit, Receipts, Rewrite, Verify


def run(jobs: Mapping[str, Work], *, runner_name: str = "local", workers: int | None = None) -> None:
    """Rewrite, verify and commit all ``jobs`` in one pipeline; returns when it has ended.

    Outcomes lie on storage: a job is committed, or its run directory holds the failures. Raises what Beam raises when
    the pipeline itself fails.
    """
    logging.getLogger("apache_beam").setLevel(logging.WARNING)  # at INFO two elements print 88 lines
    sent, ranges = {}, []
    for name, work in jobs.items():
        sent[name], of_job = dispatch(name, work)
        ranges += of_job
    chosen, options = runner(runner_name, workers)
    with kept_buffers(), beam.Pipeline(runner=chosen, options=options) as pipeline:
        _ = (
            pipeline
            | "Ranges of items" >> beam.Create(ranges)
            | "Items" >> beam.FlatMap(numbers)
            | "Rewrite" >> Rewrite(sent)
            | "Verify" >> Verify(sent)
            | "Receipts" >> Receipts()
            | "Commit" >> Commit(sent)
        )
