"""The load-balancing loss of models with experts, in rows that compute a shared prompt once.

A router may come to send most tokens to few experts. The loss of the Switch Transformer (Fedus et
al., arXiv 2101.03961, equations 4 to 6) is small if all experts get equally many tokens. It is a
product of two means over tokens. A token of a prompt is in a row once, but in as many conversations
as the prompt has continuations, and counts so often. The loss of a row is therefore that of its
conversations in rows of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mmrm.data.errors import UserError
from mmrm.models.families.registry import family_of
from mmrm.train.supervised.steps import PackedRow

AUX_LOSS = "router_aux_loss"
"""Sum over rows of the load-balancing loss, times the records of the row."""
BUSIEST = "busiest_expert"
"""Sum over rows of the busiest expert's load, times the records of the row."""


class RouterLoad(NamedTuple):
    """What the routers of a model did with the tokens of a row."""

    loss: Tensor
    """The load-balancing loss, a scalar fp32. It is the number of experts of a token if all experts
    get equally many tokens, and larger otherwise."""
    busiest: Tensor
    """Tokens of the busiest expert of a layer, as a multiple of the mean over its experts; the mean
    over the layers, a detached scalar fp32."""


def router_load(logits: Sequence[Tensor], num_chosen: int, counts: Tensor) -> RouterLoad:
    """Return the load-balancing loss of a row, and the load of the busiest experts.

    The loss is that of `load_balancing_loss_func` in transformers.

    Args:
        logits: The logits of the router of each layer, (T, experts).
        num_chosen: Number of experts that compute a token.
        counts: The number of conversations in which each token is, (T,).
    """
    num_experts = logits[0].shape[-1]
    weights = counts.to(logits[0].device, torch.float32)
    num_tokens = weights.sum().clamp_min(1.0)  # a filler is in no conversation
    shares = []
    probabilities = []
    for logits_of_layer in logits:
        chances = logits_of_layer.softmax(dim=-1, dtype=torch.float32)
        chosen = chances.topk(num_chosen, dim=-1).indices
        tokens_of_experts = chances.new_zeros(num_experts)
        tokens_of_experts.scatter_add_(0, chosen.flatten(), weights.repeat_interleave(num_chosen))
        shares.append(tokens_of_experts / num_tokens)
        probabilities.append((chances * weights[:, None]).sum(0) / num_tokens)
    shares_by_layer = torch.stack(shares)
    mean_probabilities = torch.stack(probabilities).mean(0)
    loss = num_experts * (shares_by_layer.mean(0) * mean_probabilities).sum()
    loads = shares_by_layer.amax(1) * num_experts / num_chosen
    return RouterLoad(loss, loads.mean().detach())


class RouterWatch:
    """Records the logits of a model's routers while a row is computed.

    Nothing is recorded outside of `record`, for example while layers are computed again for the
    backward pass. The gradient of the loss flows through the recorded logits.
    """

    def __init__(self, model: nn.Module, coefficient: float | None) -> None:
        """Watch the routers of a model, if it has any.

        Args:
            model: The model, which may have adapters, before it is wrapped for DDP or DeepSpeed.
            coefficient: The weight of the load-balancing loss; None for the one in config.json.

        Raises:
            UserError: The coefficient is not 0, and the model has no experts.
        """
        config: Any = model.config
        family = family_of(config.model_type)
        self.coefficient = 0.0
        self.num_chosen = 0
        self.num_layers = 0
        self._is_recording = False
        self._logits: list[Tensor] = []
        if family.experts is None:
            if coefficient:
                raise UserError(
                    f"optim.router_aux_loss_coef={coefficient:g}, but {family.title} has no "
                    "experts. Remove the key, or take a backbone with experts."
                )
            return
        text_config = config.text_config
        self.coefficient = text_config.router_aux_loss_coef if coefficient is None else coefficient
        self.num_chosen = text_config.num_experts_per_tok
        pattern = rf"(.*\.)?language_model\.layers\.\d+\.{re.escape(family.experts.router)}"
        for name, module in model.named_modules():
            if re.fullmatch(pattern, name):
                module.register_forward_hook(self._keep_logits)
                self.num_layers += 1

    def _keep_logits(self, router: nn.Module, inputs: Any, outputs: tuple[Tensor, ...]) -> None:
        """Keep the logits of a router, its first output, if a row is being recorded."""
        if self._is_recording:
            self._logits.append(outputs[0])

    @contextmanager
    def record(self) -> Iterator[None]:
        """Record the logits of the routers inside the context, in which a row is computed once."""
        self._logits = []
        self._is_recording = True
        try:
            yield
        finally:
            self._is_recording = False

    def loss(self, row: PackedRow, totals: Tensor) -> tuple[Tensor | float, dict[str, Tensor]]:
        """Return the recorded row's share of the step's load-balancing loss, and sums for the log.

        The loss of a step is the mean over its rows on all ranks, weighted by their records.

        Args:
            row: The row.
            totals: `PackedRow.totals` of the whole step on all ranks, (2,) fp32.
        """
        logits = self._logits
        self._logits = []
        assert len(logits) == self.num_layers, (
            f"{len(logits)} routers ran in a row, and the model has {self.num_layers}."
        )
        if not logits:
            return 0.0, {}
        shares = row.batch.image_shares
        if shares is not None:
            # Several ranks compute the row, and this one has the logits of its stretch.
            logits = [
                shares.group.gather_stretches(stretch, row.batch.tokens) for stretch in logits
            ]
        load = router_load(logits, self.num_chosen, row.batch.conversation_counts)
        num_records_of_step = totals[0]
        loss = self.coefficient * row.records / num_records_of_step * load.loss
        sums = {
            AUX_LOSS: load.loss.detach() * row.records,
            BUSIEST: load.busiest * row.records,
        }
        return loss, sums


def router_figures(sums: dict[str, float]) -> dict[str, float]:
    """Return the figures of a log line about routers; none for a model without experts.

    Args:
        sums: The sums of `RouterWatch.loss`, and `records`, over all rows since the last line.
    """
    if AUX_LOSS not in sums:
        return {}
    num_records = max(sums["records"], 1.0)
    return {
        "router/aux_loss": sums[AUX_LOSS] / num_records,
        "router/busiest_expert": sums[BUSIEST] / num_records,
    }
