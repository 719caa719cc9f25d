"""The scheduled job on a Beam runner: each worker reconciles some pairs of a fleet's models and targets.

``python -m pipelines.reconcile --fleet gs://bucket/fleet.yaml --runner DataflowRunner ...``; what is not its own option
is Beam's. Each pair is reconciled as ``reexport reconcile`` would, lease included, so that a bundle that runs twice, or
beside another reconcile, does nothing twice.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.combiners import ToList

from migrate.errors import ReexportError
from migrate.fleet import load_fleet
from migrate.reconcile import reconcile
from pipelines.runners import resolve


def run(
    fleet: str,
    *,
    models: Sequence[str] = (),
    targets: Sequence[str] = (),
    options: Sequence[str] = (),
    workers: int = 2,
) -> None:
    """Reconcile the chosen pairs of the fleet file at ``fleet``, which the workers must be able to read.

    ``options`` are Beam's; without a ``--runner`` among them threads of this process do the work. Raises
    :class:`migrate.errors.ConfigError` for a fleet that cannot be used, and what Beam makes of a
    :class:`ReexportError` if a pair failed.
    """
    cells = load_fleet(fleet).select(models, targets)
    pairs = [(fleet, cell.model, cell.target) for cell in cells]
    local = resolve("local", workers=workers)
    elsewhere = any(option.startswith("--runner") for option in options)
    arguments: dict[str, Any] = {"options": PipelineOptions(list(options))}
    if not elsewhere:
        arguments = {"runner": local.runner, "options": local.options}
    with beam.Pipeline(**arguments) as pipeline:
        _ = (
            pipeline
            | "Pairs" >> beam.Create(pairs)
            | "Spread" >> beam.Reshuffle()
            | "Reconcile" >> beam.Map(_reconcile)
            | "Failures" >> beam.Filter(lambda outcome: outcome["result"] == "failed")
            | "Collect" >> ToList()
            | "Judge" >> beam.Map(_judge)
        )


def _reconcile(pair: tuple[str, str, str]) -> dict[str, Any]:
    path, model, target = pair
    fleet = load_fleet(path)
    outcome = reconcile(fleet, fleet.select([model], [target])).outcomes[0]
    logging.getLogger(__name__).info("%s/%s: %s", model, target, outcome.result)
    return dict(outcome.to_json())


def _judge(failed: Sequence[dict[str, Any]]) -> None:
    """The others are done by now."""
    if failed:
        found = [f"{o['model']}/{o['target']}: {(o['error'] or {}).get('what')}" for o in failed]
        raise ReexportError(f"{len(failed)} models x targets failed", found="\n    ".join(["", *found]))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Reconcile a fleet on a Beam runner.", allow_abbrev=False)
    parser.add_argument("--fleet", required=True, help="path or URI of the fleet file; workers read it too")
    parser.add_argument("--models", default="", help="only these models, with commas between them")
    parser.add_argument("--targets", default="", help="only these targets, with commas between them")
    known, options = parser.parse_known_args(arguments)
    chosen = [[name for name in text.split(",") if name] for text in (known.models, known.targets)]
    run(known.fleet, models=chosen[0], targets=chosen[1], options=options)


if __name__ == "__main__":
    main()
