"""Judges that ignore the content of responses; their figures are shown next to a real judge's."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from mmrm.eval.candidates import BenchmarkRow, Example, Scores
from mmrm.eval.protocol import draw_side


def _longest(row: BenchmarkRow, seed: int) -> tuple[float, ...]:
    """Return the number of characters of each response as its score."""
    return tuple(len(response.text) for response in row.responses)


def _shortest(row: BenchmarkRow, seed: int) -> tuple[float, ...]:
    """Return the negative number of characters of each response as its score."""
    return tuple(-len(response.text) for response in row.responses)


def _first(row: BenchmarkRow, seed: int) -> tuple[float, ...]:
    """Return scores in the order in which the responses are listed: the first has the highest.

    They are 1 and 0 for two responses.
    """
    num_responses = len(row.responses)
    return tuple(float(num_responses - 1 - index) for index in range(num_responses))


def _random(row: BenchmarkRow, seed: int) -> tuple[float, ...]:
    """Return scores in a random order of the responses, the same in every process.

    They are 1 and 0, in either order, for two responses.
    """
    if isinstance(row, Example):
        return (0.0, 1.0) if draw_side(seed, row.key, "random baseline") else (1.0, 0.0)
    scores = [float(index) for index in range(len(row.responses))]
    random.Random(f"{seed}/{row.key}/random baseline").shuffle(scores)
    return tuple(scores)


BASELINES: dict[str, Callable[[BenchmarkRow, int], tuple[float, ...]]] = {
    "longest": _longest,
    "shortest": _shortest,
    "first": _first,
    "random": _random,
}
"""The baselines by name: functions of a row and a seed that score its responses."""


def baseline_scores(name: str, examples: Sequence[BenchmarkRow], seed: int = 0) -> list[Scores]:
    """Return the scores of every example's responses by one of BASELINES. Equal lengths are a tie.

    Only the baseline `random` uses the seed.
    """
    return [Scores(BASELINES[name](example, seed)) for example in examples]
