"""The token budget of a run while it runs: measured from memory, and lowered if memory runs out.

The gradient of a step does not depend on how its records are divided into rows, so the budget may
change at any step, and a resumed run does not need to know it. If ranks exchange weights or
gradients while they compute, a step cannot be repeated. The lower budget is then written into the
run folder, and the next start of the run reads it there.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch

from mmrm.data.errors import UserError
from mmrm.data.storage.files import write_whole
from mmrm.models.distributed import max_over_ranks, rank
from mmrm.models.packing.bins import PATCH_COST
from mmrm.models.packing.packed_batch import unpack
from mmrm.models.packing.segments import SegmentTree
from mmrm.train.supervised.steps import Pack, PackedRow, StepDataset, TrainingExample, make_rows

FIRST_BUDGET = 4096
"""Budget of the first steps of a run that measures its budget. On a CPU it stays, because longer
rows are no faster there."""
LOWERED = "token_budget"
"""File of the run folder with the budget that is left after memory ran out."""
NO_LIMIT = sys.maxsize
LIBRARIES = 0.08
"""Share of a device's memory that PyTorch's allocator may not take. cuBLAS and NCCL allocate
outside of it. Without free memory they fail with errors of their own (CUBLAS_STATUS_ALLOC_FAILED),
which no smaller row avoids. 8 % was enough on an 80 GB card."""
KEPT_FREE = LIBRARIES + 0.02
"""Share of a device's memory that a measured budget leaves free: for the libraries, and because
fragmented memory cannot be used."""
MEASURED_STEP = 1
"""First step that is measured, counted from 0 at the start of this process. From the second step on
the optimizer holds its states."""


class RowBudget:
    """The token budget of packed rows, which may rise once and falls if memory runs out.

    It cuts rows that exceed the budget into smaller ones.
    """

    def __init__(
        self,
        steps: StepDataset,
        device: torch.device,
        ceiling: int,
        report: Callable[[str], None] = print,
    ) -> None:
        """Take over the budget of `steps`, and reserve memory for libraries on a CUDA device.

        Args:
            steps: The steps of the run, whose `token_budget` is the current budget.
            device: Device of this rank.
            ceiling: The largest value to which the budget may rise.
            report: Receives messages about the budget, on the first rank.
        """
        self.steps = steps
        self.device = device
        self.ceiling = ceiling
        self.report = report
        leave_to_libraries(device)
        self.may_rise = steps.token_budget < ceiling and device.type == "cuda"
        self.num_steps = 0
        """Complete steps of this process."""
        self.proven_cost = 0
        """Cost of the largest row that fitted into memory."""
        self.measured_budgets: list[int] = []
        """The budget that the memory would allow, by the measurement of each measured row."""

    def fit(self, rows: Sequence[PackedRow]) -> list[PackedRow]:
        """Cut the rows of a step that are above the budget, and return all rows, largest first.

        Such rows were packed before the budget fell.
        """
        fitting: list[PackedRow] = []
        for row in rows:
            fitting += split(row, self.steps.pack, self.steps.token_budget)
        return sorted(fitting, key=lambda row: -row.batch.cost)

    def lower(self, rows: Sequence[PackedRow]) -> None:
        """Halve the budget after some rank ran out of memory; all ranks must call together.

        The new budget is at most half of the cost of the largest row that can be cut.

        Args:
            rows: The rows of the step on this rank.

        Raises:
            UserError: On all ranks, if no rank has a row of two or more records, which can be cut.
        """
        divisible_costs = [row.batch.cost for row in rows if row.records > 1]
        largest = max_over_ranks(max(divisible_costs, default=0), self.device)
        if not largest:
            raise UserError(single_record_message(max((row.batch.cost for row in rows), default=0)))
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
        """Measure the memory that is taken by the computation of a row inside the context.

        Rows are measured until the budget has risen. Two kinds of rows are left out. The first row
        of a step also allocates gradients. In a row that is less than half full, the memory that
        does not depend on tokens would be counted as the price of its tokens.

        Args:
            row: The row.
            number: Index of the row in its step.
        """
        is_measured_step = self.may_rise and self.num_steps >= MEASURED_STEP
        is_half_full = 2 * row.batch.cost >= self.steps.token_budget
        if not is_measured_step or number == 0 or not is_half_full:
            yield
            return
        torch.cuda.reset_peak_memory_stats(self.device)
        allocated_before = torch.cuda.memory_allocated(self.device)
        yield
        used = torch.cuda.max_memory_allocated(self.device) - allocated_before
        free_on_device, _ = torch.cuda.mem_get_info(self.device)
        # The allocator of PyTorch reserves more than it gives to tensors; the rest is free, too.
        free = free_on_device + torch.cuda.memory_reserved(self.device) - allocated_before
        kept_free = KEPT_FREE * torch.cuda.get_device_properties(self.device).total_memory
        usable = max(free - kept_free, 0)
        self.measured_budgets.append(int(row.batch.cost * usable / used))

    def may_run_out(self, row: PackedRow) -> bool:
        """Return True if memory may not suffice for `row`.

        This is so if the row is larger than all rows before, or if the first two steps are not
        complete: only after them does memory hold gradients and optimizer states.
        """
        return self.num_steps <= MEASURED_STEP or row.batch.cost > self.proven_cost

    def end_step(self, rows: Sequence[PackedRow]) -> None:
        """Count a complete step, and raise the budget if its memory was measured.

        The budget rises to the smallest budget that a measured row of any rank allows, but not
        above `ceiling`. All ranks must call together.

        Args:
            rows: The rows of the step on this rank.
        """
        self.num_steps += 1
        self.proven_cost = max(self.proven_cost, *(row.batch.cost for row in rows))
        if self.num_steps <= MEASURED_STEP or not self.may_rise:
            return
        own_smallest = min(self.measured_budgets, default=NO_LIMIT)
        smallest = -max_over_ranks(-own_smallest, self.device)  # the minimum over ranks
        if smallest == NO_LIMIT:
            return  # no rank has measured a row; the next step is measured, too
        self.may_rise = False
        self.steps.token_budget = max(self.steps.token_budget, min(smallest, self.ceiling))
        limit = "" if self.ceiling == NO_LIMIT else f" of {self.ceiling:,}"
        self._say(
            f"token budget {self.steps.token_budget:,}{limit}, "
            f"from the memory of step {self.num_steps}"
        )

    def _say(self, message: str) -> None:
        """Report a message about the budget, on the first rank."""
        if rank() == 0:
            self.report(message)


def leave_to_libraries(device: torch.device) -> None:
    """Reserve memory for cuBLAS and NCCL on a CUDA device; nothing happens on a CPU.

    PyTorch then runs out of memory before these libraries do. It raises `torch.OutOfMemoryError`,
    from which a run can continue.
    """
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(1 - LIBRARIES, device)


def single_record_message(cost: int) -> str:
    """Return the message about a row of a single record that does not fit into memory.

    Args:
        cost: The cost of the row in tokens.
    """
    return (
        f"Out of memory in a packed row of a single record, {cost:,} tokens (a vision patch counts "
        f"as {PATCH_COST}). Set optim.activation_checkpointing=full, lower backbone.max_pixels, "
        "use a deepspeed configuration that shards or offloads more, or train adapters "
        "(optim.lora)."
    )


def lowered_budget(folder: Path) -> int | None:
    """Return the budget that an earlier start of a run wrote into its folder when memory ran out.

    Returns None if there is none, because no earlier start ran out of memory.
    """
    path = folder / LOWERED
    return int(path.read_text(encoding="utf-8")) if path.exists() else None


def ceiling(requested_budget: int | Literal["auto"], folder: Path) -> int:
    """Return the largest allowed cost of a row in tokens.

    It is the budget of the recipe, or a smaller one that an earlier start of the run wrote into its
    folder when memory ran out. For `auto` without such a file it is NO_LIMIT.
    """
    limit = NO_LIMIT if requested_budget == "auto" else requested_budget
    return min(limit, lowered_budget(folder) or NO_LIMIT)


def write_lowered_budget(row: PackedRow, folder: Path) -> None:
    """Write a token budget of half of a row's cost into the run folder, for the next start.

    Nothing is written for a row of a single record, which cannot be cut.
    """
    if row.records > 1:
        write_whole(folder / LOWERED, str(row.batch.cost // 2))


def out_of_memory_message(row: PackedRow, folder: Path) -> str:
    """Return the message about a row for which memory ran out in a step that cannot be repeated."""
    if row.records < 2:
        return single_record_message(row.batch.cost)
    return (
        f"Out of memory in a packed row of {row.batch.cost:,} tokens (a vision patch counts as "
        f"{PATCH_COST}), after other ranks have received parts of the step. {folder / LOWERED} now "
        f"contains {row.batch.cost // 2:,}: give the same command again with --resume. The run "
        "then continues from its last checkpoint with this token budget, which does not change "
        "what it learns. `torchrun --max-restarts 3` does so by itself."
    )


def split(row: PackedRow, pack: Pack, budget: int) -> list[PackedRow]:
    """Cut a row into rows whose cost is at most `budget`.

    A row that is within the budget, or has a single record, is returned unchanged.
    """
    if row.batch.cost <= budget or row.records < 2:
        return [row]
    return make_rows(_examples(row), pack, budget)


def _examples(row: PackedRow) -> list[TrainingExample]:
    """Return the examples that a row was packed from, except for their identities."""
    # A record's outputs follow one another in one tree.
    trees_of_records: list[SegmentTree] = []
    tree_indices: list[int] = []
    counts = row.output_counts.tolist()
    remaining_counts = iter(counts)
    for tree_index, tree in enumerate(unpack(row.batch)):
        num_taken = 0
        while num_taken < len(tree.outputs):
            count = next(remaining_counts)
            outputs = tree.outputs[num_taken : num_taken + count]
            trees_of_records.append(tree.with_outputs(outputs))
            tree_indices.append(tree_index)
            num_taken += count

    labels = row.response_labels
    response_counts = torch.bincount(labels.records, minlength=row.records).tolist()
    ranks_by_record = torch.split(labels.ranks, response_counts)
    attributes_by_record = torch.split(labels.attributes, response_counts)
    # A method that does not normalise by length leaves the lengths out.
    length_counts = response_counts if len(labels.tokens) else [0] * row.records
    lengths_by_record = torch.split(labels.tokens, length_counts)
    margins = labels.margins.tolist()
    has_model_critiques = row.has_model_critiques.tolist()
    examples = []
    for record in range(row.records):
        examples.append(
            TrainingExample(
                trees_of_records[record],
                margin=margins[record],
                ranks=tuple(ranks_by_record[record].tolist()),
                attributes=tuple(map(tuple, attributes_by_record[record].tolist())),
                response_tokens=tuple(lengths_by_record[record].tolist()),
                has_model_critiques=has_model_critiques[record],
                prompt=tree_indices[record],  # equal for the records of one tree
            )
        )
    return examples
