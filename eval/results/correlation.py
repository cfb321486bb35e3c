"""Correlations, over recipes, of reward models' figures with the models' gains.

Models of one recipe with different seeds are averaged first, because they differ less than models
of different recipes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mmrm.data.arrays import Floats
from mmrm.eval.results.intervals import Z95

LEAST_RECIPES = 6
"""Number of recipes with both figures that a correlation requires. Fisher's interval does not exist
for three of them."""


@dataclass(frozen=True, slots=True)
class Correlation:
    """The correlation of two figures of reward models over recipes: coefficients and intervals."""

    models: int
    """Number of models, with each seed of a recipe."""
    pearson: tuple[float, float, float]
    """Pearson's coefficient, and the low and the high end of its interval."""
    spearman: tuple[float, float, float]
    """Spearman's coefficient, and the low and the high end of its interval. Equal values have the
    mean of their ranks."""
    recipes: int = 0
    """Number of recipes."""
    without: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Pearson's and Spearman's coefficient without one recipe, by the name of that recipe. It has
    no entry if the other recipes do not vary."""


def correlation(x: Floats, y: Floats, recipes: Sequence[str]) -> Correlation | None:
    """Return the correlation of x and y over recipes.

    The result is None for fewer than `LEAST_RECIPES` recipes, or if x or y is the same for all of
    them. Intervals are Fisher's z (Fisher 1921) for Pearson's coefficient, and for Spearman's with
    the variance of Bonett and Wright (2000).

    Args:
        x: A figure of each reward model, shape (models,).
        y: The gain that a policy has from using each model, shape (models,).
        recipes: The recipe of each model; models of one recipe are averaged.
    """
    recipe_names = list(dict.fromkeys(recipes))
    num_recipes = len(recipe_names)
    if num_recipes < LEAST_RECIPES:
        return None
    x_means = recipe_means(x, recipes)
    y_means = recipe_means(y, recipes)
    coefficients = _coefficients(x_means, y_means)
    if coefficients is None:
        return None
    without: dict[str, tuple[float, float]] = {}
    for index, name in enumerate(recipe_names):
        others = _coefficients(np.delete(x_means, index), np.delete(y_means, index))
        if others is not None:
            without[name] = others
    of_pearson, of_spearman = coefficients
    return Correlation(
        models=len(recipes),
        pearson=(of_pearson, *pearson_interval(of_pearson, num_recipes)),
        spearman=(of_spearman, *spearman_interval(of_spearman, num_recipes)),
        recipes=num_recipes,
        without=without,
    )


def recipe_means(values: Floats, recipes: Sequence[str]) -> Floats:
    """Return the mean of each recipe's values, in the order in which recipes first occur.

    Example: the values 1, 5, 3 of the recipes "a", "b", "a" have the means 2 and 5.

    Args:
        values: The value of each model, shape (models,) or (models, draws).
        recipes: The recipe of each model.
    """
    recipe_by_model = np.array(recipes, dtype=object)
    names = dict.fromkeys(recipes)
    return np.array([values[recipe_by_model == name].mean(axis=0) for name in names])


def fisher_interval(coefficient: float, variance: float) -> tuple[float, float]:
    """Return the 95 % interval tanh(atanh(r) ± z · √variance) of a coefficient r (Fisher 1921).

    `variance` is the variance of atanh(r). The interval of a coefficient of 1 or -1 has no width.
    """
    if abs(coefficient) >= 1:
        return coefficient, coefficient
    centre = math.atanh(coefficient)
    half_width = Z95 * math.sqrt(variance)
    return math.tanh(centre - half_width), math.tanh(centre + half_width)


def pearson_interval(coefficient: float, count: int) -> tuple[float, float]:
    """Return the 95 % interval of Pearson's coefficient over `count` recipes (Fisher 1921)."""
    return fisher_interval(coefficient, 1 / (count - 3))


def spearman_interval(coefficient: float, count: int) -> tuple[float, float]:
    """Return the 95 % interval of Spearman's coefficient over `count` recipes.

    The interval of a coefficient of 1 would have no width, although six recipes in the same order
    do not prove that all recipes are. It is therefore computed for the number halfway between 1 and
    the largest coefficient below 1 that ranks without ties can have.
    """
    # Neighbouring coefficients differ by 12 / (count · (count² - 1)), twice the number subtracted.
    largest = 1 - 6 / (count * (count**2 - 1))
    bounded = min(max(coefficient, -largest), largest)
    variance = (1 + bounded**2 / 2) / (count - 3)  # Bonett and Wright 2000
    low, high = fisher_interval(bounded, variance)
    return min(low, coefficient), max(high, coefficient)


def _coefficients(x: Floats, y: Floats) -> tuple[float, float] | None:
    """Return Pearson's and Spearman's coefficient of x and y; None if one of them does not vary."""
    if not varies(x) or not varies(y):
        return None
    return pearson(x, y), pearson(ranks(x), ranks(y))


def pearson(x: Floats, y: Floats) -> float:
    """Return Pearson's coefficient of two figures that vary."""
    x_deviations = x - x.mean()
    y_deviations = y - y.mean()
    scale = math.sqrt((x_deviations**2).sum() * (y_deviations**2).sum())
    return min(1.0, max(-1.0, float((x_deviations * y_deviations).sum()) / scale))


def varies(values: Floats) -> bool:
    """Return True if the values differ by more than the rounding of means of equal numbers."""
    return bool(np.ptp(values) > 1e-12 * np.abs(values).max())


def ranks(values: Floats) -> Floats:
    """Return the rank of each value, counted from 0; equal values have the mean of their ranks.

    Example: 30, 10, 30 have the ranks 1.5, 0, 1.5.
    """
    _, group_by_value, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = counts.cumsum()
    first_ranks = ends - counts
    last_ranks = ends - 1
    mean_ranks = (first_ranks + last_ranks) / 2
    ranks: Floats = mean_ranks[group_by_value]
    return ranks
