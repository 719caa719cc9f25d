"""Runner names of a job file -> Beam runners and their options.

``local`` is the FnApiRunner with threads in this process; ``dask`` is Beam's DaskRunner, on a scheduler or on worker
processes of its own; any other name is Beam's, and its options are passed through.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from apache_beam.options.pipeline_options import (
    PipelineOptions,
    StandardOptions,
    _BeamArgumentParser,  # has the types of arguments that Beam's own options are declared with
)
from apache_beam.options.pipeline_options_validator import PipelineOptionsValidator
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.runners.runner import PipelineResult, PipelineRunner, create_runner

from migrate.config import unknown_key
from migrate.errors import ConfigError, ReexportError

_WHERE_NAME = "rewrite.runner"
_WHERE_OPTIONS = "rewrite.runner_options"
_REMEDY = "docs/runners.md says what each runner needs"
_PORTABLE = {"FlinkRunner", "SparkRunner", "PortableRunner", "PrismRunner"}
"""Their job server has options of its own, so that only it can tell which are unknown."""
_ADDRESS_OPTIONS = ("--dask_client_address", "--dask_scheduler_file")
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Engine:
    """A runner that can be used, with the options it gets."""

    name: str
    """Its class in Beam, without the package."""
    runner: PipelineRunner
    flags: tuple[str, ...]
    """Options, as on a command line."""
    own_workers: int | None = None
    """Worker processes to start for a run that has no cluster yet."""

    @property
    def options(self) -> PipelineOptions:
        """The flags as Beam takes them."""
        return PipelineOptions(list(self.flags))


def resolve(name: str, options: Sequence[str] = (), workers: int | None = None) -> Engine:
    """The runner called ``name`` with Beam ``options`` such as ``--region=us-central1``; starts nothing.

    ``workers`` is the number of parallel workers of ``local`` and of ``dask`` without a scheduler (default: one a CPU);
    other runners have options for that. Raises :class:`ConfigError` for a name, option or value that Beam does not
    know, and for a runner that is not installed.
    """
    cpus = workers or os.cpu_count() or 1
    if any(option.split("=")[0] == "--runner" for option in options):
        raise ConfigError("the runner is no option of the runner", where=_WHERE_OPTIONS, remedy=f"set {_WHERE_NAME}")
    if name == "local":
        threads = ("--direct_running_mode=multi_threading", f"--direct_num_workers={cpus}")
        # DirectRunner would look for Prism on the network first
        engine = Engine("FnApiRunner", FnApiRunner(), (*threads, *options))
    elif name.lower() in {"dask", "daskrunner"}:
        engine = _dask(tuple(options), cpus)
    else:
        runner = _create(name)
        engine = Engine(type(runner).__name__, runner, tuple(options))
    if workers is not None and name != "local" and engine.own_workers is None:
        raise ConfigError(
            f"the number of workers of {name} is not this job's to say",
            where="rewrite.workers",
            remedy=f"leave it out; {name} takes it from its cluster, or from an option of its own",
        )
    _check_options(engine)
    return engine


def _create(name: str) -> PipelineRunner:
    try:
        return create_runner(name)
    except ImportError as error:
        extra = "dataflow" if "dataflow" in name.lower() else None
        raise ConfigError(
            f"the runner {name} is not installed",
            where=_WHERE_NAME,
            found=str(error),
            remedy=f"pip install 'reexport[{extra}]'" if extra else "install the package it comes from",
        ) from error
    except (ValueError, AttributeError, TypeError) as error:
        known = ["local", "dask", *StandardOptions.KNOWN_RUNNER_NAMES]
        raise ConfigError(
            f"runner {name!r} {unknown_key(name, known)}",
            where=_WHERE_NAME,
            expected="local, dask, a Beam runner's name such as DataflowRunner, or the full name of a class",
            remedy=_REMEDY,
        ) from error


def _dask(options: tuple[str, ...], workers: int) -> Engine:
    try:
        from apache_beam.runners.dask.dask_runner import DaskRunner
        from dask import distributed  # noqa: F401 -- DaskRunner comes without it, and fails when it runs
    except ImportError as error:
        raise ConfigError(
            "the runner dask is not installed",
            where=_WHERE_NAME,
            found=str(error),
            remedy="pip install 'reexport[dask]'",
        ) from error
    names = {option.split("=")[0] for option in options}
    if not names & {"--dask_npartitions", "--dask_partition_size"}:
        # Beam's own choice puts 128 elements into one task: one worker would do everything
        options = (*options, "--dask_partition_size=1")
    elsewhere = bool(names & set(_ADDRESS_OPTIONS))
    return Engine("DaskRunner", DaskRunner(), options, None if elsewhere else workers)


class _Parser(_BeamArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"Beam refuses an option: {message}", where=_WHERE_OPTIONS, remedy=_REMEDY)


def _check_options(engine: Engine) -> None:
    parser = _Parser(allow_abbrev=False, add_help=False)
    for section in dict.fromkeys(PipelineOptions.__subclasses__()):
        section._add_argparse_args(parser)
    _, unknown = parser.parse_known_args(list(engine.flags))
    if unknown and engine.name not in _PORTABLE:
        names = [name for action in parser._actions for name in action.option_strings]
        texts = [f"{option}: {unknown_key(option.split('=')[0], names)}"[:200] for option in unknown]
        raise ConfigError(
            f"{engine.name} has no such option", where=_WHERE_OPTIONS, found="; ".join(texts), remedy=_REMEDY
        )
    if stray := [option for option in unknown if not option.startswith("--")]:
        raise ConfigError(f"{stray[0]!r} is no option", where=_WHERE_OPTIONS, expected="--name=value", remedy=_REMEDY)
    if problems := _validated(engine):
        raise ConfigError(
            f"{engine.name} cannot run with these options",
            where=_WHERE_OPTIONS,
            found="; ".join(problems),
            remedy=_REMEDY,
        )


def _validated(engine: Engine) -> list[str]:
    logger = logging.getLogger("apache_beam.options.pipeline_options")
    level = logger.level
    logger.setLevel(logging.ERROR)  # a bucket that Dataflow would create by itself, were there a project
    try:
        found: list[str] = PipelineOptionsValidator(engine.options, engine.runner).validate()
        return found
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def started(engine: Engine) -> Iterator[PipelineOptions]:
    """The options to run with; a cluster that had to be started for them ends with the block."""
    if engine.name != "DaskRunner":
        yield engine.options
        return
    import dask
    from dask import distributed

    # a worker that dies, or a cluster that ends, is told of in a dozen tracebacks
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    environment = {
        key: value
        for key, value in dask.config.get("distributed.nanny.pre-spawn-environ", {}).items()
        if key != "MALLOC_TRIM_THRESHOLD_"  # it slows copies of large arrays
    }
    settings = {"distributed.nanny.pre-spawn-environ": environment, "distributed.admin.log-format": "%(message)s"}
    if engine.own_workers is None:
        with dask.config.set(settings):
            yield engine.options
        return
    with (
        dask.config.set(settings),
        distributed.LocalCluster(
            n_workers=engine.own_workers,
            threads_per_worker=1,
            processes=True,  # spawned: TensorStore does not survive a fork
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",  # its default port may be another cluster's
            worker_dashboard_address="127.0.0.1:0",
            memory_limit=0,  # items are bounded already; a worker that is paused or restarted only loses time
            silence_logs=logging.CRITICAL,
            preload=["pipelines.dask_worker"],
        ) as cluster,
    ):
        yield PipelineOptions([*engine.flags, f"--dask_client_address={cluster.scheduler_address}"])


def wait(result: PipelineResult, stopping: threading.Event | None) -> None:
    """Return when the pipeline has ended; cancel it once ``stopping`` is set. Raises what Beam raises."""
    ended = threading.Event()

    def watch(asked: threading.Event) -> None:
        while not ended.wait(_POLL_SECONDS):
            if asked.is_set():
                result.cancel()
                return

    if stopping is not None:
        threading.Thread(target=watch, args=(stopping,), name="reexport-cancel", daemon=True).start()
    try:
        result.wait_until_finish()
    except BaseException as error:
        if stopping is not None and stopping.is_set():
            raise ReexportError("the pipeline was cancelled") from error
        raise
    finally:
        ended.set()
        client: Any = getattr(result, "client", None)  # of Dask, whose runner leaves it open
        if client is not None:
            client.close()
