"""Rewards that are made of the scores of the responses to one prompt.

Bradley-Terry learns differences of scores: score + c is as good a reward model for every c, so the
offset of a checkpoint's scores means nothing. A policy gradient that subtracts the mean of a group
(GRPO, RLOO) does not see the offset. A squashed or clipped score does, and so does a sum with other
rewards. The docstring of each form states its effect.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass


def raw(scores: Sequence[float]) -> list[float]:
    """Return the scores unchanged.

    An offset of the scores is in every reward. It cancels in advantages, where a group's mean is
    subtracted, but not where rewards are clipped. A scale of the scores is also that of the
    advantages, unless these are divided by their standard deviation.
    """
    return list(scores)


def standardised(
    scores: Sequence[float], mean: float, std: float, clip: float | None = None
) -> list[float]:
    """Return (score - mean) / std for each score.

    OpenRLHF does the same with `mean` and `std` of config.json, and clips to ±10. An offset and a
    scale of the scores have no effect, because `mean` and `std` change with them.

    Args:
        scores: The scores of the responses to one prompt.
        mean: The mean of the checkpoint's scores (`reference_scores` in its config.json).
        std: Their standard deviation.
        clip: Rewards above `clip` become `clip`, and those below `-clip` become `-clip`. None
            leaves them unchanged.
    """
    rewards = [(score - mean) / std for score in scores]
    if clip is None:
        return rewards
    return [min(max(reward, -clip), clip) for reward in rewards]


def sigmoid(scores: Sequence[float]) -> list[float]:
    """Return 1 / (1 + exp(-score)) for each score, which is from 0 to 1.

    An offset of the scores changes the rewards. Scores far from 0 get almost equal rewards near 0
    or 1, so the offset decides which scores can be distinguished. Standardise the scores first.
    """
    return [_sigmoid(score) for score in scores]


def relative(scores: Sequence[float], reference: float) -> list[float]:
    """Return sigmoid(score - reference) for each score, which is from 0 to 1.

    This is the model's probability that the response is better than the reference answer, as in PAR
    (arXiv 2502.18770). An offset of the scores has no effect. The larger the scale of the scores,
    the closer are the rewards to 0 or 1.

    Args:
        scores: The scores of the responses to one prompt.
        reference: The score of the reference answer to the same prompt. In PAR this is the answer
            of the policy before training.
    """
    return [_sigmoid(score - reference) for score in scores]


def rank(scores: Sequence[float]) -> list[float]:
    """Return for each response the share of the other responses with a lower score.

    The worst response gets 0 and the best 1. An equal score counts half. A single response gets
    0.5. The ranks depend only on the order of the scores, so offset and scale have no effect.
    """
    ascending = sorted(scores)
    num_others = len(scores) - 1
    if num_others == 0:
        return [0.5 for _ in scores]
    ranks: list[float] = []
    for score in scores:
        num_lower = bisect_left(ascending, score)
        num_equal_others = bisect_right(ascending, score) - num_lower - 1
        ranks.append((2 * num_lower + num_equal_others) / (2 * num_others))
    return ranks


def hybrid(scores: Sequence[float], right: Sequence[bool]) -> list[float]:
    """Return 1 for each response that is right, and sigmoid(score) for each that is wrong.

    This is BaseReward's reward for GRPO (arXiv 2509.16127). `right` holds the verdict of a verifier
    on each response. An offset of the scores changes the reward of wrong responses: with scores
    around +3.4 a wrong one gets 0.97. Standardise the scores first, or use `stratified`.
    """
    rewards: list[float] = []
    for score, is_right in zip(scores, right, strict=True):
        rewards.append(1.0 if is_right else _sigmoid(score))
    return rewards


def stratified(
    scores: Sequence[float], right: Sequence[bool], alpha: float = 0.1, beta: float = 0.1
) -> list[float]:
    """Return rewards near 1 for right responses and near 0 for wrong ones.

    In each of the two kinds a higher score gives a higher reward. A right response gets a reward
    from 1 - beta to 1 + beta, and a wrong one from -alpha to alpha. In these bounds the reward
    grows linearly from the lowest to the highest score of the responses of the same kind. If these
    scores are equal, or there is one response of the kind, the reward is 1 or 0. With alpha + beta
    < 1 every right response is above every wrong one. An offset and a scale of the scores have no
    effect.

    The form is that of HERO (arXiv 2510.07242) with two differences. HERO adds a small number to
    the denominator, so that equal scores get the lower bound. HERO also weights prompts by the
    spread of their scores, which is not done here.

    Args:
        scores: The scores of the responses to one prompt.
        right: The verdict of a verifier on each response.
        alpha: The largest distance of the reward of a wrong response from 0.
        beta: The largest distance of the reward of a right response from 1.
    """
    right_scores: list[float] = []
    wrong_scores: list[float] = []
    for score, is_right in zip(scores, right, strict=True):
        if is_right:
            right_scores.append(score)
        else:
            wrong_scores.append(score)
    rewards: list[float] = []
    for score, is_right in zip(scores, right, strict=True):
        if is_right:
            position = _position_in_range(score, right_scores)
            rewards.append(1.0 - beta + 2 * beta * position)
        else:
            position = _position_in_range(score, wrong_scores)
            rewards.append(0.0 - alpha + 2 * alpha * position)
    return rewards


def _position_in_range(score: float, scores: Sequence[float]) -> float:
    """Return 0 if `score` is the lowest of the scores, 1 if it is the highest, and else between.

    If all scores are equal, the result is 0.5.
    """
    lowest = min(scores)
    highest = max(scores)
    if lowest == highest:
        return 0.5
    # Halved first, because the difference of two large numbers may be beyond every float.
    return (score / 2 - lowest / 2) / (highest / 2 - lowest / 2)


def _sigmoid(score: float) -> float:
    # Both branches compute the same function. exp() of a large positive number would overflow.
    if score >= 0:
        return 1 / (1 + math.exp(-score))
    return math.exp(score) / (1 + math.exp(score))


@dataclass(frozen=True, slots=True)
class ScoreForm:
    """A function that makes rewards of the scores of one prompt's responses."""

    rewards: Callable[..., list[float]]
    """The function. It takes the scores, and the keyword arguments that `needs` names."""
    needs: tuple[str, ...] = ()


FORMS = {
    "raw": ScoreForm(raw),
    "standardised": ScoreForm(standardised, ("mean", "std", "clip")),
    "sigmoid": ScoreForm(sigmoid),
    "relative": ScoreForm(relative, ("reference",)),
    "rank": ScoreForm(rank),
    "hybrid": ScoreForm(hybrid, ("right",)),
    "stratified": ScoreForm(stratified, ("right",)),
}
"""All forms by their names, the values of `--form`."""
