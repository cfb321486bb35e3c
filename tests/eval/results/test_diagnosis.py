"""Calibration, margins and length against their definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrm.eval.results.statistics import calibration, length_bias, margin_histogram

MARGINS = st.lists(st.floats(-30, 30), min_size=1, max_size=80)
"""Down to the smallest floats there are: a judge may hardly tell responses apart."""


def test_a_judge_that_is_sure_and_wrong_has_the_largest_error() -> None:
    found = calibration(np.array([-50.0, -50.0]))
    assert found is not None
    assert found.ece == pytest.approx(1.0)


def test_calibration_by_hand() -> None:
    margin = float(np.log(0.72 / 0.28))
    found = calibration(np.array([margin, margin, margin, -margin, 0.0]))
    assert found is not None
    filled = [entry for entry in found.bins if entry.n]
    assert [(entry.n, entry.accuracy) for entry in filled] == [(1, 0.5), (4, 0.75)]
    assert filled[1].mean == pytest.approx(0.72)
    assert found.ece == pytest.approx((0.0 * 1 + 0.03 * 4) / 5)


@given(MARGINS)
def test_calibration_equals_its_definition(margins: list[float]) -> None:
    found = calibration(np.array(margins))
    assert found is not None
    assert sum(entry.n for entry in found.bins) == len(margins)
    expected = 0.0
    confidence = [1 / (1 + np.exp(-abs(margin))) for margin in margins]
    credit = [1.0 if margin > 0 else 0.5 if margin == 0 else 0.0 for margin in margins]
    for entry in found.bins:
        last = entry.high_edge == 1.0
        rows = [
            i
            for i, value in enumerate(confidence)
            if entry.low_edge <= value and (value < entry.high_edge or last)
        ]
        assert entry.n == len(rows)
        if rows:
            expected += abs(sum(confidence[i] - credit[i] for i in rows)) / len(margins)
    assert found.ece == pytest.approx(expected)


@given(MARGINS)
def test_every_margin_lies_in_a_symmetric_histogram(margins: list[float]) -> None:
    found = margin_histogram(np.array(margins))
    assert found is not None
    assert sum(found.counts) == len(margins)
    assert found.edges[0] == -found.edges[-1]


def test_margins_too_small_to_divide_have_a_histogram() -> None:
    found = margin_histogram(np.array([5e-324, -5e-324, 0.0]), bins=4)
    assert found is not None
    assert found.counts == (1, 0, 1, 1)


def test_nothing_is_diagnosed_without_rows() -> None:
    empty = np.array([])
    assert calibration(empty) is None
    assert margin_histogram(empty) is None
    found = length_bias(empty.astype(int), empty.astype(int), empty)
    assert (found.slope, found.prefers_longer, found.longer_is_better) == (None, None, None)


def test_the_slope_on_length_is_that_of_least_squares_with_robust_errors() -> None:
    generator = np.random.default_rng(0)
    better, other = generator.integers(1, 500, 300), generator.integers(1, 500, 300)
    credit = generator.choice([0.0, 0.5, 1.0], 300)
    x = np.stack([np.ones(300), np.log2((better + 1) / (other + 1))], 1)
    inverse = np.linalg.inv(x.T @ x)
    weights = inverse @ x.T @ credit
    residual = credit - x @ weights
    covariance = inverse @ (x.T * residual**2) @ x @ inverse * 300 / 298
    found = length_bias(better, other, credit)
    assert found.slope == pytest.approx(weights[1])
    assert found.low == pytest.approx(weights[1] - 1.959964 * covariance[1, 1] ** 0.5)
    assert sum(entry.n for entry in found.bins) == 300


def test_preferring_the_longer_response_is_told_from_the_longer_being_right() -> None:
    better, other = np.array([10, 10, 2, 5]), np.array([3, 3, 9, 5])
    found = length_bias(better, other, np.array([1.0, 1.0, 0.0, 0.0]))
    assert found.prefers_longer == 1.0
    assert found.longer_is_better == pytest.approx(2 / 3)
    assert (
        length_bias(np.array([4, 4, 4]), np.array([4, 4, 4]), np.array([1.0, 0.0, 1.0])).slope
        is None
    )
