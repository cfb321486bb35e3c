"""What several runs of one recipe are worth together: an interval that knows of rows and of seeds.

Pure functions on credits of shape (seeds, rows): row i of every seed is the same row of the benchmark.
"""

from __future__ import annotations

import math

import numpy as np

from eval.measures import Difference, Floats


def crossed_bootstrap(values: Floats, resamples: int = 2000, seed: int = 0) -> tuple[float, float, float]:
    """Return the mean of `values`, of shape (seeds, rows), with its 95 % percentile interval: mean, low, high.

    Each resample draws rows and, independently, seeds with replacement (the pigeonhole bootstrap of Owen 2007), so that the
    interval covers other rows of this kind and other seeds. A bootstrap over S seeds finds (S - 1) / S of their variance;
    the seeds' deviations from the mean are stretched by the root of S / (S - 1) to make up for it. With one seed the interval
    knows of rows only. As in `paired_bootstrap`, rows with the same values in all seeds are drawn together.
    Raises: ValueError for another shape, or no values.
    """
    if values.ndim != 2 or not values.size:
        raise ValueError(f"the values have shape {values.shape}; required is (seeds, rows), at least one of each.")
    seeds, rows = values.shape
    generator = np.random.default_rng(seed)
    patterns, counts = np.unique(np.asarray(values, dtype=np.float64), axis=1, return_counts=True)
    by_seed = patterns @ counts / rows
    if seeds > 1:
        patterns = patterns + (math.sqrt(seeds / (seeds - 1)) - 1) * (by_seed - by_seed.mean())[:, None]
    drawn_rows = generator.multinomial(rows, counts / rows, size=resamples)
    drawn_seeds = generator.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples)
    means = ((drawn_seeds @ patterns) * drawn_rows).sum(axis=1) / (seeds * rows)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(by_seed.mean()), float(low), float(high)


def accuracy_over_seeds(credits: Floats) -> tuple[float, float, float]:
    """Return the mean accuracy of runs with these credits, of shape (seeds, rows), and its 95 % interval inside 0 … 1."""
    mean, low, high = crossed_bootstrap(credits)
    return mean, max(0.0, low), min(1.0, high)


def difference_over_seeds(first: Floats, second: Floats) -> Difference:
    """Return how much more accurate the first recipe is; both of shape (seeds, rows), paired by seed and by row.

    Raises: ValueError for different shapes, or no values.
    """
    if first.shape != second.shape:
        raise ValueError(f"the credits have shapes {first.shape} and {second.shape}; required are the same seeds and rows.")
    return Difference(*crossed_bootstrap(np.asarray(first, dtype=np.float64) - second))


def spread(accuracies: Floats) -> float | None:
    """Return the standard deviation of the seeds' accuracies, of shape (seeds,), with S - 1; None for a single seed."""
    return float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else None
