"""Signals that end a run before its last step; imports no torch.

SIGUSR1 saves a checkpoint and ends the run. Ctrl-C ends it at once.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SAVE_AND_END = threading.Event()
"""Set by SIGUSR1. If it is set on one rank, `FiniteTrainer` lets all ranks save and end after the
current optimizer step."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGUSR1 and Ctrl-C end a run that is trained inside the context.

    SIGUSR1, which would otherwise kill the process, sets SAVE_AND_END. The trainer then saves a
    checkpoint and ends the run after the current step. Ctrl-C ends the process with
    status 130. A message is printed on the first rank of each node alone, because a launcher passes
    Ctrl-C to all ranks.
    """
    signal.signal(signal.SIGUSR1, lambda number, frame: SAVE_AND_END.set())
    try:
        yield
    except KeyboardInterrupt:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            print(
                "\nInterrupted. Complete checkpoints are kept: continue from the last one with "
                "--resume.",
                file=sys.stderr,
            )
        raise SystemExit(130) from None
