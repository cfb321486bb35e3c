"""The terms of a judgement's reward: result, consistency, format, agreement of both orders, length.

No error earns a reward. A judgement that names no response, or that the length limit cut off, has no
result, no consistency, no format and no agreement, and has the price of the longest judgement.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmrm.data.config.registry import load
from mmrm.data.prompts import Judgement
from mmrm.train.reinforce.rollouts import Prompt, ReadAlternatives
from mmrm.train.reinforce.stable_reinforce.consistency import ConsistencyCheck
from mmrm.train.reinforce.stable_reinforce.judgement_term_config import (
    ConsistencyTerm,
    JudgementLengthTerm,
    JudgementTermConfig,
)
from mmrm.train.reinforce.stable_reinforce.judgement_term_setting import JudgementTermSetting
from mmrm.train.reinforce.term_scores import TermScores, length_values


@dataclass(frozen=True, slots=True)
class JudgementBatch:
    """The judgements of a rollout batch on one rank.

    All lists have one entry a judgement. The judgements of a pair follow one another. If they are
    sampled in both orders of the responses, the first half of them is in one order.
    """

    prompts: Sequence[Prompt]
    token_ids: Sequence[Sequence[int]]
    """The tokens of each judgement, with the end of the turn if it has one."""
    judgements: Sequence[Judgement]
    """The parts of each judgement's text. Those of one that was cut off are read too."""
    is_whole: Sequence[bool]
    """False for a judgement that the length limit cut off."""
    group_size: int
    """The number of judgements of each pair."""
    read_alternatives: ReadAlternatives
    """Returns the policy's probabilities of given texts; see `ReadAlternatives`."""

    @property
    def names_better(self) -> list[bool | None]:
        """True where a judgement names the better response of its pair, False where the other one.

        None where it names none or was cut off.
        """
        named: list[bool | None] = []
        for judgement, prompt, whole in zip(
            self.judgements, self.prompts, self.is_whole, strict=True
        ):
            if whole and judgement.answer is not None:
                named.append(judgement.answer == prompt.winner)
            else:
                named.append(None)
        return named


class JudgementTerm(ABC):
    """One term of a judgement's reward, which is the weighted sum of its terms."""

    model: Any = None
    """The language model in this process that the term runs, which the trainer places on the device
    and freezes. None if the term runs none."""

    def __init__(self, config: JudgementTermConfig, setting: JudgementTermSetting) -> None:
        self.config = config
        self.setting = setting

    @abstractmethod
    def __call__(self, batch: JudgementBatch) -> TermScores:
        """Return the value of the term for every judgement; all ranks must call together."""


class ResultReward(JudgementTerm):
    """A term that is 1 for a judgement that names the better response, and 0 for any other."""

    def __call__(self, batch: JudgementBatch) -> TermScores:
        """Return 1 for every right judgement, else 0, and the same as a column."""
        rewards = results(batch)
        return TermScores(rewards, {"result": rewards})


class ConsistencyReward(JudgementTerm):
    """The product of result and consistency (R1-Reward, arXiv 2505.02835, section 4.3).

    Consistency is 1 if the reasoning of a judgement agrees with its answer. If it disagrees, it is
    0 with `variant: paper`, and -1 with `r1_released`, as in the released code. The released code
    also gives the full reward of a right answer if its check raises an exception. This is not
    reproduced.
    """

    config: ConsistencyTerm

    def __init__(self, config: ConsistencyTerm, setting: JudgementTermSetting) -> None:
        super().__init__(config, setting)
        self.check: ConsistencyCheck
        self.check, self.model = load(config.judge.implementation)(config.judge, setting)

    def __call__(self, batch: JudgementBatch) -> TermScores:
        """Return result x consistency for every judgement, and the consistency as a column."""
        lowest = -1 if self.config.variant == "r1_released" else 0
        consistencies: list[float] = []
        for consistency, whole in zip(self.check(batch.judgements), batch.is_whole, strict=True):
            consistencies.append(float(max(consistency, lowest)) if whole else 0.0)
        rewards: list[float] = []
        for result, consistency_value in zip(results(batch), consistencies, strict=True):
            rewards.append(result * consistency_value)
        return TermScores(rewards, {"consistency": consistencies})


class JudgementFormatReward(JudgementTerm):
    """A term that is 1 for a complete judgement in the form that the prompt asks for, else 0."""

    def __call__(self, batch: JudgementBatch) -> TermScores:
        """Return 1 for every judgement in the required form, else 0, and the same as a column."""
        rewards: list[float] = []
        for judgement, whole in zip(batch.judgements, batch.is_whole, strict=True):
            rewards.append(float(whole and judgement.formatted))
        return TermScores(rewards, {"format": rewards})


class AgreementReward(JudgementTerm):
    """The share of a pair's judgements in the other order that choose the same response.

    The reward of a judgement is the number of judgements in the other order that choose the
    response that it chooses, divided by the number of all judgements in the other order. It is 0
    for a judgement that chooses none. A judgement that chooses none agrees with no other one, so
    that it also lowers the reward of those in the other order. It does not matter which response is
    chosen.
    """

    def __call__(self, batch: JudgementBatch) -> TermScores:
        """Return the agreement of every judgement, and the same as a column."""
        named = batch.names_better
        rewards: list[float] = []
        for start in range(0, len(named), batch.group_size):
            rewards += agreements(named[start : start + batch.group_size])
        return TermScores(rewards, {"agreement": rewards})


class JudgementLengthReward(JudgementTerm):
    """A term that is negative for long judgements.

    It is 0 up to `free_tokens` tokens, and from there falls linearly to -1 at the length limit.
    """

    config: JudgementLengthTerm

    def __call__(self, batch: JudgementBatch) -> TermScores:
        """Return the value for every judgement, -1 if it was cut off, and the same as a column."""
        lengths: list[int | None] = []
        for ids, whole in zip(batch.token_ids, batch.is_whole, strict=True):
            lengths.append(len(ids) if whole else None)
        rewards = length_values(lengths, self.config.free_tokens, self.setting.max_new_tokens)
        return TermScores(rewards, {"length": rewards})


def results(batch: JudgementBatch) -> list[float]:
    """Return 1 for every judgement that names the better response of its pair, else 0."""
    return [float(named is True) for named in batch.names_better]


def agreements(chosen: Sequence[bool | None]) -> list[float]:
    """Return the agreement of every judgement of a pair with those in the other order.

    Args:
        chosen: The choice of every judgement of the pair: True for one of the responses, False for
            the other one, and None for neither. The first half of them is in one order, the second
            half in the other one.
    """
    half = len(chosen) // 2
    shares: list[float] = []
    for index, choice in enumerate(chosen):
        others = chosen[half:] if index < half else chosen[:half]
        num_alike = 0 if choice is None else others.count(choice)
        shares.append(num_alike / half)
    return shares
