"""Correlations over halves of the questions: against their definition, and how often their intervals hold the truth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from mmrm.data.arrays import Floats, Ints
from mmrm.eval.results.correlation import correlation, spearman_interval
from mmrm.eval.results.split_correlation import RowValues, SplitCorrelation, split_correlation

NAMES = list("abcdefgh")
HALVES = np.arange(40) % 2


def rows_with_means(first: Floats, second: Floats) -> list[RowValues]:
    """Return a figure of some models whose mean is `first` on clusters 0, 2, 4 … and `second` on the others."""
    clusters = np.arange(40)
    by_half = np.array([first, second])
    return [RowValues(by_half[clusters % 2, model], clusters) for model in range(len(first))]


def measured(
    figures: list[RowValues], gains: list[RowValues], names: list[str]
) -> SplitCorrelation:
    found = split_correlation(figures, gains, HALVES, names, draws=200)
    assert found is not None
    return found


def test_a_figure_on_one_half_is_compared_with_the_gain_on_the_other() -> None:
    generator = np.random.default_rng(0)
    first, second, gain_on_first, gain_on_second = generator.normal(size=(4, 8))
    figures = rows_with_means(first, second)
    found = measured(figures, rows_with_means(gain_on_first, gain_on_second), NAMES)
    directions = [
        correlation(first, gain_on_second, NAMES),
        correlation(second, gain_on_first, NAMES),
    ]
    ranked = [one.spearman[0] for one in directions if one is not None]
    assert [one[0] for one in found.directions] == pytest.approx(ranked)
    assert found.spearman[0] == pytest.approx(np.mean(ranked))
    assert found.pearson[0] == pytest.approx(
        np.mean([one.pearson[0] for one in directions if one is not None])
    )
    agreement = correlation(gain_on_first, gain_on_second, NAMES)
    assert agreement is not None
    assert found.gain_agreement == pytest.approx(agreement.spearman[0])
    assert list(found.without) == NAMES
    without_a = [
        correlation(x[1:], y[1:], NAMES[1:])
        for x, y in ((first, gain_on_second), (second, gain_on_first))
    ]
    assert found.without["a"][1] == pytest.approx(
        np.mean([one.spearman[0] for one in without_a if one is not None])
    )


def test_luck_on_the_same_answers_is_no_correlation() -> None:
    """Equal models that were lucky on one half: the same answers would make a coefficient of 1."""
    luck = np.arange(8.0)
    lucky = rows_with_means(luck, -luck)
    assert measured(lucky, lucky, NAMES).spearman[0] == -1.0


def test_seeds_are_averaged_and_too_few_recipes_have_no_coefficient() -> None:
    x, y = np.random.default_rng(1).normal(size=(2, 8))
    alone = measured(rows_with_means(x, x), rows_with_means(y, y), NAMES)
    shift = np.repeat([0.3, -0.3], 8)
    twice = np.tile(x, 2) + shift
    twins = measured(
        rows_with_means(twice, twice), rows_with_means(np.tile(y, 2), np.tile(y, 2)), NAMES * 2
    )
    assert (twins.models, twins.recipes) == (16, 8)
    assert twins.spearman[0] == alone.spearman[0]
    five = rows_with_means(x[:5], x[:5])
    assert split_correlation(five, five, HALVES, NAMES[:5]) is None
    equal = rows_with_means(np.ones(8), np.ones(8))
    assert split_correlation(equal, rows_with_means(x, x), HALVES, NAMES) is None


def test_eight_recipes_in_one_order_do_not_prove_that_all_are() -> None:
    order = np.arange(8.0)
    _, low, high = measured(
        rows_with_means(order, order), rows_with_means(order, order), NAMES
    ).spearman
    assert high == 1.0
    assert low < 0.95


def test_a_calibration_error_adds_the_absolute_sums_of_its_bins() -> None:
    gaps = RowValues(
        np.array([0.2, -0.4, 0.5, 0.1]), np.array([0, 0, 1, 1]), np.array([0, 0, 1, 0])
    )
    both, first, second = gaps.figures(np.array([[1.0, 1.0], [1.0, 0.0], [0.0, 2.0]]))
    assert both == pytest.approx((abs(0.2 - 0.4 + 0.1) + 0.5) / 4)
    assert first == pytest.approx(0.2 / 2)
    assert second == pytest.approx(0.6 / 2)


# Coverage.

DRAWS = 150
LEAST = 0.93


@dataclass(frozen=True)
class Design:
    """A population of recipes, and the questions on which they are measured."""

    recipes: int
    coefficient: float
    """The correlation of the true figures and gains."""
    images: int
    """Images of each half, with two questions each."""
    shared: float = 0.0
    """Standard deviation of what a question gives or takes from all recipes of a family alike."""


DESIGNS = {
    "6 recipes, nothing predicts": Design(6, 0.0, 40),
    "12 recipes, nothing predicts": Design(12, 0.0, 100),
    "8 recipes, 0.8": Design(8, 0.8, 100),
    "12 recipes, 0.95": Design(12, 0.95, 100),
    "12 recipes, 0.95, few questions": Design(12, 0.95, 20),
    "12 recipes of two families, few questions": Design(12, 0.6, 12, shared=1.0),
}


def drawn(
    generator: np.random.Generator, design: Design
) -> tuple[list[RowValues], list[RowValues], Ints]:
    """Return the accuracies and the gains of recipes on both halves, and the half of each image.

    A credit is 0 or 1. Questions have a difficulty for all, and another one for each half of the recipes.
    """
    num_images = 2 * design.images
    clusters = np.repeat(np.arange(num_images), 2)
    families = np.arange(design.recipes) % 2
    truth = generator.normal(size=design.recipes)
    own = generator.normal(size=design.recipes)
    true_gain = design.coefficient * truth + np.sqrt(1 - design.coefficient**2) * own
    figures: list[RowValues] = []
    gains: list[RowValues] = []
    for level, scale, values in ((0.8, 0.4, figures), (0.0, 0.05, gains)):
        of_recipes = truth if values is figures else true_gain
        difficulty = generator.normal(size=num_images)[clusters]
        of_family = design.shared * generator.normal(size=(2, num_images))[:, clusters]
        for recipe in range(design.recipes):
            noise = (
                generator.normal(size=len(clusters))
                + 0.5 * difficulty
                + of_family[families[recipe]]
            )
            ability = level + scale * of_recipes[recipe]
            if values is figures:
                values.append(RowValues((noise < ability).astype(float), clusters))
            else:
                values.append(RowValues(ability + 0.4 * noise, clusters))
    return figures, gains, np.arange(num_images) // design.images


def true_coefficient(design: Design) -> float:
    """Return the rank correlation of very many recipes that are measured on as many questions, the mean over studies."""
    generator = np.random.default_rng(7)
    many = Design(300, design.coefficient, design.images, design.shared)
    names = [str(index) for index in range(many.recipes)]
    coefficients = []
    for _ in range(20):
        figures, gains, halves = drawn(generator, many)
        found = split_correlation(figures, gains, halves, names, draws=1)
        assert found is not None
        coefficients.append(found.spearman[0])
    return float(np.mean(coefficients))


@pytest.mark.slow
@pytest.mark.parametrize("name", DESIGNS)
def test_intervals_hold_the_true_rank_correlation(name: str) -> None:
    design = DESIGNS[name]
    truth = true_coefficient(design)
    names = [str(index) for index in range(design.recipes)]
    generator = np.random.default_rng(27)
    num_covered = 0
    num_covered_over_recipes = 0
    widths = []
    for _ in range(DRAWS):
        figures, gains, halves = drawn(generator, design)
        found = split_correlation(figures, gains, halves, names, draws=100)
        assert found is not None
        coefficient, low, high = found.spearman
        num_covered += low <= truth <= high
        widths.append(high - low)
        alone = spearman_interval(coefficient, design.recipes)
        num_covered_over_recipes += alone[0] <= truth <= alone[1]
    line = (
        f"rank correlation, {name}: truth {truth:+.2f}, covers {100 * num_covered / DRAWS:.1f} %, width "
        f"{np.mean(widths):.2f}; over recipes alone {100 * num_covered_over_recipes / DRAWS:.1f} %"
    )
    print(line)
    assert num_covered / DRAWS >= LEAST, line
    assert np.mean(widths) < 1.2 or design.recipes < 12, line


def test_equal_models_have_no_correlation_on_halves() -> None:
    """Twelve equal models: a figure and a gain from the same answers correlate, from other answers they do not."""
    generator = np.random.default_rng(0)
    names = [str(index) for index in range(12)]
    same: list[float] = []
    halves: list[float] = []
    for _ in range(300):
        noise = generator.normal(size=(2, 12))
        figure = noise + generator.normal(size=(2, 12))
        gain = noise + generator.normal(size=(2, 12))
        found = correlation(figure.mean(axis=0), gain.mean(axis=0), names)
        assert found is not None
        same.append(found.pearson[0])
        on_halves = split_correlation(
            rows_with_means(*figure), rows_with_means(*gain), HALVES, names, draws=1
        )
        assert on_halves is not None
        halves.append(on_halves.pearson[0])
    assert abs(np.mean(halves)) < 0.05
    assert np.mean(same) > 0.4
