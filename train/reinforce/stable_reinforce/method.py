"""StableReinforce: reinforcement learning of a generative judge (R1-Reward, arXiv 2505.02835)."""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from mmrm.eval.judges.generative.judge import GenerativeJudge
from mmrm.models.backbone import load_encoder, load_language_model
from mmrm.models.config import BackboneConfig
from mmrm.train.methods.language_model.method import generative_judge
from mmrm.train.reinforce.method import ReinforceMethod
from mmrm.train.reinforce.stable_reinforce.config import StableReinforceConfig
from mmrm.train.reinforce.stable_reinforce.consistency import (
    ConsistencyCheck,
    consistency_by_model,
    consistency_by_rule,
    model_replies,
    server_replies,
)
from mmrm.train.reinforce.stable_reinforce.judgement_reward import JudgementReward
from mmrm.train.reinforce.stable_reinforce.judgement_term_config import (
    CheckpointJudge,
    ServerJudge,
)
from mmrm.train.reinforce.stable_reinforce.pair_prompts import PairPrompts


class StableReinforceMethod(ReinforceMethod):
    """Reinforcement learning of a generative judge."""

    columns: ClassVar[Mapping[str, str]] = {
        **ReinforceMethod.columns,
        "rewards/agreement": "{:.3f}",
        "rewards/calibration": "{:.3f}",
    }

    config: StableReinforceConfig

    def prepare(self) -> None:
        """Make the prompts of the run: requests to compare the responses of its records."""
        config = self.config
        self.prompts = PairPrompts(
            self.mixture,
            self.encoder,
            config.max_prompt_tokens,
            config.template,
            both_orders=config.both_orders,
        )

    def judge(self, model: Any) -> GenerativeJudge:
        """Return `model` as a judge that gets the same prompt as in training."""
        return generative_judge(self, self.config.template, model)

    @property
    def largest_reward(self) -> float:
        """The reward of a judgement for which every term has its largest value."""
        return sum(term.weight * term.largest for term in self.config.reward_terms)

    def reward(self) -> tuple[JudgementReward, Any]:
        """Return the function that trl calls for the rewards of judgements, and its model.

        The model checks if reasoning and answer agree. It is None if a server or a rule does so.
        """
        check, checking_model = self.consistency_check()
        return JudgementReward(self.config, check, self.encoder), checking_model

    def consistency_check(self) -> tuple[ConsistencyCheck, Any]:
        """Return the function that checks if reasoning and answer agree, and a model.

        The model is the one that the function runs. It is None if a server or a rule makes the
        check, so that no model is loaded into this process.
        """
        judges = [term.consistency_judge for term in self.config.reward_terms]
        # A recipe lists at most one term with such a judge, and without one no check is made.
        section = next((judge for judge in judges if judge is not None), None)
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
        return consistency_by_rule, None
