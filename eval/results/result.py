"""Verdicts become right, wrong, tie or unparsable, by the rules that `mmrm.eval.protocol` states.

`Result` is written to disk as JSON for each checkpoint and benchmark, and read by sweep and report.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from mmrm.data.arrays import Floats, Ints
from mmrm.data.errors import UserError
from mmrm.data.regular_files import read_text
from mmrm.data.storage.files import content_digest
from mmrm.eval.candidates import Example, Scores
from mmrm.eval.protocol import ProtocolConfig, Ties, presentations
from mmrm.eval.results.intervals import accuracy_interval, cluster_codes, effective_rows
from mmrm.eval.results.statistics import Calibration, Histogram, LengthBias, OrderConsistency

Flags = NDArray[np.bool_]
WORTH: dict[Ties, float] = {"wrong": 0.0, "half": 0.5, "right": 1.0}
"""What a tie adds to an accuracy."""
LIMITED = "Limited to "
"""How the note of a result begins that is not of all rows."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """How verdicts compare with the benchmark's labels; every array has one entry a row.

    A scalar judge casts one vote, or none where its scores are equal.
    """

    right: Ints
    """Votes for the better response."""
    wrong: Ints
    """Votes for the other response."""
    unread: Ints
    """Votes that cannot be read, and scores that are no finite numbers."""
    margin: Floats
    """score(better) - score(other) in the judge's own unit; NaN without two finite scores."""

    @property
    def unparsable(self) -> Flags:
        """Rows of which nothing can be read."""
        return (self.right + self.wrong < 1) & (self.unread > 0)

    @property
    def tie(self) -> Flags:
        """Rows with as many votes for the better response as not for it."""
        equal: Flags = self.right == self.wrong + self.unread
        return equal & ~self.unparsable

    @property
    def correct(self) -> Flags:
        """Rows whose verdict is the better response."""
        return self.right > self.wrong + self.unread

    def credit(self, ties: Ties) -> Floats:
        """Return what each row adds to the accuracy: 1 if right, the value of `ties` for a tie, else 0."""
        return self.correct + WORTH[ties] * self.tie

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.right)


def outcomes(
    examples: Sequence[Example],
    scores: Sequence[Scores],
    protocol: ProtocolConfig,
    rounds: int | None = None,
) -> Outcomes:
    """Compare scores with labels: the votes if there are any, else the values.

    With `rounds`, only the votes of the first rounds count.

    Raises: UserError if there are not scores for each example, or they hold neither values nor the votes that the protocol
    asks for.
    """
    if len(examples) != len(scores):
        raise UserError(
            f"{len(scores)} verdicts for {len(examples)} examples; required is one for each, in order."
        )
    shown = (1 + (protocol.order == "both")) * (protocol.votes if rounds is None else rounds)
    rows = [
        _row(example, row_scores, protocol, shown)
        for example, row_scores in zip(examples, scores, strict=True)
    ]
    columns = np.array(rows, dtype=np.float64).reshape(len(rows), 4)
    right, wrong, unread = columns[:, :3].astype(np.int64).T
    return Outcomes(right, wrong, unread, columns[:, 3])


def worst_mistakes(found: Outcomes, count: int = 20) -> list[int]:
    """Return the rows with the worst wrong verdicts: largest margin, or most votes, for the wrong response."""
    wrong = np.flatnonzero(~found.correct & (found.wrong > 0))
    votes = found.wrong[wrong] / (found.right + found.wrong + found.unread)[wrong]
    order = np.lexsort((-votes, np.nan_to_num(found.margin[wrong], nan=0.0)))
    return [int(row) for row in wrong[order][:count]]


def _row(
    example: Example, scores: Scores, protocol: ProtocolConfig, shown: int
) -> tuple[float, float, float, float]:
    """Return right, wrong, unread and margin."""
    if scores.values and not scores.votes:
        better = scores.values[example.better]
        other = scores.values[1 - example.better]
        if math.isfinite(better) and math.isfinite(other):
            return better > other, better < other, 0, better - other
        return 0, 0, 1, math.nan
    expected = presentations(example, protocol)
    if tuple(vote.shown for vote in scores.votes) != expected:
        raise UserError(
            f"{example.identity}: the verdict holds no scores and {len(scores.votes)} votes, shown first "
            f"{[vote.shown[0] for vote in scores.votes]}; the protocol ({protocol.label}) asks for "
            f"{[order[0] for order in expected]}."
        )
    names = [vote.named for vote in scores.votes[:shown]]
    right = names.count(example.better)
    unread = names.count(None)
    return right, len(names) - right - unread, unread, math.nan


class Frozen(BaseModel):
    """A part of a result: written once, read back equal."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Accuracy(Frozen):
    """An accuracy with everything that is needed to judge it."""

    n: int
    right: int
    ties: int
    unparsable: int
    accuracy: float | None
    """Credits over all n rows, ties counted as the protocol says (by default wrong); None for n = 0."""
    low: float | None
    high: float | None
    """The 95 % interval of `accuracy`: Wilson's, for `effective_n` rows if some of them share an item."""
    half: float | None
    """The accuracy with half a point for each tie."""
    items: int | None = None
    """Independent items that the rows are of: an image, a prompt or the benchmark's own. None if every row is one of its own,
    and in results of earlier versions."""
    effective_n: float | None = None
    """Independent rows that would tell as much as these; None if `items` is."""


class Baseline(Frozen):
    """What a judge that ignores the content scores."""

    micro: Accuracy
    macro: float | None
    groups: dict[str, Accuracy]


class Votes(Frozen):
    """What the votes of a pairwise judge look like."""

    votes: int
    unparsable: int
    agreement: float | None
    """Mean share of a row's readable votes that its majority holds."""
    names_first: float | None
    """Share of readable votes that name the response shown first; 0.5 without position bias."""
    order: OrderConsistency | None
    """Only where the protocol shows both orders."""
    accuracy_at: dict[int, Accuracy]
    """The accuracy from the first 1..K rounds."""


class Result(Frozen):
    """Everything that is known of one checkpoint on one benchmark."""

    benchmark: str
    origin: str
    """Where the rows came from: hub and revision, `embedded`, or a path."""
    label: str
    """The protocol in one line."""
    protocol: dict[str, Any]
    notes: tuple[str, ...]
    """Differences from the published benchmark, ablations, anything a reader must know before comparing."""
    unavailable: tuple[str, ...]
    """Rows that could not be shown (videos without frames); they are in no figure."""
    micro: Accuracy
    macro: float | None
    """The plain mean of the groups' accuracies."""
    groups: dict[str, Accuracy]
    sources: dict[str, Accuracy]
    clusters: Accuracy | None
    """Share of items with every pair right (Acc+), where the benchmark has items of several pairs."""
    cluster_groups: dict[str, Accuracy]
    baselines: dict[str, Baseline]
    votes: Votes | None
    calibration: Calibration | None
    margins: Histogram | None
    length: LengthBias
    worst: tuple[str, ...]
    """Keys of the worst mistakes, worst first."""
    published: dict[str, dict[str, Any]]
    """The same verdicts under the official scorer's rules and under other published rules, each labelled by its name."""

    @property
    def chance(self) -> float:
        """The accuracy of a judge that tosses a coin for each judgement, as `micro.accuracy` counts ties."""
        protocol = ProtocolConfig.model_validate(self.protocol)
        return chance_of_votes(protocol.judgements, protocol.ties) if self.votes else 0.5

    @property
    def done(self) -> str:
        """What was really done, in one line; `label` is what the protocol asks of any judge."""
        limited = any(note.startswith(LIMITED) for note in self.notes)
        rows = (
            "all rows"
            if not (limited or self.unavailable)
            else f"{self.micro.n} rows{', drawn' if limited else ''}"
        )
        rows += (
            f" of {self.micro.n + len(self.unavailable)}, the others cannot be shown"
            if self.unavailable
            else ""
        )
        return ProtocolConfig.model_validate(self.protocol).done(
            rows, pairwise=self.votes is not None
        )


def read_result(path: Path) -> Result:
    """Return a result that was written to disk; raises pydantic's ValidationError for a file that is none."""
    return Result.model_validate_json(read_text(path))


def chance_of_votes(votes: int, ties: Ties) -> float:
    """Return the accuracy of a judge whose every vote is a coin: 0.25 for two votes, one in each order, with ties wrong."""
    more_than_half = sum(math.comb(votes, right) for right in range(votes // 2 + 1, votes + 1))
    equal = math.comb(votes, votes // 2) if votes % 2 == 0 else 0
    return float(more_than_half + WORTH[ties] * equal) / 2.0**votes


def items_of(examples: Sequence[Example], item: Callable[[Example], str] | None = None) -> Ints:
    """Return the number of each row's item, shape (rows,).

    Rows are of one item if they show the same image, or the same prompt without one, or if the benchmark's own `item` is equal.
    A judge that misreads an image is wrong in all rows that show it.
    """
    names_by_row: list[list[tuple[str, str]]] = []
    for example in examples:
        names = [("image", content_digest(image)) for image in example.images]
        if not example.images:
            names.append(("prompt", repr(example.prompt)))
        if item is not None:
            names.append(("item", item(example)))
        names_by_row.append(names)
    return cluster_codes(names_by_row)


def figure(
    found: Outcomes, ties: Ties, rows: Ints | None = None, items: Ints | None = None
) -> Accuracy:
    """Return the figure of all rows, or of the rows whose indices are given.

    Args:
        found: The outcomes of all rows.
        ties: What a tie counts.
        rows: Indices of the rows; None takes all of them.
        items: The number of the item of each of all rows, from `items_of`; None if every row is one of its own.
    """
    inside = np.arange(len(found)) if rows is None else rows
    n = len(inside)
    counts = {
        "n": n,
        "right": int(found.correct[inside].sum()),
        "ties": int(found.tie[inside].sum()),
        "unparsable": int(found.unparsable[inside].sum()),
    }
    if n == 0:
        return Accuracy(**counts, accuracy=None, low=None, high=None, half=None)
    credits = found.credit(ties)[inside]
    items_inside = None if items is None else items[inside]
    estimate = accuracy_interval(credits, items_inside)
    num_items = None
    effective_n = None
    if items_inside is not None and len(np.unique(items_inside)) < n:
        effective_n, num_items = effective_rows(credits, items_inside)
    return Accuracy(
        **counts,
        accuracy=float(credits.sum()) / n,
        low=estimate.low,
        high=estimate.high,
        half=float(found.credit("half")[inside].sum()) / n,
        items=num_items,
        effective_n=effective_n,
    )


def figures(
    found: Outcomes, ties: Ties, labels: list[str], items: Ints | None = None
) -> dict[str, Accuracy]:
    """Return a figure for each label in `labels` (one label a row), in first-seen order."""
    names = np.array(labels, dtype=object)
    return {
        name: figure(found, ties, np.flatnonzero(names == name), items)
        for name in dict.fromkeys(labels)
    }
