"""StableReinforce as pure functions (R1-Reward, arXiv 2505.02835, section 4).

They compute the policy loss and the KL divergence of B texts of at most T tokens. Advantages are in
train/reinforce/advantages.py. The log-ratio of a sampled token is its log-probability under the policy, minus that under the
policy that sampled it. The trainer is in train/reinforce/rollout_trainer.py.
"""

from math import log

import torch
from torch import Tensor

from mmrm.train.reinforce.config import PreClipConfig, RolloutConfig


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
