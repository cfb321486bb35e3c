"""Rankings by fewer comparisons: how many there are, the order they find, and the votes in the scores."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from mmrm.data.encoded_video import Video
from mmrm.data.errors import RecordError
from mmrm.data.preference import text, text_responses
from mmrm.eval.candidates import Candidates, Scores, SoftVerdict, Vote
from mmrm.eval.journal import SILENT, Journal
from mmrm.eval.judges.generative.config import GenerativeJudgeConfig
from mmrm.eval.judges.judging_config import ComparisonsConfig
from mmrm.eval.judges.pair_ranking import PairRanking, ranked_batch
from mmrm.eval.judges.pair_schedule import MergeSort, Pair, Swiss
from mmrm.eval.judges.tournament import comparisons, scores_from_votes

SORTED = ComparisonsConfig(comparisons="sorted")


def swiss(rounds: int) -> ComparisonsConfig:
    return ComparisonsConfig(comparisons="swiss", rounds=rounds)


def candidates_of(strengths: Sequence[float], key: str = "key") -> Candidates:
    """Return responses whose texts are their strengths."""
    return Candidates(
        key, (), (text("user", "?"),), text_responses(*map(str, strengths)), identity=key
    )


class SimulatedJudge:
    """Names the better of two responses with the probability of Bradley and Terry."""

    def __init__(self, seed: int = 0, sharpness: float = 1.0, bias: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.sharpness = sharpness
        self.bias = bias
        """Added to the strength of the response that is shown first."""
        self.calls: list[int] = []

    def __call__(self, batch: Sequence[Candidates], journal: Journal) -> list[Scores]:
        """Return votes on both orders of every pair."""
        self.calls.append(len(batch))
        scores: list[Scores] = []
        for candidates in batch:
            votes: list[Vote] = []
            for comparison in comparisons(candidates):
                first, second = comparison.shown
                strengths = [float(response.text) for response in candidates.responses]
                difference = self.sharpness * (strengths[first] - strengths[second]) + self.bias
                is_first = self.random.random() < 0.5 * (1 + math.tanh(difference / 2))
                votes.append(Vote(comparison.shown, first if is_first else second, "because"))
            scores.append(scores_from_votes(candidates, votes))
        return scores


def largest_number_of_pairs(num_responses: int) -> int:
    """Return the comparisons of a merge sort in the worst case."""
    height = math.ceil(math.log2(num_responses))
    return num_responses * height - int(2**height) + 1


@pytest.mark.parametrize("num_responses", [2, 3, 5, 8, 13, 16, 64])
def test_a_sort_orders_without_errors_in_the_stated_number_of_pairs(num_responses: int) -> None:
    rng = random.Random(num_responses)
    for _ in range(20):
        strengths = rng.sample(range(1000), num_responses)
        judge = SimulatedJudge(sharpness=1e6)
        [scores] = ranked_batch([candidates_of(strengths)], SORTED, judge, SILENT)
        assert scores.order == sorted(range(num_responses), key=lambda index: -strengths[index])
        num_pairs = sum(judge.calls)
        assert num_pairs <= largest_number_of_pairs(num_responses)
        assert scores.usage.judgements == 2 * num_pairs == len(scores.votes)


def test_swiss_asks_its_rounds_and_no_pair_twice() -> None:
    for num_responses in (2, 5, 6, 8, 16, 31):
        for num_rounds in (1, 3, 5):
            judge = SimulatedJudge()
            strengths = [float(index) for index in range(num_responses)]
            [scores] = ranked_batch([candidates_of(strengths)], swiss(num_rounds), judge, SILENT)
            pairs = [frozenset(vote.shown) for vote in scores.votes[::2]]
            assert len(set(pairs)) == len(pairs)
            assert len(judge.calls) <= num_rounds
            assert len(pairs) <= num_rounds * (num_responses // 2)
            assert scores.usage.judgements == 2 * len(pairs)
            if num_rounds <= num_responses // 2:  # enough opponents are left
                assert len(pairs) == num_rounds * (num_responses // 2)


def test_with_an_odd_number_each_sits_out_in_turn() -> None:
    schedule = Swiss(5, 5)
    num_played = [0] * 5
    for _ in range(5):
        for pair in schedule.next_pairs(np.zeros((5, 5))):
            for index in pair:
                num_played[index] += 1
    assert max(num_played) - min(num_played) <= 1


def test_each_pair_is_shown_in_both_orders_and_votes_name_the_responses() -> None:
    judge = SimulatedJudge(sharpness=1e6)
    [scores] = ranked_batch([candidates_of([1.0, 3.0, 2.0])], SORTED, judge, SILENT)
    assert scores.order == [1, 2, 0]
    for vote, other in zip(scores.votes[::2], scores.votes[1::2], strict=True):
        assert vote.shown == other.shown[::-1]
        assert vote.named == other.named == min(vote.shown, key=scores.order.index)


def test_a_judge_that_follows_the_position_leaves_all_equal() -> None:
    """Both orders of each pair cancel."""
    judge = SimulatedJudge(bias=1e6)
    for config in (SORTED, swiss(3)):
        [scores] = ranked_batch([candidates_of([1.0, 3.0, 2.0, 0.0])], config, judge, SILENT)
        assert scores.values == pytest.approx((0.0,) * 4)
        assert scores.order == [0, 1, 2, 3]


def test_an_unread_vote_is_half_a_win_for_both() -> None:
    def unreadable(batch: Sequence[Candidates], journal: Journal) -> list[Scores]:
        return [
            scores_from_votes(candidates, [Vote((0, 1), None, "?"), Vote((1, 0), 1, "!")])
            for candidates in batch
        ]

    ranking = PairRanking(candidates_of([0.0, 0.0]), SORTED)
    ranking.add(unreadable(ranking.next_pairs(), SILENT))
    assert ranking.wins.tolist() == [[0.0, 0.5], [1.5, 0.0]]
    assert ranking.scores().usage.unread == 1
    assert ranking.next_pairs() == []


def test_prompts_of_a_batch_are_asked_together_and_ranked_apart() -> None:
    groups = [[3.0, 1.0, 2.0], [1.0, 2.0], [5.0, 4.0, 3.0, 2.0, 1.0, 0.0]]
    batch = [candidates_of(group, f"key {number}") for number, group in enumerate(groups)]
    judge = SimulatedJudge(sharpness=1e6)
    together = ranked_batch(batch, SORTED, judge, SILENT)
    assert judge.calls[0] == 1 + 1 + 3
    for candidates, scores in zip(batch, together, strict=True):
        assert ranked_batch([candidates], SORTED, judge, SILENT) == [scores]


def test_a_single_response_is_refused() -> None:
    with pytest.raises(RecordError, match="takes two at least"):
        PairRanking(candidates_of([1.0]), SORTED)


@pytest.mark.slow
@pytest.mark.parametrize("config", [SORTED, swiss(4)], ids=["sorted", "swiss"])
def test_orders_are_recovered_and_intervals_hold_in_2000_draws(config: ComparisonsConfig) -> None:
    """Eight responses of known strengths are ranked 2,000 times.

    The intervals are honest although the pairs depend on earlier results.
    """
    rng = np.random.default_rng(2)
    batch: list[Candidates] = []
    all_strengths: list[list[float]] = []
    for number in range(2000):
        strengths = rng.normal(0, 2, 8)
        all_strengths.append((strengths - strengths.mean()).tolist())
        batch.append(candidates_of(all_strengths[-1], str(number)))
    results = ranked_batch(batch, config, SimulatedJudge(3), SILENT)
    is_inside: list[bool] = []
    correlations: list[float] = []
    for strengths_of_prompt, scores in zip(all_strengths, results, strict=True):
        correlations.append(float(np.corrcoef(strengths_of_prompt, scores.values)[0, 1]))
        lows = scores.attributes["low"]
        highs = scores.attributes["high"]
        for low, true, high in zip(lows, strengths_of_prompt, highs, strict=True):
            is_inside.append(low <= true <= high)
    assert 0.93 <= float(np.mean(is_inside)) <= 0.98
    assert float(np.mean(correlations)) > 0.85


def test_a_merge_takes_the_earlier_response_in_a_tie() -> None:
    schedule = MergeSort(3)
    wins = np.zeros((3, 3))
    asked: list[list[Pair]] = []
    while pairs := schedule.next_pairs(wins):
        asked.append(pairs)
        for first, second in pairs:
            wins[first, second] += 1
            wins[second, first] += 1
    assert asked == [[(0, 1)], [(2, 0)], [(2, 1)]]


def test_settings_say_what_is_wrong() -> None:
    with pytest.raises(ValidationError, match="Set `rounds`"):
        ComparisonsConfig(comparisons="swiss")
    with pytest.raises(ValidationError, match="has no rounds"):
        ComparisonsConfig(comparisons="sorted", rounds=3)


def test_the_default_leaves_the_digest_of_a_judge_as_it_was() -> None:
    config = GenerativeJudgeConfig(type="generative", checkpoint="runs/mine")
    assert "comparisons" not in config.deciding_settings(True)[1]
    changed = config.model_copy(update={"comparisons": "sorted"})
    assert '"comparisons":"sorted"' in changed.deciding_settings(True)[1]


def test_the_pairs_of_a_ranking_have_all_that_belongs_to_the_prompt() -> None:
    candidates = replace(
        candidates_of([1.0, 2.0, 3.0]), videos=(Video(b"film"),), criteria=("It is true.",)
    )
    for pair in PairRanking(candidates, SORTED).next_pairs():
        assert pair.videos == candidates.videos
        assert pair.criteria == candidates.criteria


def test_a_soft_vote_counts_by_its_probabilities() -> None:
    ranking = PairRanking(candidates_of([0.0, 1.0, 2.0]), SORTED)
    pairs = ranking.next_pairs()
    votes = [
        Vote((0, 1), None, "?", SoftVerdict(0.7, 1.0)),
        Vote((1, 0), 1, "1", SoftVerdict(0.6, 1.0)),
    ]
    first, second = ranking.pairs[0]
    ranking.pairs = ranking.pairs[:1]
    ranking.add([scores_from_votes(pairs[0], votes)])
    assert ranking.wins[first, second] == pytest.approx(0.7 + 0.4)
    assert ranking.wins[second, first] == pytest.approx(0.3 + 0.6)
