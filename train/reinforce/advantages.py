"""Advantages of the texts of a rollout batch as pure functions of their rewards.

A group is the texts of one pair or question. The functions take the rewards of all ranks, so that
the number of ranks changes nothing. They compute in float64: in fp32 equal rewards would not give
0, because the rounding error of their mean, divided by a standard deviation of almost 0, would be
an advantage of several units.
"""

from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from mmrm.train.reinforce.advantage_config import (
    GrpoAdvantages,
    RlooAdvantages,
    StableReinforceAdvantages,
)

SMALL = 1e-8
"""Is added to a standard deviation before a division by it."""
SMALL_OF_GRPO = 1e-4
"""The same in GRPO, as in trl. Rewards that differ by less are hardly stretched."""


class Advantages(NamedTuple):
    """The advantages of B texts, and which of them a filter set to 0."""

    advantages: Tensor
    """(B,) fp32."""
    filtered: Tensor
    """(B,) bool."""


def stable_reinforce_advantages(
    rewards: Tensor, group_size: int, config: StableReinforceAdvantages
) -> Advantages:
    """Return the advantages of StableReinforce (R1-Reward, arXiv 2505.02835, section 4).

    `config.normalisation` decides how they are computed from the rewards r:

    - `batch` (Reinforce++): (r - mean) / std, over the batch.
    - `group`: (r - mean) / std, over the texts of a group, with the unbiased std.
    - `leave_one_out`: (r - mean of the group's other texts) / std of the batch.

    Args:
        rewards: The rewards, (B,). The texts of a group follow one another.
        group_size: The number of texts of each group.
        config: The normalisation and the filter.
    """
    rewards = rewards.double()
    groups = rewards.view(-1, group_size)
    if config.normalisation == "batch":
        advantages = (rewards - rewards.mean()) / (rewards.std(correction=0) + SMALL)
    elif config.normalisation == "group":
        means = groups.mean(1, keepdim=True)
        deviations = groups.std(1, keepdim=True)
        advantages = ((groups - means) / (deviations + SMALL)).flatten()
    else:
        advantages = (groups - _means_of_others(groups)).flatten()
        advantages = advantages / (rewards.std(correction=0) + SMALL)

    bound = inf if config.filter is None else config.filter
    bounded = advantages
    if config.filter_variant == "r1_released":
        bounded = rewards - rewards.mean()
    filtered = bounded.abs() > bound
    return Advantages(advantages.masked_fill(filtered, 0.0).float(), filtered)


def grpo_advantages(rewards: Tensor, group_size: int, config: GrpoAdvantages) -> Advantages:
    """Return the advantages of GRPO (arXiv 2402.03300, section 4.1.2) as trl computes them.

    They are (r - mean) / (std + 1e-4) over the texts of a group, with the unbiased std. The
    arguments are as in `stable_reinforce_advantages`.
    """
    groups = rewards.double().view(-1, group_size)
    means = groups.mean(1, keepdim=True)
    deviations = groups.std(1, keepdim=True)
    return _unfiltered((groups - means) / (deviations + SMALL_OF_GRPO))


def rloo_advantages(rewards: Tensor, group_size: int, config: RlooAdvantages) -> Advantages:
    """Return the advantages of RLOO (arXiv 2402.14740, section 2.3).

    They are r minus the mean of the group's other texts. The arguments are as in
    `stable_reinforce_advantages`.
    """
    groups = rewards.double().view(-1, group_size)
    return _unfiltered(groups - _means_of_others(groups))


def _means_of_others(groups: Tensor) -> Tensor:
    """Return for every reward the mean of the other rewards of its row, (groups, group size)."""
    return (groups.sum(1, keepdim=True) - groups) / (groups.shape[1] - 1)


def _unfiltered(groups: Tensor) -> Advantages:
    """Return advantages in rows of one group each, (groups, group size), of which none is left out."""
    advantages = groups.flatten().float()
    return Advantages(advantages, torch.zeros_like(advantages, dtype=torch.bool))
