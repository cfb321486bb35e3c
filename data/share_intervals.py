"""95 % intervals of shares of rows, of which some may depend on one another.

A *credit* is the number that a row adds to a share: 1 or 0, or 0.5 for a tie that counts half. Rows
that share a prompt or an image form a *cluster*. They are worth less than as many independent rows.

Every interval has two sides. `tests/data/test_share_intervals.py` and
`tests/eval/results/test_coverage.py` simulate how often each one holds the true value.
`mmrm.eval.results.intervals` has further intervals: of means, of differences, and over trainings.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from mmrm.data.arrays import Floats, Ints
from mmrm.data.display.format import interval

Z95 = 1.959963984540054
"""The 97.5 % quantile of the standard normal distribution, for two-sided 95 % intervals."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % interval; both ends are None with too few trainings or items."""

    mean: float
    low: float | None
    high: float | None

    @property
    def percent(self) -> str:
        """The mean and its interval in percent, such as "83.1 [80.0, 85.7]"."""
        return interval(self.mean, self.low, self.high)

    @property
    def plain(self) -> dict[str, float | None]:
        """The estimate in the form that is written to JSON."""
        return {"mean": self.mean, "low": self.low, "high": self.high}


def wilson(successes: float, n: float, quantile: float = Z95) -> tuple[float, float]:
    """Return Wilson's score interval of a share `successes / n` (Wilson 1927); (0, 1) for n = 0.

    Args:
        successes: Number of successes; it is fractional if ties count half.
        n: Number of independent rows; an effective number of rows need not be an integer.
        quantile: Quantile of the standard normal distribution, or Student's if the variance is
            estimated from few clusters.
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
    """Return the quantile of Student's t distribution for two-sided 95 % intervals.

    The intervals of all comparisons hold together in 95 % of the cases. For this, each comparison
    has an equal share of the 5 % (Bonferroni), which is valid for any dependence between them.

    Args:
        degrees: Degrees of freedom.
        comparisons: Number of intervals that are read together.
    """
    each_side = 0.025 / comparisons
    return float(stdtrit(degrees, 1 - each_side))


def sum_of_squares(deviations: Floats, clusters: Ints | None = None) -> tuple[float, int]:
    """Return the corrected sum of squared deviations of n rows, and the number of clusters.

    The sum divided by n² is the variance of the mean of the rows. It is cluster-robust, with the
    usual correction G / (G - 1) for G clusters (CR1; Cameron and Miller 2015, section II). It is at
    least the sum for independent rows: if rows differ more inside clusters than between them, this
    counts as chance. With fewer than two clusters it is infinite.

    Args:
        deviations: Deviation of each row from the mean, shape (rows,). Required are two or more
            rows.
        clusters: Index of each row's cluster; None if every row is independent.
    """
    n = len(deviations)
    sum_if_independent = float((deviations**2).sum()) * n / (n - 1)
    if clusters is None:
        return sum_if_independent, n
    _, codes = np.unique(clusters, return_inverse=True)
    cluster_deviations = np.bincount(codes, weights=deviations)
    num_clusters = len(cluster_deviations)
    if num_clusters < 2:
        return math.inf, num_clusters
    clustered_sum = float((cluster_deviations**2).sum()) * num_clusters / (num_clusters - 1)
    return max(sum_if_independent, clustered_sum), num_clusters


def effective_rows(credits: Floats, clusters: Ints | None = None) -> tuple[float, int]:
    """Return the effective number of rows, and the number of clusters.

    This is the number of independent right or wrong rows that would be as informative about the
    share as these: share · (1 - share) / variance (Korn and Graubard 1998). Without any variance it
    is the number of clusters: a hundred right answers to questions on one image are one
    observation.

    Args:
        credits: Credits from 0 to 1, shape (rows,).
        clusters: Index of each row's cluster; None if every row is independent.
    """
    n = len(credits)
    share = float(credits.mean())
    if n < 2:
        return float(n), n
    squares, num_clusters = sum_of_squares(credits - share, clusters)
    variance = squares / n**2
    if variance == 0:
        return float(num_clusters), num_clusters
    return share * (1 - share) / variance, num_clusters


def share_interval(credits: Floats, clusters: Ints | None = None) -> Estimate:
    """Return a mean of credits with Wilson's interval for the effective number of rows.

    The interval is valid for shares near 0 and 1 and for few clusters, for which mean ± t ·
    standard error is not (Dean and Pagano 2015 compare the two for clustered rows). If all rows are
    in one cluster, it is 0 to 1, because they give no information about other items.

    Args:
        credits: Credits from 0 to 1, shape (rows,).
        clusters: Index of each row's cluster; None if every row is independent.
    """
    refuse_empty(credits)
    mean = float(credits.mean())
    num_effective, num_clusters = effective_rows(credits, clusters)
    if num_clusters < 2 or num_effective == 0:
        return Estimate(mean, 0.0, 1.0)
    num_right = min(mean, 1.0) * num_effective  # rounding may raise a mean of ones above 1
    low, high = wilson(num_right, num_effective, student_quantile(num_clusters - 1))
    return Estimate(mean, low, high)


def refuse_empty(values: Floats) -> None:
    """Raise ValueError unless the values have the shape (rows,), with at least one row."""
    if values.ndim != 1 or not len(values):
        raise ValueError(
            f"the values have shape {values.shape}; required is (rows,), at least one row."
        )
