"""The choice of pairs: which are possible, how certain they are, and what a draw and doubt take."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from mmrm.data.preference import text_responses
from mmrm.eval.selection.pair_choice import (
    PossiblePair,
    choose_pairs,
    counts_by_certainty,
    possible_pairs,
)
from mmrm.eval.selection.selection import ScoredResponses

RESPONSES = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", " ", "d"]), st.floats(-9, 9), st.floats(0, 3)),
    min_size=1,
    max_size=7,
)


@given(RESPONSES, st.booleans())
def test_each_two_different_texts_are_one_pair(
    responses: list[tuple[str, float, float]], with_stds: bool
) -> None:
    texts = [text for text, _, _ in responses]
    scores = [score for _, score, _ in responses]
    stds = [std for _, _, std in responses]
    scored = ScoredResponses(text_responses(*texts), scores, None, stds if with_stds else None)
    pairs = possible_pairs(4, scored)
    num_texts = len(set(texts) - {" "})
    assert len(pairs) == num_texts * (num_texts - 1) // 2
    assert len({frozenset((texts[pair.first], texts[pair.second])) for pair in pairs}) == len(pairs)
    for pair in pairs:
        assert pair.record == 4
        assert pair.first < pair.second
        difference = abs(scores[pair.first] - scores[pair.second])
        expected = 1 / (1 + np.exp(-difference))
        if with_stds:
            deviation = np.hypot(stds[pair.first], stds[pair.second])
            expected = (
                0.5 if difference == 0 else norm.cdf(np.divide(difference, deviation or 1e-300))
            )
        assert pair.certainty == pytest.approx(expected, abs=1e-12)
        assert 0.5 <= pair.certainty <= 1
    # A pair that is further apart is not less certain.
    ordered = sorted(pairs, key=lambda pair: pair.distance)
    certainties = [pair.certainty for pair in ordered]
    assert certainties == sorted(certainties)


def made_pairs(distances: list[float]) -> list[PossiblePair]:
    return [
        PossiblePair(n, 0, 1, distance, norm.cdf(distance)) for n, distance in enumerate(distances)
    ]


@given(st.lists(st.floats(0, 5), max_size=30), st.integers(1, 40), st.integers(0, 99))
def test_doubt_takes_the_smallest_distances_and_a_draw_any(
    distances: list[float], num_pairs: int, seed: int
) -> None:
    pairs = made_pairs(distances)
    for choice in ("random", "unsure"):
        chosen = choose_pairs(pairs, num_pairs, choice, seed)
        assert len(chosen) == min(num_pairs, len(pairs))
        assert [pair.record for pair in chosen] == sorted({pair.record for pair in chosen})
        assert chosen == choose_pairs(pairs, num_pairs, choice, seed)
    unsure = choose_pairs(pairs, num_pairs, "unsure", seed)
    assert sorted(pair.distance for pair in unsure) == sorted(distances)[:num_pairs]


def test_pairs_of_equal_certainty_are_drawn() -> None:
    """Scores may be equal in many pairs, and the first records must not be preferred."""
    pairs = made_pairs([0.0] * 50)
    counts = np.zeros(50)
    for seed in range(400):
        for pair in choose_pairs(pairs, 10, "unsure", seed):
            counts[pair.record] += 1
    assert counts.sum() == 4000
    assert counts.min() > 40  # 80 are expected, with a deviation of 8
    assert counts.max() < 120


def test_certainties_far_apart_are_still_ordered() -> None:
    """Φ and sigmoid are 1 for large differences, where the distance still tells pairs apart."""
    scored = ScoredResponses(text_responses("a", "b", "c"), [0.0, 100.0, 300.0], None)
    pairs = possible_pairs(0, scored)
    assert [pair.certainty for pair in pairs] == [1.0, 1.0, 1.0]
    (least,) = choose_pairs(pairs, 1, "unsure", 0)
    assert (least.first, least.second) == (0, 1)


def test_ranges_of_certainty_include_their_lower_edge_and_the_last_both() -> None:
    assert counts_by_certainty([0.5, 0.59, 0.6, 0.95, 1.0]) == [2, 1, 0, 0, 2]
    assert counts_by_certainty([]) == [0] * 5
