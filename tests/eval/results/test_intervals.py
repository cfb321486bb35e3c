"""Intervals of shares, means and differences against their definitions; test_coverage.py simulates what they cover."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtrit

from mmrm.eval.results.intervals import (
    Z95,
    Difference,
    Estimate,
    accuracy_interval,
    accuracy_over_seeds,
    cluster_codes,
    contrast_over_seeds,
    difference_over_seeds,
    effective_rows,
    mean_interval,
    mean_over_seeds,
    paired_difference,
    ratio_over_seeds,
    share_interval,
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


def test_rows_that_share_a_name_by_way_of_others_are_one_cluster() -> None:
    names = [["a"], ["a", "b"], ["b"], ["c"], [], []]
    assert cluster_codes(names).tolist() == [0, 0, 0, 1, 2, 3]


@given(st.lists(st.sets(st.integers(0, 6), max_size=3), max_size=12))
def test_clusters_are_the_connected_components(names_by_row: list[set[int]]) -> None:
    codes = cluster_codes(names_by_row)
    for row, names in enumerate(names_by_row):
        reached, seen = {row}, set(names)
        for _ in names_by_row:
            for other, other_names in enumerate(names_by_row):
                if seen & other_names:
                    reached.add(other)
                    seen |= other_names
        expected = [other in reached for other in range(len(names_by_row))]
        assert (codes == codes[row]).tolist() == expected


def test_rows_of_one_cluster_are_one_observation() -> None:
    """Every row twice is no more than once; rows that differ inside are worth as much as independent ones."""
    credits = np.random.default_rng(0).integers(0, 2, 100).astype(float)
    twice = np.repeat(credits, 2)
    rows, count = effective_rows(twice, np.repeat(np.arange(100), 2))
    assert rows == pytest.approx(effective_rows(credits)[0])
    assert count == 100
    opposite = np.tile([0.0, 1.0], 100)
    assert effective_rows(opposite, np.repeat(np.arange(100), 2))[0] == pytest.approx(199)


def test_the_interval_of_a_share_is_wilsons_for_effective_rows() -> None:
    credits = np.array([1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0])
    clusters = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    sums = np.array([2, 1, 0, 2]) - 2 * 5 / 8
    variance = (sums**2).sum() * 4 / 3 / 64
    rows = 5 / 8 * 3 / 8 / variance
    found = share_interval(credits, clusters)
    assert (found.low, found.high) == wilson(5 / 8 * rows, rows, float(stdtrit(3, 0.975)))
    assert accuracy_interval(credits, clusters) == found
    plain = accuracy_interval(credits, np.arange(8))
    assert (plain.low, plain.high) == wilson(5, 8)


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_one_item_says_nothing_about_others(value: float) -> None:
    credits, clusters = np.full(50, value), np.zeros(50, dtype=np.int64)
    assert share_interval(credits, clusters) == Estimate(value, 0.0, 1.0)
    found = paired_difference(credits, credits, clusters)
    assert (found.low, found.high) == (-1.0, 1.0)
    assert mean_interval(credits, clusters).low is None


def test_a_hundred_right_answers_on_five_images_are_five_observations() -> None:
    found = share_interval(np.ones(100), np.repeat(np.arange(5), 20))
    assert (found.low, found.high) == wilson(5, 5, float(stdtrit(4, 0.975)))


@given(CREDITS)
def test_a_share_lies_inside_its_interval_between_0_and_1(credits: list[float]) -> None:
    for clusters in (None, np.arange(len(credits)) // 3):
        found = share_interval(np.array(credits), clusters)
        assert found.low is not None
        assert found.high is not None
        assert 0 <= found.low <= found.mean + 1e-12
        assert found.mean - 1e-12 <= found.high <= 1


@given(CREDITS)
def test_a_checkpoint_is_not_distinguishable_from_itself(credits: list[float]) -> None:
    found = paired_difference(np.array(credits), np.array(credits))
    assert found.mean == 0
    assert found.low == pytest.approx(-(found.high or 0.0))
    assert (found.low or 0.0) < 0  # on other rows they may differ
    assert found.words == "not distinguishable"


@given(CREDITS)
def test_exchanged_credits_give_the_mirrored_interval(credits: list[float]) -> None:
    first, second = np.array(credits), np.array(credits[::-1])
    for clusters in (None, np.arange(len(credits)) // 3):
        one = paired_difference(first, second, clusters)
        two = paired_difference(second, first, clusters)
        assert (one.mean, one.low, one.high) == pytest.approx(
            (-two.mean, -(two.high or 0.0), -(two.low or 0.0))
        )


def test_a_paired_difference_is_students_interval_with_one_row_for_either() -> None:
    generator = np.random.default_rng(3)
    first, second = generator.integers(0, 2, 400) * 1.0, generator.choice([0.0, 0.5, 1.0], 400)
    differences = first - second
    squares = ((differences - differences.mean()) ** 2).sum() * 400 / 399 + 1
    half_width = stdtrit(399, 0.975) * math.sqrt(squares) / 400
    found = paired_difference(first, second)
    assert (found.mean, found.high) == pytest.approx(
        (differences.mean(), differences.mean() + half_width)
    )


def test_pairing_distinguishes_what_two_separate_intervals_do_not() -> None:
    second = np.array([1.0] * 500 + [0.0] * 500)
    first = second.copy()
    first[500:520] = 1.0
    found = paired_difference(first, second)
    assert found.distinguishable
    assert found.mean == pytest.approx(0.02)
    assert wilson(first.sum(), 1000)[0] < wilson(second.sum(), 1000)[1]


def test_many_comparisons_need_a_wider_interval() -> None:
    generator = np.random.default_rng(1)
    first, second = generator.integers(0, 2, (2, 200)).astype(float)
    alone, many = (paired_difference(first, second, comparisons=count) for count in (1, 14))
    assert (many.high or 0.0) - many.mean == pytest.approx(
        ((alone.high or 0.0) - alone.mean) * stdtrit(199, 1 - 0.025 / 14) / stdtrit(199, 0.975)
    )


def test_different_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="the same rows"):
        paired_difference(np.ones(3), np.ones(2))
    with pytest.raises(ValueError, match="at least one"):
        paired_difference(np.ones(0), np.ones(0))
    with pytest.raises(ValueError, match="the same rows"):
        difference_over_seeds(np.zeros((2, 3)), np.zeros((3, 4)))
    with pytest.raises(ValueError, match="at least one"):
        difference_over_seeds(np.zeros((0, 3)), np.zeros((3, 3)))


@pytest.mark.parametrize("shape", [(3,), (0, 3), (3, 0)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="required is"):
        mean_over_seeds(np.zeros(shape))


@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_than_three_seeds_have_no_interval_and_no_word(seeds: int) -> None:
    """Two trainings hardly say how far trainings differ, however far the two are from those of another recipe."""
    one, other = np.ones((seeds, 50)), np.zeros((seeds, 50))
    assert accuracy_over_seeds(one) == Estimate(1.0, None, None)
    found = difference_over_seeds(one, other)
    assert found == Difference(1.0, None, None)
    assert (found.words, found.points) == ("too few seeds", "+100.0")
    assert not found.distinguishable
    assert difference_over_seeds(np.ones((5, 50)), other).words == "too few seeds"


def test_the_interval_grows_with_the_spread_over_seeds() -> None:
    rows = (np.arange(1000) < 700).astype(float)
    alike = accuracy_over_seeds(np.tile(rows, (4, 1)))
    apart = accuracy_over_seeds(
        np.array([(np.arange(1000) < right).astype(float) for right in (600, 660, 740, 800)])
    )
    assert alike.mean == pytest.approx(apart.mean) == pytest.approx(0.7)
    assert (apart.high or 0) - (apart.low or 0) > 2 * ((alike.high or 0) - (alike.low or 0))


def test_seeds_that_say_the_same_leave_students_interval_over_rows() -> None:
    rows = np.random.default_rng(0).random(80)
    found, alone = mean_over_seeds(np.tile(rows, (3, 1))), mean_interval(rows)
    assert (found.mean, found.low, found.high) == pytest.approx((alone.mean, alone.low, alone.high))


def test_rows_that_say_the_same_leave_students_interval_over_seeds() -> None:
    by_seed = np.array([0.6, 0.7, 0.8])
    found = mean_over_seeds(np.tile(by_seed[:, None], (1, 50)))
    half_width = stdtrit(2, 0.975) * 0.1 / math.sqrt(3)
    assert found.high == pytest.approx(0.7 + half_width)


def test_clustered_rows_widen_the_interval_over_seeds() -> None:
    generator = np.random.default_rng(0)
    once = (generator.random((3, 100)) < generator.random(100)).astype(float)
    twice, clusters = np.repeat(once, 2, axis=1), np.repeat(np.arange(100), 2)
    found, same = accuracy_over_seeds(twice, clusters), accuracy_over_seeds(once)
    assert (found.low, found.high) == pytest.approx((same.low, same.high), rel=0.01)


def test_differences_are_paired_by_row_and_seeds_may_differ_in_number() -> None:
    generator = np.random.default_rng(3)
    rows = generator.random(500) < 0.7
    first = np.tile(rows, (3, 1)).astype(float)
    second = first.copy()
    second[:, :20] = 0.0
    found = difference_over_seeds(first, second)
    assert found.mean == pytest.approx(first[:, :20].sum() / 1500)
    assert found.words == "better"
    assert difference_over_seeds(second, first).words == "worse"
    more = difference_over_seeds(np.tile(rows, (5, 1)).astype(float), second)
    assert more.mean == pytest.approx(found.mean)
    assert difference_over_seeds(first, first).words == "not distinguishable"


def test_a_contrast_adds_the_variances_of_its_recipes() -> None:
    """The formulas of Welch and Satterthwaite by hand, for rows on which all recipes agree."""
    accuracies = [np.array([0.6, 0.7, 0.8]), np.array([0.2, 0.3, 0.35]), np.array([0.5, 0.5, 0.8])]
    weights = [1.0, -0.5, -0.5]
    weighted = []
    variances = []
    for weight, by_seed in zip(weights, accuracies, strict=True):
        weighted.append((weight, np.tile(by_seed[:, None], (1, 400))))
        variances.append(weight**2 * by_seed.var(ddof=1) / 3)
    found = contrast_over_seeds(weighted)
    mean = 0.7 - (np.mean(accuracies[1]) + np.mean(accuracies[2])) / 2
    degrees = sum(variances) ** 2 / sum(variance**2 / 2 for variance in variances)
    half_width = stdtrit(degrees, 0.975) * math.sqrt(sum(variances))
    assert found.mean == pytest.approx(mean)
    assert found.high == pytest.approx(mean + half_width)
    assert found.low == pytest.approx(mean - half_width)


def test_a_contrast_with_the_weights_of_a_difference_is_the_difference() -> None:
    generator = np.random.default_rng(5)
    first, second = (generator.random((seeds, 60)).round() for seeds in (3, 4))
    contrast = contrast_over_seeds([(1.0, first), (-1.0, second)])
    assert contrast == difference_over_seeds(first, second)
    assert contrast.low is not None
    halves = contrast_over_seeds([(0.5, first), (0.5, first), (-1.0, second)])
    assert halves.mean == pytest.approx(contrast.mean)
    two_seeds = contrast_over_seeds([(1.0, first[:2]), (-0.5, second), (-0.5, second)])
    assert (two_seeds.low, two_seeds.high) == (None, None)


def test_a_ratio_whose_denominators_are_one_is_an_accuracy() -> None:
    credits = (np.random.default_rng(2).random((3, 80)) < 0.7).astype(float)
    clusters = np.repeat(np.arange(40), 2)
    found = ratio_over_seeds(credits, np.ones_like(credits), clusters)
    expected = accuracy_over_seeds(credits, clusters)
    assert found.mean == pytest.approx(expected.mean)
    assert found.low == pytest.approx(expected.low)
    assert found.high == pytest.approx(expected.high)


def test_rows_that_are_not_selected_do_not_change_a_ratio() -> None:
    selected = np.zeros((3, 200))
    selected[:, :50] = 1.0
    hits = np.zeros_like(selected)
    hits[:, :50] = np.random.default_rng(2).random((3, 50)) < 0.8
    found = ratio_over_seeds(hits, selected)
    assert found.mean == pytest.approx(hits.sum() / 150)
    alone = accuracy_over_seeds(hits[:, :50])
    assert found.low == pytest.approx(alone.low, abs=0.02)
    assert found.high == pytest.approx(alone.high, abs=0.02)
    perfect = ratio_over_seeds(selected, selected)
    assert perfect.low is not None
    assert 0.85 < perfect.low < perfect.mean == perfect.high == 1.0


def test_ratios_without_rows_or_seeds_are_refused_or_have_no_interval() -> None:
    with pytest.raises(ValueError, match="not positive"):
        ratio_over_seeds(np.zeros((3, 5)), np.zeros((3, 5)))
    with pytest.raises(ValueError, match="equal shapes"):
        ratio_over_seeds(np.zeros((3, 5)), np.ones((2, 5)))
    two_seeds = ratio_over_seeds(np.ones((2, 5)), np.ones((2, 5)))
    assert two_seeds == Estimate(1.0, None, None)


def test_trainings_are_not_paired_by_their_number() -> None:
    """Three seeds each: the same accuracies in another order are as far apart."""
    credits = [(np.arange(100) < right).astype(float) for right in (60, 70, 80)]
    one = difference_over_seeds(np.array(credits), np.array(credits))
    other = difference_over_seeds(np.array(credits), np.array(credits[::-1]))
    assert (one.low, one.high) == pytest.approx((other.low, other.high))


def test_an_accuracy_stays_between_0_and_1() -> None:
    credits = np.ones((3, 50))
    credits[0, :4] = 0.0
    found = accuracy_over_seeds(credits)
    assert found.mean == pytest.approx(146 / 150)
    assert found.high == 1.0
    assert found.low is not None
    assert 0.8 < found.low < found.mean


def test_the_spread_is_the_sample_standard_deviation() -> None:
    assert spread(np.array([0.7, 0.8, 0.9])) == pytest.approx(0.1)
    assert spread(np.array([0.7])) is None


def test_an_estimate_without_interval_is_printed_without() -> None:
    assert Estimate(0.5, None, None).percent == "50.0"
    assert Estimate(0.5, 0.4, 0.6).percent == "50.0 [40.0, 60.0]"


def test_trainings_that_are_equally_accurate_by_chance_leave_the_interval_over_rows() -> None:
    """Three trainings with 30 of 60 right, on other rows each: that they agree in the count proves nothing."""
    credits = np.array([np.roll(np.arange(60) < 30, shift) for shift in (0, 20, 40)]).astype(float)
    found = mean_over_seeds(credits)
    over_rows = mean_interval(credits.mean(axis=0))
    assert (found.low, found.high) == pytest.approx((over_rows.low, over_rows.high))
    assert accuracy_over_seeds(np.ones((3, 50))).low == share_interval(np.ones(50)).low
    equal = difference_over_seeds(np.ones((3, 50)), np.ones((3, 50)))
    assert (equal.low, equal.high) == pytest.approx((-(equal.high or 0.0), equal.high))
    assert (equal.high or 0.0) > 0
