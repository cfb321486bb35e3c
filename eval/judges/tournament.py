"""Any number of responses to one prompt, scored or compared in pairs, and brought into an order.

A reward model and a critic score each response. A judge that compares holds a tournament: every two responses meet twice, each
shown first once, which is N (N - 1) judgements; a response's score is the share of its judgements that name it, one that cannot
be read counting half for both.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, islice

from mmrm.data.errors import RecordError
from mmrm.eval.candidates import Candidates, Example, Ranking, Vote
from mmrm.eval.journal import SILENT, Journal
from mmrm.eval.judges.judge import Judge


@dataclass(frozen=True, slots=True)
class Tournament:
    """Ranks by a judge that gives votes and is nowhere in this process: an endpoint."""

    judge: Judge

    def rank(self, candidates: Sequence[Candidates], journal: Journal = SILENT) -> list[Ranking]:
        """Return a ranking for each, in order; raises as the judge does."""
        meetings = [pairs(one) for one in candidates]
        verdicts = iter(self.judge.judge([pair for part in meetings for pair in part], journal))
        return [
            won(one, [vote for verdict in islice(verdicts, len(part)) for vote in verdict.votes])
            for one, part in zip(candidates, meetings, strict=True)
        ]


def pairs(candidates: Candidates) -> list[Example]:
    """Return every two responses as something to judge; which one is called the better means nothing.

    Raises: RecordError for a single response.
    """
    if len(candidates.responses) < 2:
        raise RecordError(
            f"{candidates.identity}: one response; a judge compares, which takes two at least"
        )
    prompt, images, identity = candidates.prompt, candidates.images, candidates.identity
    return [
        Example(
            f"{candidates.key}/{one}-{two}",
            images,
            prompt,
            (first, second),
            identity,
            0,
            "",
            "",
            {},
        )
        for (one, first), (two, second) in combinations(enumerate(candidates.responses), 2)
    ]


def won(candidates: Candidates, votes: Sequence[Vote]) -> Ranking:
    """Return the outcome of a tournament from its votes, pair by pair, equally many for each."""
    number = len(candidates.responses)
    each = len(votes) // math.comb(number, 2)
    points = [0.0] * number
    rest = iter(votes)
    for pair in combinations(range(number), 2):
        for vote in islice(rest, each):
            for side, place in enumerate(pair):
                points[place] += 0.5 if vote.names is None else vote.names == side
    scores = tuple(point / (each * (number - 1)) for point in points)
    return Ranking(
        scores,
        tuple(vote.text for vote in votes),
        len(votes),
        sum(vote.names is None for vote in votes),
    )
