"""StableReinforce: reinforcement learning of a generative judge (R1-Reward, arXiv 2505.02835)."""

from functools import partial
from typing import Any

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
    Consistencies,
    JudgementReward,
    by_model,
    by_rule,
    model_replies,
    server_replies,
)
from mmrm.train.reinforce.stable_reinforce.pair_prompts import PairPrompts


class StableReinforceMethod(ReinforceMethod):
    """Reinforcement learning of a generative judge."""

    config: StableReinforceConfig

    def prepare(self) -> None:
        """Make prompts of the records."""
        self.prompts = PairPrompts(
            self.mixture, self.encoder, self.config.max_prompt_tokens, self.config.template
        )

    def judge(self, model: Any) -> GenerativeJudge:
        """Return the judge that writes judgements."""
        return generative_judge(self, self.config.template, model)

    @property
    def largest_reward(self) -> float:
        """The largest reward of a judgement."""
        return 1 + self.config.rewards.consistency_weight + self.config.rewards.format_weight

    def reward(self) -> tuple[JudgementReward, Any]:
        """Return the reward of judgements, and the model that judges their consistency."""
        consistencies, reader = self.consistencies()
        return JudgementReward(self.config.rewards, consistencies, self.encoder), reader

    def consistencies(self) -> tuple[Consistencies, Any]:
        """Return what decides if a reasoning agrees with its answer, and a model on this machine.

        The model is None if no model in this process is asked.
        """
        judge = self.config.rewards.consistency
        if isinstance(judge, ServerJudge):
            replies = partial(server_replies, judge, self.folder / "consistency")
            return partial(by_model, replies), None
        if isinstance(judge, CheckpointJudge):
            backbone = BackboneConfig(path=judge.path, dtype=self.recipe.backbone.dtype)
            model = load_language_model(backbone)
            encoder = load_encoder(backbone)
            token_budget = self.packed().token_budget
            return partial(by_model, partial(model_replies, model, encoder, token_budget)), model
        return by_rule, None
