"""StableReinforce: reinforcement learning of a generative judge (R1-Reward, arXiv 2505.02835)."""

from functools import partial
from typing import Any

from mmrm.data.prompts import TEMPLATES
from mmrm.eval.judges.generative.judge import GenerativeJudge
from mmrm.models.backbone import load_encoder, load_language_model
from mmrm.models.config import BackboneConfig
from mmrm.train.methods.language_model.method import generative_judge
from mmrm.train.reinforce.method import ReinforceMethod
from mmrm.train.reinforce.stable_reinforce.config import (
    CheckpointJudge,
    ServerJudge,
    StableReinforceConfig,
)
from mmrm.train.reinforce.stable_reinforce.judgement_reward import (
    ConsistencyCheck,
    JudgementReward,
    consistency_by_model,
    consistency_by_rule,
    model_replies,
    server_replies,
)
from mmrm.train.reinforce.stable_reinforce.pair_prompts import PairPrompts
from mmrm.train.reinforce.stable_reinforce.rubric_reader import RubricReader


class StableReinforceMethod(ReinforceMethod):
    """Reinforcement learning of a generative judge."""

    config: StableReinforceConfig

    def prepare(self) -> None:
        """Make the prompts of the run: requests to compare the responses of its records."""
        self.prompts = PairPrompts(
            self.mixture, self.encoder, self.config.max_prompt_tokens, self.config.template
        )

    def judge(self, model: Any) -> GenerativeJudge:
        """Return `model` as a judge that gets the same prompt as in training."""
        return generative_judge(self, self.config.template, model)

    @property
    def largest_reward(self) -> float:
        """The reward of a judgement that is right, consistent and in the required format."""
        rewards = self.config.rewards
        largest = 1 + rewards.consistency_weight + rewards.format_weight
        if rewards.reader is not None:
            largest += rewards.reader.weight
        return largest

    def reward(self) -> tuple[JudgementReward, Any]:
        """Return the function that trl calls for the rewards of judgements, and its model.

        The model checks if reasoning and answer agree, or reads rubrics. It is None if neither
        takes a model in this process.
        """
        check, checking_model = self.consistency_check()
        form = TEMPLATES[self.config.template].form
        reader = self.rubric_reader()
        reward = JudgementReward(self.config.rewards, check, self.encoder, form, reader)
        if reader is not None:
            # A recipe with both a reader and a checking model is refused.
            return reward, reader.model
        return reward, checking_model

    def rubric_reader(self) -> RubricReader | None:
        """Return the frozen reader of rubrics; None if the recipe has none."""
        section = self.config.rewards.reader
        if section is None:
            return None
        backbone = self.recipe.backbone
        encoder = self.encoder
        if section.path is not None:
            backbone = BackboneConfig(path=section.path, dtype=self.recipe.backbone.dtype)
            encoder = load_encoder(backbone)
        model = load_language_model(backbone)
        token_budget = self.packed().token_budget
        return RubricReader(model, encoder, token_budget, self.config.template)

    def consistency_check(self) -> tuple[ConsistencyCheck, Any]:
        """Return the function that checks if reasoning and answer agree, and a model.

        The model is the one that the function runs. It is None if a server or a rule makes the
        check, so that no model is loaded into this process.
        """
        section = self.config.rewards.consistency
        if isinstance(section, ServerJudge):
            ask_server = partial(server_replies, section, self.folder / "consistency")
            return partial(consistency_by_model, ask_server), None
        if isinstance(section, CheckpointJudge):
            backbone = BackboneConfig(path=section.path, dtype=self.recipe.backbone.dtype)
            model = load_language_model(backbone)
            encoder = load_encoder(backbone)
            token_budget = self.packed().token_budget
            ask_model = partial(model_replies, model, encoder, token_budget)
            return partial(consistency_by_model, ask_model), model
        form = TEMPLATES[self.config.template].form
        return partial(consistency_by_rule, form=form), None
