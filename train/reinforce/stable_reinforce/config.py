"""The section `method` of a recipe for StableReinforce.

[Q] marks a value that is quoted from the paper or its released code. Every other value is a
default of this project, because the paper is silent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from mmrm.data.config.registry import OneOf
from mmrm.data.config.section import GrowingSection, Section, Weight
from mmrm.data.prompts import JudgeTemplate
from mmrm.train.recipe.sections import HELD_OUT_ACCURACY, Broken, RunConfig
from mmrm.train.reinforce.config import RolloutConfig
from mmrm.train.reinforce.stable_reinforce.judgement_term_config import (
    ConsistencyJudge,
    ConsistencyTerm,
    ConsistencyVariant,
    JudgementFormatTerm,
    JudgementTermConfig,
    ReaderTerm,
    ResultTerm,
    RuleJudge,
)
from mmrm.train.reinforce.stable_reinforce.registry import JUDGEMENT_TERMS


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
    reader: ReaderConfig | None = None
    """The reader of rubrics, for templates with a rubric. Null uses none."""

    @property
    def terms(self) -> Mapping[str, JudgementTermConfig]:
        """The formula as terms, by their keys in a recipe.

        Their weighted sum gives the same numbers bit for bit.
        """
        terms: dict[str, JudgementTermConfig] = {
            "method.rewards": ResultTerm(type="result"),
            "method.rewards.consistency": ConsistencyTerm(
                type="consistency",
                judge=self.consistency,
                variant=self.variant,
                weight=self.consistency_weight,
            ),
            "method.rewards.format_weight": JudgementFormatTerm(
                type="format", weight=self.format_weight
            ),
        }
        if self.reader is not None:
            terms["method.rewards.reader"] = ReaderTerm(
                type="reader", path=self.reader.path, weight=self.reader.weight
            )
        return terms

    def model_paths(self) -> Iterator[tuple[str, str]]:
        """Yield the key and the path (or hub id) of each model that a part of the formula runs."""
        yield from self.consistency.model_paths("method.rewards.consistency")
        if self.reader is not None and self.reader.path is not None:
            yield "method.rewards.reader.path", self.reader.path


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
    """The prompt of the judge: R1-Reward's [Q], or a short prompt for the tiny embedded backbone.
    `rubric` and `rubric_turns` ask for criteria and checks before the verdict."""
    rewards: Rewards = RewardsConfig()
    """The reward of a judgement: the weighted sum of a list of terms, or R1-Reward's formula [Q] as
    a section."""

    @property
    def terms(self) -> Mapping[str, JudgementTermConfig]:
        """The terms whose weighted sum is the reward of a judgement, by their keys in the recipe."""
        if isinstance(self.rewards, RewardsConfig):
            return self.rewards.terms
        return {f"method.rewards.{index}": term for index, term in enumerate(self.rewards)}

    @property
    def reward_terms(self) -> Sequence[JudgementTermConfig]:
        """The terms whose weighted sum is the reward of a judgement."""
        return tuple(self.terms.values())

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
        """Yield the key and the path of each model that a term of the reward runs."""
        if isinstance(self.rewards, RewardsConfig):
            yield from self.rewards.model_paths()
            return
        for key, term in self.terms.items():
            yield from term.model_paths(key)

    def frozen_copies(self, *, lora: bool) -> int:
        """Return the number of frozen copies of the initial model that are held.

        Those that terms of the reward run are held also with LoRA.
        """
        copies_of_terms = sum(term.frozen_copies for term in self.reward_terms)
        return super().frozen_copies(lora=lora) + copies_of_terms

    def rules(self, run: RunConfig) -> Iterator[Broken]:
        """Yield the rules that `run` breaks on sampling and on the terms of the reward."""
        yield from super().rules(run)
        for key, term in self.terms.items():
            yield from term.rules(key, self)
        yield from self._model_rules()
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

    def _model_rules(self) -> Iterator[Broken]:
        """Yield the rule that at most one term runs a further model in this process."""
        types_by_key: dict[str, str] = {}
        for key, term in self.terms.items():
            if term.frozen_copies or any(term.model_paths(key)):
                types_by_key[key] = term.type
        if len(types_by_key) > 1:
            message = (
                f"the terms {' and '.join(types_by_key.values())} of the reward would run "
                f"{len(types_by_key)} further models in this process, and the trainer holds one; "
                "take a consistency judge of type rule or server, or remove one of the terms"
            )
            last_key = list(types_by_key)[-1]
            yield Broken(message, (last_key, "method.rewards"))
