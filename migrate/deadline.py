"""A bound on the time of a call that may never return, such as a read from storage that hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")

_abandoned: list[threading.Thread] = []


def within(seconds: float, action: Callable[[], _Result], late: Callable[[], Exception]) -> _Result:
    """What ``action`` returns or raises; after ``seconds`` the exception that ``late`` makes instead.

    A thread cannot be ended from outside: the one that was late stays behind, see :func:`abandoned`.
    """
    results: list[_Result] = []
    errors: list[BaseException] = []

    def target() -> None:
        try:
            results.append(action())
        except BaseException as error:
            errors.append(error)

    # a daemon, so that the interpreter does not wait for it when it exits
    thread = threading.Thread(target=target, name="reexport-item", daemon=True)
    thread.start()
    thread.join(min(seconds, threading.TIMEOUT_MAX))
    if thread.is_alive():
        _abandoned.append(thread)
        raise late()
    if errors:
        raise errors[0]
    return results[0]


def abandoned() -> bool:
    """Whether a call that was too late has not ended yet: Python would wait for the threads it uses at exit."""
    return any(thread.is_alive() for thread in _abandoned)
