"""Preferences that contradict one another, compared with a search by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mmrm.train.studies.cleaning.preference_cycles import RecordPreferences, contradictions


def pair(better: str, worse: str, prompt: str = "p") -> RecordPreferences:
    return RecordPreferences(prompt, ((better, worse),))


def test_a_cycle_and_a_contradiction_are_found() -> None:
    records = [pair(*edge) for edge in ("ab", "bc", "ca", "cd", "xy", "yx", "xy", "ef")]
    found = contradictions(records)
    assert found.on_cycle.tolist() == [True, True, True, False, True, True, True, False]
    assert found.contradicted.tolist() == [False] * 4 + [True, True, True, False]
    assert found.num_components == 2
    assert len(set(found.components[:3].tolist())) == 1
    assert found.components[[3, 7]].tolist() == [-1, -1]


def test_prompts_are_separate_and_copies_of_a_response_prefer_nothing() -> None:
    records = [pair("a", "b", "p"), pair("b", "a", "q"), pair("c", "c", "p")]
    assert not contradictions(records).on_cycle.any()
    assert not contradictions([]).on_cycle.any()


def test_a_list_contradicts_with_any_of_its_pairs() -> None:
    ranked = RecordPreferences("p", (("a", "b"), ("a", "c"), ("b", "c")))
    found = contradictions([ranked, pair("c", "b")])
    assert found.on_cycle.tolist() == [True, True]
    assert found.contradicted.tolist() == [True, True]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=15))
def test_a_record_is_on_a_cycle_if_its_worse_response_leads_back(
    edges: list[tuple[int, int]],
) -> None:
    records = [RecordPreferences("p", ((better, worse),)) for better, worse in edges]
    found = contradictions(records)
    # Which responses are reached from each one, by repeated multiplication.
    reached = np.zeros((6, 6), bool)
    for better, worse in edges:
        if better != worse:
            reached[better, worse] = True
    for _ in range(6):
        reached |= (reached.astype(int) @ reached.astype(int)) > 0
    for (better, worse), on_cycle in zip(edges, found.on_cycle, strict=True):
        assert on_cycle == (better != worse and reached[worse, better])
