"""Outcomes of verdicts, and the figures that are computed from them.

By the rules of `mmrm.eval.protocol`, each row is right, wrong, a tie or unparsable. A `Result` is
written as JSON for each checkpoint and benchmark, and read by sweep and report.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

from mmrm.data.arrays import Floats, Ints
from mmrm.data.errors import UserError
from mmrm.data.regular_files import read_text
from mmrm.data.storage.files import content_digest
from mmrm.eval.candidates import (
    BenchmarkRow,
    RankedExample,
    Scores,
    best_indices,
    is_tied,
    other_indices,
    won_shares,
)
from mmrm.eval.protocol import ProtocolConfig, Ties, presentations
from mmrm.eval.results.intervals import accuracy_interval, cluster_codes, effective_rows
from mmrm.eval.results.shortcut_figures import ShortcutFigures
from mmrm.eval.results.statistics import Calibration, Histogram, LengthBias, OrderConsistency
from mmrm.eval.results.uncertainty import Uncertainty

Flags = NDArray[np.bool_]
WORTH: dict[Ties, float] = {"wrong": 0.0, "half": 0.5, "right": 1.0}
"""The credit of a tie, the number that it adds to an accuracy, by the protocol's key `ties`."""
LIMITED = "Limited to "
"""Beginning of the note in a result that is computed from a part of the rows."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Verdicts compared with the benchmark's labels; every array has the shape (rows,).

    A scalar judge casts one vote, or none if its scores are equal. So does every judge on a row
    with a ranking. In place of the better response's score, the lowest score of a best response is
    then compared with the highest score of another response. A row of equally good responses has
    one vote, which is right if the judge scores them equally.
    """

    right: Ints
    """Number of votes for the better response."""
    wrong: Ints
    """Number of votes for the other response."""
    unread: Ints
    """Number of votes that cannot be read; 1 for scores that are no finite numbers."""
    margin: Floats
    """score(better) - score(other) in the judge's own unit; NaN without two finite scores, and for
    a row of equally good responses."""

    @property
    def unparsable(self) -> Flags:
        """Rows without a readable vote or score."""
        return (self.right + self.wrong < 1) & (self.unread > 0)

    @property
    def tie(self) -> Flags:
        """Rows in which half of the votes are for the better response."""
        equal: Flags = self.right == self.wrong + self.unread
        return equal & ~self.unparsable

    @property
    def correct(self) -> Flags:
        """Rows in which more than half of the votes are for the better response."""
        return self.right > self.wrong + self.unread

    def credit(self, ties: Ties) -> Floats:
        """Return the number that each row adds to the accuracy, shape (rows,).

        It is 1 for a right row and 0 for a wrong one. For a tie it is 0, 0.5 or 1, if `ties` is
        "wrong", "half" or "right".
        """
        return self.correct + WORTH[ties] * self.tie

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.right)


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """The values of `Outcomes` for one row."""

    right: int
    wrong: int
    unread: int
    margin: float


def outcomes(
    examples: Sequence[BenchmarkRow],
    scores: Sequence[Scores],
    protocol: ProtocolConfig,
    rounds: int | None = None,
) -> Outcomes:
    """Compare a judge's verdicts with the labels of a benchmark's rows.

    A verdict is the votes of a row if there are any, else its scores.

    Args:
        examples: The rows of a benchmark.
        scores: The scores or votes of each row, in the same order.
        protocol: The protocol of the evaluation.
        rounds: Number of the first rounds whose votes are counted; None counts all votes. A round
            is one vote, or one vote in each order of the responses, or a tournament of a row with a
            ranking.

    Raises:
        UserError: If there are not scores for each example, or they have neither values nor the
            votes that the protocol requires.
    """
    if len(examples) != len(scores):
        raise UserError(
            f"{len(scores)} verdicts for {len(examples)} examples; required is one for each, in "
            "order."
        )
    num_rounds = protocol.votes if rounds is None else rounds
    rows = [
        _outcome_of_row(example, row_scores, protocol, num_rounds)
        for example, row_scores in zip(examples, scores, strict=True)
    ]
    return outcomes_of_rows(rows)


def outcomes_of_rows(rows: Sequence[RowOutcome]) -> Outcomes:
    """Return the outcomes of single rows as arrays."""
    return Outcomes(
        right=np.array([row.right for row in rows], dtype=np.int64),
        wrong=np.array([row.wrong for row in rows], dtype=np.int64),
        unread=np.array([row.unread for row in rows], dtype=np.int64),
        margin=np.array([row.margin for row in rows], dtype=np.float64),
    )


def worst_mistakes(outcome: Outcomes, count: int = 20) -> list[int]:
    """Return the indices of the rows with the worst wrong verdicts, worst first.

    A judge that scores is worst where its margin for the wrong response is largest. A judge that
    votes is worst where the largest share of votes is for the wrong response.

    Args:
        outcome: The outcomes of all rows.
        count: Largest number of rows to return.
    """
    rows = np.flatnonzero(~outcome.correct & (outcome.wrong > 0))
    num_votes = outcome.right + outcome.wrong + outcome.unread
    share_wrong = outcome.wrong[rows] / num_votes[rows]
    # Without scores, all margins are equal, and the share of votes decides.
    margins = np.nan_to_num(outcome.margin[rows], nan=0.0)
    order = np.lexsort((-share_wrong, margins))  # numpy sorts by the last key first
    return [int(row) for row in rows[order][:count]]


def _outcome_of_row(
    example: BenchmarkRow, scores: Scores, protocol: ProtocolConfig, num_rounds: int
) -> RowOutcome:
    """Compare a judge's verdict on a row with the row's label.

    Args:
        example: The row.
        scores: The judge's scores of the responses, or its votes.
        protocol: The protocol, which requires certain votes.
        num_rounds: Number of the first rounds whose votes are counted.

    Raises:
        UserError: If there are neither scores nor the votes that the protocol requires.
    """
    if scores.values and not scores.votes:
        return _outcome_of_values(example, scores.values)

    shown_orders = tuple(vote.shown for vote in scores.votes)
    required_orders = presentations(example, protocol)
    if shown_orders != required_orders:
        raise UserError(
            f"{example.identity}: the verdict holds no scores and {len(shown_orders)} votes, shown "
            f"first {[order[0] for order in shown_orders]}; the protocol ({protocol.label}) asks "
            f"for {[order[0] for order in required_orders]}."
        )
    num_votes = len(required_orders) // protocol.votes * num_rounds
    votes = scores.votes[:num_votes]
    if protocol.verdicts == "soft":
        if any(vote.soft is None for vote in votes):
            raise UserError(
                f"{example.identity}: the protocol ({protocol.label}) requires the probabilities of "
                "verdicts, and the judge's votes have none. Set `verdicts` to hard, or evaluate a "
                "judge that writes in this process."
            )
        return _outcome_of_values(example, won_shares(len(example.responses), votes))
    votes = tuple(replace(vote, soft=None) for vote in votes)
    named_responses = [vote.named for vote in votes]
    num_unread = named_responses.count(None)
    if isinstance(example, RankedExample):
        if num_unread == num_votes:
            return RowOutcome(right=0, wrong=0, unread=1, margin=math.nan)
        return _outcome_of_values(example, won_shares(len(example.responses), votes))
    num_right = named_responses.count(example.better)
    num_wrong = len(named_responses) - num_right - num_unread
    return RowOutcome(num_right, num_wrong, num_unread, math.nan)


def _outcome_of_values(example: BenchmarkRow, values: Sequence[float]) -> RowOutcome:
    """Compare the lowest score of a best response with the highest score of another response.

    If all responses are equally good, the scores are right if they are equal.
    """
    if not all(map(math.isfinite, values)):
        return RowOutcome(right=0, wrong=0, unread=1, margin=math.nan)
    if is_tied(example):
        are_equal = min(values) == max(values)
        return RowOutcome(int(are_equal), int(not are_equal), unread=0, margin=math.nan)
    best = min(values[index] for index in best_indices(example))
    other = max(values[index] for index in other_indices(example))
    return outcome_of_comparison(best, other)


def outcome_of_comparison(best: float, other: float) -> RowOutcome:
    """Return the outcome of a row by the score that has to be higher, and the other score."""
    return RowOutcome(int(best > other), int(best < other), unread=0, margin=best - other)


class Frozen(BaseModel):
    """Base of the parts of a result: unchangeable, and equal after being written and read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Accuracy(Frozen):
    """An accuracy with its interval and the counts behind it."""

    n: int
    right: int
    ties: int
    unparsable: int
    accuracy: float | None
    """Mean credit of all n rows, with ties as in the protocol (by default wrong); None for n =
    0."""
    low: float | None
    high: float | None
    """The 95 % interval of `accuracy`: Wilson's, for `effective_n` rows if some of them share an
    item."""
    half: float | None
    """The accuracy with half a point for each tie."""
    items: int | None = None
    """Number of independent items to which the rows belong: images, prompts or the benchmark's own
    items. None if every row is an item, and in results of earlier versions."""
    effective_n: float | None = None
    """Number of independent rows that would be as informative as these; None if `items` is."""


class Baseline(Frozen):
    """The figures of a judge that ignores the content."""

    micro: Accuracy
    macro: float | None
    groups: dict[str, Accuracy]


class Votes(Frozen):
    """Statistics of the votes of a pairwise judge."""

    votes: int
    unparsable: int
    agreement: float | None
    """Mean share of a row's readable votes that agree with its majority."""
    names_first: float | None
    """Share of readable votes that name the response shown first; 0.5 without position bias."""
    order: OrderConsistency | None
    """None unless the protocol shows both orders."""
    accuracy_at: dict[int, Accuracy]
    """The accuracy from the first 1 to K rounds, by the number of rounds."""


class SoftFigures(Frozen):
    """Figures of soft verdicts, next to those of the words that the same judgements name.

    P(better) is the mean probability, over all votes on a pair, that its better response is better.
    All intervals are at 95 %.
    """

    judgements: int
    opened: int
    """Number of judgements without a readable verdict, which were continued up to its place."""
    mass: float
    """Mean probability that the judge writes one of the two verdicts at the verdict's place."""
    first: float
    """Mean probability that the response shown first is better; 0.5 without position bias."""
    order: OrderConsistency | None
    """Pairs of judgements in both orders that give the same response a probability above 0.5; None
    unless the protocol shows both orders."""
    pairs: int
    """Number of pairs of a better and another response. A row of two responses is one pair."""
    left_out: int
    """Number of pairs whose probabilities are no finite numbers, which are in none of the figures
    below."""
    brier: float
    """Mean of (1 - P(better))²: 0 for a judge that is sure and right, 0.25 for one that always says
    one half."""
    brier_low: float | None
    brier_high: float | None
    auc: float
    """The area under the ROC curve of the margins, see `statistics.area_under_curve`."""
    auc_low: float | None
    auc_high: float | None
    overconfidence: float
    """Mean of confidence minus credit, in which confidence is the larger one of P(better) and 1 -
    P(better). The judge is right less often than it states if this is positive."""
    overconfidence_low: float | None
    overconfidence_high: float | None
    hard: Accuracy
    """The accuracy of the verdicts that the texts of the judgements name."""
    hard_auc: float
    """The same area for the share of votes that name the better response minus the share that
    names the other one."""


class Ranking(Frozen):
    """Further figures of rows with a ranking of several responses."""

    responses: int
    """Number of responses of all rows."""
    chance: float
    """The accuracy of a random order, in which every best response has to come before every other
    one: the mean over rows of 1 / (N choose B), for B best ones of N responses. It is 0 on a row of
    equally good responses, because an order has no ties."""
    tied: int = 0
    """Number of rows whose responses are all equally good. The figures below are about the other
    rows."""
    best: Accuracy
    """Best of N: the share of rows in which a best response has the highest score. It is a tie if
    another response has the same score."""
    best_chance: float
    """Best of N of a random choice: the mean share of best responses in a row."""
    best_groups: dict[str, Accuracy]
    """Best of N by group."""
    pairs: float
    """Mean over rows of the share of pairs of different ranks that the scores put in the right
    order. A pair of equal scores counts as the protocol counts a tie, and a row that cannot be read
    counts as 0."""
    kendall: float
    """Mean over rows of Kendall's tau-b between scores and ranks: 1 if they agree, -1 if they are
    reversed, and 0 if all scores of a row are equal or the row cannot be read."""

    @model_serializer(mode="wrap")
    def _without_unused_keys(self, plain_values: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the fields as plain values, without `tied` if it is 0.

        Files of results without tied rows are then equal to those of earlier versions.
        """
        values: dict[str, Any] = plain_values(self)
        if not values["tied"]:
            del values["tied"]
        return values


class Result(Frozen):
    """All figures of one checkpoint on one benchmark."""

    benchmark: str
    origin: str
    """Origin of the rows: hub and revision, `embedded`, or a path."""
    label: str
    """The protocol in one line."""
    protocol: dict[str, Any]
    notes: tuple[str, ...]
    """Differences from the published benchmark, ablations, and anything else that matters for a
    comparison."""
    unavailable: tuple[str, ...]
    """Rows that could not be shown, such as videos without frames; no figure includes them."""
    micro: Accuracy
    macro: float | None
    """The plain mean of the groups' accuracies."""
    groups: dict[str, Accuracy]
    sources: dict[str, Accuracy]
    clusters: Accuracy | None
    """Share of items with every pair right (Acc+); None unless the benchmark has items of several
    pairs."""
    cluster_groups: dict[str, Accuracy]
    baselines: dict[str, Baseline]
    votes: Votes | None
    calibration: Calibration | None
    margins: Histogram | None
    length: LengthBias
    worst: tuple[str, ...]
    """Keys of the worst mistakes, worst first."""
    published: dict[str, dict[str, Any]]
    """Figures of the same verdicts under the official scorer's rules and under other published
    rules, by the name of the rules."""
    uncertainty: Uncertainty | None = None
    """The calibration of the standard deviations that the judge states; None if it states none."""
    ranking: Ranking | None = None
    """Further figures of rows with a ranking; None for a benchmark of pairs, and if the responses
    of every row are equally good."""
    joint: bool = False
    """True for a judge that scores all responses of a row in one conversation."""
    soft: SoftFigures | None = None
    """Figures of soft verdicts; None if verdicts are hard, or the judge does not compare."""
    shortcuts: tuple[ShortcutFigures, ...] = ()
    """How far the judge and the labels go along with each shortcut, such as the length of the
    responses. Empty in results of earlier versions, and without a row that has a verdict."""

    @model_serializer(mode="wrap")
    def _without_unused_keys(self, plain_values: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the fields as plain values, without those that earlier versions did not have.

        `uncertainty`, `ranking` and `soft` are left out if they are None, `joint` if it is False,
        and `shortcuts` if it is empty. Files of results without them are then equal to those of earlier versions.
        """
        values: dict[str, Any] = plain_values(self)
        for name in ("uncertainty", "ranking", "joint", "soft", "shortcuts"):
            if not values[name]:
                del values[name]
        return values

    @property
    def chance(self) -> float:
        """The accuracy of a judge that tosses coins, with ties counted as in `micro.accuracy`.

        For rows with a ranking it is the accuracy of a random order without ties.
        """
        if self.ranking is not None:
            return self.ranking.chance
        if not self.votes or self.soft:
            return 0.5
        protocol = ProtocolConfig.model_validate(self.protocol)
        return chance_of_votes(protocol.judgements, protocol.ties)

    @property
    def chance_with_half_ties(self) -> float:
        """The accuracy of guessing, with half a point for a tie: 0.5 for a benchmark of pairs."""
        return 0.5 if self.ranking is None else self.ranking.chance

    @property
    def description(self) -> str:
        """The evaluation in one line: its protocol, and the number of rows that were judged.

        Unlike `label`, it has no orders and votes if the judge did not compare responses.
        """
        is_limited = any(note.startswith(LIMITED) for note in self.notes)
        rows_description = "all rows"
        if is_limited:
            rows_description = f"{self.micro.n} rows, drawn"
        elif self.unavailable:
            rows_description = f"{self.micro.n} rows"
        if self.unavailable:
            num_rows = self.micro.n + len(self.unavailable)
            rows_description += f" of {num_rows}, the others cannot be shown"
        protocol = ProtocolConfig.model_validate(self.protocol)
        return protocol.in_words(
            rows_description, pairwise=self.votes is not None, joint=self.joint
        )


def read_result(path: Path) -> Result:
    """Return the result that a file holds.

    Raises: pydantic's ValidationError if the file holds something else.
    """
    return Result.model_validate_json(read_text(path))


def chance_of_votes(votes: int, ties: Ties) -> float:
    """Return the accuracy of a judge that tosses a coin for each of a row's votes.

    Example: with two votes on each row and wrong ties, it is 0.25.

    Args:
        votes: Number of votes on each row.
        ties: The credit of a tie: "wrong" (0), "half" (0.5) or "right" (1).
    """
    num_majorities = sum(math.comb(votes, right) for right in range(votes // 2 + 1, votes + 1))
    num_ties = math.comb(votes, votes // 2) if votes % 2 == 0 else 0
    return float(num_majorities + WORTH[ties] * num_ties) / 2.0**votes


def items_of(examples: Sequence[BenchmarkRow], item: Callable[[Any], str] | None = None) -> Ints:
    """Return the index of each row's item, shape (rows,).

    Rows belong to one item if they show the same image or video (in the prompt or in a response),
    have the same prompt without an image or a video, or have the same item of the benchmark. A judge
    that misreads an image is wrong in all rows that show it.

    Args:
        examples: The rows.
        item: Returns the benchmark's own item of a row; None if the benchmark has no items.
    """
    names_by_row: list[list[tuple[str, str]]] = []
    for example in examples:
        names = [("image", content_digest(image)) for image in example.all_images]
        names += [("video", content_digest(video.content)) for video in example.all_videos]
        if not example.images and not example.videos:
            names.append(("prompt", repr(example.prompt)))
        if item is not None:
            names.append(("item", item(example)))
        names_by_row.append(names)
    return cluster_codes(names_by_row)


def figure(
    outcome: Outcomes, ties: Ties, rows: Ints | None = None, items: Ints | None = None
) -> Accuracy:
    """Return the accuracy of all rows, or of the rows whose indices are given.

    Args:
        outcome: The outcomes of all rows.
        ties: The credit of a tie: "wrong" (0), "half" (0.5) or "right" (1).
        rows: Indices of the rows; None takes all of them.
        items: Index of each row's item, from `items_of`, for all rows; None if every row is an
            item. Rows of one item are not independent.
    """
    if rows is None:
        rows = np.arange(len(outcome))
    n = len(rows)
    num_right = int(outcome.correct[rows].sum())
    num_ties = int(outcome.tie[rows].sum())
    num_unparsable = int(outcome.unparsable[rows].sum())
    if n == 0:
        return Accuracy(
            n=0,
            right=num_right,
            ties=num_ties,
            unparsable=num_unparsable,
            accuracy=None,
            low=None,
            high=None,
            half=None,
        )
    credits = outcome.credit(ties)[rows]
    items_of_rows = None if items is None else items[rows]
    estimate = accuracy_interval(credits, items_of_rows)
    num_items = None
    effective_n = None
    if items_of_rows is not None and len(np.unique(items_of_rows)) < n:
        effective_n, num_items = effective_rows(credits, items_of_rows)
    return Accuracy(
        n=n,
        right=num_right,
        ties=num_ties,
        unparsable=num_unparsable,
        accuracy=float(credits.sum()) / n,
        low=estimate.low,
        high=estimate.high,
        half=float(outcome.credit("half")[rows].sum()) / n,
        items=num_items,
        effective_n=effective_n,
    )


def figures(
    outcome: Outcomes, ties: Ties, labels: list[str], items: Ints | None = None
) -> dict[str, Accuracy]:
    """Return the accuracy of the rows with each label, in the order in which labels first occur.

    Args:
        outcome: The outcomes of all rows.
        ties: The credit of a tie: "wrong" (0), "half" (0.5) or "right" (1).
        labels: The label of each row, such as the name of its group.
        items: Index of each row's item, from `items_of`; None if every row is an item.
    """
    label_by_row = np.array(labels, dtype=object)
    return {
        label: figure(outcome, ties, np.flatnonzero(label_by_row == label), items)
        for label in dict.fromkeys(labels)
    }
