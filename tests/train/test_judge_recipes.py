"""The recipes of generative judges parse, start with the right script, and hold the paper's values."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmrm.data.errors import RecipeError
from mmrm.train.methods.language_model.config import LanguageModelConfig
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.reinforce.advantage_config import StableReinforceAdvantages
from mmrm.train.reinforce.points.config import ReinforcePointsConfig
from mmrm.train.reinforce.stable_reinforce.config import RewardsConfig, StableReinforceConfig

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


@pytest.mark.parametrize(
    "name",
    [
        "r1_reward_rl",
        "r1_reward_rl_released",
        "shapes/judge_rl",
        "shapes/judge_rl_agreed",
        "shapes/judge_rl_agreement",
        "shapes/judge_stress",
        "shapes/judge_rubric_rl",
    ],
)
def test_rl_recipes(name: str) -> None:
    assert isinstance(
        read_recipe(RECIPES / f"{name}.yaml", entry="rl").method, StableReinforceConfig
    )


def test_the_recipe_for_points_is_for_rl() -> None:
    method = read_recipe(RECIPES / "shapes" / "points_rl.yaml", entry="rl").method
    assert isinstance(method, ReinforcePointsConfig)
    cold_start = read_recipe(RECIPES / "shapes" / "points.yaml", entry="sft").method
    assert method.point_prompt == cold_start.point_prompt


@pytest.mark.parametrize(
    "name",
    [
        "r1_reward_sft",
        "shapes/judge_sft",
        "shapes/judge_sft_agreed",
        "shapes/judge_rubric_sft",
        "shapes/judge_verdicts",
        "shapes/judge_verdicts_medium",
        "shapes/points_medium",
    ],
)
def test_cold_starts(name: str) -> None:
    assert isinstance(
        read_recipe(RECIPES / f"{name}.yaml", entry="sft").method, LanguageModelConfig
    )


def test_a_saved_recipe_names_the_tokens_with_loss_only_if_they_are_chosen() -> None:
    """Recipes of versions without the choice stay equal to those of this version."""
    judgements = read_recipe(RECIPES / "shapes" / "judge_verdicts.yaml", entry="sft")
    verdicts = read_recipe(RECIPES / "shapes" / "judge_verdicts_medium.yaml", entry="sft")
    assert "loss_on" not in judgements.model_dump(mode="json")["method"]
    assert verdicts.model_dump(mode="json")["method"]["loss_on"] == "verdict"


def test_the_papers_recipe_keeps_the_defaults_and_the_released_one_differs_where_it_says() -> None:
    paper, released = (
        read_recipe(RECIPES / f"r1_reward_rl{name}.yaml") for name in ("", "_released")
    )
    assert paper.optim.learning_rate == 1e-6
    assert released.optim.learning_rate == 3e-7
    assert isinstance(paper.method, StableReinforceConfig)
    assert isinstance(released.method, StableReinforceConfig)
    assert (paper.method.kl_coefficient, released.method.kl_coefficient) == (0.0, 1e-3)
    assert isinstance(released.method.rewards, RewardsConfig)
    assert isinstance(released.method.advantages, StableReinforceAdvantages)
    assert (
        released.method.rewards.variant
        == released.method.advantages.filter_variant
        == "r1_released"
    )
    assert paper.method.advantages == StableReinforceConfig(type="stable_reinforce").advantages
    assert released.method.pre_clip == paper.method.pre_clip


def test_the_stages_of_the_embedded_judge_share_the_annotated_pairs() -> None:
    """The cold start takes what was got right in four tries, and RL what was not right at once."""
    cold = read_recipe(RECIPES / "shapes/judge_sft_agreed.yaml")
    hard = read_recipe(RECIPES / "shapes/judge_rl_agreed.yaml")
    (cold_source,) = cold.data.sources
    (hard_source,) = hard.data.sources
    assert cold_source.model_dump()["path"] == hard_source.model_dump()["path"]
    assert (cold.data.curriculum.least, cold.data.curriculum.most) == (None, 4)
    assert (hard.data.curriculum.least, hard.data.curriculum.most) == (2, None)
    assert hard.data.curriculum.order == "easy_first"
    assert hard.backbone.path == f"{cold.output.folder}/best"


@pytest.mark.parametrize(
    ("recipe", "override", "said"),
    [
        ("shapes/judge_rl", "method.pairs_per_pass=5", "do not divide"),
        ("shapes/judge_rl", "evaluation.protocol.votes=5", "all alike"),
        ("shapes/naive", "evaluation.judging={temperature: 1.0}", "trains no judge"),
        ("r1_reward_sft", "data.sources=[{type: trl, hub: trl-lib/rlaif-v}]", "rationales"),
        ("shapes/judge_rl", "method.advantages={normalisation: group}", "never acts"),
        ("shapes/judge_rl", "method.rewards.reader={path: null}", "judgements by this template"),
        (
            "shapes/judge_rubric_rl",
            "method.rewards.consistency={type: checkpoint}",
            "2 further models",
        ),
        ("shapes/judge_sft", "method.rubric_parts=[criteria]", "judgements with a rubric"),
        ("r1_reward_rl", "method.advantages={normalisation: leave_one_out}", "only 1"),
        ("r1_reward_rl", "method.rewards=[{type: agreement}]", "even number"),
        ("shapes/judge_rl", "method.rewards=[{type: length, free_tokens: 80}]", "lower free_tok"),
        ("shapes/points_rl", "method.num_generations=3", "not even"),
        ("shapes/judge_rl", "method.rewards=[{type: result}, {type: result}]", "more than once"),
        ("shapes/judge_rl", "method.rewards=[{type: reader}]", "judgements by this template"),
        (
            "shapes/judge_rubric_rl",
            "method.rewards=[{type: reader}, {type: consistency, judge: {type: checkpoint}}]",
            "terms reader and consistency",
        ),
        ("shapes/judge_rl", "method.rewards=[{type: format, weight: 0.0}]", "all weights are 0"),
    ],
)
def test_combinations_that_make_no_sense_are_refused_with_a_reason(
    recipe: str, override: str, said: str
) -> None:
    with pytest.raises(RecipeError, match=said):
        read_recipe(RECIPES / f"{recipe}.yaml", [override])
