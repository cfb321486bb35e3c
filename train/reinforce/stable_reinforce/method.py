"""StableReinforce: reinforcement learning of a generative judge (R1-Reward, arXiv 2505.02835)."""

from collections.abc import Mapping
from typing import Any, ClassVar

from mmrm.eval.judges.generative.judge import GenerativeJudge
from mmrm.train.methods.language_model.method import generative_judge
from mmrm.train.reinforce.method import ReinforceMethod
from mmrm.train.reinforce.stable_reinforce.config import StableReinforceConfig
from mmrm.train.reinforce.stable_reinforce.judgement_reward import JudgementReward
from mmrm.train.reinforce.stable_reinforce.judgement_term_setting import JudgementTermSetting
from mmrm.train.reinforce.stable_reinforce.pair_prompts import PairPrompts


class StableReinforceMethod(ReinforceMethod):
    """Reinforcement learning of a generative judge."""

    columns: ClassVar[Mapping[str, str]] = {
        **ReinforceMethod.columns,
        "rewards/agreement": "{:.3f}",
        "rewards/calibration": "{:.3f}",
        "rewards/reader": "{:.3f}",
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

        The model is the one that a term of the reward runs in this process. It is None if no term
        runs one.
        """
        setting = JudgementTermSetting(
            self.config.template,
            self.config.max_new_tokens,
            self.encoder,
            self.recipe.backbone,
            self.packed().token_budget,
            self.folder,
        )
        reward = JudgementReward(self.config, setting)
        return reward, reward.model
