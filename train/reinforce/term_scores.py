"""The values of the terms of a reward. A reward is the weighted sum of its terms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TermScores:
    """The values of one term of the reward for a batch of texts."""

    rewards: list[float]
    """The value for every text, before it is multiplied by the weight of the term."""
    columns: Mapping[str, list[float]] = field(default_factory=dict)
    """Columns with one value for every text, which the term adds to the table of rollouts."""


def length_values(lengths: Sequence[int | None], free_tokens: int, limit: int) -> list[float]:
    """Return the values of the term on length: 0 up to `free_tokens`, then falling to -1 at `limit`.

    It falls linearly (DAPO, arXiv 2503.14476, equation 13).

    Args:
        lengths: The number of tokens of every text, with the end of its turn. None for a text that
            is not complete, whose value is -1.
        free_tokens: The number of tokens that cost nothing, below `limit`.
        limit: The maximum length of a text.
    """
    most_excess_tokens = limit - free_tokens
    values: list[float] = []
    for length in lengths:
        if length is None:
            values.append(-1.0)
            continue
        num_excess_tokens = max(length - free_tokens, 0)
        values.append(-min(num_excess_tokens / most_excess_tokens, 1.0))
    return values
