"""What the packed trainer learns from a row: pairs by Bradley-Terry, or text by cross-entropy.

No loss averages: a sum over pairs (or labels) is divided by their number in the whole optimizer step, on all ranks.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from mmrm.train.supervised.steps import PackedRow


class Objective(ABC):
    """The loss of a row, and what to report."""

    step = 0
    """The optimizer step under way; the trainer sets it."""
    unit: ClassVar = "records"
    """What `mean_loss` is a mean over."""

    @abstractmethod
    def loss(
        self, model: nn.Module, row: PackedRow, totals: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the row's loss divided by the `PackedRow.totals` of the whole step, and sums to report (detached scalars).

        A filler row must run the model like any other and give a loss of exactly zero.
        """

    @abstractmethod
    def report(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Turn the sums since the last log line, over all ranks, into the figures that a person reads."""

    def mean_loss(self, sums: Mapping[str, float]) -> float:
        """Return the loss of the rows that `sums` were taken over; `loss` among them is the sum of their undivided losses."""
        return sums["loss"] / max(sums[self.unit], 1.0)


def pair_loss(
    chosen: Tensor, rejected: Tensor, margin: Tensor | None = None, zero_weight: float = 0.0
) -> Tensor:
    """Return the loss of every pair: Bradley-Terry, -log sigmoid(chosen - rejected - margin), plus the zero-coefficient term.

    `chosen`, `rejected` and `margin` are (pairs,) fp32; so is the result. Plain Bradley-Terry is BaseReward's loss
    (arXiv 2509.16127, section 3); the margin is Llama 2's (arXiv 2307.09288, equation 2). `zero_weight` (chosen + rejected)^2
    pulls the mean score to zero: BaseReward's ablation (weight 0.1, 0.01 or 0.001) and the released MM-RLHF code (0.01).
    """
    difference = chosen - rejected
    loss = -logsigmoid(difference if margin is None else difference - margin)
    return loss + zero_weight * (chosen + rejected).square() if zero_weight else loss


def score_sums(chosen: Tensor, rejected: Tensor) -> dict[str, Tensor]:
    """Return the sums over pairs that `score_report` turns into figures; `chosen`, `rejected` are (pairs,) fp32.

    Rewards are summed in fp64: their variance is a small difference of two large sums where they are nearly alike.
    """
    difference, both = chosen - rejected, torch.cat([chosen, rejected]).double()
    return {
        "right": (difference > 0).sum(),
        "tied": (difference == 0).sum(),
        "margin": difference.sum(),
        "reward": both.sum(),
        "reward_squared": both.square().sum(),
    }


def score_report(sums: Mapping[str, float]) -> dict[str, float]:
    """Return accuracy (a tie is wrong), share of ties, mean margin, mean reward, its standard deviation, number of rewards."""
    pairs = max(sums["records"], 1.0)
    mean = sums["reward"] / (2 * pairs)
    return {
        "accuracy": sums["right"] / pairs,
        "ties": sums["tied"] / pairs,
        "margin": sums["margin"] / pairs,
        "reward_mean": mean,
        "reward_spread": max(sums["reward_squared"] / (2 * pairs) - mean * mean, 0.0) ** 0.5,
        "num_rewards": 2 * sums["records"],
    }
