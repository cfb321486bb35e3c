"""Reinforcement learning of a judge of single responses on preference pairs."""

from collections.abc import Mapping
from typing import Any, ClassVar

from mmrm.eval.judges.points.judge import point_judge
from mmrm.eval.judges.pointwise import PointJudge
from mmrm.train.reinforce.method import ReinforceMethod
from mmrm.train.reinforce.points.config import ReinforcePointsConfig
from mmrm.train.reinforce.points.order_reward import OrderReward
from mmrm.train.reinforce.points.response_prompts import ResponsePrompts
from mmrm.train.supervised.devices import unwrapped


class ReinforcePointsMethod(ReinforceMethod):
    """Reinforcement learning of a judge that scores each response of a pair by itself."""

    columns: ClassVar[Mapping[str, str]] = {
        # All columns but those of the reward of a judgement of two responses.
        **{
            name: form
            for name, form in ReinforceMethod.columns.items()
            if not name.startswith("rewards/")
        },
        "rollouts/tied": "{:.3f}",
        "rollouts/unreadable": "{:.3f}",
    }

    config: ReinforcePointsConfig

    @property
    def largest_reward(self) -> float:
        """The reward of a text that orders its pair rightly against all others."""
        return 1.0

    def prepare(self) -> None:
        """Make the prompts of the run: a question about each response of its pairs."""
        config = self.config
        self.prompts = ResponsePrompts(
            self.mixture, self.encoder, config.max_prompt_tokens, config.points
        )

    def reward(self) -> tuple[OrderReward, None]:
        """Return the function that trl calls for the rewards of texts, and None: it runs no model."""
        config = self.config
        return OrderReward(config.points, config.num_generations, self.encoder), None

    def judge(self, model: Any) -> PointJudge:
        """Return `model` as a judge whose score is the expected value of the points."""
        config = self.config
        # A judge that answers at once calls the model in its wrappers, as a scalar judge does.
        judging_model = unwrapped(model) if config.points.rationale else model
        sampling = self.recipe.evaluation.judging
        return point_judge(config.points, "expected", judging_model, self.packed(), sampling)
