"""The base of sources with several scored responses to a prompt, and functions for scores."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from itertools import combinations
from math import isfinite
from operator import attrgetter
from typing import Any, Literal

from pydantic import NonNegativeFloat

from mmrm.data.errors import LeftOut, RecordError
from mmrm.data.preference import Preference
from mmrm.data.sources.shared.file_source import FilesConfig, SourceRow, field

RESPONSES = 4
"""The largest number of responses in a row."""


@dataclass(frozen=True, slots=True)
class RatedResponse:
    """A response and the mean of its ratings."""

    score: float
    text: str


class PairsConfig(FilesConfig):
    """Rows of up to four `completions`, rated on several aspects; every pair becomes a record."""

    pairs: Literal["all", "hardest"] = "all"
    """All pairs, or of each prompt the one pair with the largest gap (as BaseReward's
    UltraFeedback-Hard)."""
    minimum_gap: NonNegativeFloat = 0
    """Smallest difference of the mean ratings (1 to 5)."""

    @property
    def records_per_row(self) -> int:
        """The number of pairs that a row may give."""
        return RESPONSES * (RESPONSES - 1) // 2 if self.pairs == "all" else 1

    @abstractmethod
    def without_responses(self, row: SourceRow) -> Preference:
        """Return the record of a row with its responses empty."""

    def convert(self, row: SourceRow) -> Preference:
        """Return the pair of a row's responses that has the index `row.slot`.

        Raises:
            LeftOut: If the pair is a tie or its gap is too small, or the row has no such pair.
            RecordError: If the row has more than four responses, or another form.
        """
        blank = self.without_responses(row)
        completions = structs(row.value("completions", list | dict))
        responses: list[RatedResponse] = []
        for completion in completions:
            score = mean_rating(completion)
            text = field(completion, "response", str)
            if score is not None:
                responses.append(RatedResponse(score, text))
        if len(completions) > RESPONSES:
            raise RecordError(
                f"'completions' holds {len(completions)} responses, and at most {RESPONSES} are "
                "read. Remove responses, or the row."
            )
        pairs = self._pairs(responses)
        if row.slot >= len(pairs):
            raise LeftOut(
                "no_pair",
                f"{len(responses)} of {len(completions)} responses have a score; "
                f"there is no pair {row.slot}.",
            )
        first, second = pairs[row.slot]
        chosen, rejected = (first, second) if first.score > second.score else (second, first)
        margin = gap(first.score, second.score, self.minimum_gap)
        return replace(blank, chosen=chosen.text, rejected=rejected.text, margin=margin)

    def _pairs(self, responses: list[RatedResponse]) -> list[tuple[RatedResponse, RatedResponse]]:
        """Return all pairs in the order of the responses, or the one with the largest gap."""
        if self.pairs == "all" or len(responses) < 2:
            return list(combinations(responses, 2))
        best = max(responses, key=attrgetter("score"))
        worst = min(responses, key=attrgetter("score"))
        return [(best, worst)]


def gap(one: float, other: float, minimum: float) -> float:
    """Return the difference of two scores, which is positive.

    Raises:
        LeftOut: If the scores are equal, or their difference is below `minimum`.
    """
    difference = float(abs(one - other))
    if difference == 0:
        raise LeftOut("tie", f"both responses have the score {one}.")
    if difference < minimum:
        raise LeftOut("small_gap", f"the scores {one} and {other} are closer than {minimum}.")
    return difference


def structs(value: Any) -> list[dict[str, Any]]:
    """Return a list of structs that may be stored as a struct of lists, as `datasets` stores it.

    [{"a": 1, "b": 2}, {"a": 3, "b": 4}] may be stored as {"a": [1, 3], "b": [2, 4]}.

    Raises:
        RecordError: If the value is neither, or the lists differ in length.
    """
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return value
    if isinstance(value, dict):
        lengths = {len(column) for column in value.values() if isinstance(column, list)}
        if len(lengths) == 1:
            items = zip(*value.values(), strict=True)
            return [dict(zip(value, item, strict=True)) for item in items]
    raise RecordError(
        f"'completions' is a {type(value).__name__}; required is a list of objects, or an object "
        "whose lists have the same length. Correct the row, or remove it."
    )


def mean_rating(completion: dict[str, Any]) -> float | None:
    """Return the mean rating of a response over its aspects; None if a rating is missing or N/A.

    Ratings may be written as text.

    Raises:
        RecordError: If a rating is anything else that is not a finite number.
    """
    aspects = field(completion, "annotations", dict).values()
    ratings: list[float] = []
    for aspect in aspects:
        rating = field(aspect, "Rating", object)
        if rating is not None and str(rating).strip().upper() not in ("N/A", "NA", ""):
            ratings.append(_finite(rating))
    if not ratings or len(ratings) < len(aspects):
        return None
    return sum(ratings) / len(ratings)


def _finite(rating: Any) -> float:
    """Return a rating as a number; true and false are none."""
    message = f"'Rating' is {rating!r}; required is a number or N/A. Correct the row, or remove it."
    if isinstance(rating, bool):
        raise RecordError(message)
    try:
        number = float(rating)
    except (TypeError, ValueError, OverflowError) as error:
        raise RecordError(message) from error
    if not isfinite(number):
        raise RecordError(message)
    return number
