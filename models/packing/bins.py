"""The costs of packed rows, and the distribution of work over rows and ranks by costs.

Costs stand for time and memory and are counted in language-model tokens. The functions take costs
alone, so they can be used before anything is read or decoded.
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
    """Distribute records over ranks so that all ranks get similar costs.

    Neighbouring records may form a set, such as the pairs that share a prompt. A set goes to one
    rank, and is divided only if no rank has room for all of it. The most expensive set is assigned
    first, to the rank with the smallest cost so far (among several, to the lowest). Every rank gets
    equally many records. If they do not divide evenly, the first ranks get one more.

    Args:
        costs: Cost of every set, in the order of the records.
        ranks: Number of ranks.
        sizes: Number of records in every set; None if each record is a set of its own.

    Returns:
        For each rank, the indices of its records, ascending.

    Example: costs [9, 4, 8, 1] with sizes [2, 2, 1, 1] are the sets (0, 1), (2, 3), (4), (5).
    Two ranks take [0, 1, 5] and [2, 3, 4].
    """
    set_sizes = sizes or [1] * len(costs)
    set_ends = list(accumulate(set_sizes))
    num_records = sum(set_sizes)
    num_per_rank, num_left_over = divmod(num_records, ranks)
    capacities = [num_per_rank + 1] * num_left_over + [num_per_rank] * (ranks - num_left_over)
    indices_by_rank: list[list[int]] = [[] for _ in range(ranks)]
    cost_by_rank = [0.0] * ranks
    sets_by_falling_cost = sorted(range(len(costs)), key=lambda number: -costs[number])
    for set_number in sets_by_falling_cost:
        set_end = set_ends[set_number]
        unassigned = list(range(set_end - set_sizes[set_number], set_end))
        cost_per_record = costs[set_number] / len(unassigned)
        # More than one round only if the set has to be divided.
        while unassigned:
            free_places = [
                capacity - len(indices)
                for capacity, indices in zip(capacities, indices_by_rank, strict=True)
            ]
            candidates = [
                rank for rank, num_free in enumerate(free_places) if num_free >= len(unassigned)
            ]
            if not candidates:
                candidates = [rank for rank, num_free in enumerate(free_places) if num_free > 0]
            chosen_rank = min(candidates, key=lambda rank: cost_by_rank[rank])
            assigned = unassigned[: free_places[chosen_rank]]
            indices_by_rank[chosen_rank] += assigned
            cost_by_rank[chosen_rank] += cost_per_record * len(assigned)
            unassigned = unassigned[len(assigned) :]
    return [sorted(indices) for indices in indices_by_rank]


def pack_first_fit(costs: Sequence[int], budget: int) -> list[list[int]]:
    """Distribute items over rows of at most `budget` cost each, by first fit decreasing.

    Items are placed from the largest to the smallest cost, each into the first row that has room.
    An item above the budget gets a row of its own, so nothing is cut and nothing is lost.

    Args:
        costs: Cost of every item.
        budget: Largest cost of a row.

    Returns:
        For each row, the indices of its items.

    Example: costs [3, 5, 2, 9] with a budget of 8 give [[3], [1, 0], [2]].
    """
    rows: list[list[int]] = []
    remaining_budgets: list[int] = []
    items_by_falling_cost = sorted(range(len(costs)), key=lambda item: -costs[item])
    for item in items_by_falling_cost:
        fitting_rows = (
            row for row, remaining in enumerate(remaining_budgets) if costs[item] <= remaining
        )
        new_row = len(rows)
        row = next(fitting_rows, new_row)
        if row == new_row:
            rows.append([])
            remaining_budgets.append(budget)
        rows[row].append(item)
        remaining_budgets[row] -= costs[item]
    return rows
