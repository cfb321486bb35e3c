"""Figures of soft verdicts: order, calibration, Brier score and AUC, next to those of hard ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from mmrm.data.arrays import Floats, Ints
from mmrm.eval.candidates import BenchmarkRow, RankedExample, Scores, Vote
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.results.intervals import mean_interval, share_interval
from mmrm.eval.results.result import SoftFigures, figure, outcomes
from mmrm.eval.results.statistics import (
    Calibration,
    OrderConsistency,
    area_under_curve,
    order_consistency,
    reliability,
)


@dataclass(frozen=True, slots=True)
class PairProbabilities:
    """A judge's probabilities for every pair of a better and another response of some rows."""

    better: Floats
    """(pairs,): the mean probability, over all votes on the pair, that the better response is
    better. NaN if the model computed no finite numbers."""
    named: Floats
    """(pairs,): the share of the votes that name the better response minus the share of those that
    name the other one."""
    items: Ints
    """(pairs,): the code of the pair's item."""


def pair_probabilities(
    examples: Sequence[BenchmarkRow], scores: Sequence[Scores], items: Ints
) -> PairProbabilities:
    """Return the probabilities of all pairs of responses of different ranks.

    Args:
        examples: The rows.
        scores: The judge's scores of each row, whose votes are soft.
        items: The code of each row's item from `items_of`, shape (rows,).
    """
    better: list[float] = []
    named: list[float] = []
    items_of_pairs: list[int] = []
    for row, (example, row_scores) in enumerate(zip(examples, scores, strict=True)):
        votes_by_pair: dict[frozenset[int], list[Vote]] = {}
        for vote in row_scores.votes:
            votes_by_pair.setdefault(frozenset(vote.shown), []).append(vote)
        for pair in combinations(range(len(example.responses)), 2):
            first, second = sorted(pair, key=lambda index: example.ranks[index])
            votes = votes_by_pair.get(frozenset(pair), [])
            if example.ranks[first] == example.ranks[second] or not votes:
                continue
            better.append(float(np.mean([_probability(vote, first) for vote in votes])))
            names = [vote.named for vote in votes]
            named.append((names.count(first) - names.count(second)) / len(names))
            items_of_pairs.append(int(items[row]))
    return PairProbabilities(
        better=np.array(better, dtype=np.float64),
        named=np.array(named, dtype=np.float64),
        items=np.array(items_of_pairs, dtype=np.int64),
    )


def _probability(vote: Vote, response: int) -> float:
    """Return the probability that a soft vote gives to one of its two responses."""
    assert vote.soft is not None, "All votes of a judge with soft verdicts are soft."
    return vote.soft.first if vote.shown[0] == response else 1 - vote.soft.first


def soft_figures(
    examples: Sequence[BenchmarkRow],
    scores: Sequence[Scores],
    protocol: ProtocolConfig,
    items: Ints,
) -> SoftFigures | None:
    """Return the figures of a judge's soft verdicts; None without a pair that has probabilities.

    Args:
        examples: The rows of the benchmark.
        scores: The judge's scores of each row, in the same order. All votes are soft.
        protocol: The protocol under which the rows were judged.
        items: The code of each row's item from `items_of`, shape (rows,).
    """
    pairs = pair_probabilities(examples, scores, items)
    is_finite = np.isfinite(pairs.better)
    if not is_finite.any():
        return None
    better = pairs.better[is_finite]
    clusters = pairs.items[is_finite]
    brier = share_interval((1 - better) ** 2, clusters)
    auc = area_under_curve(2 * better - 1, clusters)
    overconfidence = mean_interval(_confidence(better) - _credit(better), clusters)
    votes = [vote for row_scores in scores for vote in row_scores.votes]
    verdicts = [vote.soft for vote in votes if vote.soft is not None]
    order = None
    if protocol.order == "both" or isinstance(examples[0], RankedExample):
        order = soft_order(votes)
    hard_outcome = outcomes(examples, scores, protocol.with_hard_verdicts)
    return SoftFigures(
        judgements=len(verdicts),
        opened=sum(verdict.is_opened for verdict in verdicts),
        mass=_mean_of_finite([verdict.mass for verdict in verdicts]),
        first=_mean_of_finite([verdict.first for verdict in verdicts]),
        order=order,
        pairs=len(better),
        left_out=len(pairs.better) - len(better),
        brier=brier.mean,
        brier_low=brier.low,
        brier_high=brier.high,
        auc=auc.mean,
        auc_low=auc.low,
        auc_high=auc.high,
        overconfidence=overconfidence.mean,
        overconfidence_low=overconfidence.low,
        overconfidence_high=overconfidence.high,
        hard=figure(hard_outcome, protocol.ties, items=items),
        hard_auc=area_under_curve(pairs.named).mean,
    )


def soft_calibration(
    examples: Sequence[BenchmarkRow], scores: Sequence[Scores], items: Ints
) -> Calibration | None:
    """Compare the probabilities of soft verdicts with the known better responses.

    The confidence in a pair is the probability of the response that the judge prefers. The result
    is None without a pair that has probabilities. The arguments are those of `soft_figures`.
    """
    pairs = pair_probabilities(examples, scores, items)
    is_finite = np.isfinite(pairs.better)
    if not is_finite.any():
        return None
    better = pairs.better[is_finite]
    return reliability(_confidence(better), _credit(better), pairs.items[is_finite])


def soft_order(votes: Sequence[Vote]) -> OrderConsistency:
    """Count how often both orders of a pair give the same response more than one half.

    Args:
        votes: Soft votes, alternately in the listed order and in the reversed order. A vote with a
            probability of exactly one half, or no finite one, prefers neither response.
    """
    preferred = np.array([_preferred_of_two(vote) for vote in votes], dtype=np.int64)
    return order_consistency(preferred[::2], preferred[1::2])


def _preferred_of_two(vote: Vote) -> int:
    """Return 0 if a soft vote prefers the response that is listed first, 1 for the other one.

    The result is -1 if it prefers neither.
    """
    probability = _probability(vote, min(vote.shown))
    if not math.isfinite(probability) or probability == 0.5:
        return -1
    return 0 if probability > 0.5 else 1


def _confidence(better: Floats) -> Floats:
    """Return the probability of the response that the judge prefers, from 0.5 to 1."""
    return np.asarray(np.maximum(better, 1 - better))


def _credit(better: Floats) -> Floats:
    """Return 1 for pairs in which the judge prefers the better response, else 0; ties half."""
    return np.asarray((np.sign(better - 0.5) + 1) / 2)


def _mean_of_finite(values: Sequence[float]) -> float:
    """Return the mean of the finite values; there is at least one."""
    finite = [value for value in values if math.isfinite(value)]
    return float(np.mean(finite))
