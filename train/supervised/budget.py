"""The token budget of a run while it runs: measured from memory, and lowered if memory runs out.

The gradient of a step does not depend on how its records are divided into rows, so the budget may
change at any step, and a resumed run does not need to know it. If ranks exchange weights or
gradients while they compute, a step cannot be repeated. The lower budget is then written into the
run folder, and the next start of the run reads it there.
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
from mmrm.models.packing.groups import Continuation, unpack
from mmrm.train.supervised.steps import Pack, PackedRow, StepDataset, TrainingExample, make_rows

FIRST_BUDGET = 4096
"""Budget of a run that measures its own, until it has. On a CPU it stays: longer rows are no faster
there."""
LOWERED = "token_budget"
"""File of the run folder with the budget that is left after memory ran out."""
NO_LIMIT = sys.maxsize
LIBRARIES = 0.08
"""Share of a device's memory that PyTorch's allocator may not take. cuBLAS and NCCL allocate
outside of it. Without free memory they fail with errors of their own (CUBLAS_STATUS_ALLOC_FAILED),
which no smaller row avoids. 8 % was enough on an 80 GB card."""
KEPT_FREE = LIBRARIES + 0.02
"""Share that a measured budget leaves free: that of the libraries, and loss to fragmentation."""
MEASURED_STEP = 1
"""First step that is measured, counted from 0 at the start of this process. From the second step on
the optimizer holds its states."""


class RowBudget:
    """Cuts rows to the current budget, which may rise once and falls if memory runs out."""

    def __init__(
        self,
        steps: StepDataset,
        device: torch.device,
        ceiling: int,
        tell: Callable[[str], None] = print,
    ) -> None:
        """Reserve memory for libraries on a CUDA device.

        Args:
            steps: Holds the current budget, `steps.token_budget`.
            device: Device of this rank.
            ceiling: Largest budget that measured memory may give.
            tell: Receives messages about the budget, on the first rank.
        """
        self.steps = steps
        self.device = device
        self.ceiling = ceiling
        self.tell = tell
        leave_to_libraries(device)
        self.may_rise = steps.token_budget < ceiling and device.type == "cuda"
        self.num_steps = 0
        """Steps of this process that are complete."""
        self.proven_cost = 0
        """Cost of the largest row that was computed."""
        self.measured: list[int] = []
        """Budgets that the memory of single rows would allow."""

    def fit(self, rows: Sequence[PackedRow]) -> list[PackedRow]:
        """Return the rows, largest first; rows above the budget are cut into smaller ones.

        Rows above the budget were packed before it fell.
        """
        fitting: list[PackedRow] = []
        for row in rows:
            fitting += split(row, self.steps.pack, self.steps.token_budget)
        return sorted(fitting, key=lambda row: -row.batch.cost)

    def lower(self, rows: Sequence[PackedRow]) -> None:
        """Halve the budget after some rank ran out of memory.

        The new budget is at most half of the largest row that can be cut. All ranks must call
        together.

        Raises:
            UserError: On all ranks, if every row has a single record.
        """
        divisible_costs = [row.batch.cost for row in rows if row.records > 1]
        largest = max_over_ranks(max(divisible_costs, default=0), self.device)
        if not largest:
            raise UserError(too_large(max((row.batch.cost for row in rows), default=0)))
        self.may_rise = False
        self.steps.token_budget = min(self.steps.token_budget, largest) // 2
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self._say(
            f"out of memory: token budget lowered to {self.steps.token_budget:,}, "
            "the step is computed again"
        )

    @contextmanager
    def watch(self, row: PackedRow, number: int) -> Iterator[None]:
        """Measure the memory of a row of a measured step, unless it is the first or half empty.

        The first row also allocates gradients. In a cheap row, the memory that does not depend on
        tokens would be counted as the price of its tokens.

        Args:
            row: The row that is computed inside the context.
            number: Index of the row in the step.
        """
        is_measured = self.may_rise and self.num_steps >= MEASURED_STEP
        is_half_full = 2 * row.batch.cost >= self.steps.token_budget
        if not is_measured or number == 0 or not is_half_full:
            yield
            return
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        yield
        used = torch.cuda.max_memory_allocated(self.device) - before
        free_on_device, _ = torch.cuda.mem_get_info(self.device)
        free = free_on_device + torch.cuda.memory_reserved(self.device) - before
        kept_free = KEPT_FREE * torch.cuda.get_device_properties(self.device).total_memory
        self.measured.append(int(row.batch.cost * max(free - kept_free, 0) / used))

    def unproven(self, row: PackedRow) -> bool:
        """Return True if `row` may run out of memory.

        It may if it is larger than all rows before, or if the first two steps are not complete:
        only after them does memory hold everything that it will hold.
        """
        return self.num_steps <= MEASURED_STEP or row.batch.cost > self.proven_cost

    def end_step(self, rows: Sequence[PackedRow]) -> None:
        """Count the step of `rows`, and raise the budget after a measured step.

        The budget rises to what the memory of all ranks allows. All ranks must call together.
        """
        self.num_steps += 1
        self.proven_cost = max(self.proven_cost, *(row.batch.cost for row in rows))
        if self.num_steps <= MEASURED_STEP or not self.may_rise:
            return
        smallest = -max_over_ranks(-min(self.measured, default=NO_LIMIT), self.device)
        if smallest == NO_LIMIT:
            # Every rank had a single row and measured nothing: the next step is measured too.
            return
        self.may_rise = False
        self.steps.token_budget = max(self.steps.token_budget, min(smallest, self.ceiling))
        limit = "" if self.ceiling == NO_LIMIT else f" of {self.ceiling:,}"
        self._say(
            f"token budget {self.steps.token_budget:,}{limit}, "
            f"from the memory of step {self.num_steps}"
        )

    def _say(self, message: str) -> None:
        """Pass a message on, on the first rank."""
        if rank() == 0:
            self.tell(message)


def leave_to_libraries(device: torch.device) -> None:
    """Reserve memory for libraries, so that PyTorch runs out of memory before they do.

    PyTorch raises `torch.OutOfMemoryError`, from which a run can continue.
    """
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(1 - LIBRARIES, device)


def too_large(cost: int) -> str:
    """Return the message about a row of one record, of this cost, that does not fit."""
    return (
        f"Out of memory in a packed row of a single record, {cost:,} tokens (a vision patch counts "
        f"as {PATCH_COST}). Set optim.activation_checkpointing=true, lower backbone.max_pixels, "
        "use a deepspeed configuration that shards or offloads more, or train adapters "
        "(optim.lora)."
    )


def lowered(folder: Path) -> int | None:
    """Return the budget that an earlier start of the run in `folder` wrote when memory ran out.

    Returns None if no start of the run ran out of memory.
    """
    path = folder / LOWERED
    return int(path.read_text(encoding="utf-8")) if path.exists() else None


def ceiling(requested_budget: int | Literal["auto"], folder: Path) -> int:
    """Return the largest allowed cost of a row: the recipe's, or a smaller one that memory left."""
    limit = NO_LIMIT if requested_budget == "auto" else requested_budget
    return min(limit, lowered(folder) or NO_LIMIT)


def write_lowered_budget(row: PackedRow, folder: Path) -> None:
    """Write half of a row's cost into the run folder; nothing if the row has a single record."""
    if row.records > 1:
        write_whole(folder / LOWERED, str(row.batch.cost // 2))


def out_of_memory_message(row: PackedRow, folder: Path) -> str:
    """Return the message about a row that did not fit in a step that cannot be repeated."""
    if row.records < 2:
        return too_large(row.batch.cost)
    return (
        f"Out of memory in a packed row of {row.batch.cost:,} tokens (a vision patch counts as "
        f"{PATCH_COST}), after other ranks have received parts of the step. {folder / LOWERED} now "
        f"contains {row.batch.cost // 2:,}: give the same command again with --resume. The run "
        "then continues from its last checkpoint with this token budget, which does not change "
        "what it learns. `torchrun --max-restarts 3` does so by itself."
    )


def split(row: PackedRow, pack: Pack, budget: int) -> list[PackedRow]:
    """Return `row` as rows within `budget`.

    The row itself is returned if it is within the budget or has a single record.
    """
    if row.batch.cost <= budget or row.records < 2:
        return [row]
    return make_rows(_examples(row), pack, budget)


def _examples(row: PackedRow) -> list[TrainingExample]:
    """Return the records that a row was packed from."""
    groups = unpack(row.batch)
    continuations: list[Continuation] = []
    group_indices: list[int] = []
    for group_index, group in enumerate(groups):
        continuations += group.continuations
        group_indices += [group_index] * len(group.continuations)

    counts = row.counts.tolist()
    places_by_record = torch.split(row.places, counts)
    length_counts = counts if len(row.response_tokens) else [0] * row.records
    lengths_by_record = torch.split(row.response_tokens, length_counts)
    margins = row.margins.tolist()
    own_critiques = row.own_critiques.tolist()
    examples = []
    for record in range(row.records):
        places = places_by_record[record].tolist()
        # All continuations of a record are in one group.
        group_index = group_indices[places[0]]
        group = replace(
            groups[group_index],
            continuations=tuple(continuations[place] for place in places),
        )
        examples.append(
            TrainingExample(
                group,
                margin=margins[record],
                response_tokens=tuple(lengths_by_record[record].tolist()),
                own_critiques=own_critiques[record],
                prompt=group_index,
            )
        )
    return examples
