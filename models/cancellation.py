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
    """Raised in work that is stopped because its result is no longer needed."""


def run_abandonable(abandoned: Event, function: Callable[..., ResultT], *arguments: Any) -> ResultT:
    """Call `function(*arguments)` in this thread, and return its result.

    Once the event `abandoned` is set, by another thread, the result is no longer needed. The
    function is then stopped the next time it calls `stop_if_abandoned`.

    Raises:
        AbandonedError: The function was stopped.
    """
    token = _ABANDONED.set(abandoned)
    try:
        stop_if_abandoned()
        return function(*arguments)
    finally:
        _ABANDONED.reset(token)


def stop_if_abandoned() -> None:
    """Raise AbandonedError if the result of this thread's work is no longer needed.

    Outside of `run_abandonable`, a result is always needed.
    """
    abandoned = _ABANDONED.get()
    if abandoned is not None and abandoned.is_set():
        raise AbandonedError("the work was abandoned")
