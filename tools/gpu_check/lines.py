"""What a check is and what it finds; the standard library alone, so that the command starts wherever Python does."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Check:
    """One line of the table."""

    name: str
    call: str
    """`module:function`, which returns a `Found` or raises `SkippedError`."""
    seconds: float
    """What it takes on a GPU at most, about: with less left of the budget it is not begun."""
    arguments: tuple[str, ...] = ()
    gib: float | None = None
    """Free memory of a GPU that it needs; None: it runs on a CPU too."""


@dataclass(frozen=True)
class Found:
    """What a check has measured."""

    right: bool
    said: str
    """The figures, and what they are held to, for a person."""
    values: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Line:
    """What is shown and written of a check."""

    check: str
    result: Literal["PASS", "FAIL", "SKIPPED"]
    said: str
    seconds: float = 0.0
    values: dict[str, float] = field(default_factory=dict)


class SkippedError(Exception):
    """A check that cannot be made here, and why."""
