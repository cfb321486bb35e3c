"""The base of sources with several scored responses to a prompt, and functions for scores."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from itertools import combinations
from math import isfinite, isnan, nan
from operator import attrgetter
from typing import Any, Literal

from pydantic import NonNegativeFloat, model_validator

from mmrm.data.errors import LeftOut, RecordError
from mmrm.data.preference import Preference, text_responses
from mmrm.data.sources.shared.file_source import SourceRow, field
from mmrm.data.sources.shared.ratings import with_rated_responses
from mmrm.data.sources.shared.ties import TIED_RANKS, TiedComparisonsConfig

RESPONSES = 4
"""The largest number of responses in a row."""


@dataclass(frozen=True, slots=True)
class ScoredText:
    """A response and the mean of its ratings."""

    score: float
    text: str
    position: int
    """The position of the response in the row."""


class PairsConfig(TiedComparisonsConfig):
    """A source whose rows have up to four responses, which are rated on several aspects.

    The responses are in the column `completions`. Every two of them become a record, or only the
    two with the largest difference of mean ratings, or all of them become one record.
    """

    pairs: Literal["all", "hardest", "none"] = "all"
    """All pairs, or of each prompt the one pair with the largest gap (as BaseReward's
    UltraFeedback-Hard), or none: one record with all responses, and their ratings as attributes."""
    minimum_gap: NonNegativeFloat = 0
    """Smallest difference of the mean ratings (1 to 5). It does not apply to ties."""

    @model_validator(mode="after")
    def _gap_is_of_pairs(self) -> "PairsConfig":
        if self.pairs == "none" and self.minimum_gap > 0:
            raise ValueError(
                f"source {self.label!r}: `minimum_gap` is {self.minimum_gap} and `pairs` is none, "
                "and only pairs have a gap. Remove `minimum_gap`, or let the source give pairs."
            )
        return self

    @property
    def gives_lists(self) -> bool:
        """True if all responses of a row become one record."""
        return self.pairs == "none"

    @property
    def records_per_row(self) -> int:
        """The largest number of records that a row may give."""
        return RESPONSES * (RESPONSES - 1) // 2 if self.pairs == "all" else 1

    @abstractmethod
    def without_responses(self, row: SourceRow) -> Preference:
        """Return the preference record of a row, with empty texts as responses."""

    def convert(self, row: SourceRow) -> Preference:
        """Return the record of the pair `row.index_in_row` of a row's responses, or of all of them.

        Raises:
            LeftOut: If the pair is a tie or its gap is too small, or the row has no such pair.
            RecordError: If the row has more than four responses, or another form.
        """
        record = self.without_responses(row)
        completions = list_of_structs(row.value("completions", list | dict))
        responses = [field(completion, "response", str) for completion in completions]
        ratings = [ratings_by_aspect(completion) for completion in completions]
        if len(completions) > RESPONSES:
            raise RecordError(
                f"'completions' holds {len(completions)} responses, and at most {RESPONSES} are "
                "read. Remove responses, or the row."
            )
        if self.pairs == "none":
            rated = with_rated_responses(
                record, text_responses(*responses), columns_of_ratings(ratings)
            )
            if max(rated.ranks) == 0:
                self.check_tie("all responses have the same mean rating.")
            return rated
        return self._pair(record, responses, ratings, row.index_in_row)

    def _pair(
        self,
        record: Preference,
        responses: list[str],
        ratings: list[dict[str, float]],
        index: int,
    ) -> Preference:
        """Return the record of the pair `index` of the responses that are rated on all aspects.

        Args:
            record: The record without responses.
            responses: All responses of a row.
            ratings: The ratings of each response by aspect.
            index: The index of the pair in `_pairs`.

        Raises:
            LeftOut: If there is no such pair, or the pair is a tie or its gap is too small.
        """
        rated: list[ScoredText] = []
        for position, rating_by_aspect in enumerate(ratings):
            score = mean_rating(rating_by_aspect)
            if score is not None:
                rated.append(ScoredText(score, responses[position], position))
        pairs = self._pairs(rated)
        if index >= len(pairs):
            raise LeftOut(
                "no_pair",
                f"{len(rated)} of {len(responses)} responses have a score; "
                f"there is no pair {index}.",
            )
        first, second = pairs[index]
        if first.score == second.score:
            self.check_tie(f"both responses have the score {first.score}.")
            tied = text_responses(first.text, second.text)
            return replace(record, responses=tied, ranks=TIED_RANKS, margin=0.0)
        chosen, rejected = (first, second) if first.score > second.score else (second, first)
        margin = score_gap(first.score, second.score, self.minimum_gap)
        return replace(
            record,
            responses=text_responses(chosen.text, rejected.text),
            positions=(chosen.position, rejected.position),
            margin=margin,
        )

    def _pairs(self, responses: list[ScoredText]) -> list[tuple[ScoredText, ScoredText]]:
        """Return all pairs in the order of the responses, or the one with the largest gap."""
        if self.pairs == "all" or len(responses) < 2:
            return list(combinations(responses, 2))
        best = max(responses, key=attrgetter("score"))
        worst = min(responses, key=attrgetter("score"))
        if best.score == worst.score:  # both are the first response
            return [(responses[0], responses[1])]
        return [(best, worst)]


def score_gap(first_score: float, second_score: float, minimum: float) -> float:
    """Return the distance of two scores, which is positive.

    Raises:
        LeftOut: If the scores are equal, or their distance is below `minimum`.
    """
    distance = float(abs(first_score - second_score))
    if distance == 0:
        raise LeftOut("tie", f"both responses have the score {first_score}.")
    if distance < minimum:
        raise LeftOut(
            "small_gap", f"the scores {first_score} and {second_score} are closer than {minimum}."
        )
    return distance


def list_of_structs(value: Any) -> list[dict[str, Any]]:
    """Return a value as a list of objects.

    The library `datasets` may store a list of objects as one object of lists: [{"a": 1, "b": 2},
    {"a": 3, "b": 4}] as {"a": [1, 3], "b": [2, 4]}. Both forms are read.

    Raises:
        RecordError: If the value has neither form, or its lists differ in length.
    """
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return value
    if isinstance(value, dict):
        lengths = {len(column) for column in value.values() if isinstance(column, list)}
        if len(lengths) == 1:
            values_by_object = zip(*value.values(), strict=True)
            return [dict(zip(value, values, strict=True)) for values in values_by_object]
    raise RecordError(
        f"'completions' is a {type(value).__name__}; required is a list of objects, or an object "
        "whose lists have the same length. Correct the row, or remove it."
    )


def ratings_by_aspect(completion: dict[str, Any]) -> dict[str, float]:
    """Return the rating of a response on each of its aspects; NaN if it is missing or N/A.

    A rating is a finite number, which may be written as text.

    Raises:
        RecordError: If a rating is neither such a number, nor missing, nor N/A.
    """
    ratings = {}
    for name, aspect in field(completion, "annotations", dict).items():
        rating = field(aspect, "Rating", object)
        is_known = rating is not None and str(rating).strip().upper() not in ("N/A", "NA", "")
        ratings[name] = _finite(rating) if is_known else nan
    return ratings


def mean_rating(rating_by_aspect: dict[str, float]) -> float | None:
    """Return the mean rating of a response over its aspects; None if one is unknown, or for none."""
    ratings = rating_by_aspect.values()
    if not ratings or any(map(isnan, ratings)):
        return None
    return sum(ratings) / len(ratings)


def columns_of_ratings(ratings: list[dict[str, float]]) -> dict[str, list[float]]:
    """Return the ratings of several responses as one list for each aspect; NaN if one is missing.

    Example: [{"honesty": 4}, {"honesty": 2}] becomes {"honesty": [4, 2]}.
    """
    names: dict[str, None] = {}  # an ordered set
    for rating_by_aspect in ratings:
        names |= dict.fromkeys(rating_by_aspect)
    columns = {}
    for name in names:
        columns[name] = [rating_by_aspect.get(name, nan) for rating_by_aspect in ratings]
    return columns


def _finite(rating: Any) -> float:
    """Return a rating as a finite number; raise RecordError if it is none, or is a boolean."""
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
