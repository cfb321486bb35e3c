"""The protocol of an evaluation: the judge's input, and how answers become right, wrong or a tie.

The default protocol:

- Every row of the benchmark counts. A row that cannot be shown (a video without frames, a control
  token in its text) is counted as unavailable.
- A scalar judge is right if it scores the better response higher. Equal scores are a tie. Scores
  are compared unchanged (fp32 or wider), never rounded.
- A pairwise judge sees each row in both orders. A row is right if more votes name the better
  response than do not. It is a tie if both numbers are equal (the judge follows the position, not
  the content), else wrong.
- A vote that cannot be read counts against the better response and is counted. A row without any
  readable vote is `unparsable`. A score that is not a finite number is unparsable too.
- A tie is wrong in the headline. The figure with half a point for a tie has a separate column.
- K votes are K rounds. A round is one judgement, or one in each order. The accuracy at 1..K uses
  the first rounds.
- A row with a ranking of N responses is right if every best response scores higher than every other
  one, and a tie if the lowest best response and the highest other one score equally. If all
  responses are equally good, the row is right if they all score equally, else wrong. A pairwise
  judge holds K tournaments, in which every two responses meet in both orders, whatever the order of
  the protocol is. The score of a response is the share of its comparisons that it won.
- With soft verdicts, a vote of a pairwise judge is not the word that it wrote but the probability
  that the response shown first is better, read where the verdict stands in the judgement. The score
  of a response is the mean of its probabilities over all votes: over both orders, and over the
  rationales of all rounds. A row is right if the better response scores higher. A judgement without
  a readable verdict is continued by the words with which the judge's template begins a verdict, and
  counted. The rules of published scripts read the words that were written.
- Every random draw depends on the seed, the row's content and the round, not on the order in which
  rows are judged.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from mmrm.data.config.section import Section
from mmrm.data.storage.content import shown_key
from mmrm.eval.candidates import BenchmarkRow, Candidates, RankedExample, Side

Order = Literal["both", "official", "winner_first"]

Images = Literal["real", "none", "grey", "shuffled"]

Ties = Literal["wrong", "half", "right"]

Verdicts = Literal["hard", "soft"]

Rationale = Literal["written", "none"]

LISTED: tuple[Side, Side] = (0, 1)
"""The judge sees the responses in the order in which the example lists them."""
REVERSED: tuple[Side, Side] = (1, 0)


def journal_key(candidates: Candidates) -> str:
    """Return the key under which a journal keeps the judge's result for `candidates`.

    A journal is a file of the results so far, from which a killed evaluation continues. The key is
    a digest (64 hexadecimal digits) of the prompt, the bytes of the images and videos, the
    responses in their order, their criteria if there are any, and `candidates.key`, which decides
    random draws. The judge and the
    protocol are not in the key, because the whole journal belongs to one judge and one protocol.
    """
    media = (*candidates.images, *candidates.videos)
    # Candidates of versions without criteria have keys without them.
    criteria = [list(candidates.criteria)] if candidates.criteria else []
    return shown_key(candidates.prompt, media, candidates.responses, candidates.key, *criteria)


class ProtocolConfig(Section):
    """Settings of the evaluation on a benchmark.

    The defaults are the protocol at the head of eval/protocol.py. A result lists its deviations.
    """

    order: Order = "both"
    """The order in which pairwise judges see the responses of a row: both orders, the order of the
    benchmark's own script, or the winner first, as in released scripts of R1-Reward (a judge that
    always answers 1 is then always right)."""
    votes: int = Field(default=1, ge=1, le=64)
    """Rounds of votes of a pairwise judge."""
    images: Images = "real"
    """`none`, `grey` and `shuffled` are ablations that measure the accuracy without the right
    image."""
    ties: Ties = "wrong"
    """The number that a tie adds to the headline: 0 (wrong), 0.5 (half) or 1 (right)."""
    seed: int = 0
    """Seed of all random draws: orders, shuffled images, votes."""
    verdicts: Verdicts = "hard"
    """How a verdict is read from a judge that compares two responses in writing: the response that
    its text names (`hard`), or the probability of each of the two verdicts at the place where the
    verdict stands (`soft`). A soft verdict has a margin and no ties."""
    rationale: Rationale = "written"
    """`none` reads a soft verdict at once, in place of the judgement that the judge would write
    first."""

    @model_validator(mode="after")
    def _rationale_can_be_left_out(self) -> ProtocolConfig:
        if self.rationale == "written":
            return self
        if self.verdicts == "hard":
            raise ValueError(
                "`rationale` is none, and a hard verdict is read from the text that the judge "
                "writes. Set `verdicts` to soft, or remove `rationale`."
            )
        if self.votes > 1:
            raise ValueError(
                f"`votes` is {self.votes}, and verdicts without a rationale are all alike. Set "
                "`votes` to 1, or remove `rationale`."
            )
        return self

    @model_serializer(mode="wrap")
    def _without_unused_keys(self, plain_values: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the settings as plain values, without `verdicts` and `rationale` by default.

        Results and fingerprints of hard verdicts are then equal to those of earlier versions.
        """
        values: dict[str, Any] = plain_values(self)
        if self.verdicts == "hard":
            values.pop("verdicts", None)
        if self.rationale == "written":
            values.pop("rationale", None)
        return values

    @property
    def label(self) -> str:
        """The protocol in one line. Results are comparable if their labels are equal."""
        return self.in_words("all rows", pairwise=True)

    @property
    def judgements(self) -> int:
        """The number of judgements that a pairwise judge makes on each row."""
        return 2 * self.votes if self.order == "both" else self.votes

    @property
    def with_hard_verdicts(self) -> ProtocolConfig:
        """The same protocol with hard verdicts, which are read from the texts of the judgements."""
        return self.model_copy(update={"verdicts": "hard", "rationale": "written"})

    @property
    def _soft_words(self) -> str:
        """The reading of verdicts for a description; empty for hard verdicts."""
        if self.verdicts == "hard":
            return ""
        if self.rationale == "none":
            return ", soft verdicts without a rationale"
        return ", soft verdicts"

    def in_words(self, rows: str, pairwise: bool, *, joint: bool = False) -> str:
        """Return a description of an evaluation, which is printed with its figures.

        Args:
            rows: The evaluated rows in words, such as "all rows".
            pairwise: True for a judge that compares two responses. Only such a judge has votes.
            joint: True for a judge that scores all responses in one conversation, so that their
                order matters.
        """
        order = {
            "both": "both orders",
            "official": "official order",
            "winner_first": "WINNER SHOWN FIRST",
        }[self.order]
        rounds = "1 vote" if self.votes == 1 else f"{self.votes} votes"
        images = "" if self.images == "real" else f", images: {self.images}"
        judgement = "each response scored by itself"
        if pairwise:
            judgement = f"{order}, {rounds}{self._soft_words}"
        elif joint:
            judgement = f"all responses scored together (two responses: {order})"
        return f"{judgement}, ties {self.ties}, {rows}{images}, seed {self.seed}"


def presentations(row: BenchmarkRow, protocol: ProtocolConfig) -> tuple[tuple[int, ...], ...]:
    """Return the order in which each judgement shows two responses of a row to the judge.

    The judgements are in the order in which they are made, round after round of votes.
    """
    if isinstance(row, RankedExample):
        return tournament_orders(len(row.responses)) * protocol.votes
    if protocol.order == "both":
        return (LISTED, REVERSED) * protocol.votes
    if protocol.order == "winner_first":
        return (_order_with_first(row.better),) * protocol.votes
    # The remaining order is "official", that of the benchmark's own script.
    if row.official_first is not None:
        return (_order_with_first(row.official_first),) * protocol.votes
    # The benchmark's script draws the order for each judgement, and so does this function.
    orders: list[tuple[Side, Side]] = []
    for vote in range(protocol.votes):
        orders.append(_order_with_first(draw_side(protocol.seed, row.key, vote)))
    return tuple(orders)


def tournament_orders(num_responses: int) -> tuple[tuple[int, int], ...]:
    """Return the comparisons of a tournament: every two responses, in both orders in succession."""
    orders: list[tuple[int, int]] = []
    for first, second in combinations(range(num_responses), 2):
        orders += [(first, second), (second, first)]
    return tuple(orders)


def _order_with_first(first: Side) -> tuple[Side, Side]:
    """Return the order of two responses in which the response with index `first` is the first."""
    return LISTED if first == 0 else REVERSED


def with_presentations(
    rows: Sequence[BenchmarkRow], protocol: ProtocolConfig
) -> list[BenchmarkRow]:
    """Return copies of the rows with the orders in which the protocol shows their responses."""
    return [replace(row, presentations=presentations(row, protocol)) for row in rows]


def draw_side(seed: int, key: str, purpose: int | str) -> Side:
    """Draw 0 or 1 with equal probability. The same arguments give the same number in every process.

    Args:
        seed: The seed of the evaluation.
        key: The key of the row that the draw is about.
        purpose: Distinguishes several draws for one row: the number of the vote, or a name.
    """
    return 0 if random.Random(f"{seed}/{key}/{purpose}").random() < 0.5 else 1
