"""The probability that a label is wrong: known truth is found again, and what breaks the assumptions is seen.

All draws have fixed seeds, so that a bound holds always or never.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import approx_fprime

from mmrm.data.arrays import Floats, Ints
from mmrm.train.studies.cleaning.label_errors import (
    LabelErrors,
    _loss_and_gradient,
    fit,
    label_errors,
    log_ratio,
    probability_of_error,
    scaled,
)

DRAWS = 20
"""Number of draws of the bootstrap in these tests."""


@dataclass(frozen=True)
class Simulated:
    """Margins of pairs some of whose labels are wrong."""

    margins: Floats
    sources: list[str]
    is_wrong: Ints

    def errors(self, draws: int = DRAWS) -> LabelErrors:
        """Return the estimate, with every pair in a cluster of its own."""
        codes = np.unique(self.sources, return_inverse=True)[1]
        margins = scaled(self.margins, np.zeros_like(codes))
        return label_errors(margins, self.sources, np.arange(len(margins)), draws)


def right_margins(kind: str, count: int, generator: np.random.Generator) -> Floats:
    """Return margins of right labels of several kinds of models."""
    if kind == "normal":
        return generator.normal(1.0, 1.0, count)
    if kind == "good model":
        return generator.normal(2.0, 1.0, count)
    if kind == "easy and difficult":
        return generator.choice([0.3, 1.0, 3.0], count) + generator.normal(0, 1, count)
    if kind == "skewed":
        return generator.gamma(2.0, 0.8, count) - 0.5
    assert kind == "confidently wrong"
    return 1.2 + 0.8 * generator.standard_t(3, count)


def simulated(kind: str, rates: dict[str, float], count: int, seed: int) -> Simulated:
    """Return margins of sources with known error rates, `count` pairs each."""
    generator = np.random.default_rng(seed)
    margins = []
    sources: list[str] = []
    is_wrong = []
    for source, rate in rates.items():
        right = right_margins(kind, count, generator)
        wrong = generator.random(count) < rate
        margins.append(np.where(wrong, -right, right))
        sources += [source] * count
        is_wrong.append(wrong)
    return Simulated(np.concatenate(margins), sources, np.concatenate(is_wrong).astype(np.int64))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "good model", "easy and difficult", "skewed"])
def test_error_rates_are_within_their_intervals(kind: str) -> None:
    rates = {"clean": 0.05, "noisy": 0.2}
    num_covered = 0
    estimates = []
    for seed in range(4):
        errors = simulated(kind, rates, 1000, seed).errors(draws=80)
        assert [found.source for found in errors.sources] == ["clean", "noisy"]
        for found, rate in zip(errors.sources, rates.values(), strict=True):
            assert found.pairs == 1000
            assert 0 <= found.low <= found.rate <= found.high <= 0.5
            num_covered += found.low <= rate <= found.high
        estimates.append([found.rate for found in errors.sources])
    assert num_covered >= 6  # of 8
    assert np.mean(estimates, axis=0) == pytest.approx([0.05, 0.2], abs=0.03)


@pytest.mark.parametrize("kind", ["normal", "good model", "easy and difficult", "skewed"])
def test_probabilities_are_calibrated(kind: str) -> None:
    probabilities = []
    is_wrong = []
    for seed in range(4):
        data = simulated(kind, {"clean": 0.05, "noisy": 0.2}, 1000, seed)
        probabilities.append(data.errors().probabilities)
        is_wrong.append(data.is_wrong)
    stated = np.concatenate(probabilities)
    wrong = np.concatenate(is_wrong)
    bins = np.digitize(stated, [0.1, 0.5, 0.9])
    for number in range(4):
        inside = bins == number
        assert inside.sum() > 100
        assert stated[inside].mean() == pytest.approx(wrong[inside].mean(), abs=0.12), number
    # Most pairs are sure to be right, so that the mean difference over all pairs is far smaller.
    gaps = np.bincount(bins, stated - wrong, 4)
    assert np.abs(gaps).sum() / len(wrong) < 0.02


def test_without_wrong_labels_nothing_is_suspected_and_the_interval_has_a_width() -> None:
    errors = simulated("good model", {"clean": 0.0}, 1500, 0).errors()
    (found,) = errors.sources
    assert found.rate < 0.01
    assert found.low == 0
    assert 0.001 < found.high < 0.03  # 1,500 pairs do not show that there is no wrong label at all
    assert (errors.probabilities > 0.5).mean() < 0.005


def test_a_model_that_knows_nothing_says_that_it_does_not_know() -> None:
    generator = np.random.default_rng(0)
    margins = generator.normal(0.0, 1.0, 800)
    errors = label_errors(margins, ["any"] * 800, np.arange(800), DRAWS)
    (found,) = errors.sources
    assert (found.low, found.high) == (0, 0.5)
    assert (errors.probabilities < 0.5).all()


def test_dependent_pairs_widen_the_interval() -> None:
    data = simulated("normal", {"a": 0.2}, 150, 0)
    margins = np.tile(scaled(data.margins, np.zeros(150, np.int64)), 10)
    sources = ["a"] * 1500
    alone = label_errors(margins, sources, np.arange(1500), DRAWS).sources[0]
    together = label_errors(margins, sources, np.tile(np.arange(150), 10), DRAWS).sources[0]
    assert alone.rate == pytest.approx(together.rate, abs=0.03)
    assert together.high - together.low > 1.5 * (alone.high - alone.low)


def test_errors_of_difficult_pairs_alone_are_underestimated() -> None:
    """Show what the assumption does if it is wrong: docs/cleaning.md says so."""
    generator = np.random.default_rng(0)
    strength = generator.choice([0.3, 1.0, 3.0], 4000)
    right = strength + generator.normal(0, 1, 4000)
    rates = np.where(strength == 0.3, 0.3, np.where(strength == 1.0, 0.1, 0.02))
    is_wrong = generator.random(4000) < rates
    margins = np.where(is_wrong, -right, right)
    data = Simulated(margins, ["a"] * 4000, is_wrong.astype(np.int64))
    errors = data.errors()
    assert errors.sources[0].rate < 0.5 * is_wrong.mean()
    assert errors.probabilities.sum() < 0.5 * is_wrong.sum()


def test_confident_mistakes_of_the_model_are_taken_for_wrong_labels() -> None:
    """Show what the assumption does if it is wrong: docs/cleaning.md says so."""
    rates = [
        simulated("confidently wrong", {"a": 0.05}, 3000, seed).errors().sources[0].rate
        for seed in range(4)
    ]
    assert 0.07 < np.mean(rates) < 0.12


@given(
    st.lists(st.floats(-5, 5), min_size=1, max_size=20),
    st.floats(-2, 2),
    st.floats(-0.6, 0.6),
    st.floats(0, 0.5),
)
def test_a_probability_falls_with_the_margin(
    margins: list[float], log_slope: float, log_power: float, rate: float
) -> None:
    ascending = np.sort(np.array(margins))
    parameters = np.array([log_slope, log_power, rate])
    found = probability_of_error(ascending, np.zeros(len(ascending), np.int64), parameters)
    assert ((found >= 0) & (found <= 1)).all()
    assert (np.diff(found) <= 1e-12).all()
    # A margin of 0 says nothing.
    zero = probability_of_error(np.zeros(1), np.zeros(1, np.int64), parameters)
    assert zero[0] == pytest.approx(rate)
    # Mirrored margins exchange right and wrong, if both are as likely before.
    even = np.array([log_slope, log_power, 0.5])
    mirrored = probability_of_error(-ascending, np.zeros(len(ascending), np.int64), even)
    there = probability_of_error(ascending, np.zeros(len(ascending), np.int64), even)
    np.testing.assert_allclose(there + mirrored, 1)


def test_the_gradient_is_that_of_the_loss() -> None:
    generator = np.random.default_rng(0)
    margins = generator.normal(0.5, 1, 50)
    sources = generator.integers(0, 2, 50)
    weights = generator.exponential(size=50)
    arguments = (np.abs(margins), margins > 0, sources, weights)
    parameters = np.array([0.2, -0.1, 0.15, 0.3])
    _, gradient = _loss_and_gradient(parameters, *arguments)
    numeric = approx_fprime(parameters, lambda at: _loss_and_gradient(at, *arguments)[0])
    np.testing.assert_allclose(gradient, numeric, rtol=1e-4, atol=1e-4)


def test_the_ratio_of_normal_margins_is_found() -> None:
    # The log-ratio of normal margins of mean 1 and variance 1 is 2 m: slope 2 and power 1.
    margins = np.random.default_rng(0).normal(1, 1, 60000)
    sources = np.zeros(len(margins), np.int64)
    found = fit(margins, sources, np.ones(len(margins)), 1)
    np.testing.assert_allclose(log_ratio(np.array([1.0, -0.5]), found), [2, -1], rtol=0.05)
    assert found[2] < 0.01


@given(st.lists(st.tuples(st.integers(-1000, 1000), st.integers(0, 2)), max_size=30))
def test_scaled_margins_keep_their_signs_and_have_a_root_mean_square_of_one(
    pairs: list[tuple[int, int]],
) -> None:
    margins = np.array([margin for margin, _ in pairs], dtype=np.float64)
    models = np.array([model for _, model in pairs], dtype=np.int64)
    found = scaled(margins, models)
    assert np.array_equal(np.sign(found), np.sign(margins))
    for model in set(models.tolist()):
        of_model = found[models == model]
        if of_model.any():
            assert np.mean(of_model**2) == pytest.approx(1)
