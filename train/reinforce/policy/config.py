"""The section `method` of a recipe for a policy that answers questions.

[Q] marks a value that is quoted from the paper or its released code. Every other value is a
default of this project, because the paper is silent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from mmrm.data.config.registry import OneOf, installed_rows
from mmrm.data.sources.registry import SOURCES
from mmrm.train.recipe.sections import (
    QUESTION_FIGURES,
    Broken,
    EvaluationConfig,
    RunConfig,
)
from mmrm.train.reinforce.advantage_config import StableReinforceAdvantages
from mmrm.train.reinforce.config import AnyAdvantages, PreClipConfig, RolloutConfig
from mmrm.train.reinforce.policy.registry import TERMS
from mmrm.train.reinforce.policy.term_config import TermConfig


class PolicyConfig(RolloutConfig):
    """Reinforcement learning of a policy by reward models, as in BaseReward (arXiv 2509.16127)."""

    implementation = "mmrm.train.reinforce.policy.method:PolicyMethod"
    judge_type = None
    paradigm = "policy"
    evaluated_on = "questions"

    type: Literal["policy"]
    rewards: list[Annotated[TermConfig, OneOf(TERMS)]] = Field(min_length=1)
    """The terms of the reward, which is their weighted sum."""
    advantages: AnyAdvantages = StableReinforceAdvantages(normalisation="group", filter=None)
    """The computation of advantages from rewards. The default is GRPO's, over the answers to one
    question."""
    num_generations: int = Field(default=8, ge=2, le=1024)
    """The number of answers that are sampled to each question; 8 in the paper [Q]."""
    pre_clip: PreClipConfig | None = None
    """Bounds on the ratio as in StableReinforce. GRPO has none."""
    steps_per_rollout: int = Field(default=1, ge=1, le=10_000)
    """The number of optimizer steps on one batch of rollouts."""

    @property
    def summary(self) -> str:
        """A description of the reward and the loss, for the plan and the model card."""
        terms = " + ".join(f"{term.weight:g} x {term.type}" for term in self.rewards)
        return f"policy: {self.num_generations} answers a question {self.update}; reward {terms}"

    def held_out_figures(self, run: RunConfig) -> tuple[str, ...]:
        """Return the names of the figures on all sets of questions, such as `SET/greedy`.

        The records of data.validation are one of the sets. The figure `best` is left out if the
        reward has no judge.
        """
        has_judge = any(term.judge_path is not None for term in self.rewards)
        figures = [figure for figure in QUESTION_FIGURES if figure != "best" or has_judge]
        return tuple(f"{name}/{figure}" for name in run.question_sets for figure in figures)

    def judge_paths(self) -> Iterator[tuple[str, str]]:
        """Yield the key and the path of every judge that is a part of the reward."""
        for index, term in enumerate(self.rewards):
            if term.judge_path is not None:
                yield f"method.rewards.{index}.path", term.judge_path

    def rules(self, run: RunConfig) -> Iterator[Broken]:
        """Yield the rules that `run` breaks on sampling, the reward and the evaluation."""
        yield from super().rules(run)
        yield from self._reward_rules(run)
        yield from self._evaluation_rules(run)

    def _reward_rules(self, run: RunConfig) -> Iterator[Broken]:
        """Check that the terms of the reward can be computed, and that one of them counts."""
        without_answers = {source.type for source in run.data.sources if not source.has_answers}
        if without_answers and any(term.needs_answers for term in self.rewards):
            message = (
                "a verifier compares answers with known ones, and records of "
                f"{', '.join(sorted(without_answers))} hold none; take sources of type "
                f"{' or '.join(_types_with_answers())}, or a reward without a verifier"
            )
            yield Broken(message, ("method.rewards", "data.sources"))
        for index, term in enumerate(self.rewards):
            yield from term.rules(f"method.rewards.{index}", self.max_new_tokens)
        if not any(term.weight for term in self.rewards):
            message = "all weights are 0: every answer would be paid alike; raise one"
            yield Broken(message, ("method.rewards",))

    def _evaluation_rules(self, run: RunConfig) -> Iterator[Broken]:
        """Check that a policy is evaluated on questions with known answers, and nothing else."""
        for key in ("benchmarks", "protocol", "judging"):
            if dict(run.evaluation)[key] != EvaluationConfig.model_fields[key].get_default():
                message = (
                    "a policy answers questions and judges nothing; remove this key, and name "
                    "evaluation.questions"
                )
                yield Broken(message, (f"evaluation.{key}", "method.type"))

        keys_and_sources = [
            (f"evaluation.questions.{index}", source)
            for index, source in enumerate(run.evaluation.questions)
        ]
        if run.data.validation:
            # The records that are withheld from training are questions of the evaluation, too.
            keys_and_sources += [("data.sources", source) for source in run.data.sources]
        for key, source in keys_and_sources:
            if not source.has_answers:
                message = (
                    f"records of {source.type} hold no known answer to compare with; take a source "
                    f"of type {' or '.join(_types_with_answers())}"
                )
                yield Broken(message, (key, "data.validation", "method.type"))

        names = run.question_sets
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            message = (
                f"the name {repeated[0]} occurs more than once and would overwrite its own "
                "figures; give each source a `name`"
            )
            yield Broken(message, ("evaluation.questions",))


def _types_with_answers() -> list[str]:
    """Return the types of sources whose records hold known answers."""
    return [name for name, source in installed_rows(SOURCES).items() if source.has_answers]
