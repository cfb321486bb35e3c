"""Ends of a run before its last step: SIGUSR1 saves and ends it, Ctrl-C ends it at once. Needs no torch."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SAVE_AND_END = threading.Event()
"""Set by SIGUSR1. All ranks save and end after the optimizer step in which one of them knows of it (FiniteTrainer)."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGUSR1, which would kill the process, set SAVE_AND_END; end with a line and status 130 after Ctrl-C.

    A launcher sends Ctrl-C to all ranks, of which the first of a node prints.
    """
    signal.signal(signal.SIGUSR1, lambda number, frame: SAVE_AND_END.set())
    try:
        yield
    except KeyboardInterrupt:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            print(
                "\nInterrupted. What is complete stays as it is: continue from it with --resume.",
                file=sys.stderr,
            )
        raise SystemExit(130) from None
