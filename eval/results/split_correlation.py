"""Correlations over recipes of a figure on some questions with a gain on other questions.

A figure and a gain that are computed from the same answers are correlated by the chance of these
answers, even if all reward models are equal. The questions are therefore split into two halves. The
figure on one half predicts the gain on the other half, and the other way round.

A coefficient is that of figures and gains that are measured on as many questions. The chance of
the questions makes it smaller than that of figures without error. `SplitCorrelation` has the
agreement of each of the two with itself over the halves, which shows how much smaller.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from mmrm.data.arrays import Floats, Ints
from mmrm.eval.results.correlation import (
    LEAST_RECIPES,
    pearson,
    pearson_interval,
    ranks,
    recipe_means,
    spearman_interval,
    varies,
)

DRAWS = 2000
"""Number of draws of the bootstrap."""

Coefficient = tuple[float, float, float]
"""A coefficient, and the low and the high end of its 95 % interval."""
Halves = tuple[Floats, Floats]
"""A figure of each model on the first and on the second half, each of shape (draws, models)."""


@dataclass(frozen=True, slots=True)
class RowValues:
    """A figure of one reward model, as values of rows. The figure is the mean of the values.

    Calibration errors are not means. If there are `bins`, the figure is the sum, over the bins, of
    the absolute value of the sum of a bin's values, divided by the number of rows.
    """

    values: Floats
    """Shape (rows,)."""
    clusters: Ints
    """The cluster of questions that each row belongs to, shape (rows,). The same question has the
    same cluster in all figures and gains of a study."""
    bins: Ints | None = None
    """The bin of each row, shape (rows,); None for a mean."""

    def covers(self, clusters: Ints) -> bool:
        """Return True if at least one row belongs to one of some clusters."""
        return bool(np.isin(self.clusters, clusters).any())

    def figures(self, weights: Floats) -> Floats:
        """Return the figure for each draw of weights, shape (draws,).

        Args:
            weights: The weight of each cluster in each draw, shape (draws, clusters). A draw must
                have a weight above 0 for a cluster of the rows.
        """
        num_clusters = weights.shape[1]
        num_rows = weights @ np.bincount(self.clusters, minlength=num_clusters)
        sums = np.zeros(len(weights))
        if self.bins is None:
            sums = weights @ np.bincount(self.clusters, self.values, num_clusters)
        else:
            for bin_index in np.unique(self.bins):
                is_inside = self.bins == bin_index
                sums_by_cluster = np.bincount(
                    self.clusters[is_inside], self.values[is_inside], num_clusters
                )
                sums += np.abs(weights @ sums_by_cluster)
        return np.asarray(sums / num_rows)


@dataclass(frozen=True, slots=True)
class SplitCorrelation:
    """The correlation of a figure with a gain that is measured on other questions."""

    models: int
    """Number of models, with each seed of a recipe."""
    recipes: int
    """Number of recipes. The models of one recipe are averaged."""
    pearson: Coefficient
    """The mean of Pearson's coefficients of both directions."""
    spearman: Coefficient
    """The mean of the rank correlations of both directions."""
    directions: tuple[Coefficient, Coefficient]
    """The rank correlation of the figure on the first half with the gain on the second half, and
    that of the figure on the second half with the gain on the first half."""
    figure_agreement: float
    """The rank correlation of the figure on one half with itself on the other half."""
    gain_agreement: float
    """The same of the gain."""
    without: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Pearson's and Spearman's coefficient without one recipe, by the name of that recipe. It has
    no entry if the other recipes do not vary."""


def split_correlation(
    figures: Sequence[RowValues],
    gains: Sequence[RowValues],
    halves: Ints,
    recipes: Sequence[str],
    draws: int = DRAWS,
) -> SplitCorrelation | None:
    """Return the correlation of a figure with a gain on the other half of the questions.

    The result is None for fewer than LEAST_RECIPES recipes, or if the figure or the gain is the
    same for all of them.

    An interval consists of the percentiles of a bootstrap over questions and over recipes. In each
    draw, a cluster of questions has an exponential weight (Rubin 1981), which is the same in every
    figure and gain, and the recipes are drawn with replacement. The interval is at least as wide
    as that over recipes alone (`correlation`), because a few recipes in the same order are in the
    same order in every draw. tests/eval/results/test_split_correlation.py simulates its coverage.

    Args:
        figures: The figure of each model. Each must cover both halves.
        gains: The gain of each model. Each must cover both halves.
        halves: The half of each cluster of questions, 0 or 1, shape (clusters,).
        recipes: The recipe of each model.
        draws: Number of draws of the bootstrap.
    """
    recipe_names = list(dict.fromkeys(recipes))
    num_recipes = len(recipe_names)
    if num_recipes < LEAST_RECIPES:
        return None
    generator = np.random.default_rng(0)
    weights = generator.exponential(size=(draws + 1, len(halves)))
    weights[0] = 1.0  # the first draw is the measurement itself
    figure_halves = _on_halves(figures, halves, weights, recipes)
    gain_halves = _on_halves(gains, halves, weights, recipes)
    measured = [half[0] for half in (*figure_halves, *gain_halves)]
    if not all(map(varies, measured)):
        return None

    drawn_recipes = generator.integers(num_recipes, size=(draws, num_recipes))
    pairs = [(figure_halves[0], gain_halves[1]), (figure_halves[1], gain_halves[0])]
    pearson_draws = [_draws_of(_pearson_rows, x, y, drawn_recipes) for x, y in pairs]
    spearman_draws = [_draws_of(_spearman_rows, x, y, drawn_recipes) for x, y in pairs]
    without: dict[str, tuple[float, float]] = {}
    for index, name in enumerate(recipe_names):
        others = [np.delete(values, index) for values in measured]
        if all(map(varies, others)):
            without[name] = _mean_coefficients(*others)
    return SplitCorrelation(
        models=len(recipes),
        recipes=num_recipes,
        pearson=_with_interval(np.mean(pearson_draws, axis=0), num_recipes, pearson_interval),
        spearman=_with_interval(np.mean(spearman_draws, axis=0), num_recipes, spearman_interval),
        directions=(
            _with_interval(spearman_draws[0], num_recipes, spearman_interval),
            _with_interval(spearman_draws[1], num_recipes, spearman_interval),
        ),
        figure_agreement=pearson(ranks(measured[0]), ranks(measured[1])),
        gain_agreement=pearson(ranks(measured[2]), ranks(measured[3])),
        without=without,
    )


def _on_halves(
    models: Sequence[RowValues], halves: Ints, weights: Floats, recipes: Sequence[str]
) -> Halves:
    """Return the mean of each recipe on both halves, for each draw of weights.

    Each of the two has the shape (draws, recipes). The arguments are those of `split_correlation`.
    """
    means_by_half: list[Floats] = []
    for half in (0, 1):
        weights_of_half = weights * (halves == half)
        by_model = np.array([model.figures(weights_of_half) for model in models])
        by_recipe = recipe_means(by_model, recipes)
        means_by_half.append(by_recipe.T)
    return means_by_half[0], means_by_half[1]


def _draws_of(
    coefficients: Callable[[Floats, Floats], Floats], x: Floats, y: Floats, drawn_recipes: Ints
) -> Floats:
    """Return a coefficient as it was measured, and then for each draw, shape (draws + 1,).

    A draw in which x or y does not vary has NaN.

    Args:
        coefficients: The function of x and y, which returns a coefficient for each row.
        x: A figure of each recipe, as it was measured and for each draw of the questions, shape
            (draws + 1, recipes).
        y: A gain in the same form.
        drawn_recipes: The indices of the recipes of each draw, shape (draws, recipes).
    """
    measured = coefficients(x[:1], y[:1])
    drawn_x = np.take_along_axis(x[1:], drawn_recipes, axis=1)
    drawn_y = np.take_along_axis(y[1:], drawn_recipes, axis=1)
    return np.concatenate([measured, coefficients(drawn_x, drawn_y)])


def _with_interval(
    draws: Floats, num_recipes: int, interval: Callable[[float, int], tuple[float, float]]
) -> Coefficient:
    """Return a coefficient with its interval.

    Args:
        draws: The coefficient as it was measured, and then for each draw.
        num_recipes: The number of recipes.
        interval: Returns the interval over recipes alone, than which the result is not narrower.
    """
    coefficient = float(draws[0])
    low, high = np.nanpercentile(draws[1:], [2.5, 97.5]).tolist()
    low_over_recipes, high_over_recipes = interval(coefficient, num_recipes)
    return coefficient, min(low, low_over_recipes), max(high, high_over_recipes)


def _mean_coefficients(
    first_figure: Floats, second_figure: Floats, first_gain: Floats, second_gain: Floats
) -> tuple[float, float]:
    """Return Pearson's and Spearman's coefficient, each the mean of both directions.

    The arguments are a figure and a gain of each recipe on both halves, which vary.
    """
    pairs = [(first_figure, second_gain), (second_figure, first_gain)]
    coefficients = [(pearson(x, y), pearson(ranks(x), ranks(y))) for x, y in pairs]
    of_pearson, of_spearman = np.mean(coefficients, axis=0).tolist()
    return of_pearson, of_spearman


def _pearson_rows(x: Floats, y: Floats) -> Floats:
    """Return Pearson's coefficient of each row of x and y, NaN where one does not vary.

    Args:
        x: Shape (rows, recipes).
        y: Shape (rows, recipes).
    """
    x_deviations = x - x.mean(axis=1, keepdims=True)
    y_deviations = y - y.mean(axis=1, keepdims=True)
    scales = np.sqrt((x_deviations**2).sum(axis=1) * (y_deviations**2).sum(axis=1))
    products = (x_deviations * y_deviations).sum(axis=1)
    # The deviations of equal numbers are rounding errors.
    is_varied = (np.ptp(x, axis=1) > 0) & (np.ptp(y, axis=1) > 0) & (scales > 0)
    coefficients = np.full(len(x), np.nan)
    coefficients[is_varied] = np.clip(products[is_varied] / scales[is_varied], -1.0, 1.0)
    return coefficients


def _spearman_rows(x: Floats, y: Floats) -> Floats:
    """Return the rank correlation of each row of x and y; see `_pearson_rows`."""
    return _pearson_rows(_ranks_of_rows(x), _ranks_of_rows(y))


def _ranks_of_rows(values: Floats) -> Floats:
    """Return the rank of each value in its row; equal values have the mean of their ranks.

    `values` and the result have the shape (rows, recipes).
    """
    is_lower = values[:, None, :] < values[:, :, None]
    is_equal = values[:, None, :] == values[:, :, None]
    num_lower = is_lower.sum(axis=2)
    num_others_equal = is_equal.sum(axis=2) - 1
    return np.asarray(num_lower + num_others_equal / 2)
