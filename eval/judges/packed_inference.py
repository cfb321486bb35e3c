"""Packed groups through a model, data-parallel: the one forward path of evaluation; and its simplest user, the scalar judge.

Work is dealt to ranks by index, encoded in loader workers a chunk at a time (pixels of a whole benchmark would not fit in
memory), packed under the token budget, and run in lock-step: a rank without work runs the filler row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import TypeVar

import torch
from torch.utils.data import DataLoader

from mmrm.data.errors import RecordError
from mmrm.eval.journal import Judging
from mmrm.models.distributed import gather, max_over_ranks, rank, world_size
from mmrm.models.encoder import Encoder
from mmrm.models.packing.bins import pack_first_fit
from mmrm.models.packing.groups import Group, PackedBatch

Item = TypeVar("Item")

Found = TypeVar("Found")


Cost = Callable[[Group], int]


CHUNK = 64
"""Items that are encoded and packed together: enough to fill rows well, few enough to hold their pixels."""


PackedItems = tuple[PackedBatch, list[int]]
"""A row and the indices of the items whose groups it holds, in order."""


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
    run: Callable[[PackedBatch, list[Item]], Sequence[Found]],
    cost: Cost = attrgetter("cost"),
    judging: Judging[Found] | None = None,
) -> list[Found]:
    """Return what `run` finds for every item, in order, on every rank; all ranks must call together.

    `encode` makes an item's group and `cost` says what it takes of the budget; both run in loader workers and must be picklable.
    `run` gets a packed row on the device and its items, and returns one thing for each. Ranks run equally many rows: one without
    work runs the filler row, with no items, and nothing is taken from it. `judging` gets what is found, row by row. A row whose
    items it holds already is not run again. The other rows hold the same items as without it, so that a continued run rounds
    as one that was never stopped.

    Raises: RecordError on all ranks for what `encode` cannot encode on one of them.
    """
    found: dict[int, Found] = {} if judging is None else judging.found
    keep = found.update if judging is None else judging.add
    done = frozenset(found)
    share = range(len(items))[rank() :: world_size()]
    chunks_of_share = [share[start : start + CHUNK] for start in range(0, len(share), CHUNK)]
    loader: DataLoader[list[PackedItems] | str] = DataLoader(
        [chunk for chunk in chunks_of_share if not done.issuperset(chunk)],  # type: ignore[arg-type]
        batch_size=None,
        collate_fn=partial(_rows, packed, items, encode, cost, done),
        num_workers=packed.workers if len(items) - len(done) > CHUNK else 0,
        generator=torch.Generator(),  # else it draws a seed from the run's own generator: evaluating must not change training
    )
    chunks = iter(loader)
    for _ in range(max_over_ranks(len(loader), packed.device)):
        rows: list[PackedItems] | str = next(chunks, [])
        said = gather(rows if isinstance(rows, str) else len(rows))
        for fault in said:
            if isinstance(fault, str):
                raise RecordError(fault)  # by all ranks together
        for number in range(max(map(int, said))):
            batch, inside = (
                rows[number]
                if isinstance(rows, list) and number < len(rows)
                else (packed.encoder.pack([]), [])
            )
            new = run(batch.to(packed.device), [items[i] for i in inside])
            keep(
                {
                    index: one
                    for part in gather(list(zip(inside, new, strict=True)))
                    for index, one in part
                    if index not in done
                }
            )
    return [found[index] for index in range(len(items))]


def _rows(
    packed: Packed,
    items: Sequence[Item],
    encode: Callable[[Item], Group],
    cost: Cost,
    done: frozenset[int],
    chunk: Sequence[int],
) -> list[PackedItems] | str:
    """Encode and pack a chunk of the items, and return the rows that hold an item which is not in `done`.

    Returns the reason if an item cannot be encoded.
    """
    try:
        groups = [encode(items[i]) for i in chunk]
    except RecordError as error:
        return str(error)
    rows = pack_first_fit([cost(group) for group in groups], packed.token_budget)
    packed_rows: list[PackedItems] = []
    for row in rows:
        inside = [chunk[position] for position in row]
        if not done.issuperset(inside):
            packed_rows.append((packed.encoder.pack([groups[i] for i in row]), inside))
    return packed_rows
