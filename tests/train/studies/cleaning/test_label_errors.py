"""The probability that a label is wrong: known truth is found again, and what breaks the assumptions is seen.

All draws have fixed seeds, so that a bound holds always or never.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import xlogy
from scipy.stats import norm

from mmrm.data.arrays import Floats, Ints
from mmrm.train.studies.cleaning.label_errors import (
    BINS,
    SHAPE_ERROR,
    BinnedMargins,
    LabelErrors,
    MarginModel,
    _improved,
    best_rates,
    first_model,
    label_errors,
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
    assert num_covered >= 7  # of 8
    assert np.mean(estimates, axis=0) == pytest.approx([0.05, 0.2], abs=0.04)


def stated_and_true_shares(kind: str) -> list[tuple[float, float]]:
    """Return the mean probability and the share of wrong labels of pairs below 0.1, 0.5, 0.9 and 1."""
    probabilities = []
    is_wrong = []
    for seed in range(4):
        data = simulated(kind, {"clean": 0.05, "noisy": 0.2}, 1000, seed)
        probabilities.append(data.errors().probabilities)
        is_wrong.append(data.is_wrong)
    stated = np.concatenate(probabilities)
    wrong = np.concatenate(is_wrong)
    bins = np.digitize(stated, [0.1, 0.5, 0.9])
    shares = []
    for number in range(4):
        inside = bins == number
        assert inside.sum() > 100
        shares.append((float(stated[inside].mean()), float(wrong[inside].mean())))
    return shares


@pytest.mark.parametrize("kind", ["normal", "good model", "easy and difficult"])
def test_probabilities_are_calibrated(kind: str) -> None:
    for stated, true in stated_and_true_shares(kind):
        assert stated == pytest.approx(true, abs=0.12)


def test_probabilities_are_too_small_if_right_labels_have_no_large_negative_margins() -> None:
    """Show what another shape of the density does: no normal density ends at -0.5."""
    for stated, true in stated_and_true_shares("skewed"):
        assert stated < true + 0.02
    stated, true = stated_and_true_shares("skewed")[2]
    assert 0.2 < true - stated < 0.3


def test_without_wrong_labels_nothing_is_suspected_and_the_interval_has_a_width() -> None:
    errors = simulated("good model", {"clean": 0.0}, 1500, 0).errors()
    (found,) = errors.sources
    assert found.rate < 0.01
    assert found.low == 0
    # 1,500 pairs do not show that there is no wrong label at all.
    assert SHAPE_ERROR + 0.001 < found.high < SHAPE_ERROR + 0.03
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


COMPONENT = st.tuples(st.floats(0.05, 1), st.floats(0, 3), st.floats(0.05, 2))
"""A share before the shares are divided by their sum, a mean, and a deviation."""


def model_of(components: list[tuple[float, float, float]], rates: list[float]) -> MarginModel:
    shares, means, deviations = np.array(components).T
    return MarginModel(shares / shares.sum(), means, deviations, np.array(rates))


@given(
    st.lists(st.floats(0, 5), min_size=1, max_size=20),
    st.lists(COMPONENT, min_size=1, max_size=3),
    st.floats(0, 0.5),
)
def test_a_probability_falls_with_the_margin(
    sizes: list[float], components: list[tuple[float, float, float]], rate: float
) -> None:
    ascending = np.sort(np.array(sizes))
    model = model_of(components, [rate, 0.5])
    (negative, positive), even = probability_of_error(ascending, model)
    # From the largest negative margin to the largest positive one.
    found = np.concatenate([negative[::-1], positive])
    assert ((found >= 0) & (found <= 1)).all()
    assert (np.diff(found) <= 1e-12).all()
    # Mirrored margins exchange right and wrong, if both are as likely before.
    np.testing.assert_allclose(even.sum(axis=0), 1)
    # A margin of 0 says nothing.
    at_zero = probability_of_error(np.zeros(1), model)
    np.testing.assert_allclose(at_zero[0], rate, atol=1e-300)  # no digits are left below this


def test_the_ratio_of_normal_margins_is_that_of_their_densities() -> None:
    """The log-ratio of normal margins of mean 1 and variance 1 is 2 m."""
    model = model_of([(1.0, 1.0, 1.0)], [0.1])
    sizes = np.array([0.0, 0.5, 1.0, 3.0])
    np.testing.assert_allclose(model.log_ratios(sizes), 2 * sizes)
    wrong = 0.1 * norm.pdf(-1.0, 1, 1)
    right = 0.9 * norm.pdf(1.0, 1, 1)
    found = probability_of_error(np.array([1.0]), model)[0, 1, 0]
    assert found == pytest.approx(wrong / (wrong + right))


def test_a_larger_margin_is_never_less_certain() -> None:
    """Far out, the wide component around 0 outweighs the other one, and the ratio would fall."""
    model = model_of([(0.5, 0.0, 2.0), (0.5, 1.0, 0.2)], [0.1])
    sizes = np.linspace(0, 6, 50)
    assert (np.diff(model.log_ratios(sizes)) >= 0).all()
    assert model.log_ratios(sizes)[-1] == model.log_ratios(sizes).max() > 2


def test_every_step_of_a_fit_raises_the_density() -> None:
    """A known property of expectation maximisation, with priors."""
    data = simulated("easy and difficult", {"a": 0.1, "b": 0.3}, 300, 0)
    codes = np.repeat([0, 1], 300)
    binned = BinnedMargins.of(scaled(data.margins, np.zeros(600, np.int64)), codes, 2)
    weights = binned.weights(np.random.default_rng(0).exponential(size=600))
    model = first_model(binned, 0.35)
    densities = []
    for _ in range(60):
        model, density = _improved(binned.sizes, weights, model)
        densities.append(density)
    assert (np.diff(densities) > -1e-9).all()
    assert densities[-1] > densities[0] + 10


@given(st.integers(0, 8000), st.integers(0, 8000))
def test_the_best_rate_has_the_largest_density(eighths_wrong: int, eighths_right: int) -> None:
    wrong = eighths_wrong / 8
    right = eighths_right / 8

    def density(rate: float) -> float:
        return float(xlogy(wrong, rate) + xlogy(right, 1 - rate) + np.log(1 - 2 * rate))

    (found,) = best_rates(np.array([wrong]), np.array([right]))
    assert 0 <= found < 0.5
    others = np.linspace(0, 0.4999, 500)
    assert density(found) >= max(density(rate) for rate in others) - 1e-9


def test_equal_pairs_are_counted_once_with_their_weights() -> None:
    margins = np.array([-1.0, 2.0, 1.0, -2.0, 2.0])
    binned = BinnedMargins.of(margins, np.array([0, 0, 1, 1, 1]), 2)
    assert binned.sizes.tolist() == [1, 1, 2, 2, 2]
    weights = binned.weights(np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert weights.shape == (2, 2, 5)
    assert weights.sum(axis=2).tolist() == [[1, 2], [4, 8]]
    values = np.arange(20.0).reshape(2, 2, 5)
    assert binned.of_pairs(values)[0] == values[0, 0, binned.bins[0]]
    many = np.random.default_rng(0).normal(size=10000)
    rounded = BinnedMargins.of(many, np.zeros(10000, np.int64), 1)
    assert len(rounded.sizes) == BINS
    assert np.abs(rounded.sizes[rounded.bins] - np.abs(many)).mean() < 0.01
    assert (np.diff(rounded.sizes) >= 0).all()


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
