"""The terms of a policy's reward, as sections of a recipe. The reward is their weighted sum.

[Q] marks a value that is quoted from the paper or its released code. Every other value is a
default of this project, because the paper is silent.
"""

from __future__ import annotations

import re
from abc import ABC
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import field_validator

from mmrm.data.config.section import Section, Tokens, Weight
from mmrm.train.recipe.sections import Broken

FORMS_WITH_ANSWERS = ("hybrid", "stratified")
"""Forms of a judge's scores that depend on which answers are right.

`FORMS` of `mmrm.eval.selection.score_forms` says so too. It is not imported here, because every
recipe imports this module, and that package may be absent.
"""


class TermConfig(Section, ABC):
    """The section of a recipe on one term of a policy's reward.

    The properties of the term are read by the plan of a run and by the checks of a recipe.
    """

    if TYPE_CHECKING:
        # Every term declares these itself. Declared here, they would be the first of all keys.
        type: str
        weight: float

    implementation: ClassVar[str]
    """The import path of the term's subclass of `RewardTerm`."""

    @property
    def needs_answers(self) -> bool:
        """True if the term needs the known answers to the questions."""
        return False

    @property
    def judge_path(self) -> str | None:
        """The checkpoint or judge file that the term asks. None if it asks no judge."""
        return None

    def rules(self, key: str, max_new_tokens: int) -> Iterator[Broken]:
        """Yield the rules that the values of this section break.

        Args:
            key: The key of the term in the recipe, such as `method.rewards.0`.
            max_new_tokens: The longest answer, in tokens.
        """
        yield from ()


class JudgeTerm(TermConfig):
    """The scores that a judge gives the answers to a question, as part of a policy's reward."""

    implementation = "mmrm.train.reinforce.policy.reward_terms:JudgeReward"

    type: Literal["judge"]
    path: str
    """A checkpoint of any kind, or the YAML file of a judge (`type: server` for one behind
    eval/serve.py). A judge in this process is loaded whole on every rank."""
    form: Literal["raw", "standardised", "sigmoid", "rank", "hybrid", "stratified"] = "raw"
    """The transformation of a judge's scores into rewards (eval/selection/score_forms.py). `hybrid`
    is BaseReward's: 1 for an answer that the verifier finds right, else sigmoid(score) [Q]."""
    weight: Weight = 1.0
    """The weight of this term in the sum."""
    shuffled: bool = False
    """Shuffle the scores among the answers to the same question. This is a control: the rewards
    then carry no information about the answers."""

    @property
    def needs_answers(self) -> bool:
        """True if the form of the scores depends on which answers are right."""
        return self.form in FORMS_WITH_ANSWERS

    @property
    def judge_path(self) -> str:
        """The checkpoint or judge file whose scores are used."""
        return self.path


class VerifierTerm(TermConfig):
    """A term that is 1 for an answer that states the known answer, and 0 for any other."""

    implementation = "mmrm.train.reinforce.policy.reward_terms:VerifierReward"

    type: Literal["verifier"]
    weight: Weight = 1.0
    """The weight of this term in the sum."""

    @property
    def needs_answers(self) -> bool:
        """True, because every answer is compared with the known answer."""
        return True


class LengthTerm(TermConfig):
    """A term that is 0 up to `free_tokens`, then falls linearly to -1 (DAPO, arXiv 2503.14476)."""

    implementation = "mmrm.train.reinforce.policy.reward_terms:LengthReward"

    type: Literal["length"]
    free_tokens: Tokens
    """The number of tokens up to which an answer costs nothing; below `method.max_new_tokens`."""
    weight: Weight = 1.0
    """The weight of this term in the sum."""

    def rules(self, key: str, max_new_tokens: int) -> Iterator[Broken]:
        """Yield the rule that some answers must cost something."""
        if self.free_tokens >= max_new_tokens:
            message = (
                f"{self.free_tokens} tokens are free and no answer is longer than "
                f"{max_new_tokens}: the term never costs anything; lower free_tokens"
            )
            keys = (f"{key}.free_tokens", "method.rewards", "method.max_new_tokens")
            yield Broken(message, keys)


class FormatTerm(TermConfig):
    """A term that is 1 for an answer that matches a pattern as a whole, and 0 for any other."""

    implementation = "mmrm.train.reinforce.policy.reward_terms:FormatReward"

    type: Literal["format"]
    pattern: str
    """A regular expression (Python's, in which a dot matches line ends too) for the whole
    answer."""
    weight: Weight = 1.0
    """The weight of this term in the sum."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from error
        return pattern
