"""What a Dask worker process imports before its first task: ``dask worker --preload pipelines.dask_worker ...``."""

from __future__ import annotations

import logging

_handler = logging.NullHandler()
logging.getLogger().addHandler(_handler)  # else logging would configure itself for the whole process
logging.disable(logging.WARNING)
try:
    # warns of Google Cloud clients that a run without them never needs
    import apache_beam  # noqa: F401
finally:
    logging.disable(logging.NOTSET)
    logging.getLogger().removeHandler(_handler)
logging.getLogger("apache_beam").setLevel(logging.WARNING)  # at INFO two elements print 88 lines


def dask_setup(_worker: object) -> None:
    """Dask calls this; importing the module was all."""
