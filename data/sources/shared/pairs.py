"""Sources with several scored responses to a prompt: which pairs they give, and which they leave out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal

from data.errors import LeftOut, RecordError
from data.preference import Preference
from data.storage.rows import Row, Rows, field

Pairing = Literal["all", "hardest"]
"""`all` pairs, or of each prompt the one pair with the largest gap (as BaseReward's UltraFeedback-Hard)."""


@dataclass(frozen=True)
class Scored:
    """A response and its score; None where the annotation gives none."""

    text: str
    score: float | None


@dataclass
class PairSource:
    """Rows of up to `most` scored responses, each row as many records as pairs; (row, pair) counts through in that order."""

    name: str
    licence: str
    revision: str
    rows: Rows
    read: Callable[[Row, str], tuple[Preference, list[Scored]]]
    """Returns a record whose responses are still open, and the row's scored responses."""
    pairing: Pairing
    minimum_gap: float
    settings: str
    most: int = 4
    generated: bool = False

    def __len__(self) -> int:
        """Return the number of pairs that the rows could give."""
        return len(self.rows) * self._slots

    @property
    def _slots(self) -> int:
        return self.most * (self.most - 1) // 2 if self.pairing == "all" else 1

    def record(self, index: int) -> Preference:
        """Return pair `index`; raise LeftOut for a tie, a gap below the minimum, and a pair that the row does not have."""
        row, slot = divmod(index, self._slots)
        identity = f"{self.name}:{row}" if self.pairing == "hardest" else f"{self.name}:{row}.{slot}"
        blank, scored = self.read(self.rows.row(row), identity)
        if len(scored) > self.most:
            raise RecordError(f"{identity}: the row holds {len(scored)} responses; expected are at most {self.most}.")
        better, worse, gap = self._pair(scored, slot, identity)
        return replace(blank, chosen=better, rejected=worse, margin=gap)

    def _pair(self, scored: Sequence[Scored], slot: int, identity: str) -> tuple[str, str, float]:
        rated = [(one.score, one.text) for one in scored if one.score is not None]
        if self.pairing == "hardest":
            pairs = [(max(rated, key=_score), min(rated, key=_score))] if len(rated) > 1 else []
        else:
            pairs = list(combinations(rated, 2))
        if slot >= len(pairs):
            raise LeftOut(
                "no_pair", f"{identity}: {len(rated)} of {len(scored)} responses have a score; there is no pair {slot}."
            )
        (one, one_text), (other, other_text) = pairs[slot]
        return by_score(one, one_text, other, other_text, self.minimum_gap, identity)

    def fingerprint(self) -> str:
        """Return the fingerprint of the table's files and the settings."""
        return f"{self.rows.fingerprint()} {self.settings}"


def by_score(one: float, one_text: str, other: float, other_text: str, minimum_gap: float, record: str) -> tuple[str, str, float]:
    """Return (better text, worse text, gap).

    Raises: LeftOut if the scores are equal, or closer than `minimum_gap`.
    """
    gap = abs(one - other)
    if gap == 0:
        raise LeftOut("tie", f"{record}: both responses have the score {one}.")
    if gap < minimum_gap:
        raise LeftOut("small_gap", f"{record}: the scores {one} and {other} are closer than {minimum_gap}.")
    return (one_text, other_text, gap) if one > other else (other_text, one_text, gap)


def number(value: Any, record: str) -> float | None:
    """Return a rating, which many sets write as text; None for none and for N/A.

    Raises: RecordError for anything else that is no number.
    """
    if value is None or (isinstance(value, str) and value.strip().upper() in ("N/A", "NA", "")):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise RecordError(f"{record}: the rating {value!r} is no number.") from error


def items(value: Any, record: str) -> list[dict[str, Any]]:
    """Return a list of structs that may have been stored as a struct of lists (as `datasets` does).

    Raises: RecordError if it is neither, or the lists differ in length.
    """
    if isinstance(value, list) and all(isinstance(one, dict) for one in value):
        return value
    if isinstance(value, dict) and len({len(one) for one in value.values() if isinstance(one, list)}) == 1:
        return [dict(zip(value, one, strict=True)) for one in zip(*value.values(), strict=True)]
    raise RecordError(f"{record}: a {type(value).__name__}; required is a list of objects, or an object of lists of one length.")


def mean_rating(completion: dict[str, Any], record: str) -> float | None:
    """Return the mean of the aspects' ratings; None if one of them is missing."""
    aspects = field(completion, "annotations", dict, record)
    ratings = [number(field(aspect, "Rating", object, record), record) for aspect in aspects.values()]
    known = [rating for rating in ratings if rating is not None]
    return sum(known) / len(known) if known and len(known) == len(ratings) else None


def _score(rated: tuple[float, str]) -> float:
    return rated[0]
