"""Rankings replayed from a tournament: those of the judge itself, and what is missing or doubled."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrm.data.errors import RecordError
from mmrm.eval.candidates import Candidates, Scores, SoftVerdict, Vote
from mmrm.eval.journal import SILENT, Journal
from mmrm.eval.judges.judging_config import ComparisonsConfig
from mmrm.eval.judges.pair_ranking import ranked_batch, schedule_of
from mmrm.eval.judges.replayed_ranking import points_matrix, replayed, shares_of_points
from mmrm.eval.judges.tournament import comparisons, scores_from_votes
from mmrm.eval.selection.candidate_scores import comparison_columns
from tests.eval.judges.test_pair_ranking import candidates_of

SCHEDULES = [
    ComparisonsConfig(comparisons="sorted"),
    *(ComparisonsConfig(comparisons="swiss", rounds=rounds) for rounds in (1, 2, 5)),
]


class FixedJudge:
    """Always gives the same verdict on two responses in an order, drawn when it is first asked."""

    def __init__(self, seed: int, is_soft: bool) -> None:
        self.random = random.Random(seed)
        self.is_soft = is_soft
        self.verdicts: dict[tuple[str, str], tuple[float, bool | None]] = {}

    def vote(self, candidates: Candidates, shown: Sequence[int]) -> Vote:
        """Return the verdict on two of the responses as the judge is shown them."""
        first, second = shown
        texts = (candidates.responses[first].text, candidates.responses[second].text)
        if texts not in self.verdicts:
            names_first = self.random.choice([True, False, None])
            self.verdicts[texts] = (self.random.random(), names_first)
        probability, names_first = self.verdicts[texts]
        named = None
        if names_first is not None:
            named = first if names_first else second
        soft = SoftVerdict(probability, 1.0) if self.is_soft else None
        return Vote((first, second), named, "because", soft)

    def __call__(self, batch: Sequence[Candidates], journal: Journal) -> list[Scores]:
        """Return the votes on all comparisons of each prompt."""
        scores: list[Scores] = []
        for candidates in batch:
            votes = [self.vote(candidates, one.shown) for one in comparisons(candidates)]
            scores.append(scores_from_votes(candidates, votes))
        return scores


@pytest.mark.parametrize("is_soft", [False, True])
@settings(max_examples=20)
@given(num_responses=st.integers(2, 9), seed=st.integers(0, 2**32))
def test_a_tournament_holds_what_every_schedule_asks_for(
    is_soft: bool, num_responses: int, seed: int
) -> None:
    judge = FixedJudge(seed, is_soft)
    candidates = candidates_of(range(num_responses))
    [tournament] = judge([candidates], SILENT)
    columns = [comparison_columns(vote) for vote in tournament.votes]
    points = points_matrix(num_responses, columns, is_soft)

    assert shares_of_points(points) == pytest.approx(tournament.values, abs=1e-12)
    for config in SCHEDULES:
        [scores] = ranked_batch([candidates], config, judge, SILENT)
        ranking = replayed(points, schedule_of(num_responses, config))
        assert ranking.scores == pytest.approx(scores.values, abs=1e-9)
        assert ranking.num_comparisons == scores.usage.judgements


def test_hard_verdicts_are_read_beside_soft_ones() -> None:
    columns: list[dict[str, Any]] = [
        {"shown": [0, 1], "named": 0, "probability": 0.4},
        {"shown": [1, 0], "named": None, "probability": 0.1},
    ]
    soft = points_matrix(2, columns, is_soft=True)
    hard = points_matrix(2, columns, is_soft=False)
    assert np.array_equal(soft, [[np.nan, 0.4], [0.1, np.nan]], equal_nan=True)
    assert np.array_equal(hard, [[np.nan, 1.0], [0.5, np.nan]], equal_nan=True)
    assert shares_of_points(soft).tolist() == pytest.approx([0.65, 0.35])
    assert shares_of_points(hard).tolist() == pytest.approx([0.75, 0.25])


def test_a_tournament_without_all_comparisons_is_refused() -> None:
    columns: list[dict[str, Any]] = [{"shown": [0, 1], "named": 0, "probability": None}]
    with pytest.raises(RecordError, match="1 of 2 comparisons of 2 responses were made"):
        points_matrix(2, columns, is_soft=False)
    with pytest.raises(RecordError, match="0 and 1 were compared twice in this order"):
        points_matrix(2, [*columns, *columns], is_soft=False)
