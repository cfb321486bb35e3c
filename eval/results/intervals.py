"""Intervals of shares, means and differences: over rows, over rows that share an item, and over trainings.

A *credit* is what a row adds to an accuracy: 1 if it is right, 0 if it is wrong, 0.5 for a tie that counts half. Rows that share
an image or belong to one item of a benchmark form a *cluster*: judges are right or wrong on them together, so they are worth
less than as many independent rows. Credits of several trainings of one recipe have the shape (seeds, rows), and column i is the
same row for every seed.

Every interval has two sides and is nominally at 95 %. `tests/eval/results/test_coverage.py` simulates how often each one holds
the true value, and prints how wide it is.
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from mmrm.data.arrays import Floats, Ints
from mmrm.data.display.format import interval, signed_points

Z95 = 1.959963984540054
"""The 97.5 % quantile of the standard normal distribution, for two-sided 95 % intervals."""
LEAST_SEEDS = 3
"""Trainings that an interval over trainings needs. Two of them say almost nothing about how far trainings differ: Student's
quantile for two is 12.7."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % interval; both ends are None if there are too few trainings or items for an interval."""

    mean: float
    low: float | None
    high: float | None

    @property
    def percent(self) -> str:
        """The mean and its interval in percent."""
        return interval(self.mean, self.low, self.high)

    @property
    def plain(self) -> dict[str, float | None]:
        """The estimate as it is stored."""
        return {"mean": self.mean, "low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean of one judge, policy or recipe minus that of another one on the same rows.

    The interval is at 95 % for all comparisons of a table together. Both ends are None if there are fewer than `LEAST_SEEDS`
    trainings of either recipe.
    """

    mean: float
    low: float | None
    high: float | None

    @property
    def distinguishable(self) -> bool:
        """True if there is an interval and it excludes zero."""
        if self.low is None or self.high is None:
            return False
        return self.low > 0 or self.high < 0

    @property
    def words(self) -> str:
        """What the interval says about the first of the two."""
        if self.low is None:
            return "too few seeds"
        if not self.distinguishable:
            return "not distinguishable"
        return "better" if self.mean > 0 else "worse"

    @property
    def points(self) -> str:
        """The difference and its interval in percentage points."""
        return interval(self.mean, self.low, self.high, signed_points)


def wilson(successes: float, n: float, quantile: float = Z95) -> tuple[float, float]:
    """Return Wilson's score interval of a share `successes / n` (Wilson 1927); (0, 1) for n = 0.

    Args:
        successes: May be fractional where ties count half; the interval is that of the same share of whole successes.
        n: Independent rows. An effective number of rows need not be whole.
        quantile: Of the standard normal distribution, or Student's if the variance is estimated from few clusters.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}: required is 0 <= successes <= n.")
    if n == 0:
        return 0.0, 1.0
    share = successes / n
    scale = 1 + quantile**2 / n
    centre = (share + quantile**2 / (2 * n)) / scale
    half_width = quantile / scale * math.sqrt(share * (1 - share) / n + quantile**2 / (4 * n * n))
    low = 0.0 if successes == 0 else max(0.0, centre - half_width)
    high = 1.0 if successes == n else min(1.0, centre + half_width)
    return low, high


def student_quantile(degrees: float, comparisons: int = 1) -> float:
    """Return the quantile of Student's t distribution for two-sided intervals that hold with 95 % together.

    Several comparisons share the 5 % equally (Bonferroni), which holds however they depend on each other.
    """
    return float(stdtrit(degrees, 1 - 0.025 / comparisons))


def cluster_codes(names_by_row: Sequence[Iterable[Hashable]]) -> Ints:
    """Return the number of each row's cluster, shape (rows,): rows that share a name, also by way of others, are one cluster.

    Rows with the names {a}, {a, b}, {b} and {c} have the codes 0, 0, 0 and 1. A row without names is a cluster of its own.
    """
    parents = list(range(len(names_by_row)))

    def root(row: int) -> int:
        while parents[row] != row:
            parents[row] = parents[parents[row]]
            row = parents[row]
        return row

    first_row_by_name: dict[Hashable, int] = {}
    for row, names in enumerate(names_by_row):
        for name in names:
            other = first_row_by_name.setdefault(name, row)
            parents[root(row)] = root(other)
    roots = np.array([root(row) for row in range(len(parents))], dtype=np.int64)
    _, codes = np.unique(roots, return_inverse=True)
    return codes


def sum_of_squares(deviations: Floats, clusters: Ints | None = None) -> tuple[float, int]:
    """Return n² times the variance of the mean of rows with these deviations from it, and the number of clusters.

    This is the cluster-robust variance with its usual correction G / (G - 1) for G clusters (CR1; Cameron and Miller 2015,
    section II). It is at least what independent rows would give: clusters of which rows differ more than between clusters are
    taken for chance. Required are two clusters or more.
    """
    n = len(deviations)
    independent = float((deviations**2).sum()) * n / (n - 1)
    if clusters is None:
        return independent, n
    _, codes = np.unique(clusters, return_inverse=True)
    sums = np.bincount(codes, weights=deviations)
    count = len(sums)
    if count < 2:
        return math.inf, count
    clustered = float((sums**2).sum()) * count / (count - 1)
    return max(independent, clustered), count


def effective_rows(credits: Floats, clusters: Ints | None = None) -> tuple[float, int]:
    """Return how many independent right or wrong rows would tell as much of a share as these, and the number of clusters.

    It is share · (1 - share) / variance (Korn and Graubard 1998). Without any variance it is the number of clusters: a hundred
    right answers to questions on one image are one observation.
    """
    n = len(credits)
    share = float(credits.mean())
    if n < 2:
        return float(n), n
    squares, count = sum_of_squares(credits - share, clusters)
    variance = squares / n**2
    if variance == 0:
        return float(count), count
    return share * (1 - share) / variance, count


def share_interval(credits: Floats, clusters: Ints | None = None) -> Estimate:
    """Return a mean of credits from 0 to 1, shape (rows,), with Wilson's interval for the effective number of rows.

    Unlike mean ± t · error it holds for shares near 0 and 1 and for few clusters: Dean and Pagano 2015 compare the two for
    clustered rows. Rows of one cluster say nothing about other items, so the interval is then 0 to 1.
    """
    _refuse_empty(credits)
    mean = float(credits.mean())
    rows, count = effective_rows(credits, clusters)
    if count < 2 or rows == 0:
        return Estimate(mean, 0.0, 1.0)
    low, high = wilson(min(mean, 1.0) * rows, rows, student_quantile(count - 1))
    return Estimate(mean, low, high)


def accuracy_interval(credits: Floats, clusters: Ints | None = None) -> Estimate:
    """Return the accuracy of rows with its interval: Wilson's of all rows, or `share_interval` if some rows share an item.

    Wilson's interval of all rows is a little wide where ties count half.
    """
    _refuse_empty(credits)
    n = len(credits)
    if clusters is not None and len(np.unique(clusters)) < n:
        return share_interval(credits, clusters)
    low, high = wilson(float(credits.sum()), n)
    return Estimate(float(credits.mean()), low, high)


def mean_interval(values: Floats, clusters: Ints | None = None, comparisons: int = 1) -> Estimate:
    """Return a mean of unbounded values, such as scores, of shape (rows,), with Student's interval over clusters of rows."""
    _refuse_empty(values)
    n = len(values)
    mean = float(values.mean())
    if n < 2:
        return Estimate(mean, None, None)
    squares, count = sum_of_squares(values - mean, clusters)
    if count < 2:
        return Estimate(mean, None, None)
    half_width = student_quantile(count - 1, comparisons) * math.sqrt(squares) / n
    return Estimate(mean, mean - half_width, mean + half_width)


def paired_difference(
    first: Floats, second: Floats, clusters: Ints | None = None, comparisons: int = 1
) -> Difference:
    """Return mean(first) - mean(second) of the credits of two judges on the same rows, with its interval over rows.

    It speaks of these two judges, not of the recipes that they were trained by. One row that speaks for either is added to the
    variance (Agresti and Min 2005): two judges that agree on all of 100 rows may still differ on others.

    Args:
        first: Credits from 0 to 1 of shape (rows,).
        second: Credits of the same rows in the same order.
        clusters: The number of each row's cluster; None if every row is independent.
        comparisons: Differences that are read together; the interval is at 95 % for all of them.
    """
    if first.shape != second.shape:
        raise ValueError(
            f"the credits have shapes {first.shape} and {second.shape}; required are the same rows."
        )
    _refuse_empty(first)
    n = len(first)
    differences = np.asarray(first, dtype=np.float64) - second
    mean = float(differences.mean())
    if n < 2:
        return Difference(mean, -1.0, 1.0)
    squares, count = sum_of_squares(differences - mean, clusters)
    if count < 2:
        return Difference(mean, -1.0, 1.0)
    half_width = student_quantile(count - 1, comparisons) * math.sqrt(squares + 1) / n
    return Difference(mean, max(-1.0, mean - half_width), min(1.0, mean + half_width))


@dataclass(frozen=True, slots=True)
class _Parts:
    """Parts of the variance of a mean over seeds and rows."""

    mean: float
    rows: Floats
    """Mean over the seeds of each row, shape (rows,)."""
    seeds: float
    """The part of the seeds, with the chance of each single answer."""
    answers: float
    """The part of the chance of each single answer, which is in the part of the rows too."""
    num_seeds: int


def _parts(values: Floats, clusters: Ints | None) -> _Parts:
    """Return the parts of the variance of the mean of `values`, shape (seeds, rows), at least two of each."""
    num_seeds, num_rows = values.shape
    by_seed = values.mean(axis=1)
    by_row = values.mean(axis=0)
    mean = float(by_row.mean())
    seeds = float(by_seed.var(ddof=1)) / num_seeds
    answers = 0.0
    for deviations in values - by_seed[:, None] - by_row + mean:
        squares, count = sum_of_squares(deviations, clusters)
        answers += squares if count > 1 else 0.0
    answers /= (num_seeds - 1) * num_seeds * num_rows**2
    return _Parts(mean, by_row, seeds, answers, num_seeds)


def _half_width(
    seeds: float,
    degrees: float,
    rows: Floats,
    answers: float,
    clusters: Ints | None,
    comparisons: int,
    added_squares: float = 0.0,
) -> float:
    """Return half the width of an interval over seeds and rows.

    The parts of seeds and of rows are added with their own quantiles, t² · seeds + t² · (rows - answers): the simplest of the
    estimators that the simulation compares which holds with three seeds whether seeds differ much or not at all.
    Subtracting the chance of single answers keeps it from being counted twice. Seeds may be equally accurate by chance,
    so the interval is at least that over the rows alone, to whose squares `added_squares` are added.
    """
    squares, count = sum_of_squares(rows - rows.mean(), clusters)
    if count < 2:
        return math.inf
    row_quantile = student_quantile(count - 1, comparisons)
    of_rows = max(0.0, squares / len(rows) ** 2 - answers) * row_quantile**2
    of_seeds = seeds * student_quantile(degrees, comparisons) ** 2
    over_rows_alone = row_quantile * math.sqrt(squares + added_squares) / len(rows)
    return max(math.sqrt(of_seeds + of_rows), over_rows_alone)


def mean_over_seeds(values: Floats, clusters: Ints | None = None, comparisons: int = 1) -> Estimate:
    """Return the mean of values of shape (seeds, rows) with an interval for other trainings and other rows of this kind.

    The interval is None with fewer than `LEAST_SEEDS` seeds or two rows: print each seed's value instead.
    """
    if values.ndim != 2 or not values.size:
        raise ValueError(
            f"the values have shape {values.shape}; required is (seeds, rows), at least one of each."
        )
    num_seeds, num_rows = values.shape
    if num_seeds < LEAST_SEEDS or num_rows < 2:
        return Estimate(float(values.mean()), None, None)
    parts = _parts(values, clusters)
    half_width = _half_width(
        parts.seeds, num_seeds - 1, parts.rows, parts.answers, clusters, comparisons
    )
    if math.isinf(half_width):
        return Estimate(parts.mean, None, None)
    return Estimate(parts.mean, parts.mean - half_width, parts.mean + half_width)


def accuracy_over_seeds(credits: Floats, clusters: Ints | None = None) -> Estimate:
    """Return `mean_over_seeds` of credits, with an interval inside 0 to 1 that holds the one over rows alone.

    Three trainings that answer all of 50 rows right may still be wrong on others.
    """
    found = mean_over_seeds(credits, clusters)
    if found.low is None or found.high is None:
        return found
    over_rows = share_interval(credits.mean(axis=0), clusters)
    assert over_rows.low is not None, "a share has an interval"
    assert over_rows.high is not None, "a share has an interval"
    low = min(found.low, over_rows.low)
    high = max(found.high, over_rows.high)
    return Estimate(found.mean, max(0.0, low), min(1.0, high))


def difference_over_seeds(
    first: Floats, second: Floats, clusters: Ints | None = None, comparisons: int = 1
) -> Difference:
    """Return mean(first) - mean(second) of two recipes with an interval for other trainings and other rows.

    Rows are paired. Trainings are not: seed 0 of two recipes shares a number, so the spreads of both are added, with
    Satterthwaite's degrees of freedom (Welch 1947).

    Args:
        first: Credits of shape (seeds, rows).
        second: Credits of the same rows; the number of seeds may be another one.
        clusters: The number of each row's cluster; None if every row is independent.
        comparisons: Differences that are read together; the interval is at 95 % for all of them.
    """
    if first.ndim != 2 or second.ndim != 2 or first.shape[1] != second.shape[1]:
        raise ValueError(
            f"the credits have shapes {first.shape} and {second.shape}; required are (seeds, rows), the same rows in both."
        )
    if not first.size or not second.size:
        raise ValueError("there are no credits; required are at least one seed and one row.")
    mean = float(first.mean() - second.mean())
    if min(len(first), len(second)) < LEAST_SEEDS or first.shape[1] < 2:
        return Difference(mean, None, None)
    one = _parts(first, clusters)
    other = _parts(second, clusters)
    seeds = one.seeds + other.seeds
    degrees = float(one.num_seeds + other.num_seeds - 2)
    if seeds > 0:
        squares = one.seeds**2 / (one.num_seeds - 1) + other.seeds**2 / (other.num_seeds - 1)
        degrees = seeds**2 / squares
    half_width = _half_width(
        seeds,
        degrees,
        one.rows - other.rows,
        one.answers + other.answers,
        clusters,
        comparisons,
        added_squares=1.0,
    )
    if math.isinf(half_width):
        return Difference(mean, None, None)
    return Difference(mean, max(-1.0, mean - half_width), min(1.0, mean + half_width))


def spread(accuracies: Floats) -> float | None:
    """Return the standard deviation of the seeds' accuracies, of shape (seeds,), with S - 1; None for a single seed."""
    return float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else None


def _refuse_empty(values: Floats) -> None:
    if values.ndim != 1 or not len(values):
        raise ValueError(
            f"the values have shape {values.shape}; required is (rows,), at least one row."
        )
