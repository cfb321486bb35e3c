"""Scores of packed groups, data-parallel: the one forward path of evaluation, ranking and ensembles.

Work is dealt to ranks by index, encoded in loader workers a chunk at a time (pixels of a whole benchmark would not fit in
memory), packed under the token budget, and run in lock-step: a rank without work runs the filler row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Generic, TypeVar

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from models.distributed import gather, max_over_ranks, rank, world_size
from models.encoder import Encoder
from models.packing.cost import pack_first_fit
from models.packing.groups import Group, PackedBatch

Item = TypeVar("Item")
Found = TypeVar("Found")

Cost = Callable[[Group], int]

CHUNK = 64
"""Items that are encoded and packed together: enough to fill rows well, few enough to hold their pixels."""


PackedItems = tuple[PackedBatch, tuple[int, ...]]
"""A row and the items whose groups it holds, in order."""


class Chunks(Dataset[list[PackedItems]], Generic[Item]):
    """A rank's share of the items, chunk by chunk, encoded and packed when a worker asks."""

    def __init__(
        self, items: Sequence[Item], share: Sequence[int], encode: Callable[[Item], Group], packed: Packed, cost: Cost
    ) -> None:
        self.items, self.encode, self.packed, self.cost = items, encode, packed, cost
        self.chunks = [share[start : start + CHUNK] for start in range(0, len(share), CHUNK)]

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, number: int) -> list[PackedItems]:
        chunk = self.chunks[number]
        groups = [self.encode(self.items[i]) for i in chunk]
        rows = pack_first_fit([self.cost(group) for group in groups], self.packed.token_budget)
        return [(self.packed.encoder.pack([groups[i] for i in row]), tuple(chunk[i] for i in row)) for row in rows]


@dataclass(frozen=True, slots=True)
class Packed:
    """How items are encoded and packed: what all judges on packed rows share."""

    encoder: Encoder
    device: torch.device
    token_budget: int
    workers: int = 0


def run_packed(
    packed: Packed,
    items: Sequence[Item],
    encode: Callable[[Item], Group],
    run: Callable[[PackedBatch, Sequence[int]], Sequence[Found]],
    cost: Cost = attrgetter("cost"),
) -> list[Found]:
    """Return what `run` finds for every item, in order, on every rank; all ranks must call together.

    `encode` makes an item's group and `cost` says what it takes of the budget; both run in loader workers and must be picklable.
    `run` gets a packed row on the device and the indices of its items, and returns one thing for each. Ranks run equally many
    rows: one without work runs the filler row, with no items, and nothing is taken from it.
    """
    share = range(rank(), len(items), world_size())
    loader = DataLoader(
        Chunks(items, share, encode, packed, cost),
        batch_size=None,
        num_workers=packed.workers if len(items) > CHUNK else 0,
        generator=torch.Generator(),  # else it draws a seed from the run's own generator: evaluating must not change training
    )
    found: dict[int, Found] = {}
    chunks = iter(loader)
    for _ in range(max_over_ranks(len(loader), packed.device)):
        rows: list[PackedItems] = next(chunks, [])
        for number in range(max_over_ranks(len(rows), packed.device)):
            batch, inside = rows[number] if number < len(rows) else (packed.encoder.pack([]), ())
            found |= zip(inside, run(batch.to(packed.device), inside), strict=True)
    whole = {index: one for part in gather(found) for index, one in part.items()}
    return [whole[index] for index in range(len(items))]


@dataclass(frozen=True, slots=True)
class Scorer:
    """A scalar reward model ready to score: `model` may be wrapped by DeepSpeed or DDP, and must be in eval mode."""

    model: nn.Module
    encoder: Encoder
    device: torch.device
    token_budget: int
    workers: int = 0

    @torch.no_grad()
    def scores(self, items: Sequence[Item], encode: Callable[[Item], Group]) -> list[list[float]]:
        """Return the scores of every item's continuations, fp32 values in the order given, on every rank.

        `encode` makes an item's group with read positions.
        """

        def run(batch: PackedBatch, places: Sequence[int]) -> list[list[float]]:
            scores = iter(self.model(**batch.score_inputs()).tolist())
            return [list(islice(scores, size)) for size in batch.group_sizes]

        return run_packed(Packed(self.encoder, self.device, self.token_budget, self.workers), items, encode, run)
