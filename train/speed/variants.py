"""The variants whose speed is compared: the same weights and pairs, padded, packed, shared and compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from models.backbone import set_attention
from models.packing.groups import Group, VisionTokens, pack
from models.portable.critic import CriticRewardModel
from train.speed.measure import measure, scores, stock_attention, stock_scores, unique_work
from train.speed.workload import padded_inputs, unshared, vision_tokens
from train.supervised.optimizer import compile_layers, restore_layers

STOCK, UNSHARED, SHARED, COMPILED = "stock, padded", "packed, not shared", "packed, shared", "packed, shared, compiled"
JUDGEMENTS = 8


@dataclass(frozen=True, slots=True)
class SpeedResult:
    """One line of the table; None where it did not fit into memory."""

    what: str
    variant: str
    checkpointing: bool
    pairs_per_second: float | None
    mfu: float | None
    peak_gib: float | None
    rows: int = 1
    """Rows (of the stock variant: batches) that the pairs were cut into, because fewer did not fit."""
    times_stock: float | None = None
    times_unshared: float | None = None


class Bench:
    """A model, the pairs it runs on, and the rate against which it is measured."""

    def __init__(self, model: CriticRewardModel, groups: Sequence[Group], rate: float, repeats: int) -> None:
        self.model, self.groups, self.rate, self.repeats = model, groups, rate, repeats
        self.device: torch.device = model.device
        self.vision: VisionTokens = vision_tokens(model.config)

    def forwards(self, variant: str, rows: int = 1) -> list[Callable[[], Tensor]]:
        """Return what scores the pairs, a call for each of `rows` equal shares; the attention it needs is set."""
        if variant == STOCK:
            stock_attention(self.model)
        else:
            set_attention(self.model)
        if variant == COMPILED:
            compile_layers(self.model.model)
        return [self._forward(variant, self.groups[number::rows]) for number in range(rows)]

    def _forward(self, variant: str, groups: Sequence[Group]) -> Callable[[], Tensor]:
        if variant == STOCK:
            inputs, ends = padded_inputs(groups, self.vision)
            inputs, ends = {name: value.to(self.device) for name, value in inputs.items()}, ends.to(self.device)
            return lambda: stock_scores(self.model, inputs, ends)
        batch = pack(unshared(groups) if variant == UNSHARED else groups, self.vision).to(self.device)
        return lambda: scores(self.model, batch)

    def run(self, what: str, variant: str, checkpointing: bool = False) -> SpeedResult:
        """Measure `training` (forward and backward) or `inference` in one variant, in as few rows as fit."""
        for rows in (2**power for power in range(len(self.groups).bit_length())):
            try:
                return self._run(what, variant, checkpointing, rows)
            except torch.OutOfMemoryError:
                continue
        return SpeedResult(what, variant, checkpointing, None, None, None)

    def _run(self, what: str, variant: str, checkpointing: bool, rows: int) -> SpeedResult:
        if checkpointing:
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        training = what == "training"
        self.model.train(training)
        try:
            call = (self._step if training else self._inference)(self.forwards(variant, rows))
            return replace(self._result(what, variant, checkpointing, call), rows=rows)
        finally:
            self.model.zero_grad(set_to_none=True)
            self.model.gradient_checkpointing_disable()
            restore_layers(self.model.model)

    def _inference(self, forwards: Sequence[Callable[[], Tensor]]) -> Callable[[], None]:
        @torch.no_grad()
        def score() -> None:
            for forward in forwards:
                forward()

        return score

    def _step(self, forwards: Sequence[Callable[[], Tensor]]) -> Callable[[], None]:
        def step() -> None:
            for forward in forwards:
                chosen, rejected = forward().view(-1, 2).unbind(1)
                torch.autograd.backward(-torch.nn.functional.logsigmoid(chosen - rejected).sum() / len(self.groups))

        return step

    def _result(self, what: str, variant: str, checkpointing: bool, call: Callable[[], Any]) -> SpeedResult:
        found = measure(call, self.device, self.repeats)
        work = unique_work(self.model, self.groups) * (3 if what == "training" else 1)
        mfu = work / self.rate / found.seconds
        return SpeedResult(what, variant, checkpointing, len(self.groups) / found.seconds, mfu, found.peak)

    def judgements(self, variant: str) -> SpeedResult:
        """Measure the log-probabilities of JUDGEMENTS judgements over the prompt of every pair, without gradients."""
        set_attention(self.model)
        self.model.eval()
        batch = pack(self.groups if variant == SHARED else unshared(self.groups), self.vision).to(self.device)
        return self._result(
            f"log-probabilities of {JUDGEMENTS}", variant, False, torch.no_grad()(lambda: self.model(**batch.label_inputs()))
        )
