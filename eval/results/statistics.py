"""What is behind a score: agreement of orders and of votes, calibration, margins, and the pull of the longer response.

Pure functions on numpy arrays. A *credit* is what a row of the benchmark adds to the accuracy: 1 right, 0 wrong, 0.5 where ties
count half. A *margin* is score(better response) - score(other response). Intervals are those of
`mmrm.eval.results.intervals`, and `clusters` are numbers of rows that share an item, as described there.
"""

import math
from dataclasses import dataclass

import numpy as np

from mmrm.data.arrays import Floats, Ints
from mmrm.eval.results.intervals import Z95, accuracy_interval, student_quantile, sum_of_squares

DRAWS = 2000
"""Draws of a simulated distribution, by one fixed seed."""


@dataclass(frozen=True, slots=True)
class OrderConsistency:
    """What pairs of judgements of one row, each response shown first once, say about a judge."""

    pairs: int
    """Pairs of judgements in which both could be read."""
    consistent: int
    """Pairs that name the same response in both orders."""
    first: int
    """Pairs that name the response shown first in both orders."""
    second: int
    """Pairs that name the response shown second in both orders."""
    rate: float | None
    """The share of consistent pairs; None without a pair."""


def order_consistency(first_shown_first: Ints, second_shown_first: Ints) -> OrderConsistency:
    """Compare judgements of the same rows in both orders.

    Arguments: arrays of shape (pairs,) holding the response each judgement names: 0, 1, or -1 where it cannot be read;
    the first array is from judgements that show response 0 first, the second from those that show response 1 first.
    """
    read = (first_shown_first >= 0) & (second_shown_first >= 0)
    one, two = first_shown_first[read], second_shown_first[read]
    same = one == two
    return OrderConsistency(
        pairs=len(same),
        consistent=int(same.sum()),
        first=int((~same & (one == 0)).sum()),
        second=int((~same & (one == 1)).sum()),
        rate=float(same.mean()) if len(same) else None,
    )


def agreement(right: Ints, wrong: Ints) -> float | None:
    """Return the mean share of a row's readable votes that its majority holds; None if no row has a readable vote.

    Arguments: votes for the better response and for the other one, both of shape (n,). 0.5 is total disagreement.
    """
    total = right + wrong
    read = total > 0
    return float((np.maximum(right, wrong)[read] / total[read]).mean()) if read.any() else None


@dataclass(frozen=True, slots=True)
class Bin:
    """Rows that lie between two edges: how many, how many credits, and the accuracy's 95 % interval."""

    low_edge: float
    high_edge: float
    n: int
    mean: float | None
    """Mean of what was binned (a confidence, a log ratio of lengths); None for an empty bin."""
    accuracy: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Calibration:
    """How often the response of the higher score is the better one, against sigmoid(|margin|), which claims to say so."""

    ece: float
    """Expected calibration error: the mean gap between confidence and accuracy, weighted by rows."""
    bins: tuple[Bin, ...]
    low: float | None = None
    high: float | None = None
    """The 95 % interval of `ece`; None in results of earlier versions, or if all rows share one item."""
    floor: float | None = None
    """The mean `ece` of a perfectly calibrated judge with the same confidences on as many rows."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts between edges; `edges` is one longer than `counts`."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LengthBias:
    """How right and wrong answers depend on which response is longer."""

    slope: float | None
    """Change of accuracy for each doubling of length(better) / length(other), by least squares; None if the ratio is constant."""
    low: float | None
    high: float | None
    """The slope's 95 % interval, by standard errors that are robust to clusters and unequal variance (CR1, or HC1 without
    clusters)."""
    prefers_longer: float | None
    """Share of rows of unequal length in which the judge prefers the longer response."""
    longer_is_better: float | None
    """Share of the same rows in which it should."""
    bins: tuple[Bin, ...]
    """Accuracy by log2(length(better) / length(other)), equally many rows a bin."""


def calibration(
    margins: Floats, clusters: Ints | None = None, bins: int = 10
) -> Calibration | None:
    """Return how far sigmoid(|margin|) is from the share of rows whose higher score is the better response's.

    Returns None without rows. Source: Guo et al. 2017, section 2 (ECE).

    Args:
        margins: Finite margins of shape (n,). A margin of zero has confidence 0.5 and counts as half right.
        clusters: The number of each row's cluster; None if every row is independent.
        bins: Equally wide over confidences from 0.5 to 1.
    """
    if not len(margins):
        return None
    confidence = 1 / (1 + np.exp(-np.abs(np.asarray(margins, dtype=np.float64))))
    credit = (np.sign(margins) + 1) / 2
    edges = np.linspace(0.5, 1.0, bins + 1)
    filled = _bins(edges, confidence, credit, clusters)
    gaps = [abs((entry.mean or 0) - (entry.accuracy or 0)) * entry.n for entry in filled]
    ece = sum(gaps) / len(margins)
    bin_of_row = _bin_of_row(edges, confidence)
    low, high = ece_interval(ece, credit - confidence, bin_of_row, bins, clusters)
    return Calibration(ece, filled, low, high, ece_floor(confidence, bin_of_row, bins))


def ece_floor(confidence: Floats, bin_of_row: Ints, bins: int) -> float:
    """Return the mean calibration error of judges that are right exactly as often as their confidence claims.

    An error is a sum of absolute values, so that chance alone makes it positive: about 0.04 for 540 rows in ten bins.
    The number of right rows in a bin is taken for normal: E|gap| = √(2 / π) · σ, σ² being the sum of p (1 - p).
    """
    variances = np.bincount(bin_of_row, weights=confidence * (1 - confidence), minlength=bins)
    return float(math.sqrt(2 / math.pi) * np.sqrt(variances).sum() / len(confidence))


def ece_interval(
    ece: float, gap: Floats, bin_of_row: Ints, bins: int, clusters: Ints | None
) -> tuple[float | None, float | None]:
    """Return the 95 % interval of a calibration error; None if there are not two clusters.

    The error is the sum of the absolute values of the bins' mean gaps. Noise in these gaps, normal with their covariance over
    clusters, changes the sum by its own absolute sum at most, and raises it more often than not. The interval therefore
    reaches further down, by the 97.5 % quantile of the noise's absolute sum, than up, by the error of the signed sum. A bootstrap
    of the error itself misses a calibrated judge always: every resample adds noise to noise.

    Args:
        ece: The calibration error of all rows.
        gap: Credit minus confidence of each row, shape (n,).
        bin_of_row: The bin of each row, shape (n,).
        bins: Number of bins.
        clusters: The number of each row's cluster; None if every row is independent.
    """
    n = len(gap)
    codes = np.arange(n)
    if clusters is not None:
        _, codes = np.unique(clusters, return_inverse=True)
    count = int(codes.max()) + 1
    if count < 2:
        return None, None
    gaps_by_row = np.zeros((n, bins))
    gaps_by_row[np.arange(n), bin_of_row] = gap
    mean_gaps = gaps_by_row.mean(axis=0)
    sums = np.zeros((count, bins))
    np.add.at(sums, codes, gaps_by_row - mean_gaps)
    covariance = sums.T @ sums * count / (count - 1) / n**2
    generator = np.random.default_rng(0)
    noise = generator.multivariate_normal(np.zeros(bins), covariance, DRAWS, method="eigh")
    reach_down = float(np.quantile(np.abs(noise).sum(axis=1), 0.975))
    signs = np.sign(mean_gaps)
    variance = max(0.0, float(signs @ covariance @ signs))
    reach_up = student_quantile(count - 1) * math.sqrt(variance)
    return max(0.0, ece - reach_down), min(1.0, ece + reach_up)


def margin_histogram(margins: Floats, bins: int = 40) -> Histogram | None:
    """Return how many finite margins lie in each of `bins` equal parts of [-m, m], m the largest |margin|; None without rows."""
    if not len(margins):
        return None
    reach = float(np.abs(margins).max()) or 1.0
    counts, edges = np.histogram(
        np.asarray(margins, dtype=np.float64) / reach, bins=bins, range=(-1, 1)
    )
    return Histogram(tuple(map(float, edges * reach)), tuple(map(int, counts)))


def length_bias(
    better: Ints, other: Ints, credit: Floats, clusters: Ints | None = None, bins: int = 5
) -> LengthBias:
    """Return how the credit depends on the lengths of the two responses.

    Args:
        better: Characters of the better response, shape (n,).
        other: Characters of the other response, shape (n,).
        credit: Of rows with a verdict, 1 if the judge prefers the better response, 0 if the other, 0.5 for a tie.
        clusters: The number of each row's cluster; None if every row is independent.
        bins: Equally many rows each.
    """
    ratio = np.log2((better + 1) / (other + 1))
    unequal = better != other
    longer = (better > other)[unequal]
    prefers = np.where(longer, credit[unequal], 1 - credit[unequal])
    edges = np.quantile(ratio, np.linspace(0, 1, bins + 1)) if len(ratio) else np.zeros(bins + 1)
    slope, low, high = _slope(ratio, credit, clusters) or (None, None, None)
    return LengthBias(
        slope=slope,
        low=low,
        high=high,
        prefers_longer=float(prefers.mean()) if unequal.any() else None,
        longer_is_better=float(longer.mean()) if unequal.any() else None,
        bins=_bins(edges, ratio, credit, clusters),
    )


def _slope(
    x: Floats, y: Floats, clusters: Ints | None
) -> tuple[float, float | None, float | None] | None:
    """Return the least-squares slope of y on x and its 95 % interval over clusters (CR1); None if x does not vary."""
    n = len(x)
    if n < 3:
        return None
    centred = x - x.mean()
    spread = float((centred**2).sum())
    if spread == 0:
        return None
    slope = float((centred * y).sum() / spread)
    residual = y - y.mean() - slope * centred
    squares, count = sum_of_squares(centred * residual, clusters)
    if count < 2:
        return slope, None, None
    quantile = Z95 if count == n else student_quantile(count - 1)
    half_width = quantile * math.sqrt(squares * (n - 1) / (n - 2)) / spread
    return slope, slope - half_width, slope + half_width


def _bin_of_row(edges: Floats, values: Floats) -> Ints:
    """Return the index of the bin of each value; the last bin includes its upper edge."""
    return np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)


def _bins(edges: Floats, values: Floats, credit: Floats, clusters: Ints | None) -> tuple[Bin, ...]:
    """Return the rows by the bin of their value, with the accuracy of each bin."""
    bin_of_row = _bin_of_row(edges, values)
    found = []
    for index in range(len(edges) - 1):
        low_edge = float(edges[index])
        high_edge = float(edges[index + 1])
        inside = np.flatnonzero(bin_of_row == index)
        if not len(inside):
            found.append(Bin(low_edge, high_edge, 0, None, None, None, None))
            continue
        share = accuracy_interval(credit[inside], None if clusters is None else clusters[inside])
        mean = float(values[inside].mean())
        found.append(Bin(low_edge, high_edge, len(inside), mean, share.mean, share.low, share.high))
    return tuple(found)
