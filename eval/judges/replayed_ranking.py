"""What a judge's ranking would be after fewer comparisons, from all comparisons that it made.

A judge that compared every two responses in both orders has made the comparisons of every schedule.
They are taken from its answers in the order in which the schedule asks for them, so that nothing is
judged again. This is exact for a judge whose verdict on two responses depends on these two alone.
A judge that samples its verdicts would draw others.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmrm.data.arrays import Floats
from mmrm.data.errors import RecordError
from mmrm.eval.judges.pair_schedule import Schedule
from mmrm.eval.judges.strengths import fitted_strengths


@dataclass(frozen=True, slots=True)
class ReplayedRanking:
    """The scores of N responses after the comparisons of a schedule."""

    scores: Floats
    """(N,): the strengths, fitted to the comparisons."""
    num_comparisons: int
    """The number of comparisons; a pair is compared in both orders."""


def points_matrix(
    num_responses: int, comparisons: Iterable[Mapping[str, Any]], is_soft: bool
) -> Floats:
    """Return the points that each response had when it was shown first: (N, N).

    The element of row i and column j is from the comparison in which i was shown first and j
    second: 1 if i was named, 0 if j was, and 0.5 if neither was. The diagonal is NaN.

    Args:
        num_responses: The number N of responses.
        comparisons: The column `comparisons` of a record that eval/score.py wrote.
        is_soft: Take the probability that the first response is better, in place of the verdict.

    Raises:
        RecordError: If two responses were not compared in one of the orders, or were compared in it
            several times.
    """
    points = np.full((num_responses, num_responses), np.nan)
    for comparison in comparisons:
        first, second = comparison["shown"]
        if not np.isnan(points[first, second]):
            raise RecordError(
                f"the responses {first} and {second} were compared twice in this order; required is "
                "every order once"
            )
        if is_soft:
            points[first, second] = comparison["probability"]
        elif comparison["named"] is None:
            points[first, second] = 0.5
        else:
            points[first, second] = float(comparison["named"] == first)
    num_expected = num_responses * (num_responses - 1)
    num_made = int(np.isfinite(points).sum())
    if num_made != num_expected:
        raise RecordError(
            f"{num_made} of {num_expected} comparisons of {num_responses} responses were made; "
            "required are all of them. Score the file with `comparisons: all`"
        )
    return points


def shares_of_points(points: Floats) -> Floats:
    """Return the share of its comparisons that each response won, shape (N,).

    Args:
        points: (N, N), from `points_matrix`.
    """
    num_responses = len(points)
    when_first = np.nansum(points, axis=1)
    when_second = np.nansum(1 - points, axis=0)
    shares: Floats = (when_first + when_second) / (2 * (num_responses - 1))
    return shares


def replayed(points: Floats, schedule: Schedule) -> ReplayedRanking:
    """Return the ranking after the comparisons that a schedule asks for.

    Args:
        points: (N, N), from `points_matrix`.
        schedule: A schedule that has not begun.
    """
    wins = np.zeros_like(points)
    num_comparisons = 0
    pairs = schedule.next_pairs(wins)
    while pairs:
        for first, second in pairs:
            won_by_first = points[first, second] + (1 - points[second, first])
            wins[first, second] += won_by_first
            wins[second, first] += 2 - won_by_first
            num_comparisons += 2
        pairs = schedule.next_pairs(wins)
    return ReplayedRanking(fitted_strengths(wins).values, num_comparisons)
