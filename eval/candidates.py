"""The protocol of an evaluation: what a judge is shown, what it answers, and how answers become right, wrong or a tie.

The default protocol:

- every row of the benchmark counts; a row that cannot be shown (a video without frames, a control token in its text) is
  counted as unavailable;
- a scalar judge is right where it scores the better response higher. Equal scores are a tie. Scores are compared as they
  are (fp32 or wider), never rounded;
- a pairwise judge sees each row in both orders. A row is right where more votes name the better response than do not, a
  tie where the two are equal (a judge that follows the position, not the content), else wrong;
- a vote that cannot be read counts against the better response and is counted; a row without any readable vote is
  `unparsable`. A score that is not a finite number is unparsable too;
- a tie is wrong in the headline; the figure with half a point for a tie stands in a column of its own;
- K votes are K rounds (a round is one judgement, or one in each order); accuracy at 1..K uses the first rounds;
- everything drawn depends on the seed, the row's content and the round, not on the order in which rows are judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from mmrm.data.preference import EncodedImage, Message, Preference


def as_example(record: Preference) -> Example:
    """Return a preference record as something to judge, the better response first.

    Its key, from which judgements are drawn, is the record's identity, which another record may share: whatever is stored of
    it belongs under `journal_key` or `record_key`.
    """
    return Example(
        key=record.identity,
        images=record.images,
        prompt=record.prompt,
        responses=(record.chosen, record.rejected),
        better=0,
        group=record.category,
        source=record.source,
        identity=record.identity,
        row={},
    )


Side = Literal[0, 1]
"""An index into `Example.responses`."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """A multimodal prompt and any number of responses to it."""

    key: str
    """The label from which judgements are drawn, together with the seed: mostly a digest of prompt, responses and image
    reference. Rows of equal content get the suffixes -2, -3 … in file order. Never the key of a store: see `journal_key`."""
    images: tuple[EncodedImage, ...]
    prompt: tuple[Message, ...]
    """The question as a conversation; one image part for each of `images`."""
    responses: tuple[str, ...]
    identity: str
    """Where they come from (benchmark and row), for messages to people; never a key, ids repeat."""


@dataclass(frozen=True, slots=True)
class Example(Candidates):
    """A row of a benchmark: a multimodal prompt and two responses, one of them known to be better."""

    responses: tuple[str, str]
    better: Side
    group: str
    """The benchmark's own category."""
    source: str
    """The data set the row was drawn from."""
    row: dict[str, Any]
    """The row's columns without its image: what the official predictions file needs."""
    official_first: Side | None = None
    """The response that the benchmark's own script shows first; None where that script draws it for each judgement."""
    unavailable: str = ""
    """Why the row cannot be shown to a judge; such a row is in no figure."""


@dataclass(frozen=True, slots=True)
class Vote:
    """One judgement of a pairwise judge."""

    text: str
    """What the judge wrote."""
    first: Side
    """The response that it was shown first."""
    names: Side | None
    """The response that it names as the better one; None where the text cannot be read."""

    @classmethod
    def at(cls, text: str, first: Side, position: Side | None) -> Vote:
        """Return the vote for the response that stood at `position` (0 first, 1 second)."""
        shown: tuple[Side, Side] = (0, 1) if first == 0 else (1, 0)
        return cls(text, first, None if position is None else shown[position])


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge says of an example: two scores (scalar judges and critics), or votes (pairwise judges)."""

    scores: tuple[float, ...] | None = None
    """Scores of the responses, in their order."""
    votes: tuple[Vote, ...] = ()
    """In the order of `presentations`."""
    critiques: tuple[str, ...] | None = None
    """What a critic wrote of each response before scoring it."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """What a judge says of the responses to one prompt."""

    scores: tuple[float, ...]
    """In the order of the responses; higher is better."""
    texts: tuple[str, ...] = ()
    """A critic's critique of each response, or a judge's judgements, pair by pair in both orders."""
    judgements: int = 0
    """Comparisons of two responses, or written scores; 0 where a head scored each response."""
    unread: int = 0
    """Of these, the ones that name no response, or no score, which is then 0."""

    @property
    def order(self) -> list[int]:
        """Places of the responses, best first; equal scores keep the order of the responses."""
        return sorted(range(len(self.scores)), key=lambda place: -self.scores[place])

    @property
    def margin(self) -> float | None:
        """Best score minus second best: 0 is a tie; None for a single response."""
        best = [self.scores[place] for place in self.order[:2]]
        return best[0] - best[1] if len(best) == 2 else None
