"""Attention while continuations of a packed row are written: a new token sees its part of the row, and what was written since."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


@dataclass
class DecodePlan:
    """What the tokens of a decoding step see: a part of one packed row, and all that was generated after themselves.

    The keys and values of the packed row are read where they are by all C continuations, and are held once.
    """

    layers: list[tuple[Tensor, Tensor]]
    """Keys and values of the packed row in every layer, (key heads, T, d) each."""
    mask: Tensor
    """(C, T) additive: 0 at a continuation's prompt and at its own given tokens, else -inf."""
    ndim: ClassVar[int] = 1
    """As of an AttentionPlan."""

    @property
    def shape(self) -> tuple[int]:
        """Positions of the packed row that are held."""
        return (self.mask.shape[1],)

    def keep(self, index: Tensor) -> None:
        """Drop all continuations but those at `index`, and the positions of the row that none of these sees."""
        self.mask = self.mask[index]
        seen = (self.mask == 0).any(0).nonzero()[:, 0]
        if len(seen) < self.mask.shape[1]:
            self.mask = self.mask[:, seen]
            for number, (keys, values) in enumerate(self.layers):  # one layer after another, so that few are held twice
                self.layers[number] = keys[:, seen], values[:, seen]


def decode(query: Tensor, key: Tensor, value: Tensor, plan: DecodePlan, layer: int, scaling: float | None) -> Tensor:
    """Attend one token of every continuation: (C, heads, 1, d) over keys (C, key heads, n, d) and the packed row.

    Queries of all continuations and of the heads that share a key head are one matrix, so that the row's keys are read once.
    Logits and sums of values are fp32, as inside SDPA's kernels: key biases of hundreds leave bf16 steps of 1 or 2.
    """
    keys, values = plan.layers[layer]
    (count, heads, _, d), (shared, length) = query.shape, keys.shape[:2]
    own = query.to(keys.dtype).view(count, shared, heads // shared, d)
    together = _in_fp32(own.transpose(0, 1).reshape(shared, -1, d), keys.transpose(1, 2))
    seen = together.view(shared, count, -1, length).transpose(0, 1) + plan.mask[:, None, None]
    logits = torch.cat([seen, _in_fp32(own, key.to(keys.dtype).transpose(2, 3))], dim=3)
    weights = (logits * (d**-0.5 if scaling is None else scaling)).softmax(3).to(values.dtype)
    of_row = _in_fp32(weights[..., :length].transpose(0, 1).reshape(shared, -1, length), values)
    attended = of_row.view(shared, count, -1, d).transpose(0, 1) + _in_fp32(weights[..., length:], value)
    return attended.to(values.dtype).reshape(count, 1, heads, d)


def _in_fp32(a: Tensor, b: Tensor) -> Tensor:
    """Return the matrix product (..., n, m) x (..., m, k) in fp32, also of half precision and under autocast."""
    if a.is_cuda and a.dtype != torch.float32:
        found = torch.bmm(a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:]), out_dtype=torch.float32)
        return found.view(*a.shape[:-1], b.shape[-1])
    with torch.autocast(a.device.type, enabled=False):
        return a.float() @ b.float()
