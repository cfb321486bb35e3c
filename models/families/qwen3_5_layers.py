"""The layers of Qwen3.5's language model that take the plans of packed rows.

A loaded model takes these classes on in place of the stock ones (`take_plans` in
`mmrm.models.backbone`). They have no parameters of their own, and without a plan they compute what
the stock classes compute.
"""

from __future__ import annotations

import functools
import inspect
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen3_5TextModel
from transformers.activations import ACT2FN
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    Qwen3_5GatedDeltaNet,
    torch_chunk_gated_delta_rule,
)

from mmrm.models.packing.attention import AttentionPlan
from mmrm.models.packing.decode_attention import DecodePlan
from mmrm.models.packing.recurrent import (
    DeltaInputs,
    PrefillCache,
    RecurrentPlan,
    branching_convolution,
    branching_delta_rule,
    varlen_delta_rule,
)


class PackedTextModel(Qwen3_5TextModel):  # type: ignore[misc]
    """The language model, which gives each kind of layer its own plan.

    The stock model passes a plan to attention layers alone: `create_recurrent_attention_mask`
    returns None for all that is no mask of padding, and states would run on from one conversation
    into the next. It passes a dictionary of masks, one for each kind of layer, on unchanged.
    """

    def forward(self, input_ids: Any = None, attention_mask: Any = None, **kwargs: Any) -> Any:
        """Run the stock forward, with a plan turned into one plan for each kind of layer."""
        if isinstance(attention_mask, AttentionPlan):
            attention_mask = {
                "full_attention": attention_mask,
                "linear_attention": attention_mask.recurrent(self.config.linear_conv_kernel_dim),
            }
        elif isinstance(attention_mask, DecodePlan):
            # A step of generation: the states of each text are in the cache.
            attention_mask = {"full_attention": attention_mask, "linear_attention": None}
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, **kwargs)


class PackedGatedDeltaNet(Qwen3_5GatedDeltaNet):  # type: ignore[misc]
    """The gated delta-rule layer, which takes a `RecurrentPlan` in place of a mask of padding."""

    def forward(
        self,
        hidden_states: Tensor,
        cache_params: Any = None,
        attention_mask: Any = None,
        **kwargs: Any,
    ) -> Tensor:
        """Compute a packed row, or run the stock forward if the mask is no plan.

        Args:
            hidden_states: (1, T, H) for a packed row.
            cache_params: None, or the `PrefillCache` that keeps the states of the row.
            attention_mask: A `RecurrentPlan`, or a stock mask, or None.
            kwargs: Arguments of the stock forward.

        Returns:
            (1, T, H) for a packed row.
        """
        if not isinstance(attention_mask, RecurrentPlan):
            stock: Tensor = super().forward(
                hidden_states, cache_params=cache_params, attention_mask=attention_mask, **kwargs
            )
            return stock

        plan = attention_mask
        hidden = hidden_states[0]
        mixed = self.in_proj_qkv(hidden)
        convolved = branching_convolution(mixed, self.conv1d, plan)
        inputs = self._delta_inputs(hidden, ACT2FN[self.activation](convolved))
        kernel = fast_kernel() if hidden.is_cuda else None
        if kernel is None:
            core, states = branching_delta_rule(inputs, plan, torch_kernel())
        else:
            core, states = varlen_delta_rule(inputs, plan, kernel)
        if isinstance(cache_params, PrefillCache):
            cache_params.keep_states(self.layer_idx, mixed, states, plan)

        gate = self.in_proj_z(hidden).reshape(-1, self.head_v_dim)
        normed = self.norm(core.reshape(-1, self.head_v_dim), gate)
        projected: Tensor = self.out_proj(normed.view(len(hidden), -1))
        return projected[None]

    def _delta_inputs(self, hidden: Tensor, convolved: Tensor) -> DeltaInputs:
        """Return the inputs of the delta rule, computed as in the stock forward.

        Args:
            hidden: Hidden states, (T, H).
            convolved: Queries, keys and values after the convolution, (T, channels).
        """
        sizes = [self.key_dim, self.key_dim, self.value_dim]
        query, key, value = torch.split(convolved, sizes, dim=-1)
        # Each key head serves the same number of successive value heads.
        values_per_key = self.num_v_heads // self.num_k_heads
        query = _by_head(query, self.head_k_dim).repeat_interleave(values_per_key, dim=1)
        key = _by_head(key, self.head_k_dim).repeat_interleave(values_per_key, dim=1)
        steps = F.softplus(self.in_proj_a(hidden).float() + self.dt_bias)
        return DeltaInputs(
            query=query,
            key=key,
            value=_by_head(value, self.head_v_dim),
            decay=-self.A_log.float().exp() * steps,
            rate=self.in_proj_b(hidden).sigmoid(),
        )


def _by_head(tensor: Tensor, size: int) -> Tensor:
    """Return `tensor` (T, heads x size) as (T, heads, size)."""
    return tensor.view(len(tensor), -1, size)


@functools.cache
def torch_kernel() -> Any:
    """Return the kernel of the delta rule in plain torch, which runs on every device.

    Where flash-linear-attention is installed, the name in transformers leads to its kernel, which
    runs on GPUs alone.
    """
    return inspect.unwrap(torch_chunk_gated_delta_rule)


@functools.cache
def fast_kernel() -> Any | None:
    """Return flash-linear-attention's kernel of the delta rule, or None if it is not installed.

    It needs a CUDA device, and was not run on one with packed rows. `make fla-interpreted` runs it by
    Triton's interpreter. It is called as in transformers, with the segments of a level as its
    `cu_seqlens`.
    """
    if find_spec("fla") is None:
        return None
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    return chunk_gated_delta_rule
