"""Messages while training waits for data, so that slow storage does not look like a stalled network.

A rank whose data are late holds up all ranks: the others wait in a collective operation, which ends
with a time-out of NCCL or gloo that says nothing about data.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 60.0
"""Seconds of waiting after which a message is printed, and between two messages."""


@contextmanager
def announced_wait(rank: int, step: int, patience: float = PATIENCE) -> Iterator[None]:
    """Print a message to the error stream for every `patience` seconds that the block takes.

    Args:
        rank: The number of this rank.
        step: The number of the optimizer step whose records the block loads.
        patience: Seconds until the first message, and between two messages.
    """
    ended = threading.Event()
    begin = time.perf_counter()

    def announce() -> None:
        """Print a message after every interval, until the block has ended."""
        while not ended.wait(patience):
            waited = time.perf_counter() - begin
            print(
                f"rank {rank}: waiting for the records of step {step} for {waited:.0f} s; other ranks "
                "wait for this one. Storage is slow or has stalled, or the loader has too few "
                "processes (`workers`).",
                file=sys.stderr,
                flush=True,
            )

    thread = threading.Thread(target=announce, name="data wait", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
