"""The section `method` of a recipe for the reinforcement learning of a judge of single responses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from mmrm.data.point_prompt import PointPrompt
from mmrm.train.recipe.sections import HELD_OUT_ACCURACY, Broken, RunConfig
from mmrm.train.reinforce.config import RolloutConfig


class ReinforcePointsConfig(RolloutConfig):
    """Reinforcement learning of a judge that scores single responses, on preference pairs.

    Each response of a pair is scored alone, and the reward is the order of the pair by the points.
    """

    implementation = "mmrm.train.reinforce.points.method:ReinforcePointsMethod"
    judge_type = "points"
    paradigm = "judge"

    type: Literal["reinforce_points"]
    points: PointPrompt = PointPrompt()
    """The question about one response, and the scores. The judge has to write the opening and a
    score by itself, so begin with a checkpoint that learned whole answers
    (`method.loss_on: answer` of the cold start)."""
    num_generations: int = Field(default=8, ge=2, le=1024)
    """The number of texts that are sampled for each pair: half of them about each response. It is
    even."""

    @property
    def summary(self) -> str:
        """A description of the sampling and the loss, for the plan and the model card."""
        texts_per_response = self.num_generations // 2
        return f"reinforce_points: {texts_per_response} texts about each response {self.update}"

    @property
    def point_prompt(self) -> PointPrompt:
        """The question to the judge about one response."""
        return self.points

    def held_out_figures(self, run: RunConfig) -> tuple[str, ...]:
        """Return the name of the accuracy on the records of data.validation, empty without records.

        Reinforcement learning computes no loss on pairs.
        """
        if not run.data.validation:
            return ()
        return (HELD_OUT_ACCURACY,)

    def rules(self, run: RunConfig) -> Iterator[Broken]:
        """Yield the rules that `run` breaks on sampling and on the number of texts."""
        yield from super().rules(run)
        if self.num_generations % 2:
            message = (
                f"half of a pair's texts are about each response, and {self.num_generations} are "
                "not even; set it to an even number"
            )
            yield Broken(message, ("method.num_generations",))
