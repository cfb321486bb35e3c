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
from dataclasses import replace
from typing import Literal

from pydantic import Field

from mmrm.data.config.section import Section
from mmrm.data.storage.content import shown_key
from mmrm.eval.candidates import Candidates, Example, Side

Order = Literal["both", "official", "winner_first"]

Images = Literal["real", "none", "grey", "shuffled"]

Ties = Literal["wrong", "half", "right"]

LISTED: tuple[Side, Side] = (0, 1)
"""The responses are shown in the order in which the example lists them."""
REVERSED: tuple[Side, Side] = (1, 0)


def journal_key(candidates: Candidates) -> str:
    """Return the key under which a journal keeps what a judge says of `candidates`, 64 hexadecimal digits.

    It is a digest of everything that decides the verdict besides the judge and the protocol, which the journal's fingerprint
    names: the prompt, the bytes of the images, the responses in their order, and the label from which judgements are drawn.
    """
    return shown_key(candidates.prompt, candidates.images, candidates.responses, candidates.key)


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


def presentations(example: Example, protocol: ProtocolConfig) -> tuple[tuple[Side, Side], ...]:
    """Return the order in which the responses of `example` are shown in each judgement, round by round."""
    if protocol.order == "both":
        return (LISTED, REVERSED) * protocol.votes
    if protocol.order == "winner_first":
        return (_shown_with(example.better),) * protocol.votes
    if example.official_first is not None:
        return (_shown_with(example.official_first),) * protocol.votes
    return tuple(
        _shown_with(draw(protocol.seed, example.key, turn)) for turn in range(protocol.votes)
    )


def _shown_with(first: Side) -> tuple[Side, Side]:
    """Return the order that shows the response `first` first."""
    return LISTED if first == 0 else REVERSED


def with_presentations(examples: Sequence[Example], protocol: ProtocolConfig) -> list[Example]:
    """Return the examples with the orders in which a judge that compares is shown them."""
    return [
        replace(example, presentations=presentations(example, protocol)) for example in examples
    ]


def draw(seed: int, key: str, turn: int | str) -> Side:
    """Return 0 or 1, the same in every process for the same arguments."""
    return 0 if random.Random(f"{seed}/{key}/{turn}").random() < 0.5 else 1
