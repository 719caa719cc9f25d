"""Running the rewrite pipeline of the other package; found by its entry point, since this package imports no Beam."""

from __future__ import annotations

import importlib.metadata
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from migrate import rewrite, storage
from migrate.commit import Work
from migrate.config import Job
from migrate.errors import ConfigError, ReexportError

_POLL_SECONDS = 0.2
_PIPELINES = "reexport.pipelines"
"""Entry point group."""
_WITHOUT_LOCAL_FILES = {"dataflow", "dataflowrunner"}


def check_runner(job: Job) -> None:
    """Raises :class:`ConfigError` if the pipeline of ``job`` cannot run where the job says; nothing is started."""
    settings = job.rewrite
    if settings.runner == "local" and not settings.runner_options:
        return  # importing Beam takes a second or two
    _pipeline("batch")(
        {}, runner_name=settings.runner, runner_options=settings.runner_options, workers=settings.workers
    )
    if settings.runner.lower() in _WITHOUT_LOCAL_FILES:
        for key, uri in (("source.path", job.source.path), ("output", job.output)):
            if storage.is_local(uri):
                raise ConfigError(
                    f"the workers of {settings.runner} do not see the files of this machine",
                    where=key,
                    expected="a gs:// or s3:// URI",
                    found=uri,
                    remedy="copy the checkpoint to a bucket, and choose an output there",
                )


def execute(
    works: Mapping[str, Work],
    *,
    runner: str,
    workers: int | None,
    on_poll: Callable[[], None],
    runner_options: Sequence[str] = (),
) -> None:
    """Run one rewrite pipeline on all ``works``, known in it by their names; returns when it has ended.

    The pipeline runs in a thread; this one owns Ctrl-C and calls ``on_poll`` several times a second. What came of each
    work lies on storage: committed, or failures. Raises :class:`ReexportError` if the pipeline itself fails.
    """
    pipeline = _pipeline("batch")
    crash: list[BaseException] = []
    stopping = threading.Event()

    def target() -> None:
        try:
            pipeline(works, runner_name=runner, runner_options=runner_options, workers=workers, stopping=stopping)
        except BaseException as error:
            crash.append(error)

    thread = threading.Thread(target=target, name="reexport-pipeline", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_POLL_SECONDS)
            on_poll()
    except BaseException:
        # items under way end by themselves; without receipts they count for nothing
        for work in works.values():
            rewrite.stop(work.destination)
        stopping.set()
        thread.join(timeout=60)
        raise
    if crash:
        error = crash[0]
        if isinstance(error, ReexportError):
            raise error
        lines = str(error).strip().splitlines()
        raise ReexportError(
            "the Beam pipeline failed",
            where=f"runner {runner}",
            found=lines[-1] if lines else type(error).__name__,
            remedy="nothing was committed; the same command resumes",
        ) from error


@contextmanager
def _quiet_logging() -> Iterator[None]:
    """Importing Beam warns, on the root logger, of Google Cloud clients that a run without them never needs."""
    root, handler = logging.getLogger(), logging.NullHandler()
    root.addHandler(handler)  # else logging would configure itself for the whole process
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        root.removeHandler(handler)


def _pipeline(name: str) -> Callable[..., None]:
    for entry_point in importlib.metadata.entry_points(group=_PIPELINES, name=name):
        with _quiet_logging():
            function: Callable[..., None] = entry_point.load()
        return function
    raise ReexportError(
        f"the pipeline {name!r} is not installed",
        where=f"entry point group {_PIPELINES}",
        remedy="install the distribution `reexport` again",
    )
