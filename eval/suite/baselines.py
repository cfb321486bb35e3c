"""Judges that ignore the content of responses; their figures are shown next to a real judge's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mmrm.eval.candidates import Example, Scores
from mmrm.eval.protocol import draw


def _longest(example: Example, seed: int) -> tuple[float, float]:
    """Score more characters higher."""
    return len(example.responses[0]), len(example.responses[1])


def _shortest(example: Example, seed: int) -> tuple[float, float]:
    """Score fewer characters higher."""
    return -len(example.responses[0]), -len(example.responses[1])


def _first(example: Example, seed: int) -> tuple[float, float]:
    """Score the response higher that is listed first."""
    return 1.0, 0.0


def _random(example: Example, seed: int) -> tuple[float, float]:
    """Toss a coin, the same one in every process."""
    return (0.0, 1.0) if draw(seed, example.key, "random baseline") else (1.0, 0.0)


BASELINES: dict[str, Callable[[Example, int], tuple[float, float]]] = {
    "longest": _longest,
    "shortest": _shortest,
    "first": _first,
    "random": _random,
}
"""The name of a baseline to what scores both responses of an example, given a seed."""


def baseline(name: str, examples: Sequence[Example], seed: int = 0) -> list[Scores]:
    """Return the scores of one of `BASELINES`; equal lengths are a tie."""
    return [Scores(BASELINES[name](example, seed)) for example in examples]
