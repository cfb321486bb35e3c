"""Score forms: what their docstrings promise of order, bounds, ties, offset and scale."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrm.eval.selection.score_forms import (
    FORMS,
    hybrid,
    rank,
    relative,
    sigmoid,
    standardised,
    stratified,
)

SCORES = st.lists(st.integers(-80, 80).map(lambda n: n / 8), min_size=1, max_size=8)
"""Multiples of 1/8: an offset of such a number is exact, and unequal scores stay unequal."""
ANY = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=8)
EXACT = st.integers(-80, 80).map(lambda n: n / 8)


def verdicts(scores: list[float], seed: int) -> list[bool]:
    return [bool(seed >> place & 1) for place in range(len(scores))]


def made(name: str, scores: list[float], seed: int = 0b10110) -> list[float]:
    given_values = {
        "mean": 0.5,
        "std": 2.0,
        "clip": None,
        "reference": 0.25,
        "right": verdicts(scores, seed),
    }
    return FORMS[name].rewards(scores, **{one: given_values[one] for one in FORMS[name].needs})


@pytest.mark.parametrize("name", FORMS)
@settings(deadline=None)
@given(scores=ANY)
def test_one_number_a_response_never_falling_with_the_score(name: str, scores: list[float]) -> None:
    found, right = made(name, scores), verdicts(scores, 0b10110)
    assert len(found) == len(scores)
    assert all(map(math.isfinite, found))
    alike = name in ("hybrid", "stratified")  # these order among their like
    for one, a, known in zip(scores, found, right, strict=True):
        for other, b, also in zip(scores, found, right, strict=True):
            if one <= other and (not alike or known == also):
                assert a <= b
            if one == other and (not alike or known == also):
                assert a == b
            if name in ("hybrid", "stratified") and known and not also:
                assert a >= b


@pytest.mark.parametrize("name", ["raw", "standardised", "sigmoid", "relative", "rank"])
@settings(deadline=None)
@given(scores=SCORES)
def test_another_score_is_another_reward(name: str, scores: list[float]) -> None:
    found = made(name, scores)
    assert len(set(found)) == len(set(scores))


@pytest.mark.parametrize("name", ["sigmoid", "relative", "rank", "hybrid"])
@settings(deadline=None)
@given(scores=ANY)
def test_bounded_ones_are(name: str, scores: list[float]) -> None:
    assert all(0 <= one <= 1 for one in made(name, scores))


MOVED: dict[str, Callable[[list[float], float, float, list[bool]], list[float]]] = {
    "standardised": lambda s, c, k, right: standardised(
        [k * x + c for x in s], k * 0.5 + c, k * 2.0
    ),
    "rank": lambda s, c, k, right: rank([k * x + c for x in s]),
    "stratified": lambda s, c, k, right: stratified([k * x + c for x in s], right),
    "relative": lambda s, c, k, right: relative([x + c for x in s], 0.25 + c),
}
"""The forms that an offset c (and all but `relative` a scale k) of the scores leaves alone."""


@pytest.mark.parametrize("name", MOVED)
@settings(deadline=None)
@given(
    scores=SCORES, offset=EXACT, scale=st.sampled_from([0.5, 2.0, 4.0]), seed=st.integers(0, 255)
)
def test_the_offset_cancels_where_the_docstring_says_so(
    name: str, scores: list[float], offset: float, scale: float, seed: int
) -> None:
    assert MOVED[name](scores, offset, scale, verdicts(scores, seed)) == pytest.approx(
        made(name, scores, seed), abs=1e-12
    )


@settings(deadline=None)
@given(scores=SCORES, seed=st.integers(0, 255))
def test_and_does_not_where_it_says_so(scores: list[float], seed: int) -> None:
    right = verdicts(scores, seed)
    assert sigmoid([score + 1 for score in scores]) != sigmoid(scores)
    moved = hybrid([score + 1 for score in scores], right)
    assert (moved == hybrid(scores, right)) == all(right)
    assert hybrid([3.4], [False])[0] == pytest.approx(0.97, abs=0.003)


@settings(deadline=None)
@given(scores=ANY, seed=st.integers(0, 255))
def test_stratified_keeps_right_above_wrong_in_its_bands(scores: list[float], seed: int) -> None:
    right = verdicts(scores, seed)
    for one, known in zip(stratified(scores, right), right, strict=True):
        assert (0.9 <= one <= 1.1000001) if known else (-0.1000001 <= one <= 0.1)


def test_values() -> None:
    assert rank([3.0, 1.0, 1.0, 7.0]) == [2 / 3, 1 / 6, 1 / 6, 1.0]
    assert rank([4.0]) == [0.5]
    assert standardised([0.5, 40.5, -40.0], 0.5, 2.0, clip=10) == [0.0, 10.0, -10.0]
    assert stratified(
        [1.0, 5.0, 3.0, 9.0, 2.0], [False, False, False, True, True]
    ) == pytest.approx([-0.1, 0.1, 0.0, 1.1, 0.9])
    assert stratified([1.0, 8.0], [True, False]) == [1.0, 0.0]
    assert stratified([2.0, 2.0, 7.0], [True, True, False]) == [1.0, 1.0, 0.0]
    assert relative([1.0, -800.0, 900.0], 1.0) == [0.5, 0.0, 1.0]
    assert hybrid([0.0, -5.0], [False, True]) == [0.5, 1.0]
