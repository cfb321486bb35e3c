"""Intervals over rows and seeds."""

from __future__ import annotations

import numpy as np
import pytest

from eval.results.intervals import accuracy_over_seeds, crossed_bootstrap, difference_over_seeds, paired_bootstrap, spread


def test_one_seed_is_the_bootstrap_over_rows() -> None:
    credits = np.random.default_rng(0).integers(0, 2, (1, 400)).astype(float)
    rows_only = paired_bootstrap(credits[0], np.zeros(400))
    assert crossed_bootstrap(credits) == pytest.approx((rows_only.mean, rows_only.low, rows_only.high), abs=0.005)


def test_the_interval_grows_with_the_spread_over_seeds() -> None:
    rows = (np.arange(1000) < 700).astype(float)
    alike = np.tile(rows, (4, 1))
    apart = np.array([(np.arange(1000) < right).astype(float) for right in (600, 660, 740, 800)])
    (mean, low, high), (same_mean, lower, higher) = crossed_bootstrap(alike), crossed_bootstrap(apart)
    assert mean == pytest.approx(same_mean) == pytest.approx(0.7)
    assert higher - lower > 2 * (high - low)


def test_few_seeds_are_worth_their_variance() -> None:
    """All variance lies between three seeds: the interval is that of a mean of three draws, not two thirds of it."""
    by_seed = np.array([0.6, 0.7, 0.8])
    credits = np.array([(np.arange(20_000) < round(20_000 * share)).astype(float) for share in by_seed])
    rng = np.random.default_rng(1)
    drawn = rng.choice(by_seed, (20_000, 3)).mean(axis=1)
    _, low, high = crossed_bootstrap(credits)
    low_, high_ = np.percentile(drawn, [2.5, 97.5])
    assert (high - low) / (high_ - low_) == pytest.approx(np.sqrt(3 / 2), rel=0.05)


def test_it_covers_the_truth() -> None:
    """Rows of their own difficulty, seeds that differ by 2 points: the interval holds the true mean about 19 times of 20."""
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(100):
        chance = np.clip(rng.beta(1.2, 0.4, 300) + rng.normal(0, 0.02, (3, 1)), 0, 1)
        _, low, high = crossed_bootstrap((rng.random((3, 300)) < chance).astype(float), resamples=400)
        hits += low <= 0.75 <= high
    assert hits >= 90


def test_differences_are_paired_by_row_and_seed() -> None:
    rng = np.random.default_rng(3)
    first = (rng.random((3, 500)) < 0.7).astype(float)
    second = first.copy()
    second[:, :20] = 0.0
    found = difference_over_seeds(first, second)
    assert found.mean == pytest.approx(first[:, :20].sum() / 1500)
    assert found.distinguishable
    assert found.high - found.low < 0.04  # unpaired it would be 0.08
    same = difference_over_seeds(first, first)
    assert (same.mean, same.low, same.high, same.distinguishable) == (0, 0, 0, False)


def test_an_accuracy_stays_between_0_and_1() -> None:
    credits = np.ones((2, 50))
    credits[0, :4] = 0.0
    mean, low, high = accuracy_over_seeds(credits)
    assert mean == pytest.approx(0.96)
    assert 0.8 < low < 0.96 < high == 1.0


def test_the_spread_is_the_sample_standard_deviation() -> None:
    assert spread(np.array([0.7, 0.8, 0.9])) == pytest.approx(0.1)
    assert spread(np.array([0.7])) is None


@pytest.mark.parametrize("shape", [(3,), (0, 3), (3, 0)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="required is"):
        crossed_bootstrap(np.zeros(shape))
    with pytest.raises(ValueError, match="the same seeds and rows"):
        difference_over_seeds(np.zeros((2, 3)), np.zeros((3, 3)))
