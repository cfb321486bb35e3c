"""Work in a thread that ends early if its result is no longer needed.

A thread cannot be interrupted, so long work calls `stop_if_abandoned` between its steps. Work that
was not started by `run_abandonable` is never abandoned.
"""

from collections.abc import Callable
from contextvars import ContextVar
from threading import Event
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")

_ABANDONED: ContextVar[Event | None] = ContextVar("abandoned", default=None)


class AbandonedError(Exception):
    """The work was stopped because its result is no longer needed."""


def run_abandonable(abandoned: Event, function: Callable[..., ResultT], *arguments: Any) -> ResultT:
    """Call `function` in this thread, so that it ends early once `abandoned` is set.

    Raises:
        AbandonedError: At the function's next call of `stop_if_abandoned` after the event was set.
    """
    token = _ABANDONED.set(abandoned)
    try:
        stop_if_abandoned()
        return function(*arguments)
    finally:
        _ABANDONED.reset(token)


def stop_if_abandoned() -> None:
    """Raise AbandonedError if the result of this thread's work is no longer needed."""
    abandoned = _ABANDONED.get()
    if abandoned is not None and abandoned.is_set():
        raise AbandonedError("the work was abandoned")
