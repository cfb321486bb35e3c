"""One prompt, many continuations: the group, and the packed row that the model computes.

A row is `[prompt | continuation | continuation ... | next prompt | ...]`. Position ids of a continuation start where
its prompt ends, and the attention plan lets it see its prompt and itself, so that a row gives the very numbers that
each `prompt ++ continuation` gives alone.
`unpack` is the way back: a row that is too large for the device is cut into smaller ones. How a step's records are balanced
over ranks, and groups packed into rows under a token budget, goes by lengths only.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import ceil

PATCH_COST = 0.4
"""What a vision patch costs beside a language-model token.

Measured in time: the vision tower took half of a packed step of Qwen2.5-VL-7B on an H200, at 2.7 patches a token. In memory
a patch takes 0.20 to 0.31 of a token at 7B and 0.31 to 0.42 at 3B, the lower with activation checkpointing (worked out by
tools/measure_peak_memory.py), so that images take no more than the budget says.
"""


def cost(tokens: int, patches: int) -> int:
    """Return what a group of so many tokens and patches takes of a budget, in tokens."""
    return tokens + ceil(PATCH_COST * patches)


def balance_over_ranks(
    costs: Sequence[float], ranks: int, sizes: Sequence[int] | None = None
) -> list[list[int]]:
    """Assign indices to ranks, the largest cost first to the rank with the least load; each rank's indices in their order.

    Every rank gets equally many, or one more than another where they do not divide. Equal costs go round in turn. With `sizes`,
    `costs` are those of sets of so many neighbouring indices, and a set is divided only where no rank has room for all of it.
    """
    ends = list(accumulate(sizes or [1] * len(costs)))
    count = ends[-1] if ends else 0
    room = [count // ranks + (rank < count % ranks) for rank in range(ranks)]
    load, assigned = [0.0] * ranks, [list[int]() for _ in range(ranks)]
    for number in sorted(range(len(costs)), key=lambda i: -costs[i]):
        members = list(range(ends[number - 1] if number else 0, ends[number]))
        each = costs[number] / len(members)
        while members:
            free = [rank for rank in range(ranks) if len(assigned[rank]) < room[rank]]
            whole = [rank for rank in free if len(assigned[rank]) + len(members) <= room[rank]]
            rank = min(whole or free, key=lambda rank: load[rank])
            taken = members[: room[rank] - len(assigned[rank])]
            assigned[rank] += taken
            load[rank] += each * len(taken)
            members = members[len(taken) :]
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
