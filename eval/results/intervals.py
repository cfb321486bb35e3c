"""95 % intervals of shares, means and differences: over rows, over items, and over trainings.

A *credit* is the number that a row adds to an accuracy: 1 if it is right, 0 if it is wrong, 0.5 for
a tie that counts half. Rows that share an image or belong to one item of a benchmark form a
*cluster*. Judges are right or wrong on them together, so they are worth less than as many
independent rows. Credits of several trainings of one recipe have the shape (seeds, rows), and
column i is the same row for every seed.

Every interval has two sides. `tests/eval/results/test_coverage.py` simulates how often each one
holds the true value, and prints how wide it is.
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mmrm.data.arrays import Floats, Ints
from mmrm.data.display.format import interval, signed_points

# The intervals of shares are imported from here as well, so that `as` makes them names of this file.
from mmrm.data.share_intervals import Z95 as Z95
from mmrm.data.share_intervals import Estimate as Estimate
from mmrm.data.share_intervals import effective_rows as effective_rows
from mmrm.data.share_intervals import refuse_empty
from mmrm.data.share_intervals import share_interval as share_interval
from mmrm.data.share_intervals import student_quantile as student_quantile
from mmrm.data.share_intervals import sum_of_squares as sum_of_squares
from mmrm.data.share_intervals import wilson as wilson

LEAST_SEEDS = 3
"""Number of trainings that an interval over trainings requires. Two trainings hardly show
the spread of trainings: Student's quantile for two is 12.7."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean of one judge, policy or recipe minus the mean of another one on the same rows.

    The interval is at 95 % for all comparisons of a table together. Both ends are None if there are
    fewer than `LEAST_SEEDS` trainings of either recipe.
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
        """The comparison of the first with the second in words.

        They are "better", "worse", "not distinguishable" or, without an interval, "too few seeds".
        """
        if self.low is None:
            return "too few seeds"
        if not self.distinguishable:
            return "not distinguishable"
        return "better" if self.mean > 0 else "worse"

    @property
    def points(self) -> str:
        """The difference and its interval in percentage points, such as "+5.0 [+1.0, +9.0]"."""
        return interval(self.mean, self.low, self.high, signed_points)


def cluster_codes(names_by_row: Sequence[Iterable[Hashable]]) -> Ints:
    """Return the index of each row's cluster, shape (rows,).

    Rows that share a name are in one cluster, and so are rows that are connected through other
    rows. A row without names is a cluster.

    Example: rows with the names {a}, {a, b}, {b} and {c} have the codes 0, 0, 0 and 1.
    """
    # A union-find structure: following the parents of a row leads to the root of its cluster.
    parents = list(range(len(names_by_row)))

    def root(row: int) -> int:
        while parents[row] != row:
            parents[row] = parents[parents[row]]  # shortens the next search
            row = parents[row]
        return row

    first_row_by_name: dict[Hashable, int] = {}
    for row, names in enumerate(names_by_row):
        for name in names:
            first_row = first_row_by_name.setdefault(name, row)
            parents[root(row)] = root(first_row)
    roots = np.array([root(row) for row in range(len(parents))], dtype=np.int64)
    _, codes = np.unique(roots, return_inverse=True)
    return codes


def accuracy_interval(credits: Floats, clusters: Ints | None = None) -> Estimate:
    """Return the accuracy of rows with its interval.

    If some rows are in one cluster, the interval is that of `share_interval`. Otherwise it is
    Wilson's interval for the number of rows, which is a little too wide if ties count half.

    Args:
        credits: Credits from 0 to 1, shape (rows,).
        clusters: Index of each row's cluster; None if every row is independent.
    """
    refuse_empty(credits)
    n = len(credits)
    if clusters is not None and len(np.unique(clusters)) < n:
        return share_interval(credits, clusters)
    low, high = wilson(float(credits.sum()), n)
    return Estimate(float(credits.mean()), low, high)


def mean_interval(values: Floats, clusters: Ints | None = None, comparisons: int = 1) -> Estimate:
    """Return a mean of unbounded values, such as scores, with Student's interval over clusters.

    The interval requires two rows and two clusters.

    Args:
        values: Values of shape (rows,).
        clusters: Index of each row's cluster; None if every row is independent.
        comparisons: Number of intervals that are read together; they hold together at 95 %.
    """
    refuse_empty(values)
    n = len(values)
    mean = float(values.mean())
    if n < 2:
        return Estimate(mean, None, None)
    squares, num_clusters = sum_of_squares(values - mean, clusters)
    if num_clusters < 2:
        return Estimate(mean, None, None)
    half_width = student_quantile(num_clusters - 1, comparisons) * math.sqrt(squares) / n
    return Estimate(mean, mean - half_width, mean + half_width)


def paired_difference(
    first: Floats, second: Floats, clusters: Ints | None = None, comparisons: int = 1
) -> Difference:
    """Return mean(first) - mean(second) of the credits of two judges on the same rows.

    The interval over rows is valid for these two judges, not for the recipes that they were trained
    by. One row in which either judge is better is added to the variance (Agresti and Min 2005): two
    judges that agree on all of 100 rows may still differ on others.

    Args:
        first: Credits from 0 to 1 of shape (rows,).
        second: Credits of the same rows in the same order.
        clusters: Index of each row's cluster; None if every row is independent.
        comparisons: Number of differences that are read together; the interval is at 95 % for all.
    """
    if first.shape != second.shape:
        raise ValueError(
            f"the credits have shapes {first.shape} and {second.shape}; required are the same rows."
        )
    refuse_empty(first)
    n = len(first)
    differences = np.asarray(first, dtype=np.float64) - second
    mean = float(differences.mean())
    if n < 2:
        return Difference(mean, -1.0, 1.0)  # any difference is possible
    squares, num_clusters = sum_of_squares(differences - mean, clusters)
    if num_clusters < 2:
        return Difference(mean, -1.0, 1.0)
    squares += 1  # one row in which either judge is better
    half_width = student_quantile(num_clusters - 1, comparisons) * math.sqrt(squares) / n
    return Difference(mean, max(-1.0, mean - half_width), min(1.0, mean + half_width))


@dataclass(frozen=True, slots=True)
class _VarianceParts:
    """The mean of a figure over seeds and rows, and the parts of the variance of this mean."""

    mean: float
    row_means: Floats
    """Mean over the seeds of each row, shape (rows,)."""
    seed_variance: float
    """The part that comes from the choice of the seeds. It includes `answer_variance`."""
    answer_variance: float
    """The part that comes from the chance of each single answer. The variance of the row means
    includes it too."""
    num_seeds: int


def _variance_parts(values: Floats, clusters: Ints | None) -> _VarianceParts:
    """Return the mean of `values`, shape (seeds, rows), and the parts of its variance.

    Required are at least two seeds and two rows. `clusters` has the index of each row's cluster,
    or is None if every row is independent.
    """
    num_seeds, num_rows = values.shape
    seed_means = values.mean(axis=1)
    row_means = values.mean(axis=0)
    mean = float(row_means.mean())
    seed_variance = float(seed_means.var(ddof=1)) / num_seeds
    answer_variance = 0.0
    # Without the effects of the seed and of the row, only the chance of single answers is left.
    residuals = values - seed_means[:, None] - row_means + mean
    for residuals_of_seed in residuals:
        squares, num_clusters = sum_of_squares(residuals_of_seed, clusters)
        if num_clusters > 1:
            answer_variance += squares
    answer_variance /= (num_seeds - 1) * num_seeds * num_rows**2
    return _VarianceParts(mean, row_means, seed_variance, answer_variance, num_seeds)


def _half_width(
    seed_variance: float,
    degrees: float,
    row_means: Floats,
    answer_variance: float,
    clusters: Ints | None,
    comparisons: int,
    added_squares: float = 0.0,
) -> float:
    """Return half the width of the interval of a mean over seeds and rows.

    It is infinite for a single cluster. The square of the half width is t1² · seed variance + t2² ·
    row variance, in which t1 and t2 are Student's quantiles for the number of seeds and for the
    number of clusters. Of the estimators that tests/eval/results/test_coverage.py compares, this is
    the simplest one that is valid for three seeds, whether the seeds differ much or not at all.
    Seeds may be equally accurate by chance, so the interval is at least as wide as the interval
    over the rows alone.

    Args:
        seed_variance: The part of the mean's variance that comes from the seeds.
        degrees: Degrees of freedom of this part.
        row_means: Mean over the seeds of each row, shape (rows,).
        answer_variance: The part of the variance that comes from the chance of single answers.
        clusters: Index of each row's cluster; None if every row is independent.
        comparisons: Number of intervals that are read together.
        added_squares: Added to the sum of squares of the interval over the rows alone.
    """
    squares, num_clusters = sum_of_squares(row_means - row_means.mean(), clusters)
    if num_clusters < 2:
        return math.inf
    # The chance of single answers is subtracted, because `seed_variance` contains it too.
    row_variance = max(0.0, squares / len(row_means) ** 2 - answer_variance)
    row_quantile = student_quantile(num_clusters - 1, comparisons)
    seed_quantile = student_quantile(degrees, comparisons)
    over_both = math.sqrt(seed_variance * seed_quantile**2 + row_variance * row_quantile**2)
    over_rows_alone = row_quantile * math.sqrt(squares + added_squares) / len(row_means)
    return max(over_both, over_rows_alone)


def mean_over_seeds(
    values: Floats,
    clusters: Ints | None = None,
    comparisons: int = 1,
    added_squares: float = 0.0,
) -> Estimate:
    """Return a mean with an interval for other trainings and other rows of this kind.

    The interval requires `LEAST_SEEDS` seeds, two rows and two clusters. Without it, each seed's
    value should be printed instead.

    Args:
        values: Values of shape (seeds, rows).
        clusters: Index of each row's cluster; None if every row is independent.
        comparisons: Number of intervals that are read together; they hold together at 95 %.
        added_squares: Added to the sum of squares of the interval over the rows alone.
    """
    if values.ndim != 2 or not values.size:
        raise ValueError(
            f"the values have shape {values.shape}; required is (seeds, rows), at least one of "
            "each."
        )
    num_seeds, num_rows = values.shape
    if num_seeds < LEAST_SEEDS or num_rows < 2:
        return Estimate(float(values.mean()), None, None)
    parts = _variance_parts(values, clusters)
    half_width = _half_width(
        parts.seed_variance,
        num_seeds - 1,
        parts.row_means,
        parts.answer_variance,
        clusters,
        comparisons,
        added_squares,
    )
    if math.isinf(half_width):
        return Estimate(parts.mean, None, None)
    return Estimate(parts.mean, parts.mean - half_width, parts.mean + half_width)


def accuracy_over_seeds(credits: Floats, clusters: Ints | None = None) -> Estimate:
    """Return an accuracy with an interval for other trainings and other rows of this kind.

    The interval contains the interval over rows alone: three trainings that answer all of 50 rows
    right may still be wrong on others. It requires `LEAST_SEEDS` seeds, two rows and two clusters.

    Args:
        credits: Credits from 0 to 1, shape (seeds, rows).
        clusters: Index of each row's cluster; None if every row is independent.
    """
    estimate = mean_over_seeds(credits, clusters)
    if estimate.low is None or estimate.high is None:
        return estimate
    over_rows = share_interval(credits.mean(axis=0), clusters)
    assert over_rows.low is not None, "a share has an interval"
    assert over_rows.high is not None, "a share has an interval"
    low = min(estimate.low, over_rows.low)
    high = max(estimate.high, over_rows.high)
    return Estimate(estimate.mean, max(0.0, low), min(1.0, high))


def difference_over_seeds(
    first: Floats, second: Floats, clusters: Ints | None = None, comparisons: int = 1
) -> Difference:
    """Return mean(first) - mean(second) of the credits of two recipes.

    The interval is for other trainings and other rows of this kind.

    Rows are paired. Trainings are not, because seed 0 of one recipe has nothing in common with seed
    0 of another. The variances of both recipes are therefore added, with Satterthwaite's degrees of
    freedom (Welch 1947).

    Args:
        first: Credits of shape (seeds, rows).
        second: Credits of the same rows; the number of seeds may be another one.
        clusters: Index of each row's cluster; None if every row is independent.
        comparisons: Number of differences that are read together; the interval is at 95 % for all.
    """
    return contrast_over_seeds([(1.0, first), (-1.0, second)], clusters, comparisons)


def paired_difference_over_seeds(
    first: Floats, second: Floats, clusters: Ints | None = None, comparisons: int = 1
) -> Difference:
    """Return mean(first) - mean(second) of two ways to use the same trainings.

    The interval is for other trainings and other rows of this kind. Rows and trainings are paired:
    seed 0 of both is one training. One row in which either way is better is added to the variance
    over rows, as in `paired_difference`.

    Args:
        first: Credits from 0 to 1 of shape (seeds, rows).
        second: Credits of the same seeds and rows.
        clusters: Index of each row's cluster; None if every row is independent.
        comparisons: Number of differences that are read together; the interval is at 95 % for all.
    """
    if first.shape != second.shape:
        raise ValueError(
            f"the credits have shapes {first.shape} and {second.shape}; required are the same seeds "
            "and rows."
        )
    differences = np.asarray(first, dtype=np.float64) - second
    estimate = mean_over_seeds(differences, clusters, comparisons, added_squares=1.0)
    if estimate.low is None or estimate.high is None:
        return Difference(estimate.mean, None, None)
    return Difference(estimate.mean, max(-1.0, estimate.low), min(1.0, estimate.high))


def contrast_over_seeds(
    weighted_credits: Sequence[tuple[float, Floats]],
    clusters: Ints | None = None,
    comparisons: int = 1,
) -> Difference:
    """Return a weighted sum of the mean credits of several recipes, such as a - (b + c) / 2.

    The interval is that of `difference_over_seeds`, which is the contrast with the weights 1 and
    -1. The positive weights sum to 1, and the negative ones to -1.

    Args:
        weighted_credits: The weight of each recipe, with its credits of shape (seeds, rows). All
            have the same rows; their numbers of seeds may be different.
        clusters: Index of each row's cluster; None if every row is independent.
        comparisons: Number of contrasts that are read together; the interval is at 95 % for all.
    """
    shapes = [credits.shape for _, credits in weighted_credits]
    if any(len(shape) != 2 or shape[1] != shapes[0][1] for shape in shapes):
        raise ValueError(
            f"the credits have shapes {', '.join(map(str, shapes))}; required are (seeds, rows), "
            "the same rows in all."
        )
    if any(not credits.size for _, credits in weighted_credits):
        raise ValueError("there are no credits; required are at least one seed and one row.")
    mean = float(sum(weight * credits.mean() for weight, credits in weighted_credits))
    num_rows = shapes[0][1]
    if min(shape[0] for shape in shapes) < LEAST_SEEDS or num_rows < 2:
        return Difference(mean, None, None)
    row_means = np.zeros(num_rows)
    seed_variance = 0.0
    answer_variance = 0.0
    degrees = 0.0
    sum_of_fourths = 0.0  # the denominator of Satterthwaite's formula
    for weight, credits in weighted_credits:
        parts = _variance_parts(credits, clusters)
        row_means += weight * parts.row_means
        variance = weight**2 * parts.seed_variance
        seed_variance += variance
        answer_variance += weight**2 * parts.answer_variance
        degrees += parts.num_seeds - 1
        sum_of_fourths += variance**2 / (parts.num_seeds - 1)
    if seed_variance > 0:  # Satterthwaite's formula, which would divide by zero otherwise
        degrees = seed_variance**2 / sum_of_fourths
    half_width = _half_width(
        seed_variance,
        degrees,
        row_means,
        answer_variance,
        clusters,
        comparisons,
        added_squares=1.0,  # one row in which either recipe is better, as in `paired_difference`
    )
    if math.isinf(half_width):
        return Difference(mean, None, None)
    return Difference(mean, max(-1.0, mean - half_width), min(1.0, mean + half_width))


def ratio_over_seeds(
    numerators: Floats, denominators: Floats, clusters: Ints | None = None
) -> Estimate:
    """Return the ratio of two sums over rows and seeds, such as a precision, with its interval.

    The interval is for other trainings and other rows of this kind. It is that of the mean of the
    linear part of the ratio, (numerator - ratio * denominator) / mean denominator (Cochran 1977,
    section 6.3), and contains that of `share_interval` over the rows that count, as
    `accuracy_over_seeds` does.

    Args:
        numerators: What each row adds to the numerator, such as 1 for a row that was selected and
            is right, shape (seeds, rows).
        denominators: What each row adds to the denominator, such as 1 for a row that was selected,
            of the same shape. A numerator is from 0 to its denominator.
        clusters: Index of each row's cluster; None if every row is independent.
    """
    if numerators.shape != denominators.shape:
        raise ValueError(
            f"the numerators have shape {numerators.shape} and the denominators "
            f"{denominators.shape}; required are equal shapes (seeds, rows)."
        )
    if not denominators.sum() > 0:
        raise ValueError("the sum of the denominators is not positive, so that there is no ratio.")
    ratio = float(numerators.sum() / denominators.sum())
    linear = ratio + (numerators - ratio * denominators) / denominators.mean()
    estimate = mean_over_seeds(linear, clusters)
    if estimate.low is None or estimate.high is None:
        return Estimate(ratio, None, None)
    row_weights = denominators.sum(axis=0)
    counts = row_weights > 0
    shares = numerators.sum(axis=0)[counts] / row_weights[counts]
    over_rows = share_interval(shares, None if clusters is None else clusters[counts])
    low = estimate.low
    high = estimate.high
    if over_rows.low is not None and over_rows.high is not None:
        low = min(low, ratio - (over_rows.mean - over_rows.low))
        high = max(high, ratio + (over_rows.high - over_rows.mean))
    return Estimate(ratio, max(0.0, low), min(1.0, high))


def spread(accuracies: Floats) -> float | None:
    """Return the sample standard deviation of the seeds' accuracies; None for a single seed.

    `accuracies` has the shape (seeds,).
    """
    if len(accuracies) < 2:
        return None
    return float(np.std(accuracies, ddof=1))
