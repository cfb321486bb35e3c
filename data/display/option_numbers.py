"""The types of numbers on a command line: their bounds, and the message if a number is outside."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from dataclasses import dataclass

MOST_CHARACTERS = 40
"""Largest length of a number on a command line. Every number within bounds is shorter."""


@dataclass(frozen=True, slots=True)
class WholeNumber:
    """The `type` of an option whose value is a whole number from `least` to `most`."""

    least: int
    most: int

    def __call__(self, text: str) -> int:
        """Return the number that a text holds; raise ArgumentTypeError if it is not allowed."""
        try:
            number = int(text) if len(text) <= MOST_CHARACTERS else self.most + 1
        except ValueError:
            number = self.most + 1
        if not self.least <= number <= self.most:
            raise ArgumentTypeError(
                f"{text[:MOST_CHARACTERS]!r} should be a whole number from {self.least:,} to "
                f"{self.most:,}"
            )
        return number


@dataclass(frozen=True, slots=True)
class Number:
    """The `type` of an option whose value is a finite number from `least` to `most`."""

    least: float
    most: float

    def __call__(self, text: str) -> float:
        """Return the number that a text holds; raise ArgumentTypeError if it is not allowed."""
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not self.least <= number <= self.most:  # also if it is not a number
            raise ArgumentTypeError(
                f"{text[:MOST_CHARACTERS]!r} should be a number from {self.least:,} to "
                f"{self.most:,}"
            )
        return number


COUNT = WholeNumber(1, 10**9)
"""A number of records, samples, tokens or repetitions."""

STEP = WholeNumber(0, 10**9)
"""The number of a training step; 0 is the model before the first one."""

LIMIT = WholeNumber(0, 10**12)
"""A limit on the size of records or requests, whose own bounds are checked later."""

WORKERS = WholeNumber(0, 1024)
"""A number of processes; with 0, the command itself does the work."""

SEED = WholeNumber(0, 2**32 - 1)
"""A seed that every random generator accepts."""

PORT = WholeNumber(0, 2**16 - 1)
"""A port to listen at; 0 takes a free one."""

LOCAL_RANK = WholeNumber(-1, 10**9)
"""The option of launchers, which is ignored."""

TEMPERATURE = Number(0.0, 100.0)
"""The temperature of sampled tokens; 0 takes the likeliest token."""

SHARE = Number(0.0, 1.0)
"""A share, both ends included."""

NOT_NEGATIVE = Number(0.0, 1e12)

FINITE = Number(-1e12, 1e12)
