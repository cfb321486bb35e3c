"""What a case of bad input may end with, how often each was seen, and every fault with the command that shows it again."""

from __future__ import annotations

import signal
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Literal

from data.errors import UserError

Outcome = Literal["worked", "refused", "counted", "traceback", "silent", "hang", "uncounted"]
"""Used as it was written; refused with a clear error; left out and counted as lost. The others are faults: an exception that is
no UserError; used although it must not be, or not as it was written; no end within its time; missing from every count."""
FAULTS: tuple[Outcome, ...] = ("traceback", "silent", "hang", "uncounted")
CLONE = Path(__file__).resolve().parents[2]
SHOWN = 3
"""Cases listed of one fault."""


class TimeIsUp(BaseException):
    """A case took longer than its time; not an Exception, so that nothing under attack swallows it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeIsUp in this (main) thread after `seconds`."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeIsUp(f"longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def cause(error: BaseException) -> str:
    """Return the innermost line of the project's own code that `error` went through, and what it is."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(CLONE)]
    own = [frame for frame in frames if not Path(frame.filename).is_relative_to(CLONE / "tests")] or frames
    where = f"{Path(own[-1].filename).relative_to(CLONE)}:{own[-1].lineno}" if own else "outside of the project"
    return f"{where} {type(error).__name__}"


@dataclass
class Tally:
    """The outcomes of one attack; a case is named so that `--case NAME` runs it alone."""

    name: str
    counts: Counter[Outcome] = field(default_factory=Counter)
    faults: defaultdict[tuple[Outcome, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    """By kind and cause, the names of the cases with the first line of what was said."""

    @property
    def clean(self) -> bool:
        """Whether no fault was found."""
        return not self.faults

    def add(self, outcome: Outcome, case: str, cause: str = "", said: str = "") -> None:
        """Count a case."""
        self.counts[outcome] += 1
        if outcome in FAULTS:
            lines = [line for line in said.strip().splitlines() if line.strip()] or [""]
            self.faults[outcome, cause].append(f"{case}: {lines[0][:200]}")

    @contextmanager
    def watching(self, case: str, seconds: float) -> Iterator[None]:
        """Run a case whose block counts it itself if it ends well; count what it raises instead."""
        try:
            with time_limit(seconds):
                yield
        except UserError as error:
            self.add("refused", case, "", str(error))
        except TimeIsUp as error:
            self.add("hang", case, cause(error), str(error))
        except Exception as error:
            self.add("traceback", case, cause(error), str(error))

    def report(self, command: str) -> str:
        """Return the counts in one line, then every fault with its cause, its number of cases and how to see them again."""
        tried = sum(self.counts.values())
        head = f"{self.name}: {tried:,} tried: " + ", ".join(
            f"{name} {self.counts[name]:,}" for name in ("worked", "refused", "counted", *FAULTS)
        )
        lines = [head]
        for (outcome, why), cases in sorted(self.faults.items(), key=lambda item: (item[0][0], -len(item[1]))):
            lines.append(f"  {outcome}: {why} ({len(cases)} cases)")
            lines += [f"    {command} --case {case.partition(': ')[0]!r}\n      {case.partition(': ')[2]}" for case in cases[:SHOWN]]
        return "\n".join(lines)
