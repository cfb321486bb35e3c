"""The estimators that were used before commit c5dae61, copied so that the simulation can show what they cover."""

import math
from collections.abc import Sequence

import numpy as np

from mmrm.data.arrays import Floats

RESAMPLES = 2000


def crossed_bootstrap(values: Floats) -> tuple[float, float]:
    """Return the percentile interval of the mean of values of shape (seeds, rows), resampled crosswise."""
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
    return float(low), float(high)


def paired_bootstrap(first: Floats, second: Floats) -> tuple[float, float]:
    """Return the percentile interval of mean(first) - mean(second), both of shape (rows,) or (seeds, rows)."""
    return crossed_bootstrap(np.atleast_2d(first - second))


def pearson_over_clusters(x: Floats, y: Floats, clusters: Sequence[str]) -> tuple[float, float]:
    """Return the percentile interval of Pearson's coefficient over resampled clusters of equal size."""
    names = sorted(set(clusters))
    members = np.array([np.flatnonzero(np.array(clusters) == name) for name in names])
    drawn = np.random.default_rng(0).integers(len(names), size=(RESAMPLES, len(names)))
    rows = members[drawn].reshape(RESAMPLES, -1)
    varies = (np.ptp(x[rows], axis=1) > 0) & (np.ptp(y[rows], axis=1) > 0)
    a = x[rows[varies]] - x[rows[varies]].mean(axis=1, keepdims=True)
    b = y[rows[varies]] - y[rows[varies]].mean(axis=1, keepdims=True)
    coefficients = (a * b).sum(axis=1) / np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    low, high = np.percentile(coefficients, [2.5, 97.5])
    return float(low), float(high)
