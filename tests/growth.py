"""How the time to read a text grows with its length, as a ratio that no slow machine changes."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

LENGTHS = (25, 200, 1_600, 12_800, 102_400)
"""Numbers of characters for which a reading is timed, each eight times the one before."""
GROWTH = 24
"""A time may grow by that much while the text grows eightfold: linear is 8, quadratic is 64."""
SHORTEST_SECONDS = 1e-3
"""Times below this are noise and count as this much."""


def superlinear(read: Callable[[str], object], text_of: Callable[[int], str]) -> str | None:
    """Return a message on the time to read if it grows faster than the text, else None.

    A long time is taken again, twice, and the shortest counts: the machine may have been busy.

    Args:
        read: the reading that is timed.
        text_of: returns a text of about as many characters as its argument says.
    """
    seconds_before = SHORTEST_SECONDS
    for length in LENGTHS:
        text = text_of(length)
        bound = GROWTH * max(seconds_before, SHORTEST_SECONDS)
        seconds = _seconds_to_read(read, text)
        for _ in range(2):
            if seconds > bound:
                seconds = min(seconds, _seconds_to_read(read, text))
        if seconds > bound:
            return (
                f"{length:,} characters that begin with {text[:40]!r}: {seconds:.3f} s; an eighth "
                f"of them: {seconds_before:.3f} s"
            )
        seconds_before = seconds
    return None


def _seconds_to_read(read: Callable[[str], object], text: str) -> float:
    """Return the processor time of this thread for one reading.

    Garbage is not collected meanwhile: after thousands of other tests that may take a second.
    """
    gc.disable()
    try:
        begun = time.thread_time()
        read(text)
        return time.thread_time() - begun
    finally:
        gc.enable()
