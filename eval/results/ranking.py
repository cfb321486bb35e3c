"""Figures of rows with a ranking: best of N, pairs in the right order, and Kendall's tau-b."""

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np

from mmrm.data.arrays import Ints
from mmrm.eval.candidates import BenchmarkRow, Scores, best_indices, is_tied, other_indices
from mmrm.eval.protocol import Ties
from mmrm.eval.results.result import (
    WORTH,
    Ranking,
    RowOutcome,
    figure,
    figures,
    outcome_of_comparison,
    outcomes_of_rows,
)


def ranking_figures(
    rows: Sequence[BenchmarkRow], scores: Sequence[Scores], ties: Ties, items: Ints
) -> Ranking:
    """Return the figures of a judge's scores on rows with a ranking.

    Rows whose responses are all equally good count in the number of responses and in the chance
    only.

    Args:
        rows: The rows, at least one of which has responses of different ranks.
        scores: The judge's scores of each row. Those of a judge that compares are the shares of
            comparisons that the responses won.
        ties: The credit of a tie: "wrong" (0), "half" (0.5) or "right" (1).
        items: The codes from `items_of`, which are equal for rows that depend on each other.
    """
    ranked_indices = [index for index, row in enumerate(rows) if not is_tied(row)]
    ranked_rows = [rows[index] for index in ranked_indices]
    best_outcomes = []
    pair_shares = []
    taus = []
    for index, row in zip(ranked_indices, ranked_rows, strict=True):
        values = _readable_values(scores[index])
        best_outcomes.append(_best_of_n(row, values))
        pair_shares.append(_share_of_pairs(row.ranks, values, ties))
        taus.append(kendall_tau_b(row.ranks, values))
    outcome = outcomes_of_rows(best_outcomes)

    num_responses = [len(row.responses) for row in ranked_rows]
    num_best = [len(best_indices(row)) for row in ranked_rows]
    chances = [1 / math.comb(n, best) for n, best in zip(num_responses, num_best, strict=True)]
    num_tied = len(rows) - len(ranked_rows)
    best_chances = [best / n for n, best in zip(num_responses, num_best, strict=True)]
    ranked_items = items[ranked_indices]
    return Ranking(
        responses=sum(len(row.responses) for row in rows),
        # A random order has no ties, so that it is never right on a tied row.
        chance=float(np.mean(chances + [0.0] * num_tied)),
        tied=num_tied,
        best=figure(outcome, ties, items=ranked_items),
        best_chance=float(np.mean(best_chances)),
        best_groups=figures(outcome, ties, [row.group for row in ranked_rows], ranked_items),
        pairs=float(np.mean(pair_shares)),
        kendall=float(np.mean(taus)),
    )


def _readable_values(scores: Scores) -> Sequence[float]:
    """Return the scores of a row, which are all NaN if it has votes and none can be read.

    A soft vote can always be read.
    """
    if scores.votes and not scores.is_soft and all(vote.named is None for vote in scores.votes):
        return [math.nan] * len(scores.values)
    return scores.values


def _best_of_n(row: BenchmarkRow, values: Sequence[float]) -> RowOutcome:
    """Compare the highest score of the best responses with the highest of the others."""
    if not all(map(math.isfinite, values)):
        return RowOutcome(right=0, wrong=0, unread=1, margin=math.nan)
    best = max(values[index] for index in best_indices(row))
    other = max(values[index] for index in other_indices(row))
    return outcome_of_comparison(best, other)


def _share_of_pairs(ranks: Sequence[int], values: Sequence[float], ties: Ties) -> float:
    """Return the share of pairs of different ranks that the scores put in the right order.

    A pair of equal scores counts as a tie. The result is 0 if a score is not a finite number.
    """
    if not all(map(math.isfinite, values)):
        return 0.0
    num_pairs = 0
    credit = 0.0
    for first, second in combinations(range(len(ranks)), 2):
        if ranks[first] == ranks[second]:
            continue
        better, other = (first, second) if ranks[first] < ranks[second] else (second, first)
        num_pairs += 1
        if values[better] > values[other]:
            credit += 1.0
        elif values[better] == values[other]:
            credit += WORTH[ties]
    return credit / num_pairs


def kendall_tau_b(ranks: Sequence[int], values: Sequence[float]) -> float:
    """Return Kendall's tau-b between the ranks of responses and their scores.

    It is 1 if higher scores go with lower ranks everywhere, which includes equal scores for equal
    ranks, and -1 for the reverse. The result is 0 if all scores are equal, or a score is not a
    finite number.

    Args:
        ranks: The rank of each response, 0 for the best ones. They are not all equal.
        values: The score of each response.
    """
    if not all(map(math.isfinite, values)):
        return 0.0
    agreement = 0
    num_different_ranks = 0
    num_different_values = 0
    for first, second in combinations(range(len(ranks)), 2):
        # 1 if the first response is better, -1 if the second is, 0 for a tie.
        by_rank = (ranks[second] > ranks[first]) - (ranks[second] < ranks[first])
        by_value = (values[first] > values[second]) - (values[first] < values[second])
        agreement += by_rank * by_value
        num_different_ranks += abs(by_rank)
        num_different_values += abs(by_value)
    if num_different_values == 0:
        return 0.0
    return agreement / math.sqrt(num_different_ranks * num_different_values)
