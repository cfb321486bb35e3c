"""Judges that ignore the content of responses; their figures are shown next to a real judge's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mmrm.eval.candidates import Example, Scores
from mmrm.eval.protocol import draw_side


def _longest(example: Example, seed: int) -> tuple[float, float]:
    """Return the number of characters of each response as its score."""
    return len(example.responses[0]), len(example.responses[1])


def _shortest(example: Example, seed: int) -> tuple[float, float]:
    """Return the negative number of characters of each response as its score."""
    return -len(example.responses[0]), -len(example.responses[1])


def _first(example: Example, seed: int) -> tuple[float, float]:
    """Return 1 for the response that is listed first, and 0 for the other."""
    return 1.0, 0.0


def _random(example: Example, seed: int) -> tuple[float, float]:
    """Return 1 for a randomly drawn response and 0 for the other, the same in every process."""
    return (0.0, 1.0) if draw_side(seed, example.key, "random baseline") else (1.0, 0.0)


BASELINES: dict[str, Callable[[Example, int], tuple[float, float]]] = {
    "longest": _longest,
    "shortest": _shortest,
    "first": _first,
    "random": _random,
}
"""The baselines by name: functions of an example and a seed that score the two responses."""


def baseline_scores(name: str, examples: Sequence[Example], seed: int = 0) -> list[Scores]:
    """Return the scores of every example's responses by one of BASELINES. Equal lengths are a tie.

    Only the baseline `random` uses the seed.
    """
    return [Scores(BASELINES[name](example, seed)) for example in examples]
