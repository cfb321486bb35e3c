"""StableReinforce as pure functions (R1-Reward, arXiv 2505.02835, section 4).

They are the advantages, the policy loss and the KL divergence of B texts of at most T tokens. A
`log_ratio` is log pi - log pi_old of the sampled tokens. The trainer is in
train/reinforce/rollout_trainer.py.
"""

from math import inf, log
from typing import NamedTuple

import torch
from torch import Tensor

from mmrm.train.reinforce.config import AdvantageConfig, PreClipConfig, RolloutConfig

SMALL = 1e-8


class Advantages(NamedTuple):
    """Advantages and which of them the filter set to 0."""

    advantages: Tensor
    """(B,) fp32."""
    filtered: Tensor
    """(B,) bool."""


def compute_advantages(rewards: Tensor, group: int, config: AdvantageConfig) -> Advantages:
    """Turn the rewards of a whole rollout batch into advantages.

    `batch` (Reinforce++) is (r - mean) / std over the batch. `group` (GRPO) is the same over the
    texts of a prompt, with the unbiased std. `leave_one_out` is r - mean of the prompt's other
    texts, over the batch's std. Equal rewards give 0, which takes fp64: in fp32 the rounding of
    their mean, divided by a std of almost 0, would count as an advantage of several units.

    Args:
        rewards: The rewards, (B,). The texts of a prompt follow one another.
        group: The number of texts of each prompt.
        config: The normalisation and the filter.
    """
    rewards = rewards.double()
    blocks = rewards.view(-1, group)
    if config.normalisation == "batch":
        advantages = (rewards - rewards.mean()) / (rewards.std(correction=0) + SMALL)
    elif config.normalisation == "group":
        advantages = (
            (blocks - blocks.mean(1, keepdim=True)) / (blocks.std(1, keepdim=True) + SMALL)
        ).flatten()
    else:
        others = (blocks.sum(1, keepdim=True) - blocks) / (group - 1)
        advantages = (blocks - others).flatten() / (rewards.std(correction=0) + SMALL)
    # The filter takes out |z| > bound, or in the released code's form |r - mean r| > bound.
    measured = advantages if config.filter_variant == "paper" else rewards - rewards.mean()
    filtered = measured.abs() > (inf if config.filter is None else config.filter)
    return Advantages(advantages.masked_fill(filtered, 0.0).float(), filtered)


def largest_advantage(judgements: int, group: int, config: AdvantageConfig) -> float:
    """Return the largest standardised advantage in a batch of `judgements` texts.

    It occurs if one reward is unlike all others. It is (G - 1) / sqrt(G) in a group of G with the
    unbiased std, and sqrt(N - 1) in a batch of N with the population's std. Leave-one-out stretches
    the latter by G / (G - 1).
    """
    if config.normalisation == "group":
        return float((group - 1) / group**0.5)
    stretch = group / (group - 1) if config.normalisation == "leave_one_out" else 1.0
    return float(stretch * (judgements - 1) ** 0.5)


def pre_clipped(log_ratio: Tensor, bounds: PreClipConfig | None) -> Tensor:
    """Clamp log-ratios before any exponential, so that ratio and gradient stay finite.

    Without `bounds` they are returned unchanged.
    """
    return log_ratio if bounds is None else log_ratio.clamp(log(bounds.lowest), log(bounds.highest))


def policy_loss(log_ratio: Tensor, advantages: Tensor, config: RolloutConfig) -> Tensor:
    """Return the loss of every token, (B, T): -min(ratio A, clip(ratio) A), the ratio pre-clipped.

    With `dual_clip` c the loss of a negative advantage is at most -c A (arXiv 1912.09729). With
    `epsilon_high` the upper clip has its own bound (arXiv 2503.14476).

    Args:
        log_ratio: The log-ratio of every token, (B, T).
        advantages: The advantage of every text, (B,).
        config: The bounds.
    """
    weights = advantages[:, None]
    ratio = pre_clipped(log_ratio, config.pre_clip).exp()
    high = config.epsilon if config.epsilon_high is None else config.epsilon_high
    loss = -torch.minimum(ratio * weights, ratio.clamp(1 - config.epsilon, 1 + high) * weights)
    if config.dual_clip is None:
        return loss
    return torch.where(weights < 0, torch.minimum(loss, -config.dual_clip * weights), loss)


def kl_divergence(log_p: Tensor, reference: Tensor, form: str) -> Tensor:
    """Estimate KL(policy || reference) at every sampled token, (B, T).

    `form` is k1, k2 or k3 of J. Schulman's note.
    """
    difference = log_p - reference
    if form == "k1":
        return difference
    if form == "k2":
        return difference.square() / 2
    return (-difference).exp() + difference - 1


def sequence_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the tokens of every text, (B,); `values` and `mask` are (B, T)."""
    return (values * mask).sum(1) / mask.sum(1).clamp_min(1)
