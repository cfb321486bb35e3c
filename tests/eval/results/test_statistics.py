"""Intervals over rows and seeds, differences, order and votes against their definitions."""

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.benchmarks.benchmark import macro
from eval.protocol import Floats
from eval.results import statistics
from eval.results.statistics import (
    Z95,
    accuracy_over_seeds,
    agreement,
    correlation,
    crossed_bootstrap,
    order_consistency,
    paired_bootstrap,
    spread,
    wilson,
)

CREDITS = st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=60)


@given(st.integers(1, 5000), st.data())
def test_both_ends_of_wilsons_interval_solve_its_equation(n: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, n))
    share = successes / n
    low, high = wilson(successes, n)
    assert 0 <= low <= share <= high <= 1
    for end in (low, high):
        assert abs(share - end) == pytest.approx(Z95 * math.sqrt(end * (1 - end) / n), abs=1e-9)


@given(st.integers(1, 500), st.data())
def test_wilsons_interval_of_the_failures_is_the_mirror_image(n: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, n))
    low, high = wilson(successes, n)
    other_low, other_high = wilson(n - successes, n)
    assert (other_low, other_high) == pytest.approx((1 - high, 1 - low))


def test_wilson_at_the_sizes_of_the_benchmarks() -> None:
    half_width = [
        (wilson(share * n, n)[1] - wilson(share * n, n)[0]) / 2
        for share, n in ((0.8216, 1250), (0.9176, 170))
    ]
    assert half_width == pytest.approx([0.0212, 0.0418], abs=2e-4)
    assert wilson(0, 0) == (0.0, 1.0)


def test_wilson_refuses_more_successes_than_trials() -> None:
    with pytest.raises(ValueError, match="3 successes of 2"):
        wilson(3, 2)


@given(CREDITS)
def test_a_checkpoint_is_not_distinguishable_from_itself(credits: list[float]) -> None:
    difference = paired_bootstrap(np.array(credits), np.array(credits))
    assert (difference.mean, difference.low, difference.high) == (0, 0, 0)
    assert not difference.distinguishable


@given(CREDITS)
def test_the_difference_turns_its_sign_with_the_order(credits: list[float]) -> None:
    first, second = np.array(credits), np.array(credits[::-1])
    one, two = paired_bootstrap(first, second), paired_bootstrap(second, first)
    assert one.mean == pytest.approx(-two.mean)
    assert one.low <= one.mean + 1e-12
    assert one.high >= one.mean - 1e-12


@settings(deadline=None, max_examples=40)
@given(CREDITS)
def test_exchanged_credits_give_the_mirrored_interval(credits: list[float]) -> None:
    for first, second in (
        (credits, credits[::-1]),
        (credits, [0.5] * len(credits)),
        ([0.5] * len(credits), credits),
    ):
        one, two = (
            paired_bootstrap(np.array(a), np.array(b))
            for a, b in ((first, second), (second, first))
        )
        assert (one.mean, one.low, one.high) == (-two.mean, -two.high, -two.low)
    seeds = np.array([credits, credits[::-1]])
    one, two = paired_bootstrap(seeds, seeds**2), paired_bootstrap(seeds**2, seeds)
    assert (one.mean, one.low, one.high) == (-two.mean, -two.high, -two.low)


def test_the_bootstrap_equals_plain_resampling_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 20000)
    generator = np.random.default_rng(3)
    first, second = generator.integers(0, 2, 400) * 1.0, generator.choice([0.0, 0.5, 1.0], 400)
    drawn = generator.integers(0, 400, (20000, 400))
    expected = np.percentile((first - second)[drawn].mean(1), [2.5, 97.5])
    found = paired_bootstrap(first, second)
    assert (found.low, found.high) == pytest.approx(tuple(expected), abs=2e-3)
    assert found == paired_bootstrap(first, second)


def test_pairing_distinguishes_what_two_separate_intervals_do_not() -> None:
    second = np.array([1.0] * 500 + [0.0] * 500)
    first = second.copy()
    first[500:520] = 1.0
    difference = paired_bootstrap(first, second)
    assert difference.distinguishable
    assert difference.mean == pytest.approx(0.02)
    assert wilson(first.sum(), 1000)[0] < wilson(second.sum(), 1000)[1]


def test_two_thousand_resamples_of_five_thousand_rows_take_a_moment() -> None:
    generator = np.random.default_rng(0)
    first, second = generator.integers(0, 2, 5000) * 1.0, generator.integers(0, 2, 5000) * 1.0
    start = time.perf_counter()
    paired_bootstrap(first, second)
    assert time.perf_counter() - start < 1


def test_the_bootstrap_refuses_different_rows() -> None:
    with pytest.raises(ValueError, match="the same rows and seeds"):
        paired_bootstrap(np.ones(3), np.ones(2))
    with pytest.raises(ValueError, match="at least one"):
        paired_bootstrap(np.ones(0), np.ones(0))


def test_order_consistency_counts_what_is_named_in_both_orders() -> None:
    shown_first_0 = np.array([0, 1, 0, 0, 1, -1, 1])
    shown_first_1 = np.array([0, 1, 1, 1, 0, 0, -1])
    found = order_consistency(shown_first_0, shown_first_1)
    assert (found.pairs, found.consistent, found.first, found.second, found.rate) == (
        5,
        2,
        2,
        1,
        0.4,
    )
    assert order_consistency(np.array([-1]), np.array([0])).rate is None


def test_agreement_is_the_share_of_the_majority() -> None:
    assert agreement(np.array([3, 1, 2, 0]), np.array([0, 3, 2, 0])) == pytest.approx(
        (1 + 0.75 + 0.5) / 3
    )
    assert agreement(np.array([0]), np.array([0])) is None


def test_macro_is_none_where_a_group_is_empty() -> None:
    assert macro([0.5, 1.0]) == 0.75
    assert macro([0.5, None]) is None
    assert macro([]) is None


def test_one_seed_is_the_bootstrap_over_rows() -> None:
    credits = np.random.default_rng(0).integers(0, 2, (1, 400)).astype(float)
    rows_only = paired_bootstrap(credits[0], np.zeros(400))
    assert crossed_bootstrap(credits) == pytest.approx(
        (rows_only.mean, rows_only.low, rows_only.high), abs=0.005
    )


def test_the_interval_grows_with_the_spread_over_seeds() -> None:
    rows = (np.arange(1000) < 700).astype(float)
    alike = np.tile(rows, (4, 1))
    apart = np.array([(np.arange(1000) < right).astype(float) for right in (600, 660, 740, 800)])
    (mean, low, high), (same_mean, lower, higher) = (
        crossed_bootstrap(alike),
        crossed_bootstrap(apart),
    )
    assert mean == pytest.approx(same_mean) == pytest.approx(0.7)
    assert higher - lower > 2 * (high - low)


def test_few_seeds_are_worth_their_variance() -> None:
    """All variance lies between three seeds: the interval is that of a mean of three draws, not two thirds of it."""
    by_seed = np.array([0.6, 0.7, 0.8])
    credits = np.array(
        [(np.arange(20_000) < round(20_000 * share)).astype(float) for share in by_seed]
    )
    rng = np.random.default_rng(1)
    drawn = rng.choice(by_seed, (20_000, 3)).mean(axis=1)
    _, low, high = crossed_bootstrap(credits)
    low_, high_ = np.percentile(drawn, [2.5, 97.5])
    assert (high - low) / (high_ - low_) == pytest.approx(np.sqrt(3 / 2), rel=0.05)


def test_it_covers_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of their own difficulty, seeds that differ by 2 points: the interval holds the true mean about 19 times of 20."""
    monkeypatch.setattr(statistics, "RESAMPLES", 400)
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(100):
        chance = np.clip(rng.beta(1.2, 0.4, 300) + rng.normal(0, 0.02, (3, 1)), 0, 1)
        _, low, high = crossed_bootstrap((rng.random((3, 300)) < chance).astype(float))
        hits += low <= 0.75 <= high
    assert hits >= 90


def test_differences_are_paired_by_row_and_seed() -> None:
    rng = np.random.default_rng(3)
    first = (rng.random((3, 500)) < 0.7).astype(float)
    second = first.copy()
    second[:, :20] = 0.0
    found = paired_bootstrap(first, second)
    assert found.mean == pytest.approx(first[:, :20].sum() / 1500)
    assert found.distinguishable
    assert found.high - found.low < 0.04  # unpaired it would be 0.08
    same = paired_bootstrap(first, first)
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
    with pytest.raises(ValueError, match="the same rows and seeds"):
        paired_bootstrap(np.zeros((2, 3)), np.zeros((3, 3)))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=3, max_size=9))
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


def test_seeds_of_one_recipe_are_drawn_together() -> None:
    """Twice the same models are no more models: the interval of ten pairs of twins is that of ten, not that of twenty."""
    generator = np.random.default_rng(3)
    x = generator.normal(size=10)
    y = x + generator.normal(size=10)
    names = [str(i) for i in range(10)]
    alone, twins = correlation(x, y, names), correlation(np.tile(x, 2), np.tile(y, 2), names * 2)
    apart = correlation(np.tile(x, 2), np.tile(y, 2), [*names, *(f"{name}'" for name in names)])
    assert alone is not None
    assert twins is not None
    assert apart is not None
    assert twins.pearson == pytest.approx(alone.pearson)
    assert apart.pearson[2] - apart.pearson[1] < 0.85 * (alone.pearson[2] - alone.pearson[1])
