"""The section `method` of a recipe for StableReinforce.

[Q] marks a value that is quoted from the paper or its released code. Every other value is a
default of this project, because the paper is silent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from mmrm.data.config.registry import OneOf
from mmrm.data.config.section import Section, Weight
from mmrm.data.prompts import JudgeTemplate
from mmrm.train.recipe.sections import HELD_OUT_ACCURACY, Broken, RunConfig
from mmrm.train.reinforce.config import RolloutConfig
from mmrm.train.reinforce.stable_reinforce.judgement_term_config import (
    CheckpointJudge,
    ConsistencyJudge,
    ConsistencyTerm,
    ConsistencyVariant,
    JudgementFormatTerm,
    JudgementTermConfig,
    ResultTerm,
    RuleJudge,
)
from mmrm.train.reinforce.stable_reinforce.registry import JUDGEMENT_TERMS


class RewardsConfig(Section):
    """Reward: result x (1 + consistency_weight x consistency) + format_weight x format [Q]."""

    variant: ConsistencyVariant = "paper"
    """`r1_released` scores consistency +1, -1 or 0 as the released code does; neither ever pays for
    an error."""
    consistency_weight: Weight = 0.5
    """The weight for reasoning that agrees with the answer [Q]."""
    format_weight: Weight = 0.5
    """The weight for a judgement in the form that the prompt asks for [Q]."""
    consistency: ConsistencyJudge = RuleJudge(type="rule")
    """The rule or model that decides if the reasoning agrees with the answer. The paper uses
    Qwen2.5-VL-7B-Instruct [Q]. The default is a rule without a model."""

    @property
    def terms(self) -> tuple[JudgementTermConfig, ...]:
        """The formula as terms, whose weighted sum gives the same numbers bit for bit."""
        return (
            ResultTerm(type="result"),
            ConsistencyTerm(
                type="consistency",
                judge=self.consistency,
                variant=self.variant,
                weight=self.consistency_weight,
            ),
            JudgementFormatTerm(type="format", weight=self.format_weight),
        )


def _form_of_rewards(value: Any) -> str:
    """Return the name of the form in which a recipe states the rewards: a list, or the formula."""
    return "terms" if isinstance(value, list) else "formula"


Rewards = Annotated[
    Annotated[RewardsConfig, Tag("formula")]
    | Annotated[
        list[Annotated[JudgementTermConfig, OneOf(JUDGEMENT_TERMS)]],
        Field(min_length=1),
        Tag("terms"),
    ],
    Discriminator(_form_of_rewards),
]


class StableReinforceConfig(RolloutConfig):
    """StableReinforce (arXiv 2505.02835, section 4): reinforcement learning of a judge."""

    implementation = "mmrm.train.reinforce.stable_reinforce.method:StableReinforceMethod"
    judge_type = "generative"
    paradigm = "judge"

    type: Literal["stable_reinforce"]
    template: JudgeTemplate = "r1_reward"
    """The prompt of the judge: R1-Reward's [Q], or a short prompt for the tiny embedded
    backbone."""
    rewards: Rewards = RewardsConfig()
    """The reward of a judgement: the weighted sum of a list of terms, or R1-Reward's formula [Q] as
    a section."""

    @property
    def reward_terms(self) -> Sequence[JudgementTermConfig]:
        """The terms whose weighted sum is the reward of a judgement."""
        if isinstance(self.rewards, RewardsConfig):
            return self.rewards.terms
        return self.rewards

    @property
    def both_orders(self) -> bool:
        """True if half of a pair's judgements are sampled in each order of its responses."""
        return any(term.needs_both_orders for term in self.reward_terms)

    @property
    def summary(self) -> str:
        """A description of the sampling and the loss, for the plan and the model card."""
        orders = " in both orders" if self.both_orders else ""
        description = f"{self.num_generations} judgements a pair{orders} {self.update}"
        if isinstance(self.rewards, RewardsConfig):
            return f"stable_reinforce: {description}"
        terms = " + ".join(f"{term.weight:g} x {term.type}" for term in self.rewards)
        return f"stable_reinforce: {description}; reward {terms}"

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
        """Yield the key and the path of the model that checks if reasoning and answer agree."""
        for index, term in enumerate(self.reward_terms):
            judge = term.consistency_judge
            if isinstance(judge, CheckpointJudge):
                key = "method.rewards.consistency"
                if not isinstance(self.rewards, RewardsConfig):
                    key = f"method.rewards.{index}.judge"
                yield f"{key}.path", judge.path

    def rules(self, run: RunConfig) -> Iterator[Broken]:
        """Yield the rules that `run` breaks on sampling and on the terms of the reward."""
        yield from super().rules(run)
        for index, term in enumerate(self.reward_terms):
            yield from term.rules(f"method.rewards.{index}", self)
        counts = Counter(term.type for term in self.reward_terms)
        repeated = sorted(name for name, count in counts.items() if count > 1)
        if repeated:
            message = (
                f"the term {', '.join(repeated)} is listed more than once, and the log has one "
                "column of each; keep one, with the sum of the weights"
            )
            yield Broken(message, ("method.rewards",))
        if not any(term.weight for term in self.reward_terms):
            message = "all weights are 0: every judgement would be paid alike; raise one"
            yield Broken(message, ("method.rewards",))
