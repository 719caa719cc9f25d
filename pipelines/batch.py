"""The rewrite pipeline: one connected chain, cut by the driver, so that it runs alike on every Beam runner."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence

import apache_beam as beam

from migrate.allocator import kept_buffers
from migrate.commit import Work
from migrate.dispatch import NOTHING, dispatch, numbers
from pipelines.runners import resolve, started, wait
from pipelines.transforms import Commit, Receipts, Rewrite, Verify


def run(
    jobs: Mapping[str, Work],
    *,
    runner_name: str = "local",
    runner_options: Sequence[str] = (),
    workers: int | None = None,
    stopping: threading.Event | None = None,
) -> None:
    """Rewrite, verify and commit all ``jobs`` in one pipeline; returns when it has ended.

    Runner, options and workers are those of :func:`pipelines.runners.resolve`, which are all that is checked if there
    are no jobs. A pipeline that runs elsewhere is cancelled once ``stopping`` is set. Outcomes lie on storage: a job is
    committed, or its run directory holds the failures. Raises :class:`migrate.errors.ConfigError` for a runner that
    cannot be used, and what Beam raises when the pipeline itself fails.
    """
    logging.getLogger("apache_beam").setLevel(logging.WARNING)  # at INFO two elements print 88 lines
    engine = resolve(runner_name, runner_options, workers)
    if not jobs:
        return
    with kept_buffers(), started(engine) as options:
        pipeline = beam.Pipeline(runner=engine.runner, options=options)
        build(pipeline, jobs)
        wait(pipeline.run(), stopping)


def build(pipeline: beam.Pipeline, jobs: Mapping[str, Work]) -> None:
    """Store what the workers need, and apply the steps of a rewrite of all ``jobs``, one chain, to ``pipeline``."""
    sent, ranges = {}, [NOTHING]
    for name, work in jobs.items():
        sent[name], of_job = dispatch(name, work)
        ranges += of_job
    _ = (
        pipeline
        | "Ranges of items" >> beam.Create(ranges)
        | "Items" >> beam.FlatMap(numbers)
        | "Rewrite" >> Rewrite(sent)
        | "Verify" >> Verify(sent)
        | "Receipts" >> Receipts()
        | "Commit" >> Commit(sent)
    )
