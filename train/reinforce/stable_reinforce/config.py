"""The section `method` of a recipe for StableReinforce.

[Q] marks a value that is quoted from the paper or its released code. Every other value is a
default of this project, because the paper is silent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from mmrm.data.config.section import GrowingSection, Seconds, Section, Url, Weight
from mmrm.data.prompts import JudgeTemplate
from mmrm.train.recipe.sections import HELD_OUT_ACCURACY, Broken, RunConfig
from mmrm.train.reinforce.config import RolloutConfig


class RuleJudge(Section):
    """A rule compares the last choice that the reasoning names with the answer, without a model."""

    type: Literal["rule"]


class CheckpointJudge(Section):
    """A model that is loaded next to the policy reads the last lines of the reasoning."""

    type: Literal["checkpoint"]
    path: str = "Qwen/Qwen2.5-VL-7B-Instruct"
    """The model: a checkpoint or a hub id. The default is the paper's model [Q]."""


class ServerJudge(Section):
    """A server with an OpenAI-compatible interface reads the last lines of the reasoning."""

    type: Literal["server"]
    url: Url
    """The base URL of the interface, to which `/chat/completions` is added."""
    model: str
    """The name of the model on the server."""
    timeout_seconds: Seconds = 60.0
    """The longest time in which the server has to answer."""


class ReaderConfig(Section):
    """A frozen model that decides which response is better from the judge's rubric alone.

    It sees the question and the criteria with their checks, but no response and no image.
    """

    path: str | None = None
    """The reader: a checkpoint or a hub id of a language model. Null takes the model at the start
    of the run."""
    weight: Weight = 1.0
    """The reward of a rubric from which the reader decides right. Proxy-GRM (arXiv 2603.16600)
    weighs it like the result [Q]."""


class RewardsConfig(GrowingSection):
    """Reward: result x (1 + consistency_weight x consistency) + format_weight x format [Q].

    With a reader, its weight is added if it decides right from the rubric.
    """

    LATER_KEYS = frozenset({"reader"})

    variant: Literal["paper", "r1_released"] = "paper"
    """`r1_released` scores consistency +1, -1 or 0 as the released code does; neither ever pays for
    an error."""
    consistency_weight: Weight = 0.5
    """The weight for reasoning that agrees with the answer [Q]."""
    format_weight: Weight = 0.5
    """The weight for a judgement in the form that the prompt asks for [Q]."""
    consistency: Annotated[
        RuleJudge | CheckpointJudge | ServerJudge, Field(discriminator="type")
    ] = RuleJudge(type="rule")
    """The rule or model that decides if the reasoning agrees with the answer. The paper uses
    Qwen2.5-VL-7B-Instruct [Q]. The default is a rule without a model."""
    reader: ReaderConfig | None = None
    """The reader of rubrics, for templates with a rubric. Null uses none."""


class StableReinforceConfig(RolloutConfig):
    """StableReinforce (arXiv 2505.02835, section 4): reinforcement learning of a judge."""

    implementation = "mmrm.train.reinforce.stable_reinforce.method:StableReinforceMethod"
    judge_type = "generative"
    paradigm = "judge"

    type: Literal["stable_reinforce"]
    template: JudgeTemplate = "r1_reward"
    """The prompt of the judge: R1-Reward's [Q], or a short prompt for the tiny embedded backbone.
    `rubric` and `rubric_turns` ask for criteria and checks before the verdict."""
    rewards: RewardsConfig = RewardsConfig()

    @property
    def summary(self) -> str:
        """A description of the sampling and the loss, for the plan and the model card."""
        return f"stable_reinforce: {self.num_generations} judgements a pair {self.update}"

    @property
    def judge_template(self) -> JudgeTemplate:
        """The name of the prompt in which the judge sees two responses."""
        return self.template

    def held_out_figures(self, run: RunConfig) -> tuple[str, ...]:
        """Return the name of the accuracy on the records of data.validation, empty without records.

        Reinforcement learning computes no loss on pairs.
        """
        if not run.data.validation:
            return ()
        return (HELD_OUT_ACCURACY,)

    def model_paths(self) -> Iterator[tuple[str, str]]:
        """Yield the key and the path of each model that a part of the reward runs."""
        consistency = self.rewards.consistency
        if isinstance(consistency, CheckpointJudge):
            yield "method.rewards.consistency.path", consistency.path
        reader = self.rewards.reader
        if reader is not None and reader.path is not None:
            yield "method.rewards.reader.path", reader.path

    def frozen_copies(self, *, lora: bool) -> int:
        """Return the number of frozen copies of the initial model that are held.

        A reader without a path is one of them, also with LoRA.
        """
        reader = self.rewards.reader
        reads_with_copy = reader is not None and reader.path is None
        return super().frozen_copies(lora=lora) + int(reads_with_copy)

    def rules(self, run: RunConfig) -> Iterator[Broken]:
        """Yield the rules that `run` breaks on the update, the sampling and the reader."""
        yield from super().rules(run)
        if self.rewards.reader is None:
            return
        if self.template not in ("rubric", "rubric_turns"):
            message = (
                "the reader decides from the rubric of a judgement, and judgements by this template "
                "have none; take method.template rubric or rubric_turns, or remove the reader"
            )
            yield Broken(message, ("method.rewards.reader", "method.template"))
        if isinstance(self.rewards.consistency, CheckpointJudge):
            message = (
                "the reader and the check of consistency would be two further models in this "
                "process, which the trainer does not hold; take consistency of type rule or server"
            )
            yield Broken(message, ("method.rewards.reader", "method.rewards.consistency"))
