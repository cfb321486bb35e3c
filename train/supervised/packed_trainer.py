"""The trainer of packed rows: each item of its loader is this rank's whole optimizer step.

The loop, DeepSpeed, checkpoints, rotation and logging are those of Hugging Face's Trainer. Four
things differ. A step runs as many packed rows as its records need under the token budget. The loss
is divided by the records (or learned tokens) of the step on all ranks. Every rank runs the same
number of forward passes. Evaluation happens inside `Trainer.evaluate`, before the checkpoint is
saved. `rm.py` and `sft.py` both use this trainer, with different objectives.
"""

import random
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers.integrations import is_deepspeed_zero3_enabled

from mmrm.data.errors import UserError
from mmrm.models.distributed import gather, max_over_ranks, sum_over_ranks
from mmrm.models.packing.packed_batch import divide
from mmrm.models.packing.sequence_group import SequenceGroup, make_group
from mmrm.models.portable.reward import refuse_incomplete
from mmrm.train.supervised.budget import (
    RowBudget,
    ceiling,
    out_of_memory_message,
    write_lowered_budget,
)
from mmrm.train.supervised.data_wait import announced_wait
from mmrm.train.supervised.load_balancing import RouterWatch, router_figures
from mmrm.train.supervised.objectives import Objective
from mmrm.train.supervised.optimizer import FiniteTrainer, compiled_graphs, learning_rates
from mmrm.train.supervised.steps import PackedRow, Step, StepDataset, make_row

SMALL = 2**20
"""Largest number of elements of a parameter whose gradient takes no memory worth counting."""

DATA_WAIT = "data_wait"
"""The logged share of the time in which a rank waited for its data, the mean over ranks."""
UNUSABLE = "dropped/unusable"
"""The logged number of records that could not be used when they were loaded, and were replaced."""


def only_item(batch: list[Step]) -> Step:
    """Return the only item of a loader's batch; a step is loaded as a batch of one item."""
    return batch[0]


def step_seed(seed: int, step: int, rank: int) -> int:
    """Return the seed of the random numbers, such as dropout's, that a rank draws in a step.

    It depends on nothing but the three arguments. A resumed run therefore draws the same numbers,
    although evaluations, repeated steps and filler rows draw numbers, too.
    """
    return random.Random(f"{seed}/{step}/{rank}").getrandbits(63)


class PackedTrainer(FiniteTrainer):
    """Hugging Face's Trainer over packed rows."""

    def __init__(self, *, objective: Objective, steps: StepDataset, **trainer: Any) -> None:
        """Create the trainer and its token budget.

        Args:
            objective: The loss of a row, and its figures in the log.
            steps: The optimizer steps of the run for this rank.
            trainer: Further arguments of FiniteTrainer.
        """
        super().__init__(train_dataset=steps, **trainer)
        self.objective = objective
        self.steps = steps
        self.folder = Path(self.args.output_dir)
        self.group: SequenceGroup | None = make_group(self.optim.sequence_parallel)
        """The ranks that compute rows together with this one; None if it computes rows alone."""
        self.routers = RouterWatch(self.model, self.optim.router_aux_loss_coef)
        largest_budget = ceiling(self.optim.token_budget, self.folder)
        self.budget = RowBudget(steps, self.args.device, largest_budget)
        self._sums: defaultdict[str, Tensor | float] = defaultdict(float)
        """Sums over this rank's rows since the last log line."""
        self._rates: dict[str, float] = {}
        """Learning rate of every trained part in the last step."""

    def get_train_dataloader(self) -> DataLoader[Step]:
        """Return the loader of the steps without accelerate's wrapper.

        The wrapper would divide the steps over ranks, but `StepDataset` has already done so.
        """
        num_workers = self.args.dataloader_num_workers
        return DataLoader(
            self.steps,
            collate_fn=only_item,
            num_workers=num_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            persistent_workers=num_workers > 0,
            pin_memory=torch.cuda.is_available(),
        )

    def get_batch_samples(
        self, epoch_iterator: Iterator[Step], num_batches: int, device: torch.device
    ) -> tuple[list[Step], Any]:
        """Load the next step as Trainer does, and count the seconds for which it was waited for.

        The first step is not counted, because the processes of the loader start with it.
        """
        begin = time.perf_counter()
        with announced_wait(self.args.process_index, self.state.global_step + 1):
            samples: tuple[list[Step], Any] = super().get_batch_samples(
                epoch_iterator, num_batches, device
            )
        if self.speed_start is not None:
            self._sums[DATA_WAIT] += time.perf_counter() - begin
        return samples

    def training_step(
        self, model: nn.Module, inputs: Step, num_items_in_batch: Tensor | None = None
    ) -> Tensor:
        """Compute loss and gradients of one optimizer step, and return the loss as a scalar.

        If memory runs out, the step is computed again with smaller rows, where that is possible.
        """
        model.train()
        self.speed_start = self.speed_start or time.perf_counter()
        self.objective.step = self.state.global_step
        assert self.optimizer is not None, "Trainer creates the optimizer before the first step."
        self._rates = learning_rates(self.optimizer)
        rows = self.budget.fit(inputs["rows"])
        loss = self._try_step(model, rows)
        while loss is None:  # a rank ran out of memory
            model.zero_grad()
            self.budget.lower(rows)
            rows = self.budget.fit(rows)
            loss = self._try_step(model, rows)
        self.budget.end_step(rows)
        self._sums[UNUSABLE] += inputs["skipped"]
        self.passes.append({**inputs, "loss": loss})
        return loss

    def _try_step(self, model: nn.Module, rows: list[PackedRow]) -> Tensor | None:
        """Run forward and backward of every row, and return the step's loss.

        Returns None, on all ranks, if any rank ran out of memory and the step can be repeated with
        smaller rows. It can be repeated only until gradients are exchanged. DDP exchanges them with
        the last row, so that row must be a size that fitted before, or a filler. DeepSpeed
        exchanges them in every backward pass, so the largest row is tried once before the step
        begins. Ranks that compute a row together exchange tensors in every layer, so their steps
        are never repeated.

        Args:
            model: The model in its wrappers.
            rows: The rows of the step on this rank, largest first.

        Raises:
            UserError: Memory ran out after gradients were exchanged.
        """
        rows = self._pad_to_equal_count(rows)
        totals = self._totals_over_ranks(rows)
        if self.is_deepspeed_enabled and not self._fits(rows[0], totals):
            return None

        # Seeded per step: fillers, evaluations and repeated steps also draw random numbers.
        seed = step_seed(self.args.seed, self.state.global_step, self.args.process_index)
        torch.manual_seed(seed)
        sums_before = self._sums.copy()
        loss = torch.zeros((), device=self.args.device)
        out_of_memory = False
        for index, row in enumerate(rows):
            is_last = index == len(rows) - 1
            if is_last and not self.is_deepspeed_enabled:
                out_of_memory = bool(max_over_ranks(int(out_of_memory), self.args.device))
            if out_of_memory:
                continue  # not `break`: the ranks still have to agree at the last row
            try:
                with self.budget.watch(row, index):
                    loss += self._run_row(model, row, totals, is_last=is_last)
            except torch.OutOfMemoryError as error:
                is_exchanged = self.is_deepspeed_enabled or (is_last and self.args.world_size > 1)
                if is_exchanged or self.group is not None:
                    write_lowered_budget(row, self.folder)
                    raise UserError(out_of_memory_message(row, self.folder)) from error
                out_of_memory = True
        if out_of_memory:
            self._sums = sums_before
            return None
        return loss

    def _pad_to_equal_count(self, rows: list[PackedRow]) -> list[PackedRow]:
        """Return the rows, with fillers appended until all ranks have equally many rows.

        A filler is a row without records, whose loss is zero. Under DDP a filler is also appended
        if the last row may run out of memory.
        """
        is_ddp = self.args.world_size > 1 and not self.is_deepspeed_enabled
        num_wanted = len(rows)
        if is_ddp and self.budget.may_run_out(rows[-1]):
            num_wanted += 1  # the last row has to be a filler
        count = max_over_ranks(num_wanted, self.args.device)
        filler = make_row([], self.steps.pack)
        return rows + [filler] * (count - len(rows))

    def _totals_over_ranks(self, rows: list[PackedRow]) -> Tensor:
        """Return the numbers of records and learned tokens of the step on all ranks, (2,) fp32.

        Each is at least 1, because losses are divided by them.
        """
        totals = torch.stack([row.totals() for row in rows]).sum(0).to(self.args.device)
        return sum_over_ranks(totals).clamp_min(1.0)

    def _fits(self, row: PackedRow, totals: Tensor) -> bool:
        """Return True if the step's largest row fits into memory on every rank; all call together.

        A row that may run out of memory is computed once, and its gradients are dropped. DeepSpeed
        exchanges gradients in hooks that are called when gradients are accumulated.
        `torch.autograd.grad` does not accumulate, so no gradient is exchanged or kept.

        Under ZeRO-3 no row is tried, because ranks exchange weights during the forward pass, and
        none is tried if ranks compute rows together. There, rows stay within the budget that
        measured memory allows (`token_budget` in train/methods/method.py).

        Args:
            row: The largest row of the step on this rank.
            totals: The result of `_totals_over_ranks`.
        """
        fits = True
        computes_alone = self.group is None and not is_deepspeed_zero3_enabled()
        if self.budget.may_run_out(row) and computes_alone:
            try:
                # These tensors keep the memory that the gradients will take.
                held_memory = self._gradients_to_come()
                loss, _ = self._loss_of_row(self.model, row, totals)
                # Every layer has small parameters (norms, adapters), so a backward pass for them
                # reaches all layers.
                small_parameters = [
                    parameter
                    for parameter in self.model.parameters()
                    if parameter.requires_grad and parameter.numel() <= SMALL
                ]
                torch.autograd.grad(loss, small_parameters, allow_unused=True)
                del held_memory
            except torch.OutOfMemoryError:
                fits = False
        return not max_over_ranks(int(not fits), self.args.device)

    def _gradients_to_come(self) -> list[Tensor]:
        """Return uninitialised tensors of the size of the gradients that do not exist yet.

        ZeRO-2 keeps a share of the summed gradients on each rank, in fp32.
        """
        is_zero2 = self.accelerator.state.deepspeed_plugin.zero_stage == 2
        num_shares = self.args.world_size if is_zero2 else 1
        gradients = []
        for parameter in self.model.parameters():
            if not parameter.requires_grad or parameter.grad is not None:
                continue
            dtype = torch.float32 if is_zero2 else parameter.dtype
            size = parameter.numel() // num_shares
            gradients.append(torch.empty(size, dtype=dtype, device=parameter.device))
        return gradients

    def _run_row(
        self, model: nn.Module, row: PackedRow, totals: Tensor, *, is_last: bool
    ) -> Tensor:
        """Run forward and backward of one row, and return its share of the step's loss, a scalar.

        DDP exchanges gradients with the last row of a step, DeepSpeed with every row.

        Args:
            model: The model in its wrappers.
            row: The row.
            totals: The result of `_totals_over_ranks`, by which the loss is divided.
            is_last: True for the last row of the step.
        """
        # Trainer itself uses this private setter. Accelerate's wrapper of DeepSpeed reads it as the
        # end of gradient accumulation.
        self.accelerator.gradient_state._set_sync_gradients(is_last)
        exchanges_gradients = self.is_deepspeed_enabled or is_last
        with nullcontext() if exchanges_gradients else self.accelerator.no_sync(model):
            loss, sums = self._loss_of_row(model, row, totals)
            # The loss is divided by the totals of all ranks, so gradients have to be summed over
            # ranks. The ranks average them instead, which the factor `world_size` undoes.
            # DeepSpeed must not divide the loss by a number of accumulated passes, either.
            options = {"scale_wrt_gas": False} if self.is_deepspeed_enabled else {}
            self.accelerator.backward(loss * self.args.world_size, **options)
        sums_of_row: dict[str, Tensor | float] = {
            **sums,
            "records": row.records,
            "tokens": row.batch.tokens,
        }
        for name, value in sums_of_row.items():
            # Not `+=`, which would also change the copy that a repeated step goes back to.
            self._sums[name] = self._sums[name] + value
        return loss.detach().mul(self.args.world_size)

    def _loss_of_row(
        self, model: nn.Module, row: PackedRow, totals: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the share of a row in the step's loss, a scalar, and sums for the log.

        It is the loss of the objective, and that of load balancing if the recipe asks for it. If N
        ranks compute a row together, its gradients are counted N times, and so are its records in the
        totals (see models/packing/sequence_parallel.py).

        Args:
            model: The model in its wrappers, or without them.
            row: The row.
            totals: The result of `_totals_over_ranks`, by which the loss is divided.
        """
        if self.group is not None:
            vision = self.processing_class.vision
            row = row._replace(batch=divide(row.batch, self.group, vision))
        with self.compute_loss_context_manager(), self.routers.record():
            loss, sums = self.objective.loss(model, row.to(self.args.device), totals)
        balancing_loss, router_sums = self.routers.loss(row, totals)
        return loss + balancing_loss, {**sums, **router_sums}

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Raise IncompleteCheckpointError if a checkpoint lacks weights or has further ones.

        Trainer calls this method after it has loaded the weights to resume from. Trainer's version
        logs a warning and continues.

        Args:
            load_result: The names of missing and unexpected weights, from `load_state_dict`.
        """
        # A weight that is tied to another one is not stored by itself.
        tied_keys = set(self.model.all_tied_weights_keys)
        refuse_incomplete(
            "the checkpoint to resume from",
            {
                "missing_keys": set(load_result.missing_keys) - tied_keys,
                "unexpected_keys": load_result.unexpected_keys,
                "mismatched_keys": (),
            },
        )

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0 instead of Trainer's estimate, which would be wrong for packed rows."""
        return 0

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add figures of the objective, speed and learning rates to Trainer's log line."""
        if "loss" in logs:
            # Trainer logs the learning rate of the first group, which may be the vision tower's.
            language_rate = self._rates.get("language", logs["learning_rate"])
            logs = {**logs, "learning_rate": language_rate, **self._figures()}
        super().log(logs, start_time)

    def _figures(self) -> dict[str, float]:
        """Return the figures over all rows since the last log line, and start new sums.

        All ranks must call together.
        """
        own_sums = {name: float(value) for name, value in self._sums.items()}
        sums: defaultdict[str, float] = defaultdict(float)
        for sums_of_rank in gather(own_sums):
            for name, value in sums_of_rank.items():
                # Each rank of a group has counted the same rows.
                sums[name] += value / self.optim.sequence_parallel
        self._sums.clear()

        now = time.perf_counter()
        seconds = now - (self.speed_start or now)
        self.speed_start = now
        figures = {**self.objective.report(sums), **router_figures(sums)}
        figures["records_per_second"] = sums["records"] / seconds
        figures["tokens_per_second"] = sums["tokens"] / seconds
        # The sum over ranks was divided by the ranks of a group, and a rank waits for itself.
        num_groups = self.args.world_size / self.optim.sequence_parallel
        figures[DATA_WAIT] = sums[DATA_WAIT] / num_groups / seconds
        if sums[UNUSABLE]:
            figures[UNUSABLE] = sums[UNUSABLE]
        for part, rate in self._rates.items():
            figures[f"learning_rate/{part}"] = rate
        if self.optim.compile != "none":
            figures["compiled_graphs"] = compiled_graphs()
        figures["data_epoch"] = self.state.global_step / self.steps.steps_per_epoch
        return figures
