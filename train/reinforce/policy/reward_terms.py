"""The terms of a policy's reward: a judge's scores, a verifier, a price on length, a required form.

No term rewards a broken answer. An answer that was cut off by the length limit, or that contains a
control token, counts as wrong, matches no pattern, and has the price of the longest answer. A judge
reads its text unchanged.
"""

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from mmrm.train.reinforce.term_scores import TermScores, length_values


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
    """False for an answer that the length limit cut off, or that held a control token."""
    is_right: Sequence[bool]
    """True for a whole answer that states the known answer to its question."""
    group_size: int
    """The number of answers to each question."""

    def groups(self) -> list[slice]:
        """Return the indices of the answers to each question."""
        starts = range(0, len(self.texts), self.group_size)
        return [slice(start, start + self.group_size) for start in starts]


@dataclass(frozen=True, slots=True)
class TermSetting:
    """The values that a term of the reward needs in addition to its own section of the recipe."""

    key: str
    """The key of its section, such as `method.rewards.0`."""
    max_new_tokens: int
    """The maximum length of an answer in tokens."""
    judge: Judge | None
    """The judge at `judge_path` of its section. None if it asks no judge."""
    judge_column: str
    """The name of the column of the judge's scores in the table of rollouts."""


class RewardTerm(ABC):
    """One term of a policy's reward, which is the weighted sum of its terms."""

    def __init__(self, config: TermConfig, setting: TermSetting) -> None:
        self.config = config
        self.setting = setting

    @abstractmethod
    def __call__(self, answers: AnswerBatch) -> TermScores:
        """Return the value of the term for every answer; all ranks must call together."""


class JudgeReward(RewardTerm):
    """The scores of a judge, transformed into rewards by the function that `config.form` names.

    Each rank scores its own answers.
    """

    config: JudgeTerm

    def __init__(self, config: JudgeTerm, setting: TermSetting) -> None:
        """Take the loaded judge of the setting.

        Raises:
            UserError: If the form needs the mean and the standard deviation of the judge's scores,
                and the judge's checkpoint states none.
        """
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
        """`mean` and `std` of the judge's scores; empty if its checkpoint states none."""

    def __call__(self, answers: AnswerBatch) -> TermScores:
        """Return the transformed scores of the judge, and the scores themselves as a column."""
        groups = answers.groups()
        requests = []
        for group in groups:
            # All answers of a group have the same question.
            question = answers.prompts[group.start].question
            assert question is not None, "a policy's prompt holds the question"
            requests.append(candidates(question, answers.texts[group]))
        # Other ranks score their own answers, so that the judge must not wait for them.
        with alone():
            scores_by_group = self.judge.score_batch(requests)

        scores: list[float] = []
        rewards: list[float] = []
        for group, group_result in zip(groups, scores_by_group, strict=True):
            group_scores = list(group_result.values)
            if self.config.shuffled:
                place = answers.prompts[group.start].place
                random.Random(f"shuffled/{place}").shuffle(group_scores)
            arguments: dict[str, Any] = {
                "right": answers.is_right[group],
                "mean": self.reference.get("mean"),
                "std": self.reference.get("std"),
                "clip": None,
            }
            needed_arguments = {name: arguments[name] for name in self.form.needs}
            scores += group_scores
            rewards += self.form.rewards(group_scores, **needed_arguments)
        return TermScores(rewards, {self.setting.judge_column: scores})


class VerifierReward(RewardTerm):
    """A term that is 1 for an answer that states the known answer, and 0 for any other."""

    def __call__(self, answers: AnswerBatch) -> TermScores:
        """Return 1 for every right answer, and 0 for every other."""
        return TermScores([float(is_right) for is_right in answers.is_right])


class LengthReward(RewardTerm):
    """A term that is negative for long answers.

    It is 0 up to `free_tokens` tokens, and from there falls linearly to -1 at the length limit.
    """

    config: LengthTerm

    def __call__(self, answers: AnswerBatch) -> TermScores:
        """Return the value of the term for every answer, -1 for an answer that is not complete."""
        lengths: list[int | None] = []
        for ids, is_whole in zip(answers.token_ids, answers.is_whole, strict=True):
            lengths.append(len(ids) if is_whole else None)
        free_tokens = self.config.free_tokens
        return TermScores(length_values(lengths, free_tokens, self.setting.max_new_tokens))


class FormatReward(RewardTerm):
    """A term that is 1 for an answer that matches a pattern as a whole, and 0 for any other."""

    config: FormatTerm

    def __call__(self, answers: AnswerBatch) -> TermScores:
        """Return 1 for every complete answer that matches, else 0, and the same as a column."""
        pattern = re.compile(self.config.pattern, re.DOTALL)
        rewards: list[float] = []
        for text, is_whole in zip(answers.texts, answers.is_whole, strict=True):
            matches = is_whole and pattern.fullmatch(text) is not None
            rewards.append(float(matches))
        return TermScores(rewards, {"format": rewards})
