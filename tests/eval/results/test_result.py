"""Verdicts become right, wrong, tie or unparsable."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrm.data.errors import UserError
from mmrm.eval.candidates import Scores, Side
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.results.result import outcomes, worst_mistakes
from tests.eval.make import example, votes

BOTH = ProtocolConfig()


@pytest.mark.parametrize(
    ("scores", "better", "state"),
    [
        ((1.0, 0.5), 0, "correct"),
        ((1.0, 0.5), 1, "wrong"),
        ((0.5, 0.5), 1, "tie"),
        ((1.0 + 2**-23, 1.0), 0, "correct"),
        ((math.nan, 0.0), 1, "unparsable"),
        ((math.inf, 0.0), 0, "unparsable"),
    ],
)
def test_scores(scores: tuple[float, float], better: Side, state: str) -> None:
    assert _state(Scores(scores), better, BOTH) == state


@pytest.mark.parametrize(
    ("named", "state"),
    [
        ((0, 0), "correct"),
        ((1, 1), "wrong"),
        ((0, 1), "tie"),
        ((0, None), "tie"),
        ((1, None), "wrong"),
        ((None, None), "unparsable"),
    ],
)
def test_votes_in_both_orders(named: tuple[Side | None, ...], state: str) -> None:
    assert _state(votes(*named), 0, BOTH) == state


def test_an_unreadable_vote_counts_against_the_better_response() -> None:
    protocol = ProtocolConfig(order="official", votes=3)
    official: tuple[Side, ...] = (0,)
    found = [
        outcomes([example("a", official_first=0)], [votes(*named, order=official)], protocol)
        for named in ((0, 0, None), (0, None, None), (None, 0, 1))
    ]
    assert [int(one.correct[0]) for one in found] == [1, 0, 0]


def test_a_round_in_both_orders_is_two_votes() -> None:
    protocol = ProtocolConfig(votes=2)
    verdict = votes(0, 1, 0, 0)
    assert outcomes([example("a")], [verdict], protocol, rounds=1).tie[0] == 1
    assert outcomes([example("a")], [verdict], protocol).correct[0] == 1


@given(
    st.lists(st.tuples(st.floats(allow_nan=True), st.floats(allow_nan=True)), max_size=30),
    st.integers(0, 1),
)
def test_every_row_is_exactly_one_of_four(scores: list[tuple[float, float]], better: Side) -> None:
    examples = [example(str(row), better) for row in range(len(scores))]
    found = outcomes(examples, [Scores(pair) for pair in scores], BOTH)
    wrong = (found.wrong > 0).astype(int)
    assert np.array_equal(
        found.correct.astype(int) + found.tie.astype(int) + found.unparsable.astype(int) + wrong,
        np.ones(len(scores)),
    )
    assert (found.credit("wrong") <= found.credit("half")).all()
    assert (found.credit("half") <= found.credit("right")).all()


def test_ties_are_worth_what_the_protocol_says() -> None:
    found = outcomes([example("a"), example("b")], [Scores((1, 1)), Scores((math.nan, 1))], BOTH)
    assert [list(found.credit(ties)) for ties in ("wrong", "half", "right")] == [
        [0, 0],
        [0.5, 0],
        [1, 0],
    ]


def test_the_worst_mistakes_come_first() -> None:
    examples = [example(str(row)) for row in range(5)]
    scores = [(0.0, 1.0), (0.0, 9.0), (5.0, 0.0), (0.0, 0.0), (0.0, 3.0)]
    found = outcomes(examples, [Scores(pair) for pair in scores], BOTH)
    assert worst_mistakes(found) == [1, 4, 0]
    assert worst_mistakes(found, 1) == [1]
    found = outcomes(examples[:3], [votes(1, 0), votes(1, 1), votes(None, 1)], BOTH)
    assert worst_mistakes(found) == [1, 0, 2]


def test_verdicts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match="1 verdicts for 2 examples"):
        outcomes([example("a"), example("b")], [Scores((1, 0))], BOTH)
    with pytest.raises(UserError, match=r"test:a: .* asks for \[0, 1\]"):
        outcomes([example("a")], [votes(0)], BOTH)
    with pytest.raises(UserError, match=r"shown first \[1, 0\]"):
        outcomes([example("a")], [votes(0, 0, order=(1, 0))], BOTH)


def _state(verdict: Scores, better: Side, protocol: ProtocolConfig) -> str:
    found = outcomes([example("a", better)], [verdict], protocol)
    for state in ("correct", "tie", "unparsable"):
        if getattr(found, state)[0]:
            return state
    return "wrong"
