"""What N answers say of n of them, against the mean over all subsets, drawn out one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrm.eval.policies.best_of import best_of, best_of_kl, best_score, majority, pass_at

ANSWERS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=7)
"""An answer of four, the even ones right, and a score of five, so that scores tie."""


def over_subsets(places: Sequence[int], n: int, value: Callable[[Sequence[int]], float]) -> float:
    subsets = list(combinations(places, n))
    return fmean([value(own) for own in subsets])


@settings(deadline=None)
@given(ANSWERS)
def test_the_closed_forms_are_the_means_over_all_subsets(answers: list[tuple[int, int]]) -> None:
    said, scores = zip(*answers, strict=True)
    right = [answer % 2 == 0 for answer in said]

    def best(own: Sequence[int]) -> float:
        top = [place for place in own if scores[place] == max(scores[other] for other in own)]
        return fmean(right[place] for place in top)

    def voted(own: Sequence[int]) -> float:
        counts = Counter(said[place] for place in own)
        top = [answer for answer, count in counts.items() if count == max(counts.values())]
        return float(sum(answer % 2 == 0 for answer in top) / len(top))

    for n in range(1, len(answers) + 1):
        places = range(len(answers))
        assert best_of(scores, right, n) == pytest.approx(over_subsets(places, n, best))
        assert majority(said, right, n) == pytest.approx(over_subsets(places, n, voted))
        assert pass_at(right, n) == pytest.approx(
            over_subsets(places, n, lambda own: any(right[place] for place in own))
        )
        assert best_score(scores, n) == pytest.approx(
            over_subsets(places, n, lambda own: max(scores[place] for place in own))
        )


@settings(deadline=None)
@given(ANSWERS)
def test_one_answer_is_a_random_one_and_nothing_beats_passing(
    answers: list[tuple[int, int]],
) -> None:
    said, scores = zip(*answers, strict=True)
    right = [answer % 2 == 0 for answer in said]
    mean = sum(right) / len(right)
    assert [
        best_of(scores, right, 1),
        majority(said, right, 1),
        pass_at(right, 1),
    ] == pytest.approx([mean] * 3)
    for n in range(1, len(answers) + 1):
        assert max(best_of(scores, right, n), majority(said, right, n)) <= pass_at(right, n) + 1e-12
        assert best_of([0.0] * len(right), right, n) == pytest.approx(mean)
        assert best_of([float(one) for one in right], right, n) == pytest.approx(pass_at(right, n))


def test_the_divergence_of_the_best_of_n() -> None:
    assert best_of_kl(1) == 0.0
    assert best_of_kl(2) == pytest.approx(0.1931472)
