"""How a step's records are balanced over ranks, and groups packed into rows under a token budget; lengths only."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

PATCH_COST = 0.4
"""What a vision patch costs beside a language-model token.

Measured in time: the vision tower took half of a packed step of Qwen2.5-VL-7B on an H200, at 2.7 patches a token. In memory
a patch takes 0.20 to 0.31 of a token at 7B and 0.31 to 0.42 at 3B, the lower with activation checkpointing (worked out by
tests/models/measure_peak_memory.py), so that images take no more than the budget says.
"""


def cost(tokens: int, patches: int) -> int:
    """Return what a group of so many tokens and patches takes of a budget, in tokens."""
    return tokens + ceil(PATCH_COST * patches)


def balance_over_ranks(costs: Sequence[float], ranks: int) -> list[list[int]]:
    """Assign indices to ranks, the largest cost first to the rank with the least load; each rank's indices in their order.

    Every rank gets equally many, or one more than another where they do not divide. Equal costs go round in turn.
    """
    room = [len(costs) // ranks + (rank < len(costs) % ranks) for rank in range(ranks)]
    load, assigned = [0.0] * ranks, [list[int]() for _ in range(ranks)]
    for index in sorted(range(len(costs)), key=lambda i: -costs[i]):
        rank = min((rank for rank in range(ranks) if len(assigned[rank]) < room[rank]), key=lambda rank: load[rank])
        assigned[rank].append(index)
        load[rank] += costs[index]
    return [sorted(indices) for indices in assigned]


def pack_first_fit(costs: Sequence[int], budget: int) -> list[list[int]]:
    """Put indices into rows of at most `budget` cost, the largest first into the first row with room (first fit decreasing).

    An item above the budget gets a row of its own: nothing is cut and nothing is lost.
    """
    rows: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(costs)), key=lambda i: -costs[i]):
        place = next((k for k, left in enumerate(room) if costs[index] <= left), None)
        if place is None:
            rows.append([])
            room.append(budget)
            place = len(rows) - 1
        rows[place].append(index)
        room[place] -= costs[index]
    return rows
