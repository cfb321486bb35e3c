"""The Naive-RM (BaseReward): a reward head scores both responses at their last token, and Bradley-Terry compares them."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from eval.judges.packed_inference import ScalarJudge
from eval.protocol import Judge
from models.encoder import Encoder
from train.recipe.methods import NaiveConfig
from train.recipe.recipe import Recipe
from train.supervised.method import SupervisedMethod
from train.supervised.objectives import PairwiseScores
from train.supervised.steps import MixtureRecords, PairEncoder, expected_costs


class NaiveMethod(SupervisedMethod):
    """The Naive-RM."""

    def __init__(self, config: NaiveConfig, recipe: Recipe, encoder: Encoder, console: Console) -> None:
        super().__init__(recipe, encoder, console)
        self.mixture = self.open_mixture()
        self.encode = PairEncoder(encoder, recipe.head.read)
        self.records = MixtureRecords(self.mixture, self.encode)
        self.costs = expected_costs(self.mixture)
        self.objective = PairwiseScores(config)

    def judge(self, model: Any) -> Judge:
        """Return the judge that scores both responses."""
        return ScalarJudge(model, self.packed(), self.recipe.head.read)
