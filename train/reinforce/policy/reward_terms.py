"""The terms of a policy's reward: a judge's scores, a verifier, a price on length, a required form.

No term rewards a broken answer. An answer that was cut off by the length limit, or that contains a
control token, counts as wrong, matches no pattern, and has the price of the longest answer. A judge
reads its text unchanged.
"""

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmrm.data.errors import UserError
from mmrm.eval.judges.judge import Judge
from mmrm.eval.judges.registry import reference_of
from mmrm.eval.policies.answering import candidates
from mmrm.eval.selection.score_forms import FORMS
from mmrm.models.distributed import alone
from mmrm.train.reinforce.policy.term_config import (
    FormatTerm,
    JudgeTerm,
    LengthTerm,
    TermConfig,
)
from mmrm.train.reinforce.rollouts import Prompt


@dataclass(frozen=True, slots=True)
class AnswerBatch:
    """The answers of a rollout batch on one rank, with their prompts and verdicts.

    All lists have one entry an answer. The answers to one question follow one another.
    """

    prompts: Sequence[Prompt]
    token_ids: Sequence[Sequence[int]]
    """The tokens of each answer, with the end of the turn if the answer has one."""
    texts: Sequence[str]
    """The text of each answer without control tokens."""
    is_whole: Sequence[bool]
    """False for an answer that the limit cut off, or that held a control token."""
    is_right: Sequence[bool]
    """True for a whole answer that states the known one."""
    group_size: int
    """The number of answers to each question."""

    def groups(self) -> list[slice]:
        """Return the indices of the answers to each question."""
        starts = range(0, len(self.texts), self.group_size)
        return [slice(start, start + self.group_size) for start in starts]


@dataclass(frozen=True, slots=True)
class TermScores:
    """One part of the reward of every answer, and the columns that it adds to the table of rollouts."""

    rewards: list[float]
    """The rewards before they are multiplied by the weight of the term."""
    columns: Mapping[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TermSetting:
    """The values that a term of the reward needs in addition to its section of the recipe."""

    key: str
    """The key of its section, such as `method.rewards.0`."""
    max_new_tokens: int
    """The maximum length of an answer in tokens."""
    judge: Judge | None
    """The judge at `judge_path` of its section. None if it asks no judge."""
    judge_column: str
    """The name of the column of the judge's scores."""


class RewardTerm(ABC):
    """One part of a policy's reward."""

    def __init__(self, config: TermConfig, setting: TermSetting) -> None:
        self.config = config
        self.setting = setting

    @abstractmethod
    def __call__(self, answers: AnswerBatch) -> TermScores:
        """Return this part of the reward of every answer; all ranks must call together."""


class JudgeReward(RewardTerm):
    """The scores of a judge, transformed by a function of `FORMS`.

    Each rank scores its own answers.
    """

    config: JudgeTerm

    def __init__(self, config: JudgeTerm, setting: TermSetting) -> None:
        super().__init__(config, setting)
        assert setting.judge is not None, f"{setting.key}: the judge is loaded before the reward"
        self.judge = setting.judge
        self.form = FORMS[config.form]
        reference = reference_of(Path(config.path))
        if reference is None and "mean" in self.form.needs:
            raise UserError(
                f"{setting.key}: {config.path} states no reference scores (mean and std in its "
                "config.json), by which `form: standardised` divides; take another form, or a "
                "checkpoint that was evaluated when it was saved."
            )
        self.reference: Mapping[str, Any] = reference or {}

    def __call__(self, answers: AnswerBatch) -> TermScores:
        """Return the transformed scores of the judge, and the scores themselves as a column."""
        groups = answers.groups()
        requests = []
        for group in groups:
            question = answers.prompts[group.start].question
            assert question is not None, "a policy's prompt holds the question"
            requests.append(candidates(question, answers.texts[group]))
        with alone():
            scores_by_group = self.judge.score_batch(requests)

        scores: list[float] = []
        rewards: list[float] = []
        for group, group_result in zip(groups, scores_by_group, strict=True):
            group_scores = list(group_result.values)
            if self.config.shuffled:
                place = answers.prompts[group.start].place
                random.Random(f"shuffled/{place}").shuffle(group_scores)
            context: dict[str, Any] = {
                "right": answers.is_right[group],
                "mean": self.reference.get("mean"),
                "std": self.reference.get("std"),
                "clip": None,
            }
            needed = {name: context[name] for name in self.form.needs}
            scores += group_scores
            rewards += self.form.rewards(group_scores, **needed)
        return TermScores(rewards, {self.setting.judge_column: scores})


class VerifierReward(RewardTerm):
    """1 for an answer that states the known one, 0 for any other."""

    def __call__(self, answers: AnswerBatch) -> TermScores:
        """Return 1 for every right answer."""
        return TermScores([float(is_right) for is_right in answers.is_right])


class LengthReward(RewardTerm):
    """A price on length: 0 up to `free_tokens`, from there linear to -1 at the limit."""

    config: LengthTerm

    def __call__(self, answers: AnswerBatch) -> TermScores:
        """Return the price of every answer; -1 for an answer that is not complete."""
        free = self.config.free_tokens
        num_paid = self.setting.max_new_tokens - free
        rewards: list[float] = []
        for ids, is_whole in zip(answers.token_ids, answers.is_whole, strict=True):
            if is_whole:
                rewards.append(-min(max(len(ids) - free, 0) / num_paid, 1.0))
            else:
                rewards.append(-1.0)
        return TermScores(rewards)


class FormatReward(RewardTerm):
    """1 for an answer that matches a pattern as a whole, 0 for any other."""

    config: FormatTerm

    def __call__(self, answers: AnswerBatch) -> TermScores:
        """Return 1 for every complete answer that the pattern matches, and the same as a column."""
        pattern = re.compile(self.config.pattern, re.DOTALL)
        rewards: list[float] = []
        for text, is_whole in zip(answers.texts, answers.is_whole, strict=True):
            matches = is_whole and pattern.fullmatch(text) is not None
            rewards.append(float(matches))
        return TermScores(rewards, {"format": rewards})
