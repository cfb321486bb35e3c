"""Processes that read blocks of records side by side."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any


@contextmanager
def worker_processes(
    count: int, initializer: Callable[..., None] | None = None, initargs: tuple[Any, ...] = ()
) -> Iterator[ProcessPoolExecutor]:
    """Give a pool of `count` processes; whatever ends the block early (an error, a signal) cancels what has not begun."""
    context = multiprocessing.get_context("fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn")
    with ProcessPoolExecutor(count, mp_context=context, initializer=initializer, initargs=initargs) as pool:
        try:
            yield pool
        finally:
            pool.shutdown(cancel_futures=True)
