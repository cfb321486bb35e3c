"""The terms of a judgement's reward, as sections of a recipe. The reward is their weighted sum.

[Q] marks a value that is quoted from the paper or its released code. Every other value is a
default of this project, because the paper is silent.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from mmrm.data.config.section import Seconds, Section, Tokens, Url, Weight
from mmrm.data.prompts import TEMPLATES
from mmrm.train.recipe.sections import Broken
from mmrm.train.reinforce.config import RolloutConfig


class ConsistencyJudgeConfig(Section, ABC):
    """The section of a recipe on the rule or model that decides if reasoning and answer agree."""

    implementation: ClassVar[str]
    """The import path of the function that takes this section and a `JudgementTermSetting`, and
    returns the check of consistency and the model in this process that it runs, or None."""

    def model_paths(self, key: str) -> Iterator[tuple[str, str]]:
        """Yield the key and the path (or hub id) of the model that is loaded into this process.

        Args:
            key: The key of this section in the recipe, such as `method.rewards.consistency`.
        """
        yield from ()


class RuleJudge(ConsistencyJudgeConfig):
    """A rule compares the last choice that the reasoning names with the answer, without a model."""

    implementation = "mmrm.train.reinforce.stable_reinforce.consistency:rule_check"

    type: Literal["rule"]


class CheckpointJudge(ConsistencyJudgeConfig):
    """A model that is loaded next to the policy reads the last lines of the reasoning."""

    implementation = "mmrm.train.reinforce.stable_reinforce.consistency:checkpoint_check"

    type: Literal["checkpoint"]
    path: str = "Qwen/Qwen2.5-VL-7B-Instruct"
    """The model: a checkpoint or a hub id. The default is the paper's model [Q]."""

    def model_paths(self, key: str) -> Iterator[tuple[str, str]]:
        """Yield the key and the path of the model."""
        yield f"{key}.path", self.path


class ServerJudge(ConsistencyJudgeConfig):
    """A server with an OpenAI-compatible interface reads the last lines of the reasoning."""

    implementation = "mmrm.train.reinforce.stable_reinforce.consistency:server_check"

    type: Literal["server"]
    url: Url
    """The base URL of the interface, to which `/chat/completions` is added."""
    model: str
    """The name of the model on the server."""
    timeout_seconds: Seconds = 60.0
    """The longest time in which the server has to answer."""


ConsistencyJudge = Annotated[RuleJudge | CheckpointJudge | ServerJudge, Field(discriminator="type")]
ConsistencyVariant = Literal["paper", "r1_released"]


class JudgementTermConfig(Section, ABC):
    """The section of a recipe on one term of a judgement's reward.

    The properties of the term are read by the plan of a run and by the checks of a recipe.
    """

    if TYPE_CHECKING:
        # Every term declares these itself. Declared here, they would be the first of all keys.
        type: str
        weight: float

    implementation: ClassVar[str]
    """The import path of the term's subclass of `JudgementTerm`."""
    largest: ClassVar[float] = 1.0
    """The largest value of the term."""
    needs_both_orders: ClassVar[bool] = False
    """True if the term compares judgements of a pair in both orders of its responses."""

    @property
    def frozen_copies(self) -> int:
        """The number of frozen copies of the model at the start of the run that the term runs."""
        return 0

    def model_paths(self, key: str) -> Iterator[tuple[str, str]]:
        """Yield the key and the path (or hub id) of every further model that the term runs.

        They are models in this process, and not those behind a server.

        Args:
            key: The key of the term in the recipe, such as `method.rewards.0`.
        """
        yield from ()

    def rules(self, key: str, method: RolloutConfig) -> Iterator[Broken]:
        """Yield the rules that the values of this section break.

        Args:
            key: The key of the term in the recipe, such as `method.rewards.0`.
            method: The section `method`, with the settings of the sampling.
        """
        yield from ()


class ResultTerm(JudgementTermConfig):
    """A term that is 1 for a judgement that names the better response, and 0 for any other [Q]."""

    implementation = "mmrm.train.reinforce.stable_reinforce.judgement_terms:ResultReward"

    type: Literal["result"]
    weight: Weight = 1.0
    """The weight of this term in the sum."""


class ConsistencyTerm(JudgementTermConfig):
    """Result x consistency: right judgements whose reasoning agrees with the answer [Q]."""

    implementation = "mmrm.train.reinforce.stable_reinforce.judgement_terms:ConsistencyReward"

    type: Literal["consistency"]
    judge: ConsistencyJudge = RuleJudge(type="rule")
    """The rule or model that decides if the reasoning agrees with the answer. The paper uses
    Qwen2.5-VL-7B-Instruct [Q]. The default is a rule without a model."""
    variant: ConsistencyVariant = "paper"
    """`r1_released` scores consistency +1, -1 or 0 as the released code does, `paper` 1 or 0."""
    weight: Weight = 0.5
    """The weight of this term in the sum [Q]."""

    def model_paths(self, key: str) -> Iterator[tuple[str, str]]:
        """Yield the key and the path of the model that decides if reasoning and answer agree."""
        yield from self.judge.model_paths(f"{key}.judge")


class JudgementFormatTerm(JudgementTermConfig):
    """A term that is 1 for a judgement in the form that the prompt asks for, else 0 [Q]."""

    implementation = "mmrm.train.reinforce.stable_reinforce.judgement_terms:JudgementFormatReward"

    type: Literal["format"]
    weight: Weight = 0.5
    """The weight of this term in the sum [Q]."""


class AgreementTerm(JudgementTermConfig):
    """The share of judgements in the other order of the pair that choose the same response.

    With this term, half of a pair's judgements are sampled with its responses in the other order.
    """

    implementation = "mmrm.train.reinforce.stable_reinforce.judgement_terms:AgreementReward"
    needs_both_orders = True

    type: Literal["agreement"]
    weight: Weight = 1.0
    """The weight of this term in the sum. Without a term on the result, it pays to choose any
    response by a rule that ignores the order."""

    def rules(self, key: str, method: RolloutConfig) -> Iterator[Broken]:
        """Yield the rule that both orders get equally many judgements."""
        if method.num_generations % 2:
            message = (
                f"half of a pair's judgements are sampled in each order, and {method.num_generations}"
                " are not even; set method.num_generations to an even number"
            )
            yield Broken(message, (key, "method.rewards", "method.num_generations"))


class CalibrationTerm(JudgementTermConfig):
    """1 minus the Brier score of the soft verdict, which is read after the sampled rationale.

    It needs one more forward pass over the judgements of a rollout batch.
    """

    implementation = "mmrm.train.reinforce.stable_reinforce.calibration_reward:CalibrationReward"

    type: Literal["calibration"]
    weight: Weight = 1.0
    """The weight of this term in the sum."""


class ReaderTerm(JudgementTermConfig):
    """A term that is 1 if a frozen model decides right from the judge's rubric alone, else 0.

    It sees the question and the criteria with their checks, but no response and no image.
    """

    implementation = "mmrm.train.reinforce.stable_reinforce.rubric_reader:ReaderReward"

    type: Literal["reader"]
    path: str | None = None
    """The reader: a checkpoint or a hub id of a language model. Null takes the model at the start
    of the run."""
    weight: Weight = 1.0
    """The weight of this term in the sum. Proxy-GRM (arXiv 2603.16600) weighs it like the
    result [Q]."""

    @property
    def frozen_copies(self) -> int:
        """1 for the model at the start of the run, also with LoRA; 0 for another model."""
        return int(self.path is None)

    def model_paths(self, key: str) -> Iterator[tuple[str, str]]:
        """Yield the key and the path of the reader, if it is not the model at the start."""
        if self.path is not None:
            yield f"{key}.path", self.path

    def rules(self, key: str, method: RolloutConfig) -> Iterator[Broken]:
        """Yield the rule that judgements hold a rubric."""
        template = method.judge_template
        if template is None or not TEMPLATES[template].reading_request:
            with_rubric = [name for name, prompt in TEMPLATES.items() if prompt.reading_request]
            message = (
                "the reader decides from the rubric of a judgement, and judgements by this template "
                f"have none; take method.template {' or '.join(with_rubric)}, or remove the reader"
            )
            yield Broken(message, (key, "method.rewards", "method.template"))


class JudgementLengthTerm(JudgementTermConfig):
    """A term that is 0 up to `free_tokens`, then falls linearly to -1 (DAPO, arXiv 2503.14476).

    It is -1 for a judgement that the length limit cut off.
    """

    implementation = "mmrm.train.reinforce.stable_reinforce.judgement_terms:JudgementLengthReward"
    largest = 0.0

    type: Literal["length"]
    free_tokens: Tokens
    """The number of tokens up to which a judgement costs nothing; below `method.max_new_tokens`."""
    weight: Weight = 1.0
    """The weight of this term in the sum."""

    def rules(self, key: str, method: RolloutConfig) -> Iterator[Broken]:
        """Yield the rule that some judgements must cost something."""
        if self.free_tokens >= method.max_new_tokens:
            message = (
                f"{self.free_tokens} tokens are free and no judgement is longer than "
                f"{method.max_new_tokens}: the term never costs anything; lower free_tokens"
            )
            keys = (f"{key}.free_tokens", "method.rewards", "method.max_new_tokens")
            yield Broken(message, keys)
