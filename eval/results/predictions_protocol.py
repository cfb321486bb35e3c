"""The protocol under which a `predictions.jsonl` of this project was made.

The file itself records only which response the judge saw first in each vote. The result file next to its
folder, `<benchmark>.json`, has the whole protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mmrm.data.errors import PredictionsError
from mmrm.eval.benchmarks.benchmark import Record
from mmrm.eval.benchmarks.prediction_records import one_of, parse_records
from mmrm.eval.protocol import Order, ProtocolConfig
from mmrm.eval.results.result import Result, read_result


@dataclass(frozen=True, slots=True)
class PredictionsProtocol:
    """The protocol under which the predictions of a file were made."""

    label: str
    """The protocol in one line; predictions with different labels are not comparable."""
    deviations: tuple[str, ...] = ()
    """Sentences about differences from the default protocol that change the meaning of the
    figures."""

    def lines(self) -> list[str]:
        """Return the lines that must be printed together with the figures."""
        return [f"protocol: {self.label}", *self.deviations]


def result_beside(predictions: Path) -> Result | None:
    """Return the result that was written together with a predictions file; None if there is none.

    The predictions are `<folder>/<benchmark>/predictions.jsonl`, and the result is
    `<folder>/<benchmark>.json`.
    """
    path = predictions.resolve().parent.with_suffix(".json")
    return read_result(path) if path.is_file() else None


def protocol_of(predictions: Path, records: Sequence[Record]) -> PredictionsProtocol:
    """Return the protocol of a predictions file.

    Args:
        predictions: Path of the file, by which its result is found.
        records: Its lines.

    Raises:
        PredictionsError: The votes contradict the result. One of the two is then from another
        evaluation.
    """
    order = order_of_votes(records)
    result = result_beside(predictions)
    if result is None:
        return PredictionsProtocol(_label_without_result(order), _deviations(order, "real"))

    protocol = ProtocolConfig.model_validate(result.protocol)
    if order != "scores" and not _agree(order, protocol.order):
        raise PredictionsError(
            f"the votes were shown {DESCRIPTION[order]}, and the result of the file reports the "
            f"protocol {protocol.label!r}. The two are of different evaluations. Evaluate again, "
            "or move the file away from the result."
        )
    return PredictionsProtocol(result.description, _deviations(order, protocol.images))


DESCRIPTION = {
    "both": "in both orders",
    "winner_first": "with the better response first",
    "loser_first": "with the worse response first",
    "one": "in one order each",
    "scores": "one response at a time",
}
"""The meaning of each value of `order_of_votes`, as words after "shown"."""


def order_of_votes(records: Sequence[Record]) -> str:
    """Return the order in which votes were shown the responses: a key of `DESCRIPTION`.

    The result is "scores" if the rows hold scores and no votes. In a single row with one vote, an
    order that was drawn looks like one that follows the label; it counts as "one".

    Raises:
        PredictionsError: A line has no label, or a vote of another form.
    """
    required = (
        "better (0 or 1) and votes (a list, each with `first`, 0 or 1; null or empty for scores)"
    )
    rows = parse_records(records, _better_was_first, required)
    rows_with_votes = [row for row in rows if row]
    if not rows_with_votes:
        return "scores"
    if all(len(set(row)) == 2 for row in rows_with_votes):
        return "both"
    votes = [vote for row in rows_with_votes for vote in row]
    if len(rows_with_votes) > 1 and all(votes):
        return "winner_first"
    if len(rows_with_votes) > 1 and not any(votes):
        return "loser_first"
    return "one"


def _better_was_first(record: Record) -> list[bool]:
    """Return True for each vote on a row that was shown the better response first, else False."""
    better = one_of(record["better"], (0, 1), "better")
    votes = record.get("votes") or []
    return [one_of(vote["first"], (0, 1), "a vote's first") == better for vote in votes]


def _agree(shown: str, order: Order) -> bool:
    """Return True if votes that were shown in the order `shown` can be of a protocol with `order`.

    The official order of a benchmark may by chance show the better response first in every row.
    """
    if order == "both":
        return shown == "both"
    if order == "winner_first":
        return shown in ("winner_first", "one")
    return shown != "both"


def _label_without_result(order: str) -> str:
    """Return the label of a protocol of which only the order is known."""
    return (
        f"responses shown {DESCRIPTION[order]}; the rest is unknown, for the result "
        "<benchmark>.json is not beside the folder of the file"
    )


def _deviations(order: str, images: str) -> tuple[str, ...]:
    """Return the sentences of `PredictionsProtocol.deviations`.

    Args:
        order: A key of `DESCRIPTION`.
        images: The protocol's key `images`.
    """
    sentences = []
    if order == "winner_first":
        sentences.append(
            "WINNER SHOWN FIRST: a judge that always names the first response is right on every "
            "row of this file. Compare these figures only with others of the same order."
        )
    if order == "loser_first":
        sentences.append(
            "LOSER SHOWN FIRST: a judge that always names the second response is right on every "
            "row of this file. Compare these figures only with others of the same order."
        )
    if images != "real":
        sentences.append(
            f"IMAGES {images.upper()}: the judge did not see the benchmark's images. These are no "
            "figures of the benchmark."
        )
    return tuple(sentences)
