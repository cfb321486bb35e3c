"""What rows cost, how they are filled within a budget, and how records are balanced over ranks.

Costs stand for time and memory and are counted in language-model tokens. All functions go by costs
alone, so they also serve before anything is read or decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import ceil

PATCH_COST = 0.4
"""Cost of a vision patch in language-model tokens.

In time: the vision tower took half of a packed step of Qwen2.5-VL-7B on an H200, at 2.7 patches per
token. In memory: a patch takes 0.20 to 0.31 of a token at 7B and 0.31 to 0.42 at 3B, the lower
figures with activation checkpointing (computed by tools/measure_peak_memory.py). With 0.4,
images take no more memory than the budget allows for.
"""


def cost(tokens: int, patches: int) -> int:
    """Return the cost of language-model tokens and vision patches together, in tokens."""
    return tokens + ceil(PATCH_COST * patches)


def balance_over_ranks(
    costs: Sequence[float], ranks: int, sizes: Sequence[int] | None = None
) -> list[list[int]]:
    """Return the indices that every rank takes, ascending, so that ranks get similar costs.

    The largest cost goes first, to the rank with the smallest load; among equal loads the lowest
    rank takes it. Every rank takes equally many indices. If they do not divide evenly, the first
    ranks take one more.

    Args:
        costs: Cost of every set of indices, in the order of the indices.
        ranks: Number of ranks.
        sizes: Number of neighbouring indices in every set; None if each set is a single index. A
            set is divided only if no rank has room for all of it.

    Example: costs [9, 4, 8, 1] with sizes [2, 2, 1, 1] are the sets (0, 1), (2, 3), (4), (5).
    Two ranks take [0, 1, 5] and [2, 3, 4].
    """
    set_sizes = sizes or [1] * len(costs)
    set_ends = list(accumulate(set_sizes))
    num_indices = sum(set_sizes)
    num_each, num_extra = divmod(num_indices, ranks)
    capacities = [num_each + 1] * num_extra + [num_each] * (ranks - num_extra)
    indices_by_rank: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0.0] * ranks
    for set_number in sorted(range(len(costs)), key=lambda number: -costs[number]):
        set_start = set_ends[set_number] - set_sizes[set_number]
        remaining = list(range(set_start, set_ends[set_number]))
        cost_per_index = costs[set_number] / len(remaining)
        while remaining:
            rooms = [
                capacity - len(indices)
                for capacity, indices in zip(capacities, indices_by_rank, strict=True)
            ]
            candidates = [rank for rank, room in enumerate(rooms) if room >= len(remaining)]
            if not candidates:
                candidates = [rank for rank, room in enumerate(rooms) if room > 0]
            rank = min(candidates, key=lambda rank: loads[rank])
            taken = remaining[: rooms[rank]]
            indices_by_rank[rank] += taken
            loads[rank] += cost_per_index * len(taken)
            remaining = remaining[len(taken) :]
    return [sorted(indices) for indices in indices_by_rank]


def pack_first_fit(costs: Sequence[int], budget: int) -> list[list[int]]:
    """Return rows of indices, each of at most `budget` cost, by first fit decreasing.

    Items go from the largest to the smallest cost, each into the first row that has room. An item
    above the budget gets a row of its own, so nothing is cut and nothing is lost.

    Example: costs [3, 5, 2, 9] with a budget of 8 give [[3], [1, 0], [2]].
    """
    rows: list[list[int]] = []
    rooms: list[int] = []
    for index in sorted(range(len(costs)), key=lambda index: -costs[index]):
        fitting_rows = (row for row, room in enumerate(rooms) if costs[index] <= room)
        row = next(fitting_rows, len(rows))
        if row == len(rows):
            rows.append([])
            rooms.append(budget)
        rows[row].append(index)
        rooms[row] -= costs[index]
    return rows
