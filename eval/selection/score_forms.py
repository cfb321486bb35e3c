"""Rewards made of the scores of the responses to one prompt, and the effect of the scores' offset on them.

Bradley-Terry learns differences: score + c is as good a reward model for every c, so that the offset of a checkpoint means
nothing. A policy gradient with a baseline of the group (GRPO, RLOO) does not see it; a squashed or clipped score and a sum with
other rewards do. Each form states it.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass


def raw(scores: Sequence[float]) -> list[float]:
    """Return the scores unchanged.

    Offset: stands in every reward; cancels in a group's advantages, not where rewards are clipped. Scale: the advantages' too,
    unless these are divided by their standard deviation.
    """
    return list(scores)


def standardised(
    scores: Sequence[float], mean: float, std: float, clip: float | None = None
) -> list[float]:
    """Return (score - mean) / std by the checkpoint's reference (`reference_scores` in its config.json).

    OpenRLHF does so with `mean` and `std` of config.json and clips to ±10 (`clip`). Offset and scale: both cancel, as the
    reference moves with the scores. A clip flattens what lies beyond it: responses there are told apart no more.
    """
    found = [(score - mean) / std for score in scores]
    return found if clip is None else [min(max(one, -clip), clip) for one in found]


def sigmoid(scores: Sequence[float]) -> list[float]:
    """Return 1 / (1 + exp(-score)), in [0, 1].

    Offset: does not cancel. It decides which scores are told apart and which are flattened at 0 or 1: standardise first.
    """
    return [_sigmoid(score) for score in scores]


def relative(scores: Sequence[float], reference: float) -> list[float]:
    """Return sigmoid(score - reference), the model's probability that a response beats the reference answer, in [0, 1].

    PAR (arXiv 2502.18770); `reference` is the score of an answer to the same prompt, the policy's own before training there.
    Offset: cancels, as both scores hold it. Scale: a larger one comes nearer to a comparison (0 or 1).
    """
    return [_sigmoid(score - reference) for score in scores]


def rank(scores: Sequence[float]) -> list[float]:
    """Return for each response the share of the other responses with a lower score.

    The worst response gets 0 and the best 1. An equal score counts half. A single response gets 0.5. The
    ranks depend only on the order of the scores, so offset and scale have no effect.
    """
    ordered = sorted(scores)
    others = len(scores) - 1
    if not others:
        return [0.5 for _ in scores]
    ranks: list[float] = []
    for score in scores:
        num_lower = bisect_left(ordered, score)
        num_lower_or_equal = bisect_right(ordered, score)
        ranks.append((num_lower + num_lower_or_equal - 1) / (2 * others))
    return ranks


def hybrid(scores: Sequence[float], right: Sequence[bool]) -> list[float]:
    """Return 1 where the verifier says right, else sigmoid(score), in [0, 1].

    BaseReward (arXiv 2509.16127), its reward for GRPO. Offset: does not cancel, and it sets the price of a wrong answer: with
    scores around +3.4 a wrong one is paid 0.97. Standardise first, or see `stratified`.
    """
    return [1.0 if known else _sigmoid(score) for score, known in zip(scores, right, strict=True)]


def stratified(
    scores: Sequence[float], right: Sequence[bool], alpha: float = 0.1, beta: float = 0.1
) -> list[float]:
    """Return -alpha + 2 alpha u for a wrong response, 1 - beta + 2 beta u for a right one: a score orders among its like only.

    u = (score - least) / (greatest - least) over the responses of the group that the verifier judges alike, so that alpha + beta
    < 1 puts every right response above every wrong one. After HERO (arXiv 2510.07242), which adds a small number to the
    denominator: there a response without another of its kind, and equal scores, get the low end of the band; here the middle, 0
    or 1, what the verifier alone would pay. HERO's weighting of prompts by the spread of their scores is not done. Offset and
    scale: both cancel.
    """
    bounds = {}
    for kind in (False, True):
        inside = [score for score, known in zip(scores, right, strict=True) if known == kind]
        bounds[kind] = (min(inside, default=0.0), max(inside, default=0.0))
    found = []
    for score, known in zip(scores, right, strict=True):
        least, greatest = bounds[bool(known)]
        # halves, because the difference of two large numbers is beyond every float
        place = 0.5 if least == greatest else (score / 2 - least / 2) / (greatest / 2 - least / 2)
        centre, half = (1.0, beta) if known else (0.0, alpha)
        found.append(centre - half + 2 * half * place)
    return found


def _sigmoid(score: float) -> float:
    return 1 / (1 + math.exp(-score)) if score >= 0 else math.exp(score) / (1 + math.exp(score))


@dataclass(frozen=True, slots=True)
class ScoreForm:
    """A function that makes rewards of the scores of one prompt's responses."""

    of: Callable[..., list[float]]
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
