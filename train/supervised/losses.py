"""The losses, as pure functions on tensors; every one returns a value for each pair or token, and the trainer divides.

Sums are divided by the number of pairs (or labels) of the whole optimizer step on all ranks, so no function here averages.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def bradley_terry(chosen: Tensor, rejected: Tensor, margin: Tensor | None = None) -> Tensor:
    """Return -log sigmoid(chosen - rejected - margin) for every pair.

    `chosen`, `rejected` and `margin` are (pairs,) fp32; so is the result. Plain Bradley-Terry is BaseReward's loss
    (arXiv 2509.16127, section 3); the margin is Llama 2's (arXiv 2307.09288, equation 2).
    """
    difference = chosen - rejected
    return -logsigmoid(difference if margin is None else difference - margin)


def zero_coefficient(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Return (chosen + rejected)^2 for every pair, (pairs,): it pulls the mean score to zero.

    BaseReward's ablation (weight 0.1, 0.01 or 0.001) and the released MM-RLHF code (weight 0.01); reward centring elsewhere.
    """
    return (chosen + rejected).square()


def length_normalised(scores: Tensor, lengths: Tensor) -> Tensor:
    """Return scores / log(length + 1); `scores` (continuations,) fp32, `lengths` (continuations,) response tokens >= 1.

    BaseReward's ablation "length normalisation": applied to both scores before the loss, and not at inference.
    """
    return scores / torch.log(lengths.to(scores.dtype) + 1.0)


def pair_loss(chosen: Tensor, rejected: Tensor, margin: Tensor | None = None, zero_weight: float = 0.0) -> Tensor:
    """Return the Naive-RM's loss for every pair: Bradley-Terry plus `zero_weight` times the zero-coefficient term."""
    loss = bradley_terry(chosen, rejected, margin)
    return loss + zero_weight * zero_coefficient(chosen, rejected) if zero_weight else loss
