"""The token budget of a run while it runs: found from measured memory, and lowered instead of dying of a lack of it.

A step's gradient does not depend on its rows, so both may happen at any step, and a resume need not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from models.distributed import max_over_ranks, rank
from models.packing import PATCH_COST, fill_rows
from models.unpacking import unpack
from train.steps import Encoded, Pack, Row, StepDataset, make_row

FIRST_BUDGET = 4096
"""Of a run that finds its own, until it has; a CPU keeps it: longer rows are no faster there."""
KEPT_FREE = 0.1
"""Share of the device's memory that is left to fragments, collectives and the kernels' own workspace."""
MEASURED_STEP = 1
"""Counted from the start of this process: by its second step the optimizer holds its states."""


class MemoryBudgetError(ValueError):
    """A row that does not fit and cannot be made smaller here; the message says what to do."""


class RowBudget:
    """Cuts rows to the present budget. `grows`: the budget may rise to what the second step's memory allows."""

    def __init__(self, steps: StepDataset, device: torch.device, *, grows: bool, tell: Callable[[str], None] = print) -> None:
        self.steps, self.device, self.tell = steps, device, tell
        self.grows = grows and device.type == "cuda"
        self.begun = self.proven = 0
        self.found: list[int] = []

    def fit(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows, dearest first, with those that are over the budget (packed before it fell) cut into smaller ones."""
        cut = [part for row in rows for part in split(row, self.steps.pack, self.steps.token_budget)]
        return sorted(cut, key=lambda row: -row.batch.cost)

    def lower(self, rows: Sequence[Row]) -> None:
        """Answer a lack of memory on some rank: halve the largest row that can be cut; all ranks must call together.

        Raises: MemoryBudgetError on all ranks if every row holds but one record.
        """
        largest = max_over_ranks(max((row.batch.cost for row in rows if row.records > 1), default=0), self.device)
        if not largest:
            raise MemoryBudgetError(too_dear(max((row.batch.cost for row in rows), default=0)))
        self.grows = False
        self.steps.token_budget = min(self.steps.token_budget, largest) // 2
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self._say(f"out of memory: token budget lowered to {self.steps.token_budget:,}, the step is computed anew")

    @contextmanager
    def watch(self, row: Row, number: int) -> Iterator[None]:
        """Measure the memory of row `number` of the measured step; the first row is left out, as it also makes gradients."""
        if not (self.grows and self.begun == MEASURED_STEP and number):
            yield
            return
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        yield
        used = torch.cuda.max_memory_allocated(self.device) - before
        free = torch.cuda.mem_get_info(self.device)[0] + torch.cuda.memory_reserved(self.device) - before
        self.found.append(affordable(row.batch.cost, used, free, torch.cuda.get_device_properties(self.device).total_memory))

    def unproven(self, row: Row) -> bool:
        """Say whether `row` may meet a lack of memory: it is dearer than all before, or those were of the first two steps.

        Only after them does memory hold all that it is going to hold.
        """
        return self.begun <= MEASURED_STEP or row.batch.cost > self.proven

    def end_step(self, rows: Sequence[Row]) -> None:
        """Count the step of `rows`; after the measured one take the budget that all ranks can afford: they call together."""
        self.begun += 1
        self.proven = max(self.proven, *(row.batch.cost for row in rows))
        if self.begun != MEASURED_STEP + 1 or not self.grows:
            return
        smallest = -max_over_ranks(-min(self.found, default=0), self.device)
        if smallest > self.steps.token_budget:
            self.steps.token_budget = smallest
            self._say(f"token budget {smallest:,}, from the memory of step {self.begun}")

    def _say(self, message: str) -> None:
        if rank() == 0:
            self.tell(message)


def affordable(cost: int, used: int, free: int, total: int) -> int:
    """Return the cost of the row that fits into `free` bytes of `total`, if one of `cost` used `used` bytes."""
    return int(cost * max(free - KEPT_FREE * total, 0) / used)


def too_dear(cost: int) -> str:
    """Return what to do about a row of one record, of `cost`, that does not fit."""
    return (
        f"Out of memory in a packed row of a single record, {cost:,} tokens (a vision patch counted as {PATCH_COST}). Set "
        "optim.activation_checkpointing to true, lower backbone.max_pixels, take a deepspeed configuration that shards or "
        "offloads more, or train adapters (optim.lora)."
    )


def cannot_repeat(cost: int) -> str:
    """Return what to do where a step cannot be computed anew: its gradients are already on their way to other ranks."""
    return (
        f"Out of memory in a packed row of {cost:,} tokens (a vision patch counted as {PATCH_COST}), where the step cannot be "
        f"repeated with smaller rows. Set optim.token_budget to {cost // 2:,} or less and output.resume to auto: the run goes on "
        "from its last checkpoint, and the budget does not change what it learns."
    )


def split(row: Row, pack: Pack, budget: int) -> list[Row]:
    """Return `row` as rows within `budget`, itself if it is, or holds but one record."""
    if row.batch.cost <= budget or row.records < 2:
        return [row]
    groups = unpack(row.batch)
    lengths = row.response_tokens.reshape(row.records, len(row.response_tokens) // row.records).tolist()
    numbers = zip(groups, row.margins.tolist(), lengths, row.own_critiques.tolist(), strict=True)
    records = [Encoded(group, margin, tuple(own), own_critiques=written) for group, margin, own, written in numbers]
    parts = fill_rows([group.cost for group in groups], budget)
    return [make_row([records[i] for i in part], pack) for part in parts]
