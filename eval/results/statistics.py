"""Statistics that explain an accuracy: agreement, calibration, margins and length bias.

These are pure functions on numpy arrays. A *credit* is the number that a row of the benchmark adds
to the accuracy: 1 right, 0 wrong, 0.5 for a tie that counts half. A *margin* is score(better
response) - score(other response). Intervals are those of `mmrm.eval.results.intervals`, and
`clusters` are the indices of the rows' clusters, as described there.
"""

import math
from dataclasses import dataclass

import numpy as np

from mmrm.data.arrays import Floats, Ints
from mmrm.eval.results.intervals import (
    Z95,
    Estimate,
    accuracy_interval,
    mean_interval,
    student_quantile,
    sum_of_squares,
)

NUM_DRAWS = 2000
"""Number of draws of a simulated distribution, with a fixed seed."""


@dataclass(frozen=True, slots=True)
class OrderConsistency:
    """Counts of pairs of judgements: two on the same row, one in each order of the responses."""

    pairs: int
    """Number of pairs in which both judgements could be read."""
    consistent: int
    """Number of pairs that name the same response in both orders."""
    first: int
    """Number of pairs that name the response shown first in both orders."""
    second: int
    """Number of pairs that name the response shown second in both orders."""
    rate: float | None
    """The share of consistent pairs; None without a pair."""


def order_consistency(first_shown_first: Ints, second_shown_first: Ints) -> OrderConsistency:
    """Count how often judgements of the same rows agree in both orders of the responses.

    Both arrays have the shape (pairs,) and hold the response that each judgement names: 0, 1, or -1
    if it cannot be read.

    Args:
        first_shown_first: Judgements that show response 0 first.
        second_shown_first: Judgements that show response 1 first.
    """
    is_readable = (first_shown_first >= 0) & (second_shown_first >= 0)
    named = first_shown_first[is_readable]
    named_in_other_order = second_shown_first[is_readable]
    is_consistent = named == named_in_other_order
    # An inconsistent pair names the same position twice. If it names response 0 when that is shown
    # first, it names response 1 when that is shown first.
    names_first = ~is_consistent & (named == 0)
    names_second = ~is_consistent & (named == 1)
    return OrderConsistency(
        pairs=len(is_consistent),
        consistent=int(is_consistent.sum()),
        first=int(names_first.sum()),
        second=int(names_second.sum()),
        rate=float(is_consistent.mean()) if len(is_consistent) else None,
    )


def agreement(right: Ints, wrong: Ints) -> float | None:
    """Return the mean share of a row's readable votes that agree with its majority.

    0.5 is total disagreement. The result is None if no row has a readable vote.

    Args:
        right: Number of votes for the better response, shape (rows,).
        wrong: Number of votes for the other response, shape (rows,).
    """
    num_votes = right + wrong
    is_readable = num_votes > 0
    if not is_readable.any():
        return None
    majority = np.maximum(right, wrong)[is_readable]
    return float((majority / num_votes[is_readable]).mean())


@dataclass(frozen=True, slots=True)
class Bin:
    """The rows with values between two edges, and their accuracy with its 95 % interval."""

    low_edge: float
    high_edge: float
    n: int
    mean: float | None
    """Mean of the values (a confidence, a log ratio of lengths); None for an empty bin."""
    accuracy: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Calibration:
    """A comparison of a judge's confidence with its accuracy.

    The accuracy is the share of rows in which the better response has the higher score. The
    confidence in a row is the probability with which the judge expects this: sigmoid(|margin|), or
    for a judge that states standard deviations the probability that follows from them
    (`mmrm.eval.results.uncertainty`), or for soft verdicts the probability itself.
    """

    ece: float
    """Expected calibration error: the mean gap between confidence and accuracy, weighted by
    rows."""
    bins: tuple[Bin, ...]
    low: float | None = None
    high: float | None = None
    """The 95 % interval of `ece`; None in results of earlier versions, or if all rows share one
    item."""
    floor: float | None = None
    """The mean `ece` of a perfectly calibrated judge with the same confidences on as many rows."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts between edges; `edges` is one longer than `counts`."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LengthBias:
    """The dependence of a judge's verdicts on which response is longer."""

    slope: float | None
    """Change of accuracy for each doubling of length(better) / length(other), by least squares;
    None if the ratio is constant."""
    low: float | None
    high: float | None
    """The slope's 95 % interval, by standard errors that are robust to clusters and unequal
    variance (CR1, or HC1 without clusters)."""
    prefers_longer: float | None
    """Share of rows of unequal length in which the judge prefers the longer response."""
    longer_is_better: float | None
    """Share of the same rows in which the longer response is the better one."""
    bins: tuple[Bin, ...]
    """Accuracy by log2(length(better) / length(other)), with equally many rows in each bin."""


def calibration(
    margins: Floats, clusters: Ints | None = None, bins: int = 10
) -> Calibration | None:
    """Compare a judge's confidence with its accuracy (Guo et al. 2017, section 2).

    The confidence in a row is sigmoid(|margin|). The judge is right if the margin is positive. The
    result is None without rows.

    Args:
        margins: score(better response) - score(other response) of each row, finite, shape (rows,).
            A margin of zero has confidence 0.5 and counts as half right.
        clusters: Index of each row's cluster; None if every row is independent.
        bins: Number of bins, equally wide over confidences from 0.5 to 1.
    """
    if not len(margins):
        return None
    confidence = 1 / (1 + np.exp(-np.abs(np.asarray(margins, dtype=np.float64))))
    credit = (np.sign(margins) + 1) / 2
    return reliability(confidence, credit, clusters, bins)


def reliability(
    confidence: Floats, credit: Floats, clusters: Ints | None = None, bins: int = 10
) -> Calibration:
    """Compare confidences with accuracies in bins (Guo et al. 2017, section 2).

    Args:
        confidence: The probability, from 0.5 to 1, with which the judge expects to be right in each
            row, shape (rows,). Required is at least one row.
        credit: Credit of each row, shape (rows,): 1 if the judge is right, 0 if it is wrong.
        clusters: Index of each row's cluster; None if every row is independent.
        bins: Number of bins, equally wide over confidences from 0.5 to 1.
    """
    edges = np.linspace(0.5, 1.0, bins + 1)
    calibration_bins = _bins(edges, confidence, credit, clusters)
    weighted_gaps: list[float] = []
    for calibration_bin in calibration_bins:
        if calibration_bin.mean is not None and calibration_bin.accuracy is not None:
            gap = abs(calibration_bin.mean - calibration_bin.accuracy)
            weighted_gaps.append(gap * calibration_bin.n)
    ece = sum(weighted_gaps) / len(confidence)
    bin_of_row = _bin_of_row(edges, confidence)
    low, high = ece_interval(ece, credit - confidence, bin_of_row, bins, clusters)
    floor = ece_floor(confidence, bin_of_row, bins)
    return Calibration(ece, calibration_bins, low, high, floor)


def ece_floor(confidence: Floats, bin_of_row: Ints, bins: int) -> float:
    """Return the calibration error that a perfectly calibrated judge has on average.

    The error is a sum of absolute values, so that chance alone makes it positive: about 0.04 for
    540 rows in ten bins. The number of right rows in a bin is treated as normally distributed. The
    mean absolute gap of a bin is then √(2 / π) · σ, in which σ² is the sum of p (1 - p) over its
    rows, and p is the confidence.

    Args:
        confidence: Confidence of each row, shape (rows,).
        bin_of_row: The bin of each row, shape (rows,).
        bins: Number of bins.
    """
    variances = np.bincount(bin_of_row, weights=confidence * (1 - confidence), minlength=bins)
    return float(math.sqrt(2 / math.pi) * np.sqrt(variances).sum() / len(confidence))


def ece_interval(
    ece: float, gap: Floats, bin_of_row: Ints, bins: int, clusters: Ints | None
) -> tuple[float | None, float | None]:
    """Return the 95 % interval of a calibration error; (None, None) for fewer than two clusters.

    The error is the sum of the absolute values of the bins' mean gaps. Noise in the gaps raises
    this sum more often than it lowers it, so the low end is further away from the error than the
    high end.

    - The low end is lower by the 97.5 % quantile of the sum of the noise's absolute values. Noise
      cannot change the error by more than this sum.
    - The high end is higher by the error of the sum in which each gap keeps its sign.

    The noise is normally distributed, with the covariance of the gaps over clusters. A bootstrap of
    the error would always miss a calibrated judge, because every resample adds further noise.

    Args:
        ece: The calibration error of all rows.
        gap: Credit minus confidence of each row, shape (rows,).
        bin_of_row: The bin of each row, shape (rows,).
        bins: Number of bins.
        clusters: Index of each row's cluster; None if every row is independent.
    """
    num_rows = len(gap)
    cluster_of_row = np.arange(num_rows)
    if clusters is not None:
        _, cluster_of_row = np.unique(clusters, return_inverse=True)
    num_clusters = int(cluster_of_row.max()) + 1
    if num_clusters < 2:
        return None, None

    # The covariance of the bins' mean gaps, shape (bins, bins). A row is 0 in all bins but its own.
    gaps_by_row = np.zeros((num_rows, bins))
    gaps_by_row[np.arange(num_rows), bin_of_row] = gap
    mean_gaps = gaps_by_row.mean(axis=0)
    cluster_deviations = np.zeros((num_clusters, bins))
    np.add.at(cluster_deviations, cluster_of_row, gaps_by_row - mean_gaps)
    covariance = cluster_deviations.T @ cluster_deviations
    covariance = covariance * num_clusters / (num_clusters - 1) / num_rows**2

    # Noise of each bin's mean gap, shape (draws, bins), drawn with a fixed seed.
    generator = np.random.default_rng(0)
    noise = generator.multivariate_normal(np.zeros(bins), covariance, NUM_DRAWS, method="eigh")
    reach_down = float(np.quantile(np.abs(noise).sum(axis=1), 0.975))
    signs = np.sign(mean_gaps)
    variance = max(0.0, float(signs @ covariance @ signs))
    reach_up = student_quantile(num_clusters - 1) * math.sqrt(variance)
    return max(0.0, ece - reach_down), min(1.0, ece + reach_up)


def area_under_curve(margins: Floats, clusters: Ints | None = None) -> Estimate:
    """Return the area under the ROC curve of margins (AUC), with its 95 % interval over clusters.

    Each pair is two cases: its margin, which the better response should have, and the negative of
    it, which the other response has. The area is the probability that the margin of a pair drawn at
    random is above the negative margin of another such draw (half of it if they are equal). It does
    not change if all margins are multiplied by a positive number, so that judges whose scores have
    different units can be compared. Unlike the accuracy, it is higher if wrong margins are smaller
    than right ones. It is 0.5 by chance.

    The interval is that of the mean of each pair's own share (the first-order term of the
    U-statistic).

    Args:
        margins: score(better response) - score(other response), finite, shape (pairs,), at least
            one.
        clusters: Index of each pair's cluster; None if every pair is independent.
    """
    negative = np.sort(-margins)
    num_below = np.searchsorted(negative, margins, side="left")
    num_not_above = np.searchsorted(negative, margins, side="right")
    # Of each pair: the share of negative margins that are below its margin, ties half.
    shares = (num_below + num_not_above) / 2 / len(margins)
    area = float(shares.mean())
    estimate = mean_interval(2 * shares - area, clusters)
    if estimate.low is None or estimate.high is None:
        return estimate
    return Estimate(area, max(0.0, estimate.low), min(1.0, estimate.high))


def margin_histogram(margins: Floats, bins: int = 40) -> Histogram | None:
    """Return the number of margins in each of `bins` equal parts of [-m, m]; None without rows.

    m is the largest |margin|. `margins` are finite, shape (rows,).
    """
    if not len(margins):
        return None
    largest = float(np.abs(margins).max()) or 1.0  # any width will do if all margins are 0
    relative = np.asarray(margins, dtype=np.float64) / largest
    counts, edges = np.histogram(relative, bins=bins, range=(-1, 1))
    return Histogram(tuple(map(float, edges * largest)), tuple(map(int, counts)))


def length_bias(
    better: Ints, other: Ints, credit: Floats, clusters: Ints | None = None, bins: int = 5
) -> LengthBias:
    """Measure the dependence of a judge's verdicts on the lengths of the two responses.

    Args:
        better: Number of characters of the better response, shape (rows,).
        other: Number of characters of the other response, shape (rows,).
        credit: Credit of each row with a verdict, shape (rows,): 1 if the judge prefers the better
            response, 0 if it prefers the other, 0.5 for a tie.
        clusters: Index of each row's cluster; None if every row is independent.
        bins: Number of bins, with equally many rows in each.
    """
    log_ratio = np.log2((better + 1) / (other + 1))  # + 1 because a response may be empty
    edges = np.zeros(bins + 1)
    if len(log_ratio):
        edges = np.quantile(log_ratio, np.linspace(0, 1, bins + 1))
    is_unequal = better != other
    prefers_longer = None
    longer_is_better = None
    if is_unequal.any():
        better_is_longer = (better > other)[is_unequal]
        credit_of_better = credit[is_unequal]
        credit_of_longer = np.where(better_is_longer, credit_of_better, 1 - credit_of_better)
        prefers_longer = float(credit_of_longer.mean())
        longer_is_better = float(better_is_longer.mean())
    slope = _slope(log_ratio, credit, clusters)
    return LengthBias(
        slope=slope.value,
        low=slope.low,
        high=slope.high,
        prefers_longer=prefers_longer,
        longer_is_better=longer_is_better,
        bins=_bins(edges, log_ratio, credit, clusters),
    )


@dataclass(frozen=True, slots=True)
class _Slope:
    """A least-squares slope and its 95 % interval; None if they do not exist."""

    value: float | None
    low: float | None
    high: float | None


def _slope(x: Floats, y: Floats, clusters: Ints | None) -> _Slope:
    """Return the least-squares slope of y on x, with its interval over clusters (CR1).

    There is no slope for fewer than three rows or if x does not vary, and no interval for fewer
    than two clusters.

    Args:
        x: Shape (rows,).
        y: Shape (rows,).
        clusters: Index of each row's cluster; None if every row is independent.
    """
    n = len(x)
    if n < 3:
        return _Slope(None, None, None)
    x_deviations = x - x.mean()
    x_squares = float((x_deviations**2).sum())
    if x_squares == 0:
        return _Slope(None, None, None)
    slope = float((x_deviations * y).sum() / x_squares)
    residuals = y - y.mean() - slope * x_deviations
    squares, num_clusters = sum_of_squares(x_deviations * residuals, clusters)
    if num_clusters < 2:
        return _Slope(slope, None, None)
    quantile = Z95 if num_clusters == n else student_quantile(num_clusters - 1)
    # n - 2 degrees of freedom, because a slope and a mean were fitted
    half_width = quantile * math.sqrt(squares * (n - 1) / (n - 2)) / x_squares
    return _Slope(slope, slope - half_width, slope + half_width)


def _bin_of_row(edges: Floats, values: Floats) -> Ints:
    """Return the index of the bin of each value; the last bin includes its upper edge."""
    return np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)


def _bins(edges: Floats, values: Floats, credit: Floats, clusters: Ints | None) -> tuple[Bin, ...]:
    """Divide rows into bins by a value, and return the accuracy of the rows in each bin.

    Args:
        edges: Ascending edges of the bins, shape (bins + 1,).
        values: The value of each row by which it is binned, shape (rows,).
        credit: Credit of each row, shape (rows,).
        clusters: Index of each row's cluster; None if every row is independent.
    """
    bin_of_row = _bin_of_row(edges, values)
    filled_bins: list[Bin] = []
    for index in range(len(edges) - 1):
        low_edge = float(edges[index])
        high_edge = float(edges[index + 1])
        rows = np.flatnonzero(bin_of_row == index)
        if not len(rows):
            filled_bins.append(Bin(low_edge, high_edge, 0, None, None, None, None))
            continue
        clusters_of_rows = None if clusters is None else clusters[rows]
        accuracy = accuracy_interval(credit[rows], clusters_of_rows)
        filled_bins.append(
            Bin(
                low_edge=low_edge,
                high_edge=high_edge,
                n=len(rows),
                mean=float(values[rows].mean()),
                accuracy=accuracy.mean,
                low=accuracy.low,
                high=accuracy.high,
            )
        )
    return tuple(filled_bins)
