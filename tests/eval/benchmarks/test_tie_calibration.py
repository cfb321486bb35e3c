"""Accuracies with ties against an enumeration of all thresholds, and their properties."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrm.eval.benchmarks.tie_calibration import (
    PairLabel,
    accuracy_with_ties_one_by_one,
    accuracy_without_ties,
    best_tie_threshold,
)

LABELS = st.sampled_from([1, -1, 0, None])
COARSE = st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0])
FINE = st.floats(-10, 10, allow_nan=False)


def pairs(
    differences: st.SearchStrategy[float],
) -> st.SearchStrategy[list[tuple[PairLabel, float]]]:
    """Return a strategy for lists of labels and differences."""
    return st.lists(st.tuples(LABELS, differences), min_size=1, max_size=40)


def accuracy_at(
    labels: Sequence[PairLabel], differences: Sequence[float], threshold: float
) -> float:
    """Return the share of verdicts that are right if differences up to a threshold are ties."""
    num_right = 0
    for label, difference in zip(labels, differences, strict=True):
        verdict = 0 if abs(difference) <= threshold else math.copysign(1, difference)
        num_right += label is not None and verdict == label and not math.isnan(difference)
    return num_right / len(labels)


@given(pairs(st.one_of(COARSE, FINE)))
def test_the_best_threshold_is_the_best_of_all(drawn: list[tuple[PairLabel, float]]) -> None:
    labels = [label for label, _ in drawn]
    differences = [difference for _, difference in drawn]
    thresholds = sorted({0.0, *map(abs, differences)})
    accuracies = [accuracy_at(labels, differences, threshold) for threshold in thresholds]
    best = best_tie_threshold(labels, differences)
    assert best.accuracy == max(accuracies)
    assert best.threshold == thresholds[accuracies.index(max(accuracies))]


@given(pairs(FINE))
def test_one_by_one_is_the_best_with_a_tie_if_differences_are_distinct(
    drawn: list[tuple[PairLabel, float]],
) -> None:
    by_size = {abs(difference): (label, difference) for label, difference in drawn}
    labels = [label for label, _ in by_size.values()]
    differences = [difference for _, difference in by_size.values()]
    accuracies = [accuracy_at(labels, differences, threshold) for threshold in by_size]
    assert accuracy_with_ties_one_by_one(labels, differences) == max(accuracies)


@given(pairs(COARSE), st.randoms())
def test_the_best_threshold_does_not_depend_on_the_order(
    drawn: list[tuple[PairLabel, float]], random: object
) -> None:
    expected = best_tie_threshold(*zip(*drawn, strict=True))
    random.shuffle(drawn)  # type: ignore[attr-defined]
    assert best_tie_threshold(*zip(*drawn, strict=True)) == expected


def test_one_by_one_depends_on_the_order_of_equal_differences() -> None:
    # No threshold is right on both pairs, and one of the two orders says so.
    assert accuracy_with_ties_one_by_one([0, 1], [0.5, 0.5]) == 1.0
    assert accuracy_with_ties_one_by_one([1, 0], [0.5, 0.5]) == 0.5
    assert best_tie_threshold([0, 1], [0.5, 0.5]).accuracy == 0.5


def test_one_by_one_calls_at_least_one_pair_a_tie() -> None:
    assert accuracy_with_ties_one_by_one([1, -1], [0.5, -0.6]) == 0.5
    assert best_tie_threshold([1, -1], [0.5, -0.6]).accuracy == 1.0


def test_a_score_that_is_no_number_is_never_right() -> None:
    labels: list[PairLabel] = [1, -1, 0, 1]
    differences = [math.nan, -1.0, math.nan, 2.0]
    assert best_tie_threshold(labels, differences).accuracy == 0.5
    assert accuracy_with_ties_one_by_one(labels, differences) == 0.5
    assert accuracy_without_ties(labels, differences) == 2 / 3
    assert accuracy_with_ties_one_by_one([0, 1], [math.nan, 1.0]) == 0.5


@pytest.mark.parametrize("difference", [0.0, 1.0, -1.0])
def test_pairs_that_are_all_tied_have_no_accuracy_without_ties(difference: float) -> None:
    labels: list[PairLabel] = [0, 0, 0]
    assert accuracy_without_ties(labels, [difference] * 3) is None
    assert best_tie_threshold(labels, [difference] * 3).accuracy == 1.0
    assert accuracy_with_ties_one_by_one(labels, [difference] * 3) == 1.0


def test_equal_scores_are_wrong_on_a_preference() -> None:
    assert accuracy_without_ties([1, -1, 1, 0], [0.0, 0.0, 1.0, 0.0]) == 1 / 3


def test_a_missing_label_is_wrong() -> None:
    assert accuracy_without_ties([None, 1], [1.0, 1.0]) == 0.5
    assert best_tie_threshold([None, 1], [0.5, 1.0]).accuracy == 0.5
