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

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from data.config.section import Section
from data.preference import EncodedImage, Message
from data.storage.content import shown_key
from eval.journal import SILENT, Journal

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]
Side = Literal[0, 1]
"""An index into `Example.responses`."""
Order = Literal["both", "official", "winner_first"]
Images = Literal["real", "none", "grey", "shuffled"]
Ties = Literal["wrong", "half", "right"]


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


def journal_key(candidates: Candidates) -> str:
    """Return the key under which a journal keeps what a judge says of `candidates`, 64 hexadecimal digits.

    It is a digest of everything that decides the verdict besides the judge and the protocol, which the journal's fingerprint
    names: the prompt, the bytes of the images, the responses in their order, and the label from which judgements are drawn.
    """
    return shown_key(candidates.prompt, candidates.images, candidates.responses, candidates.key)


class Judge(Protocol):
    """Anything that compares two responses."""

    def judge(self, examples: Sequence[Example], journal: Journal = SILENT) -> list[Verdict]:
        """Return one verdict for each example, in order; the journal shows the progress, and holds what need not be judged."""
        ...


class NotedJudge(Judge, Protocol):
    """A judge that knows what must be said beside its figures."""

    def notes(self) -> tuple[str, ...]:
        """Return it; asked after judging."""
        ...


class ProtocolConfig(Section):
    """How a benchmark is run. The defaults are the protocol at the head of eval/protocol.py; a result names what deviates."""

    order: Order = "both"
    """What pairwise judges are shown: each row in both orders, in the order of the benchmark's own script, or with the
    winner first, as released scripts of R1-Reward do (a judge that always says 1 is then always right)."""
    votes: int = Field(default=1, ge=1, le=64)
    """Rounds of votes of a pairwise judge."""
    images: Images = "real"
    """`none`, `grey` and `shuffled` are ablations: what remains of the score without the image."""
    ties: Ties = "wrong"
    """What a tie adds to the headline: 0, 0.5 or 1."""
    seed: int = 0
    """Of everything drawn: orders, shuffled images, votes."""

    @property
    def label(self) -> str:
        """The protocol in one line: what is asked for, and by what results are told to be comparable."""
        return self.done("all rows", pairwise=True)

    @property
    def judgements(self) -> int:
        """Judgements of a pairwise judge on each row."""
        return 2 * self.votes if self.order == "both" else self.votes

    def done(self, rows: str, pairwise: bool) -> str:
        """Return what was done on `rows`, as it stands beside every figure: only a pairwise judge has orders and votes."""
        order = {
            "both": "both orders",
            "official": "official order",
            "winner_first": "WINNER SHOWN FIRST",
        }[self.order]
        rounds = "1 vote" if self.votes == 1 else f"{self.votes} votes"
        images = "" if self.images == "real" else f", images: {self.images}"
        judged = f"{order}, {rounds}" if pairwise else "each response scored by itself"
        return f"{judged}, ties {self.ties}, {rows}{images}, seed {self.seed}"


def presentations(example: Example, protocol: ProtocolConfig) -> tuple[Side, ...]:
    """Return which response is shown first in each judgement of `example`, round by round."""
    if protocol.order == "both":
        return (0, 1) * protocol.votes
    if protocol.order == "winner_first":
        return (example.better,) * protocol.votes
    if example.official_first is not None:
        return (example.official_first,) * protocol.votes
    return tuple(draw(protocol.seed, example.key, turn) for turn in range(protocol.votes))


def draw(seed: int, key: str, turn: int | str) -> Side:
    """Return 0 or 1, the same in every process for the same arguments."""
    return 0 if random.Random(f"{seed}/{key}/{turn}").random() < 0.5 else 1
