"""Coefficients over recipes against their definitions; test_coverage.py simulates what their intervals cover."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrm.data.arrays import Floats
from mmrm.eval.results.correlation import correlation, fisher_interval

NAMES = list("abcdefgh")


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=6, max_size=9))
def test_a_coefficient_is_that_of_all_pairs_of_models(values: list[tuple[int, int]]) -> None:
    """Pearson's coefficient by differences of all pairs; a rank is how many are smaller, and half of the equal ones."""
    x, y = np.array(values, dtype=float).T
    found = correlation(x, y, [str(i) for i in range(len(x))])

    def by_pairs(one: Floats, other: Floats) -> float:
        products = np.subtract.outer(one, one) * np.subtract.outer(other, other)
        return float(
            products.sum()
            / math.sqrt(
                (np.subtract.outer(one, one) ** 2).sum()
                * (np.subtract.outer(other, other) ** 2).sum()
            )
        )

    def ranks(one: Floats) -> Floats:
        return np.array(
            [
                sum(other < value for other in one) + sum(other == value for other in one) / 2
                for value in one
            ]
        )

    if np.ptp(x) == 0 or np.ptp(y) == 0:
        assert found is None
    else:
        assert found is not None
        assert found.models == len(x)
        assert found.pearson[0] == pytest.approx(by_pairs(x, y), abs=1e-9)
        assert found.spearman[0] == pytest.approx(by_pairs(ranks(x), ranks(y)), abs=1e-9)
        assert found.pearson[1] <= found.pearson[2]


def test_seeds_of_one_recipe_are_averaged() -> None:
    """Twice the same models are no more recipes, and seeds that differ count by their mean."""
    generator = np.random.default_rng(3)
    x, y = generator.normal(size=(2, 8))
    alone = correlation(x, y, NAMES)
    shift = np.repeat([0.3, -0.3], 8)
    twins = correlation(np.tile(x, 2) + shift, np.tile(y, 2) - shift, NAMES * 2)
    assert alone is not None
    assert twins is not None
    assert twins.pearson == pytest.approx(alone.pearson)
    assert (twins.models, twins.recipes) == (16, 8)


def test_five_recipes_are_too_few() -> None:
    x = np.arange(5.0)
    assert correlation(x, x, NAMES[:5]) is None
    assert correlation(np.tile(x, 3), np.tile(x, 3), NAMES[:5] * 3) is None
    assert correlation(np.arange(6.0), np.arange(6.0), NAMES[:6]) is not None


def test_fishers_interval() -> None:
    low, high = fisher_interval(0.5, 1 / 9)
    assert math.atanh(high) - math.atanh(0.5) == pytest.approx(1.96 / 3, abs=1e-4)
    assert math.atanh(0.5) - math.atanh(low) == pytest.approx(1.96 / 3, abs=1e-4)
    assert fisher_interval(1.0, 1 / 9) == (1.0, 1.0)


def test_six_recipes_in_one_order_do_not_prove_that_all_are() -> None:
    found = correlation(np.arange(6.0), np.arange(6.0) ** 3, NAMES[:6])
    assert found is not None
    assert found.spearman[0] == 1.0
    assert found.spearman[1] < 0.8


def test_one_recipe_can_make_a_coefficient() -> None:
    """Seven recipes without any relation, and one far away."""
    x = np.array([0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.5, 10.0])
    y = np.array([0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.5, 10.0])
    found = correlation(x, y, NAMES)
    assert found is not None
    assert list(found.without) == NAMES
    assert found.pearson[0] > 0.95
    assert found.without["h"][0] == pytest.approx(np.corrcoef(x[:7], y[:7])[0, 1])
    assert found.without["a"][0] > 0.95
