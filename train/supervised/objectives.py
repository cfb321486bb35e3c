"""The losses of packed rows: the interface `Objective`, and the loss of pairs.

A loss is never averaged over a row. A sum over pairs (or labels) is divided by their number in the
whole optimizer step, on all ranks.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from math import exp
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from mmrm.train.supervised.steps import PackedRow

MAX_MEAN_NLL = 50.0
"""Largest mean of negative log-likelihoods whose exponential is logged: exp(710) would overflow."""


class Objective(ABC):
    """The loss of a packed row, and the figures of the log that are made of it."""

    step = 0
    """The current optimizer step; the trainer sets it."""
    unit: ClassVar = "records"
    """Name of the sum by which `mean_loss` divides: `records`, or `labels` for learned tokens."""

    @abstractmethod
    def loss(
        self, model: nn.Module, row: PackedRow, totals: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a row, and sums for the log.

        A filler, a row without records, must run the model like any other row and give a loss of
        exactly zero.

        Args:
            model: The model, in the wrappers of DDP or DeepSpeed.
            row: A packed row on the model's device.
            totals: `PackedRow.totals` of the whole step on all ranks, (2,) fp32. The loss is
                divided by one of them.

        Returns:
            The loss, a scalar, and detached scalars by name. `report` receives the sums of these
            scalars over rows.
        """

    @abstractmethod
    def report(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return the figures of a log line.

        Args:
            sums: The second result of `loss`, summed over all rows since the last log line, and
                `records`, the number of their records.
        """

    def mean_loss(self, sums: Mapping[str, float]) -> float:
        """Return the mean loss of rows, per record or per learned token.

        Args:
            sums: The sums over rows that `report` receives, such as `records`, and `loss`, the sum
                of the rows' losses.
        """
        return sums["loss"] / max(sums[self.unit], 1.0)


def pair_loss(
    chosen: Tensor, rejected: Tensor, margin: Tensor | None = None, zero_weight: float = 0.0
) -> Tensor:
    """Return the loss of every pair, (pairs,) fp32.

    It is the Bradley-Terry loss -log sigmoid(chosen - rejected - margin), plus `zero_weight` *
    (chosen + rejected)^2, which pulls the mean score to zero. Plain Bradley-Terry is BaseReward's
    loss (arXiv 2509.16127, section 3). The margin is Llama 2's (arXiv 2307.09288, equation 2). The
    second term is an ablation of BaseReward (weight 0.1, 0.01 or 0.001) and part of the released
    MM-RLHF code (0.01).

    Args:
        chosen: Scores of the better responses, (pairs,) fp32.
        rejected: Scores of the worse responses, (pairs,) fp32.
        margin: The margin of every pair, (pairs,) fp32; None for 0.
        zero_weight: Weight of the second term.
    """
    difference = chosen - rejected
    if margin is not None:
        difference = difference - margin
    loss = -logsigmoid(difference)
    if zero_weight:
        loss = loss + zero_weight * (chosen + rejected).square()
    return loss


def score_sums(chosen: Tensor, rejected: Tensor) -> dict[str, Tensor]:
    """Return sums over pairs, from which `score_report` computes figures.

    Scores are summed in fp64, because their variance is a small difference of two large sums.

    Args:
        chosen: Scores of the better responses, (pairs,) fp32.
        rejected: Scores of the worse responses, (pairs,) fp32.
    """
    difference = chosen - rejected
    rewards = torch.cat([chosen, rejected]).double()
    return {
        "right": (difference > 0).sum(),
        "tied": (difference == 0).sum(),
        "margin": difference.sum(),
        "reward": rewards.sum(),
        "reward_squared": rewards.square().sum(),
    }


def score_report(sums: Mapping[str, float]) -> dict[str, float]:
    """Return the figures of pairs for the log: accuracy, ties, margin, mean and spread of scores.

    A tie counts as wrong in `accuracy`. `reward_spread` is the standard deviation of the scores.

    Args:
        sums: The sums of `score_sums`, and `records`, the number of pairs.
    """
    num_pairs = max(sums["records"], 1.0)
    mean = sums["reward"] / (2 * num_pairs)
    variance = max(sums["reward_squared"] / (2 * num_pairs) - mean * mean, 0.0)
    return {
        "accuracy": sums["right"] / num_pairs,
        "ties": sums["tied"] / num_pairs,
        "margin": sums["margin"] / num_pairs,
        "reward_mean": mean,
        "reward_spread": variance**0.5,
        "num_rewards": 2 * sums["records"],
    }


def perplexity(mean_nll: float) -> float:
    """Return the exponential of a mean negative log-likelihood, which is at most exp(50)."""
    return exp(min(mean_nll, MAX_MEAN_NLL))
