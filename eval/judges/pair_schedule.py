"""Schedules of comparisons that rank N responses without comparing every two of them.

A schedule names pairs in rounds. The pairs of a round do not depend on one another, and those of
the next round depend on the results. `MergeSort` asks about N log2(N) pairs, and `Swiss` asks about
N / 2 pairs in each of a given number of rounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from mmrm.data.arrays import Floats
from mmrm.eval.judges.strengths import DECIMALS, TYPICAL_SPREAD, fit_with_spread

Pair = tuple[int, int]
"""The indices of two responses that are compared."""


class Schedule(Protocol):
    """Names the pairs of responses that are compared, round after round."""

    def next_pairs(self, wins: Floats) -> list[Pair]:
        """Return the pairs of the next round; none if the ranking is complete.

        The schedule goes on as if they were compared: `wins` of the next call holds the results.

        Args:
            wins: (N, N): how often the response of the row was named better than that of the
                column, so far. A comparison without a winner counts one half for each.
        """
        ...


@dataclass(slots=True)
class _Merge:
    """Two ranked runs of responses that are merged into one, best first."""

    left: list[int]
    right: list[int]
    merged: list[int] = field(default_factory=list)

    @property
    def pair(self) -> Pair | None:
        """The best responses of the two runs that are not merged yet; None if a run is empty."""
        if not self.left or not self.right:
            return None
        return self.left[0], self.right[0]

    def take_compared(self, wins: Floats) -> None:
        """Move the better response of `pair` to the merged run, if the two were compared.

        In a tie, the response with the smaller index is taken first. The arguments are those of
        `Schedule.next_pairs`.
        """
        if self.pair is None:
            return
        left, right = self.pair
        if wins[left, right] + wins[right, left] == 0:
            return
        is_tied = wins[left, right] == wins[right, left]
        is_left_first = left < right if is_tied else wins[left, right] > wins[right, left]
        source = self.left if is_left_first else self.right
        self.merged.append(source.pop(0))

    @property
    def ranked(self) -> list[int]:
        """The merged run, once `pair` is None."""
        return [*self.merged, *self.left, *self.right]


class MergeSort:
    """Ranks responses by a merge sort, whose merges of one level are made at the same time.

    It names at most N ceil(log2 N) - 2**ceil(log2 N) + 1 pairs of N responses: 17 of 8 responses,
    and 49 of 16. A pair is never compared again, so that a wrong result stays in the order.
    """

    def __init__(self, num_responses: int) -> None:
        self.runs = [[index] for index in range(num_responses)]
        """Ranked runs of responses, whose merges have not begun."""
        self.merges: list[_Merge] = []
        """The merges of the present level."""

    def next_pairs(self, wins: Floats) -> list[Pair]:
        """Return the pair of each merge that needs a comparison."""
        for merge in self.merges:
            merge.take_compared(wins)
        self._finish_level()
        pairs = [merge.pair for merge in self.merges]
        return [pair for pair in pairs if pair is not None]

    def _finish_level(self) -> None:
        """Begin the merges of the next level if those of the present one are complete."""
        if any(merge.pair is not None for merge in self.merges):
            return
        # The run that waited comes first, so that runs of similar lengths are merged.
        self.runs += [merge.ranked for merge in self.merges]
        self.merges = []
        if len(self.runs) < 2:
            return
        num_merged = len(self.runs) // 2 * 2
        for left, right in zip(self.runs[:num_merged:2], self.runs[1:num_merged:2], strict=True):
            self.merges.append(_Merge(left, right))
        self.runs = self.runs[num_merged:]  # an odd run waits for the next level


class Swiss:
    """Pairs neighbours by their strengths so far, in a given number of rounds.

    No pair meets twice. If the number of responses is odd, one of them sits out in every round.
    Others sit out only if they have met nearly all of the others.
    """

    def __init__(self, num_responses: int, num_rounds: int) -> None:
        self.num_responses = num_responses
        self.num_remaining_rounds = num_rounds
        self.met: set[frozenset[int]] = set()
        """All pairs that were named."""
        self.num_played = [0] * num_responses
        """The number of rounds in which each response had an opponent."""

    def next_pairs(self, wins: Floats) -> list[Pair]:
        """Return the pairs of neighbours in the order of the strengths."""
        if self.num_remaining_rounds == 0:
            return []
        self.num_remaining_rounds -= 1
        # Strengths that differ by rounding alone are equal, on every processor.
        strengths = np.round(fit_with_spread(wins, TYPICAL_SPREAD).values, DECIMALS)
        waiting = sorted(range(self.num_responses), key=lambda index: -strengths[index])
        if self.num_responses % 2 == 1:
            waiting.remove(self._sits_out(waiting))
        pairs, left_over = self._paired_greedily(waiting)
        while len(left_over) > 1:
            first, second, *left_over = left_over
            self._pair_by_swap(first, second, pairs)
        for first, second in pairs:
            self.met.add(frozenset((first, second)))
            self.num_played[first] += 1
            self.num_played[second] += 1
        return pairs

    def _is_new(self, first: int, second: int) -> bool:
        """Return True if two responses have not met."""
        return frozenset((first, second)) not in self.met

    def _paired_greedily(self, waiting: Sequence[int]) -> tuple[list[Pair], list[int]]:
        """Pair each response with the next one that it has not met.

        Args:
            waiting: The indices of the responses, strongest first.

        Returns:
            The pairs, and the responses for which no opponent was left.
        """
        remaining = list(waiting)
        pairs: list[Pair] = []
        left_over: list[int] = []
        while remaining:
            response = remaining.pop(0)
            opponents = [other for other in remaining if self._is_new(response, other)]
            if not opponents:
                left_over.append(response)
                continue
            remaining.remove(opponents[0])
            pairs.append((response, opponents[0]))
        return pairs, left_over

    def _pair_by_swap(self, first: int, second: int, pairs: list[Pair]) -> None:
        """Divide a pair of the round, so that two responses without opponents get one each.

        Example: 0 and 1 have met, and no opponent is left for them. The pair (2, 3) becomes the
        pairs (2, 0) and (3, 1). The weakest pair is taken of which all four meet one that they have
        not met. If there is none, the two responses sit out.

        Args:
            first: Index of a response.
            second: Index of another response, which the first has met.
            pairs: The pairs of the round, strongest first, which are changed.
        """
        for number in reversed(range(len(pairs))):
            stronger, weaker = pairs[number]
            for of_first, of_second in ((stronger, weaker), (weaker, stronger)):
                if self._is_new(first, of_first) and self._is_new(second, of_second):
                    pairs[number] = (of_first, first)
                    pairs.append((of_second, second))
                    return

    def _sits_out(self, by_strength: Sequence[int]) -> int:
        """Return the response that sits out: the weakest of those that played most often.

        Args:
            by_strength: The indices of the responses, strongest first.
        """
        most_played = max(self.num_played)
        return [index for index in by_strength if self.num_played[index] == most_played][-1]
