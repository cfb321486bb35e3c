"""Packed groups through a model, data-parallel: the one forward path of evaluation.

Work is dealt to ranks by index, encoded in loader workers a chunk at a time (pixels of a whole
benchmark would not fit in memory), packed under the token budget, and run in lock-step: a rank
without work runs the filler row.
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

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

Cost = Callable[[Group], int]
"""Returns the number of tokens that a group needs of a row's budget."""

CHUNK = 64
"""Items that are encoded and packed together: enough to fill rows well, few enough to hold their
pixels."""

PackedItems = tuple[PackedBatch, list[int]]
"""A row and the indices of the items whose groups it holds, in order."""


@dataclass(frozen=True, slots=True)
class Packed:
    """The encoding and packing of items, which all judges on packed rows share."""

    encoder: Encoder
    device: torch.device
    token_budget: int
    workers: int = 0


def run_packed(
    packed: Packed,
    items: Sequence[ItemT],
    encode: Callable[[ItemT], Group],
    run: Callable[[PackedBatch, list[ItemT]], Sequence[ResultT]],
    cost: Cost = attrgetter("cost"),
    judging: Judging[ResultT] | None = None,
) -> list[ResultT]:
    """Return the result of every item, in order, on every rank; all ranks must call together.

    Ranks run equally many rows. A rank without work runs the filler row, with no items, and its
    results are not used.

    Args:
        packed: How items are encoded and packed.
        items: The items to compute results of.
        encode: Makes the group of an item. Runs in loader workers and must be picklable.
        run: Gets a packed row on the device and its items, and returns one result for each.
        cost: Returns the tokens that a group needs of a row's budget. Runs in loader workers and must be picklable.
        judging: The journal that gets the results, row by row. A row with results in it is not run
            again. The other rows hold the same items as without it, so that a continued run rounds
            as one that was never stopped.

    Raises: RecordError on all ranks if `encode` cannot encode an item on one of them.
    """
    results: dict[int, ResultT] = {} if judging is None else judging.results
    done = frozenset(results)
    share = range(len(items))[rank() :: world_size()]
    chunks_of_share = [share[start : start + CHUNK] for start in range(0, len(share), CHUNK)]
    loader: DataLoader[list[PackedItems] | str] = DataLoader(
        [chunk for chunk in chunks_of_share if not done.issuperset(chunk)],  # type: ignore[arg-type]
        batch_size=None,
        collate_fn=partial(_rows, packed, items, encode, cost, done),
        num_workers=packed.workers if len(items) - len(done) > CHUNK else 0,
        # Otherwise the loader draws a seed from the run's own generator, and evaluating would change
        # training.
        generator=torch.Generator(),
    )
    chunks = iter(loader)
    for _ in range(max_over_ranks(len(loader), packed.device)):
        rows_or_fault: list[PackedItems] | str = next(chunks, [])
        rows = [] if isinstance(rows_or_fault, str) else rows_or_fault
        fault = rows_or_fault if isinstance(rows_or_fault, str) else ""
        count_and_fault_by_rank = gather((len(rows), fault))
        for _, fault_of_rank in count_and_fault_by_rank:
            if fault_of_rank:
                raise RecordError(fault_of_rank)  # by all ranks together
        for number in range(max(count for count, _ in count_and_fault_by_rank)):
            batch, indices = rows[number] if number < len(rows) else (packed.encoder.pack([]), [])
            row_results = run(batch.to(packed.device), [items[index] for index in indices])
            new: dict[int, ResultT] = {}
            for results_of_rank in gather(list(zip(indices, row_results, strict=True))):
                new.update(item for item in results_of_rank if item[0] not in done)
            if judging is None:
                results.update(new)
            else:
                judging.add(new)
    return [results[index] for index in range(len(items))]


def _rows(
    packed: Packed,
    items: Sequence[ItemT],
    encode: Callable[[ItemT], Group],
    cost: Cost,
    done: frozenset[int],
    chunk: Sequence[int],
) -> list[PackedItems] | str:
    """Encode and pack a chunk, and return the rows that hold an item which is not in `done`.

    Returns the reason if an item cannot be encoded.
    """
    try:
        groups = [encode(items[index]) for index in chunk]
    except RecordError as error:
        return str(error)
    packed_rows: list[PackedItems] = []
    for row in pack_first_fit([cost(group) for group in groups], packed.token_budget):
        indices = [chunk[position] for position in row]
        if not done.issuperset(indices):
            batch = packed.encoder.pack([groups[position] for position in row])
            packed_rows.append((batch, indices))
    return packed_rows
