"""Work in a thread that ends early once its result is not wanted any more.

A thread cannot be interrupted, so long work asks between its steps: `stop_if_abandoned()`. Work that
was not begun by `run_abandonable` is never abandoned.
"""

from collections.abc import Callable
from contextvars import ContextVar
from threading import Event
from typing import Any, TypeVar

Result = TypeVar("Result")

_ABANDONED: ContextVar[Event | None] = ContextVar("abandoned", default=None)


class AbandonedError(Exception):
    """The work was stopped because its result is not wanted any more."""


def run_abandonable(abandoned: Event, function: Callable[..., Result], *arguments: Any) -> Result:
    """Call `function` in this thread; it raises AbandonedError at its next step once `abandoned` is set."""
    token = _ABANDONED.set(abandoned)
    try:
        stop_if_abandoned()
        return function(*arguments)
    finally:
        _ABANDONED.reset(token)


def stop_if_abandoned() -> None:
    """Raise AbandonedError if the work of this thread is not wanted any more."""
    abandoned = _ABANDONED.get()
    if abandoned is not None and abandoned.is_set():
        raise AbandonedError("the work was abandoned")
