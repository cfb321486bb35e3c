"""Rankings from pairwise verdicts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.preference import text
from eval.judges.ranking import agreement, all_pairs, rank, ranking, ring
from eval.protocol import Example, Side, Verdict, Vote


class ByLength:
    """Names the longer response; of equal ones that shown first, or nobody."""

    def judge(self, examples: Sequence[Example]) -> list[Verdict]:
        """Vote on every example in both orders."""
        return [Verdict(votes=tuple(self.vote(example, first) for first in (0, 1))) for example in examples]

    def vote(self, example: Example, first: Side) -> Vote:
        """Vote once."""
        one, two = map(len, example.responses)
        return Vote("", first, first if one == two else 0 if one > two else 1)


@given(st.lists(st.integers(1, 9), min_size=2, max_size=7))
def test_all_ordered_pairs_recover_a_judges_own_order(lengths: list[int]) -> None:
    found = rank(ByLength(), (text("user", "?"),), (), ["x" * n for n in lengths], all_pairs(len(lengths)))
    assert found.judgements == len(lengths) * (len(lengths) - 1)
    ordered = [lengths[i] for i in found.order]
    assert ordered == sorted(lengths, reverse=True)
    for i, j in all_pairs(len(lengths)):
        if lengths[i] == lengths[j]:
            assert found.shares[i] == found.shares[j]


def test_a_ring_asks_less_and_says_how_well_it_agrees() -> None:
    candidates = ["x" * n for n in (5, 1, 4, 2, 3, 6)]
    full = rank(ByLength(), (text("user", "?"),), (), candidates, all_pairs(6))
    cheap = rank(ByLength(), (text("user", "?"),), (), candidates, ring(6, 1))
    assert (full.judgements, cheap.judgements) == (30, 12)
    assert agreement(full, full) == 1.0
    assert 0.0 < agreement(full, cheap) < 1.0
    assert rank(ByLength(), (text("user", "?"),), (), candidates, ring(6, 3)) == full


def test_unreadable_votes_name_nobody_and_are_counted() -> None:
    found = ranking(2, [(0, 1)], [Verdict(votes=(Vote("", 0, 1), Vote("", 1, None)))])
    assert (found.order, found.shares, found.unreadable) == ((1, 0), (0.0, 0.5), 1)


@pytest.mark.parametrize(("candidates", "reach"), [(2, 1), (3, 1), (5, 2), (7, 9)])
def test_a_ring_names_no_pair_twice_and_none_with_itself(candidates: int, reach: int) -> None:
    pairs = ring(candidates, reach)
    assert len(set(pairs)) == len(pairs)
    assert set(pairs) <= set(all_pairs(candidates))
    assert {i for pair in pairs for i in pair} == set(range(candidates))
