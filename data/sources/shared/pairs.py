"""Sources with several scored responses to a prompt: which pairs they give, and which they leave out."""

from abc import abstractmethod
from dataclasses import replace
from itertools import combinations
from math import isfinite, nan
from operator import itemgetter
from typing import Any, Literal

from pydantic import NonNegativeFloat

from mmrm.data.errors import LeftOut, RecordError
from mmrm.data.preference import Preference
from mmrm.data.sources.shared.file_source import FilesConfig, SourceRow, field

RESPONSES = 4
"""At most so many responses stand in a row."""


class PairsConfig(FilesConfig):
    """Rows of up to four `completions`, rated on several aspects: as many records as pairs."""

    pairs: Literal["all", "hardest"] = "all"
    """All pairs, or of each prompt the one pair with the largest gap (as BaseReward's UltraFeedback-Hard)."""
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
        """Return the pair that the row's slot stands for; raise LeftOut for a tie, too small a gap, and where there is none."""
        blank = self.without_responses(row)
        completions = structs(row.value("completions", list | dict))
        scored = [(mean_rating(one), field(one, "response", str)) for one in completions]
        if len(scored) > RESPONSES:
            raise RecordError(
                f"the row holds {len(scored)} responses; expected are at most {RESPONSES}."
            )
        rated = [(score, text) for score, text in scored if score is not None]
        pairs = list(combinations(rated, 2))
        if self.pairs == "hardest":
            pairs = (
                [(max(rated, key=itemgetter(0)), min(rated, key=itemgetter(0)))] if pairs else []
            )
        if row.slot >= len(pairs):
            raise LeftOut(
                "no_pair",
                f"{len(rated)} of {len(scored)} responses have a score; there is no pair {row.slot}.",
            )
        (one, first), (other, second) = pairs[row.slot]
        chosen, rejected = (first, second) if one > other else (second, first)
        return replace(
            blank, chosen=chosen, rejected=rejected, margin=gap(one, other, self.minimum_gap)
        )


def gap(one: float, other: float, minimum: float) -> float:
    """Return how far two scores lie apart.

    Raises: LeftOut if they are equal, or closer than `minimum`.
    """
    found = float(abs(one - other))
    if found == 0:
        raise LeftOut("tie", f"both responses have the score {one}.")
    if found < minimum:
        raise LeftOut("small_gap", f"the scores {one} and {other} are closer than {minimum}.")
    return found


def structs(value: Any) -> list[dict[str, Any]]:
    """Return a list of structs that may have been stored as a struct of lists (as `datasets` does).

    Raises: RecordError if it is neither, or the lists differ in length.
    """
    if isinstance(value, list) and all(isinstance(one, dict) for one in value):
        return value
    if (
        isinstance(value, dict)
        and len({len(one) for one in value.values() if isinstance(one, list)}) == 1
    ):
        return [dict(zip(value, one, strict=True)) for one in zip(*value.values(), strict=True)]
    raise RecordError(
        f"a {type(value).__name__}; required is a list of objects, or an object of lists of one length."
    )


def mean_rating(completion: dict[str, Any]) -> float | None:
    """Return the mean of the aspects' ratings, which may be written as text; None if one is missing or N/A.

    Raises: RecordError for anything else that is no number.
    """
    aspects = field(completion, "annotations", dict).values()
    ratings: list[float] = []
    for aspect in aspects:
        rating = field(aspect, "Rating", object)
        if rating is None or str(rating).strip().upper() in ("N/A", "NA", ""):
            continue
        try:
            number = nan if isinstance(rating, bool) else float(rating)
        except (TypeError, ValueError, OverflowError):
            number = nan
        if not isfinite(number):
            raise RecordError(f"the rating {rating!r} is no number.")
        ratings.append(number)
    return sum(ratings) / len(ratings) if ratings and len(ratings) == len(aspects) else None
