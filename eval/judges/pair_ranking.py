"""Ranking of N responses by fewer comparisons than a tournament, for judges that compare.

A schedule decides which pairs are compared, each in both orders. The strengths of the responses are
fitted to all votes (`strengths.py`), so that every vote counts and not only the order that a
schedule ends with.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from mmrm.eval.candidates import NO_USAGE, STD, Candidates, Scores, Vote
from mmrm.eval.journal import Journal
from mmrm.eval.judges.judging_config import ComparisonsConfig
from mmrm.eval.judges.pair_schedule import MergeSort, Pair, Schedule, Swiss
from mmrm.eval.judges.strengths import fitted_strengths
from mmrm.eval.judges.tournament import refuse_single_response

ScorePairs = Callable[[Sequence[Candidates], Journal], list[Scores]]
"""Returns the votes of a judge on pairs: `Candidates` of two responses, compared in both orders."""


class PairRanking:
    """The ranking of the responses to one prompt, while their comparisons are made.

    Call `next_pairs`, have the pairs judged, and call `add`, until there are no more pairs.
    """

    def __init__(self, candidates: Candidates, config: ComparisonsConfig) -> None:
        """Begin the ranking.

        Args:
            candidates: The prompt with its responses.
            config: The schedule, which is not `all`.

        Raises: RecordError for a single response.
        """
        refuse_single_response(candidates)
        num_responses = len(candidates.responses)
        self.candidates = candidates
        self.schedule = schedule_of(num_responses, config)
        self.wins = np.zeros((num_responses, num_responses))
        """How often the response of the row was named better than that of the column. Of soft
        verdicts, the sum of the probabilities."""
        self.pairs: list[Pair] = []
        """The pairs of the present round."""
        self.votes: list[Vote] = []
        self.usage = NO_USAGE

    def next_pairs(self) -> list[Candidates]:
        """Return the pairs of the next round, each as a prompt with two responses."""
        self.pairs = self.schedule.next_pairs(self.wins)
        return [self._candidates_of(pair) for pair in self.pairs]

    def _candidates_of(self, pair: Pair) -> Candidates:
        """Return the prompt with the two responses of a pair."""
        first, second = pair
        responses = self.candidates.responses
        return Candidates(
            key=f"{self.candidates.key}/{first}-{second}",
            images=self.candidates.images,
            prompt=self.candidates.prompt,
            responses=(responses[first], responses[second]),
            identity=self.candidates.identity,
            videos=self.candidates.videos,
            criteria=self.candidates.criteria,
        )

    def add(self, scores_of_pairs: Sequence[Scores]) -> None:
        """Add the votes of a round.

        Args:
            scores_of_pairs: The judge's scores of each pair that `next_pairs` returned, in order.
        """
        for pair, scores in zip(self.pairs, scores_of_pairs, strict=True):
            for vote in scores.votes:
                self._add_vote(pair, vote)
            self.usage += scores.usage

    def _add_vote(self, pair: Pair, vote: Vote) -> None:
        """Add a vote on the two responses of a pair, which the vote calls 0 and 1."""
        shown = tuple(pair[position] for position in vote.shown)
        named = None if vote.named is None else pair[vote.named]
        self.votes.append(replace(vote, shown=shown, named=named))
        first, second = pair
        if vote.soft is not None:
            self.wins[shown[0], shown[1]] += vote.soft.first
            self.wins[shown[1], shown[0]] += 1 - vote.soft.first
        elif named is None:
            self.wins[first, second] += 0.5
            self.wins[second, first] += 0.5
        elif named == first:
            self.wins[first, second] += 1.0
        else:
            self.wins[second, first] += 1.0

    def scores(self) -> Scores:
        """Return the strengths of the responses as their scores, with their uncertainty.

        The attributes are the standard deviation (`std`) and the 95 % interval (`low`, `high`).
        """
        strengths = fitted_strengths(self.wins)
        return Scores(
            values=tuple(strengths.values.tolist()),
            attributes={
                STD: tuple(strengths.stds.tolist()),
                "low": tuple(strengths.lows.tolist()),
                "high": tuple(strengths.highs.tolist()),
            },
            votes=tuple(self.votes),
            texts=tuple(vote.text for vote in self.votes),
            usage=self.usage,
        )


def schedule_of(num_responses: int, config: ComparisonsConfig) -> Schedule:
    """Return the schedule that `config` names, which is not `all`, for N responses."""
    if config.comparisons == "sorted":
        return MergeSort(num_responses)
    assert config.rounds is not None, "the settings of swiss name the number of rounds"
    return Swiss(num_responses, config.rounds)


def ranked_batch(
    batch: Sequence[Candidates],
    config: ComparisonsConfig,
    score_pairs: ScorePairs,
    journal: Journal,
) -> list[Scores]:
    """Return the strengths of the responses to each prompt of a batch; all ranks call together.

    In each round, the pairs of all prompts are judged together.

    Args:
        batch: The prompts with their responses.
        config: The schedule of comparisons, which is not `all`.
        score_pairs: The judge, which compares the two responses of a pair in both orders.
        journal: Shows the progress of each round, and keeps the judgements.

    Raises: RecordError for a prompt with a single response.
    """
    rankings = [PairRanking(candidates, config) for candidates in batch]
    number = 1
    while True:
        pairs_by_ranking = [ranking.next_pairs() for ranking in rankings]
        all_pairs = [pair for pairs in pairs_by_ranking for pair in pairs]
        if not all_pairs:
            return [ranking.scores() for ranking in rankings]
        scores = score_pairs(all_pairs, journal.of(f"round {number}"))
        start = 0
        for ranking, pairs in zip(rankings, pairs_by_ranking, strict=True):
            end = start + len(pairs)
            ranking.add(scores[start:end])
            start = end
        number += 1
