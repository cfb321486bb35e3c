"""What right and wrong answers are worth, and what is behind a score.

First intervals, paired differences, agreement of orders and of votes; then calibration, margins, and the pull of the longer
response. Pure functions on numpy arrays. A *credit* is what a row of the benchmark adds to the accuracy: 1 right, 0 wrong,
0.5 where ties count half. Credits of several runs of one recipe have the shape (seeds, rows): row i is the same row for every
seed. A *margin* is score(better response) - score(other response).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eval.protocol import Floats, Ints

Z95 = 1.959963984540054
"""The 97.5 % quantile of the standard normal distribution: two-sided 95 % intervals."""
RESAMPLES = 2000
"""Draws of a bootstrap, by one fixed seed."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How much more accurate one checkpoint is than another on the same rows, with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float

    @property
    def distinguishable(self) -> bool:
        """False where the interval holds zero: the rows at hand cannot tell the two apart."""
        return self.low > 0 or self.high < 0

    @property
    def words(self) -> str:
        """What the rows say about the first of the two."""
        if not self.distinguishable:
            return "not distinguishable"
        return "better" if self.mean > 0 else "worse"

    @property
    def points(self) -> str:
        """The difference and its interval in percentage points."""
        return f"{100 * self.mean:+.1f} [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"


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


def wilson(successes: float, n: int) -> tuple[float, float]:
    """Return Wilson's score interval of a share `successes / n` (Wilson 1927); (0, 1) for n = 0.

    `successes` may be fractional where ties count half; the interval is then that of the same share of whole successes.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}: required is 0 <= successes <= n.")
    if n == 0:
        return 0.0, 1.0
    share = successes / n
    scale = 1 + Z95**2 / n
    centre = (share + Z95**2 / (2 * n)) / scale
    half = Z95 / scale * math.sqrt(share * (1 - share) / n + Z95**2 / (4 * n * n))
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return low, high


def paired_bootstrap(first: Floats, second: Floats) -> Difference:
    """Return mean(first) - mean(second) with the 95 % percentile interval over resampled rows, and seeds if there are several.

    Arguments: the credits of two judges on the same rows in the same order, both of shape (rows,) or (seeds, rows). Exchanged,
    they give the mirrored interval: the resamples are those of the better one minus the other, or the mean of both ways.
    """
    if first.shape != second.shape:
        raise ValueError(
            f"the credits have shapes {first.shape} and {second.shape}; required are the same rows and seeds."
        )
    values = np.atleast_2d(np.asarray(first, dtype=np.float64) - second)
    mean, low, high = crossed_bootstrap(values)
    if mean > 0:
        return Difference(mean, low, high)
    mean_, low_, high_ = crossed_bootstrap(-values)
    return (
        Difference(-mean_, -high_, -low_)
        if mean < 0
        else Difference(0.0, (low - high_) / 2, (high - low_) / 2)
    )


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


def crossed_bootstrap(values: Floats) -> tuple[float, float, float]:
    """Return the mean of `values`, of shape (seeds, rows), with its 95 % percentile interval: mean, low, high.

    Each resample draws rows and, independently, seeds with replacement (the pigeonhole bootstrap of Owen 2007), so that the
    interval covers other rows of this kind and other seeds. A bootstrap over S seeds finds (S - 1) / S of their variance;
    the seeds' deviations from the mean are stretched by the root of S / (S - 1) to make up for it. With one seed the interval
    knows of rows only. Counting how often each distinct row of values comes up among n draws is one multinomial draw, so that
    a resample costs the number of distinct rows (mostly 3), not n.
    """
    if values.ndim != 2 or not values.size:
        raise ValueError(
            f"the values have shape {values.shape}; required is (seeds, rows), at least one of each."
        )
    seeds, rows = values.shape
    generator = np.random.default_rng(0)
    patterns, counts = np.unique(np.asarray(values, dtype=np.float64), axis=1, return_counts=True)
    by_seed = patterns @ counts / rows
    if seeds > 1:
        patterns = (
            patterns + (math.sqrt(seeds / (seeds - 1)) - 1) * (by_seed - by_seed.mean())[:, None]
        )
    drawn_rows = generator.multinomial(rows, counts / rows, size=RESAMPLES)
    drawn_seeds = generator.multinomial(seeds, np.full(seeds, 1 / seeds), size=RESAMPLES)
    means = ((drawn_seeds @ patterns) * drawn_rows).sum(axis=1) / (seeds * rows)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(by_seed.mean()), float(low), float(high)


def accuracy_over_seeds(credits: Floats) -> tuple[float, float, float]:
    """Return the mean accuracy of runs with these credits, of shape (seeds, rows), and its 95 % interval inside 0 … 1."""
    mean, low, high = crossed_bootstrap(credits)
    return mean, max(0.0, low), min(1.0, high)


def spread(accuracies: Floats) -> float | None:
    """Return the standard deviation of the seeds' accuracies, of shape (seeds,), with S - 1; None for a single seed."""
    return float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else None


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
    """The slope's 95 % interval, by heteroscedasticity-consistent standard errors (HC1)."""
    prefers_longer: float | None
    """Share of rows of unequal length in which the judge prefers the longer response."""
    longer_is_better: float | None
    """Share of the same rows in which it should."""
    bins: tuple[Bin, ...]
    """Accuracy by log2(length(better) / length(other)), equally many rows a bin."""


def calibration(margins: Floats, bins: int = 10) -> Calibration | None:
    """Return how far sigmoid(|margin|) is from the share of rows whose higher score is the better response's.

    Arguments: finite margins of shape (n,). Bins are equally wide over confidences from 0.5 to 1; a margin of zero has
    confidence 0.5 and counts as half right. Returns None without rows. Source: Guo et al. 2017, section 2 (ECE).
    """
    if not len(margins):
        return None
    confidence = 1 / (1 + np.exp(-np.abs(np.asarray(margins, dtype=np.float64))))
    credit = (np.sign(margins) + 1) / 2
    filled = _bins(np.linspace(0.5, 1.0, bins + 1), confidence, credit)
    gaps = [abs((entry.mean or 0) - (entry.accuracy or 0)) * entry.n for entry in filled]
    return Calibration(sum(gaps) / len(margins), filled)


def margin_histogram(margins: Floats, bins: int = 40) -> Histogram | None:
    """Return how many finite margins lie in each of `bins` equal parts of [-m, m], m the largest |margin|; None without rows."""
    if not len(margins):
        return None
    reach = float(np.abs(margins).max()) or 1.0
    counts, edges = np.histogram(
        np.asarray(margins, dtype=np.float64) / reach, bins=bins, range=(-1, 1)
    )
    return Histogram(tuple(map(float, edges * reach)), tuple(map(int, counts)))


def length_bias(better: Ints, other: Ints, credit: Floats, bins: int = 5) -> LengthBias:
    """Return how the credit depends on the lengths of the two responses.

    Arguments, all of shape (n,): length of the better response and of the other one (characters), and the credit of
    rows with a verdict: 1 if the judge prefers the better response, 0 if the other, 0.5 for a tie.
    """
    ratio = np.log2((better + 1) / (other + 1))
    unequal = better != other
    longer = (better > other)[unequal]
    prefers = np.where(longer, credit[unequal], 1 - credit[unequal])
    edges = np.quantile(ratio, np.linspace(0, 1, bins + 1)) if len(ratio) else np.zeros(bins + 1)
    slope, low, high = _slope(ratio, credit) or (None, None, None)
    return LengthBias(
        slope=slope,
        low=low,
        high=high,
        prefers_longer=float(prefers.mean()) if unequal.any() else None,
        longer_is_better=float(longer.mean()) if unequal.any() else None,
        bins=_bins(edges, ratio, credit),
    )


def _slope(x: Floats, y: Floats) -> tuple[float, float, float] | None:
    """Return the least-squares slope of y on x and its 95 % interval (HC1); None where x does not vary."""
    n = len(x)
    centred = x - x.mean() if n > 2 else np.zeros(1)
    spread = float((centred**2).sum())
    if spread == 0:
        return None
    slope = float((centred * y).sum() / spread)
    residual = y - y.mean() - slope * centred
    variance = float((centred**2 * residual**2).sum()) / spread**2 * n / (n - 2)
    error = math.sqrt(variance)
    return slope, slope - Z95 * error, slope + Z95 * error


def _bins(edges: Floats, value: Floats, credit: Floats) -> tuple[Bin, ...]:
    """Return the rows by where their value lies between the edges, the last bin with its upper edge."""
    place = np.clip(np.searchsorted(edges, value, side="right") - 1, 0, len(edges) - 2)
    found = []
    for index in range(len(edges) - 1):
        inside = place == index
        n = int(inside.sum())
        mean, accuracy = (float(of[inside].mean()) if n else None for of in (value, credit))
        low, high = wilson(float(credit[inside].sum()), n) if n else (None, None)
        found.append(
            Bin(float(edges[index]), float(edges[index + 1]), n, mean, accuracy, low, high)
        )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Correlation:
    """How two figures of the same models go together, each with its 95 % interval."""

    models: int
    pearson: tuple[float, float, float]
    """The coefficient, low, high."""
    spearman: tuple[float, float, float]
    """Of the ranks, equal values sharing their mean rank."""


def correlation(x: Floats, y: Floats, clusters: Sequence[str]) -> Correlation | None:
    """Return how x and y, both of shape (models,), go together; None where one of them is the same for all models.

    The interval is that of a bootstrap over `clusters`, models that are alike (seeds of one recipe): they are drawn together.
    Draws in which a figure does not vary say nothing and are left out.
    """
    point = _coefficients(x, y)
    if point is None:
        return None
    names = sorted(set(clusters))
    members = [np.flatnonzero(np.array(clusters) == name) for name in names]
    generator = np.random.default_rng(0)
    drawn = [
        np.concatenate([members[i] for i in generator.integers(len(names), size=len(names))])
        for _ in range(RESAMPLES)
    ]
    found = [one for rows in drawn if (one := _coefficients(x[rows], y[rows])) is not None]
    low, high = np.percentile(found, [2.5, 97.5], axis=0)
    pearson, spearman = (
        (float(a), float(b), float(c)) for a, b, c in zip(point, low, high, strict=True)
    )
    return Correlation(len(x), pearson, spearman)


def _coefficients(x: Floats, y: Floats) -> tuple[float, float] | None:
    """Return Pearson's and Spearman's coefficient; None where a figure does not vary."""
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return float(np.corrcoef(x, y)[0, 1]), float(np.corrcoef(_ranks(x), _ranks(y))[0, 1])


def _ranks(values: Floats) -> Floats:
    """Return the rank of each value; equal ones share the mean of their ranks."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    shared: Floats = ((last - counts + last - 1) / 2)[group]
    return shared
