"""What a case of bad input may end with, how often each was seen, and every fault with the command that shows it again."""

from __future__ import annotations

import signal
import traceback
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Literal

from mmrm.data.errors import UserError

Outcome = Literal["worked", "refused", "counted", "traceback", "silent", "hang", "uncounted"]
"""Used as it was written; refused with a clear error; left out and counted as lost. The others are faults: an exception that is
no UserError; used although it must not be, or not as it was written; no end within its time; missing from every count."""
FAULTS: tuple[Outcome, ...] = ("traceback", "silent", "hang", "uncounted")
CLONE = Path(__file__).resolve().parents[2]
PATIENCE = 10.0
TIMERS = {signal.SIGPROF: (signal.ITIMER_PROF, 1.0), signal.SIGALRM: (signal.ITIMER_REAL, PATIENCE)}
SHOWN = 3
"""Cases listed of one fault."""


class TimeIsUp(BaseException):
    """A case took longer than its time; not an Exception, so that nothing under attack swallows it."""


class Attempt:
    """A block under attack, in this (main) thread: what it raises is kept in `error`, but for a person's own Ctrl-C.

    Also what is no Exception, as libraries written in Rust raise. It may take `seconds` of computing, and PATIENCE times as long
    by the clock, since other processes may share the machine.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.error: BaseException | None = None

    def __enter__(self) -> Attempt:
        self._before = [signal.signal(number, self._ring) for number in TIMERS]
        for timer, share in TIMERS.values():
            signal.setitimer(timer, self.seconds * share)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> bool:
        for timer, _ in TIMERS.values():
            signal.setitimer(timer, 0)
        for number, before in zip(TIMERS, self._before, strict=True):
            signal.signal(number, before)
        self.error = error
        return not isinstance(error, KeyboardInterrupt)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        raise TimeIsUp(f"longer than {self.seconds:g} s")


def is_of_the_attack(frame: traceback.FrameSummary) -> bool:
    """Return whether a frame lies in `tools/` or `tests/`, which call the project but are not it."""
    path = Path(frame.filename)
    return path.is_relative_to(CLONE / "tools") or path.is_relative_to(CLONE / "tests")


def cause(error: BaseException) -> str:
    """Return the innermost line of the project's own code that `error` went through, and what it is."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(CLONE)
    ]
    own = [frame for frame in frames if not is_of_the_attack(frame)] or frames
    where = (
        f"{Path(own[-1].filename).relative_to(CLONE)}:{own[-1].lineno}"
        if own
        else "outside of the project"
    )
    return f"{where} {type(error).__name__}"


def kind_of(error: BaseException) -> Outcome:
    """Return what a case has ended with that raised `error`."""
    return (
        "hang"
        if isinstance(error, TimeIsUp)
        else "refused"
        if isinstance(error, UserError)
        else "traceback"
    )


@dataclass
class Tally:
    """The outcomes of one attack; a case is named so that `--case NAME` runs it alone."""

    name: str
    counts: Counter[Outcome] = field(default_factory=Counter)
    faults: defaultdict[tuple[Outcome, str], list[tuple[str, str]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """By kind and cause, the names of the cases and the first line of what was said."""

    @property
    def clean(self) -> bool:
        """Whether no fault was found."""
        return not self.faults

    def add(self, outcome: Outcome, case: str, cause: str = "", said: str = "") -> None:
        """Count a case."""
        self.counts[outcome] += 1
        if outcome in FAULTS:
            lines = [line for line in said.strip().splitlines() if line.strip()] or [""]
            self.faults[outcome, cause].append((case, lines[0][:200]))

    def report(self, command: str) -> str:
        """Return the counts in one line, then every fault with its cause, its number of cases and how to see them again."""
        tried = sum(self.counts.values())
        head = f"{self.name}: {tried:,} tried: " + ", ".join(
            f"{name} {self.counts[name]:,}" for name in ("worked", "refused", "counted", *FAULTS)
        )
        lines = [head]
        for (outcome, why), cases in sorted(
            self.faults.items(), key=lambda item: (item[0][0], -len(item[1]))
        ):
            lines.append(f"  {outcome}: {why} ({len(cases)} cases)")
            for name, said in cases[:SHOWN]:
                lines.append(f"    {command} --case {name!r}\n      {said}")
        return "\n".join(lines)
