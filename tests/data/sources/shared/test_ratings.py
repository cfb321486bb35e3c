"""Ranks that follow from ratings, for all ratings."""

from __future__ import annotations

from math import isnan, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrm.data.errors import LeftOut
from mmrm.data.preference import Preference, text, text_responses, validate
from mmrm.data.sources.shared.ratings import (
    best_and_worst,
    with_ranked_responses,
    with_rated_responses,
)

EMPTY = Preference("a:0", (text("user", "?"),), text_responses("", ""))
TABLES = st.integers(2, 6).flatmap(
    lambda num_responses: st.dictionaries(
        st.sampled_from(["help", "truth", "style"]),
        st.lists(
            st.one_of(st.just(nan), st.integers(0, 4)),
            min_size=num_responses,
            max_size=num_responses,
        ),
        min_size=1,
    )
)
"""Ratings of two to six responses on one to three aspects, some of them unknown."""


@given(TABLES)
def test_rated_responses_are_in_the_order_of_the_aspects_that_all_have(
    ratings: dict[str, list[float]],
) -> None:
    num_responses = len(next(iter(ratings.values())))
    responses = text_responses(*[f"response {number}" for number in range(num_responses)])
    try:
        record = validate(with_rated_responses(EMPTY, responses, ratings))
    except LeftOut:
        rated = [
            number
            for number in range(num_responses)
            if not all(isnan(values[number]) for values in ratings.values())
        ]
        is_shared = [
            not any(isnan(values[number]) for number in rated) for values in ratings.values()
        ]
        assert len(rated) < 2 or not any(is_shared)
        return
    sums = [0.0] * len(record.responses)
    for name, values in record.attributes.items():
        # Each number stays with its response.
        originals = [ratings[name][int(response.text[-1])] for response in record.responses]
        assert repr(values) == repr(tuple(map(float, originals)))
        if not any(map(isnan, values)):
            sums = [total + value for total, value in zip(sums, values, strict=True)]
    assert sums == sorted(sums, reverse=True)
    for first in range(len(sums)):
        for second in range(len(sums)):
            is_better = record.ranks[first] < record.ranks[second]
            assert is_better == (sums[first] > sums[second])


@given(st.lists(st.integers(-3, 3), min_size=2, max_size=6))
def test_ranks_of_any_numbers_become_dense_and_ties_keep_their_order(ranks: list[int]) -> None:
    responses = [f"response {number}" for number in range(len(ranks))]
    numbers = [float(number) for number in range(len(ranks))]
    record = validate(
        with_ranked_responses(EMPTY, text_responses(*responses), ranks, {"number": numbers})
    )
    pairs = sorted(zip(ranks, responses, strict=True))
    assert record.responses == text_responses(*[response for _, response in pairs])
    assert [int(value) for value in record.attributes["number"]] == [
        int(response.text[-1]) for response in record.responses
    ]
    distinct = sorted(set(ranks))
    assert list(record.ranks) == [distinct.index(rank) for rank, _ in pairs]

    pair = validate(best_and_worst(record))
    assert len(pair.responses) == 2
    assert pair.is_pair == (len(distinct) > 1)
    assert pair.chosen == record.chosen


def test_responses_without_ratings_are_left_out() -> None:
    ratings = {"help": [nan, 2.0, 3.0], "truth": [nan, 1.0, nan]}
    record = with_rated_responses(EMPTY, text_responses("a", "b", "c"), ratings)
    assert record.responses == text_responses("c", "b")
    assert record.margin == 1.0
    with pytest.raises(LeftOut, match="no aspect is rated for all"):
        with_rated_responses(
            EMPTY, text_responses("a", "b"), {"help": [nan, 1.0], "truth": [1.0, nan]}
        )
    with pytest.raises(LeftOut, match="1 of 2 responses have a rating"):
        with_rated_responses(EMPTY, text_responses("a", "b"), {"help": [nan, 1.0]})
