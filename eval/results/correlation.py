"""Correlations, over recipes, of reward models' figures with the models' gains.

The unit is the recipe: seeds of one recipe are averaged first, as they are more alike than recipes are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mmrm.data.arrays import Floats
from mmrm.eval.results.intervals import Z95

LEAST_RECIPES = 6
"""Recipes of which both figures must be known. With three of them Fisher's interval does not exist."""


@dataclass(frozen=True, slots=True)
class Correlation:
    """Coefficients of two figures over recipes, each with its 95 % interval."""

    models: int
    """Models, the seeds of a recipe counted one by one."""
    pearson: tuple[float, float, float]
    """The coefficient, low, high."""
    spearman: tuple[float, float, float]
    """Of the ranks, equal values sharing their mean rank."""
    recipes: int = 0
    without: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Pearson's and Spearman's coefficient without each recipe in turn, by its name. A recipe is left out of it if the
    others do not vary."""


def correlation(x: Floats, y: Floats, recipes: Sequence[str]) -> Correlation | None:
    """Return the correlation over recipes of x and y, both of shape (models,).

    Returns None for fewer than `LEAST_RECIPES` recipes, or if x or y is the same for all of them.
    Intervals are Fisher's z (Fisher 1921) for Pearson's coefficient, and for Spearman's with the variance of Bonett and
    Wright (2000).

    Args:
        x: A figure of each model.
        y: What each model is worth.
        recipes: The recipe of each model; models of one recipe are averaged.
    """
    return _combined([(x, y)], recipes)


def correlation_of_halves(
    x_by_half: Floats, y_by_half: Floats, recipes: Sequence[str]
) -> Correlation | None:
    """Return the correlation of x on one half of the questions with y on the other half, the mean of both directions.

    A figure and a gain that are computed from the same answers go together by the chance of these answers alone. Arrays have
    the shape (2, models). Coefficients are averaged as Fisher's z; otherwise the same as `correlation`.
    """
    return _combined([(x_by_half[0], y_by_half[1]), (x_by_half[1], y_by_half[0])], recipes)


def _combined(pairs: Sequence[tuple[Floats, Floats]], recipes: Sequence[str]) -> Correlation | None:
    """Return the mean coefficients of several pairs of figures of the same models."""
    names = list(dict.fromkeys(recipes))
    if len(names) < LEAST_RECIPES:
        return None
    means = [(recipe_means(x, recipes), recipe_means(y, recipes)) for x, y in pairs]
    point = _mean_coefficients(means)
    if point is None:
        return None
    without: dict[str, tuple[float, float]] = {}
    for index, name in enumerate(names):
        others = [(np.delete(x, index), np.delete(y, index)) for x, y in means]
        coefficients = _mean_coefficients(others)
        if coefficients is not None:
            without[name] = coefficients
    pearson, spearman = point
    count = len(names)
    return Correlation(
        models=len(recipes),
        pearson=(pearson, *fisher_interval(pearson, 1 / (count - 3))),
        spearman=(spearman, *_spearman_interval(spearman, count)),
        recipes=count,
        without=without,
    )


def recipe_means(values: Floats, recipes: Sequence[str]) -> Floats:
    """Return the mean of the values of each recipe, in the order in which recipes first occur."""
    labels = np.array(recipes, dtype=object)
    return np.array([values[labels == name].mean() for name in dict.fromkeys(recipes)])


def fisher_interval(coefficient: float, variance: float) -> tuple[float, float]:
    """Return the 95 % interval tanh(atanh(r) ± z · √variance) of a coefficient (Fisher 1921)."""
    if abs(coefficient) >= 1:
        return coefficient, coefficient
    centre = math.atanh(coefficient)
    half_width = Z95 * math.sqrt(variance)
    return math.tanh(centre - half_width), math.tanh(centre + half_width)


def _spearman_interval(coefficient: float, count: int) -> tuple[float, float]:
    """Return the interval of Spearman's coefficient of `count` recipes.

    Six recipes in the same order do not prove that all recipes are: the coefficient is taken half a step below 1, the
    step being the one to the next coefficient that ranks without ties can have.
    """
    largest = 1 - 6 / (count * (count**2 - 1))
    inside = min(max(coefficient, -largest), largest)
    low, high = fisher_interval(inside, (1 + inside**2 / 2) / (count - 3))
    return min(low, coefficient), max(high, coefficient)


def _mean_coefficients(pairs: Sequence[tuple[Floats, Floats]]) -> tuple[float, float] | None:
    """Return the means of Pearson's and Spearman's coefficients of several pairs; None if a figure does not vary."""
    found = []
    for x, y in pairs:
        coefficients = _coefficients(x, y)
        if coefficients is None:
            return None
        found.append(coefficients)
    if len(found) == 1:
        return found[0]
    inside = np.clip(np.array(found), -1 + 1e-12, 1 - 1e-12)
    pearson, spearman = np.tanh(np.arctanh(inside).mean(axis=0))
    return float(pearson), float(spearman)


def _coefficients(x: Floats, y: Floats) -> tuple[float, float] | None:
    """Return Pearson's and Spearman's coefficient; None if a figure does not vary."""
    if not _varies(x) or not _varies(y):
        return None
    return _pearson(x, y), _pearson(_ranks(x), _ranks(y))


def _pearson(x: Floats, y: Floats) -> float:
    x_deviations = x - x.mean()
    y_deviations = y - y.mean()
    scale = math.sqrt((x_deviations**2).sum() * (y_deviations**2).sum())
    return min(1.0, max(-1.0, float((x_deviations * y_deviations).sum()) / scale))


def _varies(values: Floats) -> bool:
    """Return True if the values differ by more than the rounding of means of equal numbers."""
    return bool(np.ptp(values) > 1e-12 * np.abs(values).max())


def _ranks(values: Floats) -> Floats:
    """Return the rank of each value; equal values share the mean of their ranks."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    shared: Floats = ((last - counts + last - 1) / 2)[group]
    return shared
