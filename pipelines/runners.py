"""Runner names of a job file -> Beam runners and their options."""

from __future__ import annotations

import os

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.runners.runner import PipelineRunner

from migrate.errors import ConfigError


def runner(name: str, workers: int | None) -> tuple[PipelineRunner, PipelineOptions]:
    """The Beam runner called ``name`` with ``workers`` parallel workers (default: one a CPU).

    ``local`` is the FnApiRunner with threads in this process: DirectRunner would look for Prism on the network first.
    Raises :class:`ConfigError` for an unknown name.
    """
    if name != "local":
        raise ConfigError(
            f"unknown runner {name!r}", where="rewrite.runner", expected="local", remedy="set rewrite.runner: local"
        )
    options = PipelineOptions(
        ["--direct_running_mode=multi_threading", f"--direct_num_workers={workers or os.cpu_count() or 1}"]
    )
    return FnApiRunner(), options
