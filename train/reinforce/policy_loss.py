"""StableReinforce as pure functions (R1-Reward, arXiv 2505.02835, section 4).

They compute the advantages, the policy loss and the KL divergence of B texts of at most T tokens.
The log-ratio of a sampled token is its log-probability under the policy, minus that under the
policy that sampled it. The trainer is in train/reinforce/rollout_trainer.py.
"""

from math import inf, log
from typing import NamedTuple

import torch
from torch import Tensor

from mmrm.train.reinforce.config import AdvantageConfig, PreClipConfig, RolloutConfig

SMALL = 1e-8
"""Is added to a standard deviation before a division by it."""


class Advantages(NamedTuple):
    """The advantages of B texts, and which of them the filter set to 0."""

    advantages: Tensor
    """(B,) fp32."""
    filtered: Tensor
    """(B,) bool."""


def compute_advantages(rewards: Tensor, group_size: int, config: AdvantageConfig) -> Advantages:
    """Return the advantages of the texts of a whole rollout batch.

    `config.normalisation` decides how they are computed from the rewards r:

    - `batch` (Reinforce++): (r - mean) / std, over the batch.
    - `group` (GRPO): (r - mean) / std, over the texts of a prompt, with the unbiased std.
    - `leave_one_out`: (r - mean of the prompt's other texts) / std of the batch.

    Args:
        rewards: The rewards, (B,). The texts of a prompt follow one another.
        group_size: The number of texts of each prompt.
        config: The normalisation and the filter.
    """
    # In fp32 equal rewards would not give 0: the rounding error of their mean, divided by a
    # standard deviation of almost 0, would be an advantage of several units.
    rewards = rewards.double()
    groups = rewards.view(-1, group_size)
    if config.normalisation == "batch":
        advantages = (rewards - rewards.mean()) / (rewards.std(correction=0) + SMALL)
    elif config.normalisation == "group":
        means = groups.mean(1, keepdim=True)
        deviations = groups.std(1, keepdim=True)
        advantages = ((groups - means) / (deviations + SMALL)).flatten()
    else:
        means_of_others = (groups.sum(1, keepdim=True) - groups) / (group_size - 1)
        advantages = (groups - means_of_others).flatten() / (rewards.std(correction=0) + SMALL)

    bound = inf if config.filter is None else config.filter
    bounded = advantages
    if config.filter_variant == "r1_released":
        bounded = rewards - rewards.mean()
    filtered = bounded.abs() > bound
    return Advantages(advantages.masked_fill(filtered, 0.0).float(), filtered)


def largest_advantage(num_texts: int, group_size: int, config: AdvantageConfig) -> float:
    """Return the largest advantage that is possible in a rollout batch of `num_texts` texts.

    A text has this advantage if all other texts have the same reward, and it alone a larger one.
    `group_size` is the number of texts of each prompt.
    """
    if config.normalisation == "group":
        # by the standard deviation of a sample, which divides by (group_size - 1)
        return float((group_size - 1) / group_size**0.5)
    # by the standard deviation of the whole batch, which divides by num_texts
    largest = (num_texts - 1) ** 0.5
    if config.normalisation == "leave_one_out":
        stretch = group_size / (group_size - 1)
        return float(stretch * largest)
    return float(largest)


def pre_clipped(log_ratio: Tensor, bounds: PreClipConfig | None) -> Tensor:
    """Return log-ratios within the bounds, so that their exponentials and gradients stay finite.

    If `bounds` is None, they are returned unchanged.
    """
    if bounds is None:
        return log_ratio
    return log_ratio.clamp(log(bounds.lowest), log(bounds.highest))


def policy_loss(log_ratio: Tensor, advantages: Tensor, config: RolloutConfig) -> Tensor:
    """Return the loss of every token, (B, T).

    The loss is -min(ratio * A, clip(ratio) * A), where A is the text's advantage, the ratio is
    pre-clipped, and the clip is PPO's. With `dual_clip` c the loss of a negative advantage is at
    most -c * A (arXiv 1912.09729). With `epsilon_high` the upper clip has its own bound (arXiv
    2503.14476).

    Args:
        log_ratio: The log-ratio of every token, (B, T).
        advantages: The advantage of every text, (B,).
        config: The bounds.
    """
    token_advantages = advantages[:, None]
    ratio = pre_clipped(log_ratio, config.pre_clip).exp()
    epsilon_high = config.epsilon if config.epsilon_high is None else config.epsilon_high
    clipped_ratio = ratio.clamp(1 - config.epsilon, 1 + epsilon_high)
    loss = -torch.minimum(ratio * token_advantages, clipped_ratio * token_advantages)
    if config.dual_clip is None:
        return loss
    bounded_loss = torch.minimum(loss, -config.dual_clip * token_advantages)
    return torch.where(token_advantages < 0, bounded_loss, loss)


def kl_divergence(log_p: Tensor, reference_log_p: Tensor, form: str) -> Tensor:
    """Return an estimate of KL(policy || reference) at every sampled token, (B, T).

    Args:
        log_p: The log-probability of every token under the policy, (B, T).
        reference_log_p: The same under the reference, a frozen model, (B, T).
        form: The estimator, `k1`, `k2` or `k3` in J. Schulman's note "Approximating KL Divergence".
    """
    difference = log_p - reference_log_p
    if form == "k1":
        return difference
    if form == "k2":
        return difference.square() / 2
    return (-difference).exp() + difference - 1  # k3


def sequence_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of `values` (B, T) over the tokens of every text, (B,).

    `mask` (B, T) is 1 for the tokens of a text and 0 for padding. The mean of a text without tokens
    is 0.
    """
    return (values * mask).sum(1) / mask.sum(1).clamp_min(1)
