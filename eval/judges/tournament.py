"""Comparisons of a judge that compares: the pairs it is shown, and the scores from its votes.

To rank N responses, such a judge holds a tournament. Every two responses meet twice, each shown
first once, which makes N (N - 1) comparisons. A benchmark's protocol names the comparisons instead,
and `pair_ranking.py` has schedules of fewer comparisons.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmrm.data.errors import RecordError
from mmrm.data.preference import Message
from mmrm.eval.candidates import NO_USAGE, Candidates, Scores, Side, Usage, Vote, won_shares
from mmrm.eval.protocol import tournament_orders

Ask = Callable[[Any, Side], tuple[Message, ...]]
"""Makes the conversation that shows two responses to a judge. Its arguments are `Candidates` with
two responses (an `Example`, if the prompt is a benchmark's own), and the index of the response that
is shown first. It can be pickled for loader workers."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two responses that a judge is shown once."""

    shown: tuple[int, ...]
    """Indices of the responses, in the order in which they are shown."""
    label: str
    """A text that, together with the seed, decides the random draws of the judgement."""


def comparisons(candidates: Candidates) -> list[Comparison]:
    """Return the comparisons that a judge makes of the responses, in order.

    They are those of the candidates' `presentations`, or else a tournament: every two responses in
    both orders.

    Raises: RecordError for a single response.
    """
    refuse_single_response(candidates)
    if candidates.presentations:
        return [
            Comparison(shown, f"{candidates.key}/{number}")
            for number, shown in enumerate(candidates.presentations)
        ]
    tournament: list[Comparison] = []
    for shown in tournament_orders(len(candidates.responses)):
        first, second = sorted(shown)
        number = 0 if shown == (first, second) else 1
        tournament.append(Comparison(shown, f"{candidates.key}/{first}-{second}/{number}"))
    return tournament


def refuse_single_response(candidates: Candidates) -> None:
    """Raise RecordError for a prompt with a single response, which cannot be compared."""
    if len(candidates.responses) < 2:
        raise RecordError(
            f"{candidates.identity}: one response; a judge compares, which takes two at least"
        )


def pair_conversation(
    ask_pair: Ask, candidates: Candidates, shown: Sequence[int]
) -> tuple[Message, ...]:
    """Return the conversation that shows two of the responses to a judge.

    Args:
        ask_pair: The function that makes the conversation.
        candidates: The prompt with at least two responses.
        shown: The indices of the two responses, in the order in which they are shown.
    """
    first, second = shown
    if len(candidates.responses) == 2:
        # They are passed unchanged, because a benchmark's own prompt needs its `Example`.
        return ask_pair(candidates, 0 if first == 0 else 1)
    responses = (candidates.responses[first], candidates.responses[second])
    return ask_pair(replace(candidates, responses=responses), 0)


def scores_from_votes(
    candidates: Candidates, votes: Sequence[Vote], usage: Usage = NO_USAGE
) -> Scores:
    """Return the scores of the responses: the share of its comparisons that each response won.

    Args:
        candidates: The prompt and its responses.
        votes: One vote for each comparison. Every response must be in equally many votes.
        usage: The cost of the votes. The number of votes, and the number of those that name no
            response, are added to it.
    """
    num_unread = sum(vote.named is None for vote in votes)
    return Scores(
        values=won_shares(len(candidates.responses), votes),
        votes=tuple(votes),
        texts=tuple(vote.text for vote in votes),
        usage=usage + Usage(judgements=len(votes), unread=num_unread),
    )
