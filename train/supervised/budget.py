"""The token budget of a run while it runs: found from measured memory, and lowered where memory runs out.

A step's gradient does not depend on its rows, so both may happen at any step, and a resume need not know. Where ranks
exchange weights or gradients while they compute, a step cannot be repeated: the lower budget is written into the run
folder, and the next start of the run takes it from there.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from mmrm.data.errors import UserError
from mmrm.data.storage.files import write_whole
from mmrm.models.distributed import max_over_ranks, rank
from mmrm.models.packing.bins import PATCH_COST
from mmrm.models.packing.groups import unpack
from mmrm.train.supervised.steps import Pack, PackedRow, StepDataset, TrainingExample, make_rows

FIRST_BUDGET = 4096
"""Of a run that finds its own, until it has; a CPU keeps it: longer rows are no faster there."""
LOWERED = "token_budget"
"""The file of the run folder that holds what running out of memory has left of the budget."""
NO_LIMIT = sys.maxsize
LIBRARIES = 0.08
"""Share of a device's memory that PyTorch's allocator may not take: cuBLAS and NCCL allocate past it, and where they find nothing
they fail with an error of their own (CUBLAS_STATUS_ALLOC_FAILED), which no smaller row mends. 8 % was enough on an 80 GB card."""
KEPT_FREE = LIBRARIES + 0.02
"""Share that a measured budget leaves free: the libraries', and what is lost to fragments."""
MEASURED_STEP = 1
"""Counted from the start of this process: by its second step the optimizer holds its states."""


class RowBudget:
    """Cuts rows to the present budget, which may rise to `ceiling` as far as the memory of the second step allows."""

    def __init__(
        self,
        steps: StepDataset,
        device: torch.device,
        ceiling: int,
        tell: Callable[[str], None] = print,
    ) -> None:
        self.steps, self.device, self.ceiling, self.tell = steps, device, ceiling, tell
        leave_to_libraries(device)
        self.grows = steps.token_budget < ceiling and device.type == "cuda"
        self.begun = self.proven = 0
        self.found: list[int] = []

    def fit(self, rows: Sequence[PackedRow]) -> list[PackedRow]:
        """Return the rows, largest first, with those that are over the budget (packed before it fell) cut into smaller ones."""
        cut = [
            part for row in rows for part in split(row, self.steps.pack, self.steps.token_budget)
        ]
        return sorted(cut, key=lambda row: -row.batch.cost)

    def lower(self, rows: Sequence[PackedRow]) -> None:
        """After some rank ran out of memory halve the largest row that can be cut; all ranks must call together.

        Raises: UserError on all ranks if every row holds but one record.
        """
        largest = max_over_ranks(
            max((row.batch.cost for row in rows if row.records > 1), default=0), self.device
        )
        if not largest:
            raise UserError(too_large(max((row.batch.cost for row in rows), default=0)))
        self.grows = False
        self.steps.token_budget = min(self.steps.token_budget, largest) // 2
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self._say(
            f"out of memory: token budget lowered to {self.steps.token_budget:,}, the step is computed again"
        )

    @contextmanager
    def watch(self, row: PackedRow, number: int) -> Iterator[None]:
        """Measure the memory of row `number` of a measured step, if it is not the first and at least half full.

        The first also makes gradients; in a cheap row what it takes beside its tokens would be taken for their price.
        """
        half_full = 2 * row.batch.cost >= self.steps.token_budget
        if not (self.grows and self.begun >= MEASURED_STEP and number and half_full):
            yield
            return
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        yield
        used = torch.cuda.max_memory_allocated(self.device) - before
        free = (
            torch.cuda.mem_get_info(self.device)[0]
            + torch.cuda.memory_reserved(self.device)
            - before
        )
        kept = KEPT_FREE * torch.cuda.get_device_properties(self.device).total_memory
        self.found.append(int(row.batch.cost * max(free - kept, 0) / used))

    def unproven(self, row: PackedRow) -> bool:
        """Say whether `row` may run out of memory: it is larger than all before, or those were of the first two steps.

        Only after them does memory hold all that it is going to hold.
        """
        return self.begun <= MEASURED_STEP or row.batch.cost > self.proven

    def end_step(self, rows: Sequence[PackedRow]) -> None:
        """Count the step of `rows`; after a measured one take the budget that all ranks can afford: they call together."""
        self.begun += 1
        self.proven = max(self.proven, *(row.batch.cost for row in rows))
        if self.begun <= MEASURED_STEP or not self.grows:
            return
        # A rank with a single row has measured nothing; if all ranks had, the next step is measured too.
        smallest = -max_over_ranks(-min(self.found, default=NO_LIMIT), self.device)
        if smallest == NO_LIMIT:
            return
        self.grows = False
        self.steps.token_budget = max(self.steps.token_budget, min(smallest, self.ceiling))
        asked = "" if self.ceiling == NO_LIMIT else f" of {self.ceiling:,}"
        self._say(
            f"token budget {self.steps.token_budget:,}{asked}, from the memory of step {self.begun}"
        )

    def _say(self, message: str) -> None:
        if rank() == 0:
            self.tell(message)


def leave_to_libraries(device: torch.device) -> None:
    """Let memory run out in PyTorch, which says so by `torch.OutOfMemoryError`, before it does in a library."""
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(1 - LIBRARIES, device)


def too_large(cost: int) -> str:
    """Return what to do about a row of one record, of `cost`, that does not fit."""
    return (
        f"Out of memory in a packed row of a single record, {cost:,} tokens (a vision patch counted as {PATCH_COST}). Set "
        "optim.activation_checkpointing to true, lower backbone.max_pixels, take a deepspeed configuration that shards or "
        "offloads more, or train adapters (optim.lora)."
    )


def lowered(folder: Path) -> int | None:
    """Return what an earlier start of the run in `folder`, which ran out of memory, has left of the budget; None if none did."""
    path = folder / LOWERED
    return int(path.read_text(encoding="utf-8")) if path.exists() else None


def ceiling(asked: int | Literal["auto"], folder: Path) -> int:
    """Return what a row may cost at most: what the recipe asks for, or what was left of it."""
    return min(NO_LIMIT if asked == "auto" else asked, lowered(folder) or NO_LIMIT)


def cannot_repeat(row: PackedRow, folder: Path) -> str:
    """Return what to do where a step cannot be repeated, after writing half of the row's cost into `folder`."""
    if row.records < 2:
        return too_large(row.batch.cost)
    half = row.batch.cost // 2
    write_whole(folder / LOWERED, str(half))
    return (
        f"Out of memory in a packed row of {row.batch.cost:,} tokens (a vision patch counted as {PATCH_COST}), where other ranks "
        f"already have parts of the step. {folder / LOWERED} now says {half:,}: give the same command again with --resume, and "
        "the run goes on from its last checkpoint with this token budget, which does not change what it learns. "
        "`torchrun --max-restarts 3` does so by itself."
    )


def split(row: PackedRow, pack: Pack, budget: int) -> list[PackedRow]:
    """Return `row` as rows within `budget`, itself if it is, or holds but one record."""
    if row.batch.cost <= budget or row.records < 2:
        return [row]
    of_all = [
        (number, group, one)
        for number, group in enumerate(unpack(row.batch))
        for one in group.continuations
    ]
    counts, records = row.counts.tolist(), []
    lengths = torch.split(
        row.response_tokens, counts if len(row.response_tokens) else [0] * row.records
    )
    numbers = zip(
        torch.split(row.places, counts),
        row.margins.tolist(),
        lengths,
        row.own_critiques.tolist(),
        strict=True,
    )
    for places, margin, tokens, written in numbers:
        found = [of_all[place] for place in places.tolist()]
        number, group, _ = found[0]
        own = replace(group, continuations=tuple(one for _, _, one in found))
        records.append(
            TrainingExample(
                own, margin, tuple(tokens.tolist()), own_critiques=written, prompt=number
            )
        )
    return make_rows(records, pack, budget)
