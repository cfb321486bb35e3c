"""Figures about the standard deviations that a judge states with its scores.

A judge with the head `gaussian` states a mean and a standard deviation for each response. Two
claims follow from them, and each can be compared with what is known about a benchmark's rows:

- The probability that one response is better than another one (`probability_of_higher_score`). It
  is compared with the share of rows in which the response is better.
- The range in which the true score of a response is: 68.3 % of true scores are within one
  deviation of the mean, and 95.4 % within two (`coverage`). This needs true scores, such as ratings
  or the attributes of the embedded world.

These are pure functions on numpy arrays in fp64. `clusters` are the indices of the rows' clusters,
as in `mmrm.eval.results.intervals`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
from scipy.special import erf, ndtr

from mmrm.data.arrays import Floats, Ints
from mmrm.eval.candidates import STD, BenchmarkRow, Scores, best_indices, other_indices
from mmrm.eval.results.intervals import Estimate, mean_interval, share_interval
from mmrm.eval.results.statistics import Calibration, reliability


def standardised_differences(
    first_means: Floats, first_stds: Floats, second_means: Floats, second_stds: Floats
) -> Floats:
    """Return the differences of two scores in units of their own standard deviations.

    The difference of two independent Gaussian scores has the variance first_std² + second_std². If
    both deviations are 0, the result is infinite, or 0 for equal means.

    Args:
        first_means: Means of the first scores, shape (pairs,).
        first_stds: Standard deviations of the first scores, not negative, shape (pairs,).
        second_means: Means of the second scores, shape (pairs,).
        second_stds: Standard deviations of the second scores, not negative, shape (pairs,).
    """
    differences = np.asarray(first_means, dtype=np.float64) - second_means
    deviations = np.hypot(first_stds, second_stds)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        standardised = differences / deviations
    # 0 / 0 is not a number, but equal scores are equal however sure the judge is.
    return np.where(differences == 0, 0.0, standardised)


def probability_of_higher_score(
    first_means: Floats, first_stds: Floats, second_means: Floats, second_stds: Floats
) -> Floats:
    """Return the probability that the first of two Gaussian scores is the higher one.

    It is Φ((first_mean - second_mean) / √(first_std² + second_std²)) for independent scores
    (Thurstone 1927, "A law of comparative judgment", case III). It is 0.5 for equal means.

    HPSv3 (arXiv 2508.03789) and EditReward (arXiv 2509.26346) train with the mean of log sigmoid
    over draws of the same difference. That adds logistic noise of people to the doubt of the model,
    so their probabilities are closer to 0.5 than these.

    The arguments are those of `standardised_differences`.
    """
    return np.asarray(
        ndtr(standardised_differences(first_means, first_stds, second_means, second_stds))
    )


def expected_coverage(num_deviations: float) -> float:
    """Return the share of a Gaussian within a number of standard deviations of its mean.

    It is 0.683 for one deviation and 0.954 for two.
    """
    return float(erf(num_deviations / math.sqrt(2)))


@dataclass(frozen=True, slots=True)
class ShareWithin:
    """The share of true scores within a number of stated deviations, with its 95 % interval."""

    deviations: float
    expected: float
    """The share for a judge whose deviations are right."""
    share: float
    low: float | None
    high: float | None

    @property
    def contains_expected(self) -> bool:
        """True if the interval contains the expected share."""
        if self.low is None or self.high is None:
            return True
        return self.low <= self.expected <= self.high


@dataclass(frozen=True, slots=True)
class TrueScoreCoverage:
    """The shares of responses whose true score is within the range that a judge states.

    A judge that was trained on comparisons has a zero and a unit of its own. The shares on the line
    compare the true score with slope · mean + offset, and take |slope| · std as the deviation. The
    line is fitted to the same responses by least squares.

    Comparisons say nothing about the scores of responses to different prompts, so that each prompt
    may have another zero. `of_differences` compares every two responses to one prompt: the
    difference of their true scores with slope_of_differences · the difference of their means, whose
    deviation is |slope_of_differences| · √(std² + std²). This is what such a judge states. The slope
    is fitted by least squares to the scores minus the mean of their prompt.
    """

    n: int
    """Number of responses with a true score."""
    as_stated: tuple[ShareWithin, ...]
    """The shares for a judge whose scores are in the unit of the true scores."""
    on_line: tuple[ShareWithin, ...]
    """The shares for a judge with a unit of its own; empty if the means do not vary."""
    slope: float | None
    """The change of the true score for each unit of the judge's score; None if the means do not
    vary. It is close to 1, and `offset` to 0, for scores in the unit of the true scores."""
    offset: float | None
    of_differences: tuple[ShareWithin, ...] = ()
    """The shares of the differences between two responses to one prompt; empty if no prompt has two
    responses with true scores, or the means of no prompt vary."""
    slope_of_differences: float | None = None


DEVIATIONS = (1.0, 2.0)
"""Numbers of standard deviations for which the coverage is computed."""


def shares_within(
    errors: Floats, stds: Floats, clusters: Ints | None = None
) -> tuple[ShareWithin, ...]:
    """Return the shares of errors that are within each of DEVIATIONS.

    Args:
        errors: True score minus mean of each response, shape (responses,), at least one.
        stds: Stated standard deviation of each response, shape (responses,).
        clusters: Index of each response's cluster; None if every response is independent.
    """
    shares: list[ShareWithin] = []
    for num_deviations in DEVIATIONS:
        is_within = np.abs(errors) <= num_deviations * stds
        estimate = share_interval(is_within.astype(np.float64), clusters)
        shares.append(
            ShareWithin(
                deviations=num_deviations,
                expected=expected_coverage(num_deviations),
                share=estimate.mean,
                low=estimate.low,
                high=estimate.high,
            )
        )
    return tuple(shares)


def coverage(
    means: Floats,
    stds: Floats,
    true_scores: Floats,
    clusters: Ints | None = None,
    prompts: Ints | None = None,
) -> TrueScoreCoverage | None:
    """Return how many true scores lie in the ranges that a judge states.

    The result is None if no true score is known.

    Args:
        means: Mean that the judge states for each response, shape (responses,).
        stds: Standard deviation that it states, shape (responses,).
        true_scores: The known score of each response, shape (responses,). NaN is unknown.
        clusters: Index of each response's cluster; None if every response is independent.
        prompts: Index of each response's prompt; None computes no `of_differences`.
    """
    is_known = np.isfinite(true_scores)
    if not is_known.any():
        return None
    means = means[is_known]
    stds = stds[is_known]
    true_scores = true_scores[is_known]
    if clusters is not None:
        clusters = clusters[is_known]
    slope_of_differences = None
    shares_of_differences: tuple[ShareWithin, ...] = ()
    if prompts is not None:
        slope_of_differences, shares_of_differences = _coverage_of_differences(
            means, stds, true_scores, clusters, prompts[is_known]
        )

    slope = None
    offset = None
    shares_on_line: tuple[ShareWithin, ...] = ()
    mean_deviations = means - means.mean()
    squares = float((mean_deviations**2).sum())
    if squares > 0:
        slope = float((mean_deviations * true_scores).sum() / squares)
        offset = float(true_scores.mean() - slope * means.mean())
        errors_on_line = true_scores - (slope * means + offset)
        shares_on_line = shares_within(errors_on_line, abs(slope) * stds, clusters)
    return TrueScoreCoverage(
        n=len(means),
        as_stated=shares_within(true_scores - means, stds, clusters),
        on_line=shares_on_line,
        slope=slope,
        offset=offset,
        of_differences=shares_of_differences,
        slope_of_differences=slope_of_differences,
    )


def _coverage_of_differences(
    means: Floats, stds: Floats, true_scores: Floats, clusters: Ints | None, prompts: Ints
) -> tuple[float | None, tuple[ShareWithin, ...]]:
    """Return `slope_of_differences` and `of_differences` of a TrueScoreCoverage.

    The arguments are those of `coverage`, for responses whose true score is known.
    """
    responses_by_prompt: dict[int, list[int]] = {}
    for index, prompt in enumerate(prompts.tolist()):
        responses_by_prompt.setdefault(prompt, []).append(index)
    centred_means = means.astype(np.float64)
    centred_scores = true_scores.astype(np.float64)
    firsts: list[int] = []
    seconds: list[int] = []
    for indices in responses_by_prompt.values():
        centred_means[indices] -= means[indices].mean()
        centred_scores[indices] -= true_scores[indices].mean()
        for first, second in combinations(indices, 2):
            firsts.append(first)
            seconds.append(second)
    squares = float((centred_means**2).sum())
    if not firsts or squares == 0:
        return None, ()
    slope = float((centred_means * centred_scores).sum() / squares)
    differences = true_scores[firsts] - true_scores[seconds]
    errors = differences - slope * (means[firsts] - means[seconds])
    deviations = abs(slope) * np.hypot(stds[firsts], stds[seconds])
    # Pairs of one prompt share responses, so they are never independent.
    clusters_of_pairs = prompts[firsts] if clusters is None else clusters[firsts]
    return slope, shares_within(errors, deviations, clusters_of_pairs)


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """A comparison of the standard deviations that a judge states with what is known of the rows.

    The confidence in a pair is the probability that follows from both deviations for the response
    with the higher score (`probability_of_higher_score`).
    """

    n: int
    """Number of pairs of a better and another response. A row of two responses is one pair."""
    left_out: int
    """Number of rows without finite scores and deviations, which are in no figure of this
    comparison."""
    mean_std: float
    """Mean of the stated deviations, in the judge's own unit."""
    reliability: Calibration
    """Confidence against accuracy, in bins."""
    overconfidence: float
    """Mean of confidence minus credit. The judge is right less often than it states if it is
    positive."""
    overconfidence_low: float | None
    overconfidence_high: float | None
    """The interval of `overconfidence`, which holds together with that of the calibration error in
    95 % of the cases, because `words` reads both; None if all rows share one item."""
    coverage: TrueScoreCoverage | None
    """The coverage of true scores; None if no row has true scores."""

    @property
    def words(self) -> str:
        """The comparison in words: "overconfident", "underconfident", "miscalibrated" or neither.

        A judge is miscalibrated if its confidences are wrong in both directions, so that its mean
        confidence is right. The words do not depend on the coverage.
        """
        if self.overconfidence_low is not None and self.overconfidence_low > 0:
            return "overconfident"
        if self.overconfidence_high is not None and self.overconfidence_high < 0:
            return "underconfident"
        if self.reliability.low is not None and self.reliability.low > 0:
            return "miscalibrated"
        return "not distinguishable from calibrated"


def pair_uncertainty(
    margins: Floats, better_stds: Floats, other_stds: Floats, clusters: Ints | None = None
) -> tuple[Calibration, Estimate]:
    """Compare the probabilities that follow from stated deviations with the known better responses.

    Returns the confidence against the accuracy in bins, and the mean of confidence minus credit
    with its interval at 97.5 %. A margin of zero has confidence 0.5 and counts as half right.

    Args:
        margins: score(better response) - score(other response), shape (pairs,), at least one.
        better_stds: Stated deviation of the better response, shape (pairs,).
        other_stds: Stated deviation of the other response, shape (pairs,).
        clusters: Index of each pair's cluster; None if every pair is independent.
    """
    zeros = np.zeros(len(margins))
    confidence = probability_of_higher_score(np.abs(margins), better_stds, zeros, other_stds)
    credit = (np.sign(margins) + 1) / 2
    gap = mean_interval(confidence - credit, clusters, comparisons=2)
    return reliability(confidence, credit, clusters), gap


def uncertainty(
    examples: Sequence[BenchmarkRow], scores: Sequence[Scores], items: Ints
) -> Uncertainty | None:
    """Return the calibration of a judge's stated deviations on a benchmark's rows.

    Each best response of a row is compared with each other response. The result is None if the
    judge states no deviations, or no row has usable ones. A row is left out if a score or a
    deviation is not finite, or a deviation is negative.

    Args:
        examples: The rows of the benchmark.
        scores: The judge's scores of each row, in the same order.
        items: The code of each row's item from `items_of`, shape (rows,).
    """
    # One number for each response of the usable rows.
    means: list[float] = []
    stds: list[float] = []
    true_scores: list[float] = []
    items_of_responses: list[int] = []
    rows_of_responses: list[int] = []
    # Indices into these lists, one for each comparison.
    better: list[int] = []
    others: list[int] = []
    num_left_out = 0
    for row, (example, row_scores) in enumerate(zip(examples, scores, strict=True)):
        row_stds = row_scores.attributes.get(STD)
        if row_stds is None or not _are_usable(row_scores.values, row_stds):
            num_left_out += 1
            continue
        for better_index, other_index in product(best_indices(example), other_indices(example)):
            better.append(len(means) + better_index)
            others.append(len(means) + other_index)
        num_responses = len(example.responses)
        means += row_scores.values
        stds += row_stds
        true_scores += example.true_scores or (math.nan,) * num_responses
        items_of_responses += [int(items[row])] * num_responses
        rows_of_responses += [row] * num_responses
    if not better:
        return None

    mean_array = np.array(means)
    std_array = np.array(stds)
    clusters = np.array(items_of_responses)
    calibration, gap = pair_uncertainty(
        margins=mean_array[better] - mean_array[others],
        better_stds=std_array[better],
        other_stds=std_array[others],
        clusters=clusters[better],
    )
    return Uncertainty(
        n=len(better),
        left_out=num_left_out,
        mean_std=float(std_array.mean()),
        reliability=calibration,
        overconfidence=gap.mean,
        overconfidence_low=gap.low,
        overconfidence_high=gap.high,
        coverage=coverage(
            mean_array, std_array, np.array(true_scores), clusters, np.array(rows_of_responses)
        ),
    )


def _are_usable(values: Sequence[float], stds: Sequence[float]) -> bool:
    """Return True if all scores and deviations are finite, and no deviation is negative."""
    are_finite = all(map(math.isfinite, (*values, *stds)))
    return are_finite and min(stds, default=0.0) >= 0
