"""The place in a judge's text at which its score stands, and the distribution of the scores there."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmrm.models.packed_alternatives import Choice


@dataclass(frozen=True, slots=True)
class ScoreDistribution:
    """The distribution of a judge's score of one response."""

    mean: float
    """The expected value. NaN if the judge's text has no place for a score."""
    std: float
    """The standard deviation."""
    mass: float
    """The probability that one of the scores stands at the place, and not another text. Mean and
    standard deviation are those of the scores alone."""


NO_SCORE = ScoreDistribution(math.nan, math.nan, 0.0)
"""The result for a text that has no place for a score."""


@dataclass(frozen=True, slots=True)
class ScorePlace:
    """The text before a score, and the scores that may follow it."""

    opening: str
    """The text directly before the score."""
    value_by_text: Mapping[str, float]
    """The value of each score by its text."""

    def choice_at_once(self, tokenizer: Any) -> Choice:
        """Return the choice of a score in an answer that begins with the opening."""
        return self._choice_after(tokenizer, self.opening)

    def choice_in(self, tokenizer: Any, ids: Sequence[int]) -> Choice | None:
        """Return the choice of a score at the place where a written text has its score.

        The place is after the last opening, and after the blanks that follow it.

        Args:
            tokenizer: The tokenizer.
            ids: Token ids of the text.

        Returns:
            The choice; None if the text has no opening. Its `written` are tokens of the text itself
            unless one of them is on both sides of the place.
        """
        text = tokenizer.decode(ids)
        opening = self.opening.rstrip()
        before, found, after = text.rpartition(opening)
        if not found:
            return None
        num_blanks = len(after) - len(after.lstrip(" "))
        at_place = self._choice_after(tokenizer, opening + after[:num_blanks])
        # A blank may belong to the token of the score, such as " yes", and then comes after it.
        text_to_place = before + tokenizer.decode(at_place.written)
        num_tokens = _num_tokens_before(tokenizer, ids, text[len(text_to_place) :])
        if num_tokens is not None:
            return Choice(tuple(ids[:num_tokens]), at_place.alternatives)
        # A token of the text is on both sides of the place, so that its beginning is tokenised again.
        begun: list[int] = tokenizer(before, add_special_tokens=False)["input_ids"]
        return Choice((*begun, *at_place.written), at_place.alternatives)

    def _choice_after(self, tokenizer: Any, opening: str) -> Choice:
        """Return the choice of a score after an opening, which the answer begins with.

        Opening and score are tokenised together, as in a text that a model has learned. The tokens
        that all scores have in common are the written ones.
        """
        ids_by_score: list[tuple[int, ...]] = []
        for text in self.value_by_text:
            ids = tokenizer(opening + text, add_special_tokens=False)["input_ids"]
            ids_by_score.append(tuple(ids))
        length = num_common(ids_by_score)
        written = ids_by_score[0][:length]
        return Choice(written, tuple(ids[length:] for ids in ids_by_score))

    def distribution(self, choice: Choice, log_probabilities: Sequence[float]) -> ScoreDistribution:
        """Return the distribution of the score at a place.

        A score whose text begins another one, such as "1" of "10", has the probability that its
        text stands there without going on to the other one.

        Args:
            choice: The place, as `choice_at_once` or `choice_in` returned it.
            log_probabilities: The log-probability of each score's text, whatever follows it.
        """
        highest = max(log_probabilities)
        # Divided by the probability of the likeliest text, so that none of them is rounded to 0.
        with_others = [math.exp(value - highest) for value in log_probabilities]
        shares: list[float] = []
        for index, share in enumerate(with_others):
            for longer in _continuations(choice.alternatives, index):
                share -= with_others[longer]
            shares.append(max(share, 0.0))  # rounding may make it negative
        total = math.fsum(shares)
        values = list(self.value_by_text.values())
        mean = math.fsum(s * value for s, value in zip(shares, values, strict=True)) / total
        variance = (
            math.fsum(s * (value - mean) ** 2 for s, value in zip(shares, values, strict=True))
            / total
        )
        return ScoreDistribution(mean, math.sqrt(variance), total * math.exp(highest))


def _num_tokens_before(tokenizer: Any, ids: Sequence[int], ending: str) -> int | None:
    """Return the number of tokens before the end of a text; None if a token is on both sides.

    Args:
        tokenizer: The tokenizer.
        ids: Token ids of the text.
        ending: The end of the text.
    """
    # The ending is short, so that its beginning is searched from the end of the text.
    for position in range(len(ids), -1, -1):
        rest = tokenizer.decode(ids[position:])
        if rest == ending:
            return position
        if len(rest) > len(ending):
            break
    return None


def num_common(ids_by_text: Sequence[Sequence[int]]) -> int:
    """Return the number of first tokens that all texts have in common.

    At least one token of each text is not counted.
    """
    length = 0
    shortest = min(len(ids) for ids in ids_by_text)
    while length < shortest - 1 and len({ids[length] for ids in ids_by_text}) == 1:
        length += 1
    return length


def _continuations(alternatives: Sequence[Sequence[int]], index: int) -> list[int]:
    """Return the indices of the alternatives that go on from one of them, without a third between.

    Example: of 1, 10, 100 and 11, those that go on from 1 are 10 and 11.
    """
    longer: list[int] = []
    for other, ids in enumerate(alternatives):
        if goes_on_from(ids, alternatives[index]):
            longer.append(other)
    direct: list[int] = []
    for other in longer:
        is_direct = True
        for between in longer:
            if goes_on_from(alternatives[other], alternatives[between]):
                is_direct = False
        if is_direct:
            direct.append(other)
    return direct


def goes_on_from(ids: Sequence[int], beginning: Sequence[int]) -> bool:
    """Return True if token ids begin with others and are longer, as those of 10 and 1."""
    return len(ids) > len(beginning) and tuple(ids[: len(beginning)]) == tuple(beginning)
