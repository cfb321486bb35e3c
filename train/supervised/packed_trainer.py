"""The packed trainer: one loader item is this rank's whole optimizer step.

The loop, DeepSpeed, checkpoints, rotation and logging are Hugging Face's. What is ours: a step runs as many packed rows as
the token budget makes of it, the loss is divided by the step's pairs (or labels) on all ranks, every rank runs the same
number of forwards, and evaluation happens inside `Trainer.evaluate`, before the checkpoint is saved.
It serves `rm.py` and `sft.py` alike: they differ in the `Objective`.
"""

import random
import time
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers.integrations import is_deepspeed_zero3_enabled

from mmrm.data.errors import UserError
from mmrm.models.distributed import gather, max_over_ranks, sum_over_ranks
from mmrm.models.portable.reward import refuse_incomplete
from mmrm.train.supervised.budget import RowBudget, cannot_repeat, ceiling
from mmrm.train.supervised.objectives import Objective
from mmrm.train.supervised.optimizer import FiniteTrainer, compiled_graphs, learning_rates
from mmrm.train.supervised.steps import PackedRow, Step, StepDataset, make_row

SMALL = 2**20
"""Values of a parameter whose gradient is no memory to speak of."""

UNUSABLE = "dropped/unusable"
"""The figure of the records that showed a fault only when they were used, and that others stood in for."""


def first(items: list[Step]) -> Step:
    """Collate a batch of one item into the item."""
    return items[0]


def step_seed(seed: int, step: int, rank: int) -> int:
    """Return the seed of a rank's dropout in a step: nothing that a resume does not repeat has a say in it.

    Fillers, an evaluation or a step that is computed again draw numbers, too.
    """
    return random.Random(f"{seed}/{step}/{rank}").getrandbits(63)


class PackedTrainer(FiniteTrainer):
    """Hugging Face's Trainer over packed rows; `train_dataset` must be a `StepDataset`."""

    def __init__(self, *, objective: Objective, steps: StepDataset, **trainer: Any) -> None:
        super().__init__(train_dataset=steps, **trainer)
        self.objective, self.steps = objective, steps
        self.folder = Path(self.args.output_dir)
        self.budget = RowBudget(
            steps, self.args.device, ceiling(self.optim.token_budget, self.folder)
        )
        self._sums: defaultdict[str, Tensor | float] = defaultdict(float)
        self._rates: dict[str, float] = {}

    def get_train_dataloader(self) -> DataLoader[Step]:
        """Return the loader unprepared: accelerate would shard over ranks what the data set has already shared out."""
        workers = self.args.dataloader_num_workers
        return DataLoader(
            self.steps,
            collate_fn=first,
            num_workers=workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            persistent_workers=workers > 0,
            pin_memory=torch.cuda.is_available(),
        )

    def training_step(
        self, model: nn.Module, inputs: Step, num_items_in_batch: Tensor | None = None
    ) -> Tensor:
        """Run this rank's rows of one optimizer step, and gradients of the step's mean loss; see the module docstring."""
        model.train()
        self.since = self.since or time.perf_counter()
        self.objective.step = self.state.global_step
        self._rates = learning_rates(self.create_optimizer())
        rows = self.budget.fit(inputs["rows"])
        while (total := self._attempt(model, rows)) is None:
            model.zero_grad()
            self.budget.lower(rows)
            rows = self.budget.fit(rows)
        self.budget.end_step(rows)
        self._sums[UNUSABLE] += inputs["skipped"]
        self.passes.append({**inputs, "loss": total})
        return total

    def _attempt(self, model: nn.Module, rows: list[PackedRow]) -> Tensor | None:
        """Run the step's rows and return its loss, or None on all ranks if memory ran out on one.

        Gradients are exchanged with the last row, and before it ranks agree whether to go on: it must be a size that has
        been computed before, or a filler. DeepSpeed exchanges them earlier, so that a row is tried beforehand.
        """
        device, sums = self.args.device, self._sums.copy()
        alone = self.args.world_size == 1
        wanted = len(rows) + (
            not self.is_deepspeed_enabled and not alone and self.budget.unproven(rows[-1])
        )
        rows = rows + [make_row([], self.steps.pack)] * (max_over_ranks(wanted, device) - len(rows))
        totals = sum_over_ranks(
            torch.stack([row.totals() for row in rows]).sum(0).to(device)
        ).clamp_min(1.0)
        if self.is_deepspeed_enabled and not self._fits(rows[0], totals):
            return None
        torch.manual_seed(
            step_seed(self.args.seed, self.state.global_step, self.args.process_index)
        )
        total = torch.zeros((), device=device)
        failed = False
        for number, row in enumerate(rows):
            last = number == len(rows) - 1
            if last and not self.is_deepspeed_enabled:
                failed = bool(max_over_ranks(int(failed), device))
            if failed:
                continue
            try:
                with self.budget.watch(row, number):
                    total += self._row(model, row, totals, last=last)
            except torch.OutOfMemoryError as error:
                if self.is_deepspeed_enabled or (last and not alone):
                    raise UserError(cannot_repeat(row, self.folder)) from error
                failed = True
        if failed:
            self._sums = sums
        return None if failed else total

    def _fits(self, row: PackedRow, totals: Tensor) -> bool:
        """Say whether the step's largest row fits on every rank: one larger than any before is computed once for nothing.

        DeepSpeed's hooks hang on the accumulation of gradients, which `torch.autograd.grad` leaves out, so nothing is sent and
        nothing kept. ZeRO-3 exchanges weights while it computes, so that no rank can try alone: there, rows stay within what
        measured memory allows (train/methods/method.py, `token_budget`).
        """
        fits = True
        if self.budget.unproven(row) and not is_deepspeed_zero3_enabled():
            try:
                held = self._gradients_to_come()
                with self.compute_loss_context_manager():
                    loss, _ = self.objective.loss(self.model, row.to(self.args.device), totals)
                # Every layer has small parameters (norms, adapters), so a backward pass for them reaches all layers.
                small = [
                    one
                    for one in self.model.parameters()
                    if one.requires_grad and one.numel() <= SMALL
                ]
                torch.autograd.grad(loss, small, allow_unused=True)
                del held
            except torch.OutOfMemoryError:
                fits = False
        return not max_over_ranks(int(not fits), self.args.device)

    def _gradients_to_come(self) -> list[Tensor]:
        """Return as much memory as the step's gradients will take; ZeRO-2 keeps a share of their sum, in fp32, on each rank."""
        shared = self.accelerator.state.deepspeed_plugin.zero_stage == 2
        kept = self.args.world_size if shared else 1
        missing = [one for one in self.model.parameters() if one.requires_grad and one.grad is None]
        return [
            torch.empty(
                one.numel() // kept, dtype=torch.float32 if shared else one.dtype, device=one.device
            )
            for one in missing
        ]

    def _row(self, model: nn.Module, row: PackedRow, totals: Tensor, *, last: bool) -> Tensor:
        """Forward and backward of one row; gradients are exchanged with the step's last row."""
        accelerator, deepspeed = self.accelerator, self.is_deepspeed_enabled
        # Trainer itself uses this private setter; accelerate's DeepSpeed wrapper reads it as the accumulation boundary.
        accelerator.gradient_state._set_sync_gradients(last)
        with nullcontext() if deepspeed or last else accelerator.no_sync(model):
            with self.compute_loss_context_manager():
                loss, sums = self.objective.loss(model, row.to(self.args.device), totals)
            # Ranks average their gradients, and the loss is already divided by the pairs of all ranks.
            accelerator.backward(
                loss * self.args.world_size, **({"scale_wrt_gas": False} if deepspeed else {})
            )
        row_sums: dict[str, Tensor | float] = {
            **sums,
            "records": row.records,
            "tokens": row.batch.tokens,
        }
        for name, value in row_sums.items():
            self._sums[name] = (
                self._sums[name] + value
            )  # anew: a step that runs out of memory takes back its sums
        return loss.detach().mul(self.args.world_size)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Refuse to resume from weights that are not exactly the model's; Trainer would say so in a log line and go on.

        Raises: IncompleteCheckpointError.
        """
        tied = set(self.model.all_tied_weights_keys)
        found = {
            "missing_keys": set(load_result.missing_keys) - tied,
            "unexpected_keys": load_result.unexpected_keys,
        }
        refuse_incomplete("the checkpoint to resume from", {**found, "mismatched_keys": ()})

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0: Trainer's estimate counts a padded batch; the speed figures are pairs/s and tokens/s."""
        return 0

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the method's figures, speed and learning rates, all summed over ranks, to Trainer's own line."""
        if "loss" in logs:
            # Trainer's own learning rate is that of the first group, which may be the vision tower's.
            logs = {
                **logs,
                "learning_rate": self._rates.get("language", logs["learning_rate"]),
                **self._figures(),
            }
        super().log(logs, start_time)

    def _figures(self) -> dict[str, float]:
        """Return the figures since the last line: sums over ranks, turned into what a person reads."""
        sums: defaultdict[str, float] = defaultdict(float)
        for part in gather({name: float(value) for name, value in self._sums.items()}):
            for name, value in part.items():
                sums[name] += value
        self._sums.clear()
        now = time.perf_counter()
        seconds, self.since = now - (self.since or now), now
        speed = {f"{unit}_per_second": sums[unit] / seconds for unit in ("records", "tokens")}
        dropped = {UNUSABLE: sums[UNUSABLE]} if sums[UNUSABLE] else {}
        rates = {f"learning_rate/{part}": rate for part, rate in self._rates.items()}
        epoch = self.state.global_step / self.steps.steps_per_epoch
        rates |= {"compiled_graphs": compiled_graphs()} if self.optim.compile != "none" else {}
        return {**self.objective.report(sums), **speed, **dropped, **rates, "data_epoch": epoch}
