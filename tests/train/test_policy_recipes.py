"""The recipes of a policy parse and hold the paper's values; what makes no sense together is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from mmrm.data.errors import RecipeError
from mmrm.data.sources.shared.source import SourceConfig
from mmrm.data.synthetic.source import ShapesConfig
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.reinforce.advantage_config import StableReinforceAdvantages
from mmrm.train.reinforce.policy.config import PolicyConfig
from mmrm.train.reinforce.policy.term_config import JudgeTerm
from mmrm.train.runs.provenance import recipe_yaml

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


def test_the_papers_values() -> None:
    recipe = read_recipe(RECIPES / "policy.yaml", entry="rl")
    method = recipe.method
    assert isinstance(method, PolicyConfig)
    assert (method.num_generations, recipe.optim.records_per_step, recipe.optim.epochs) == (
        8,
        256,
        1,
    )
    assert recipe.backbone.path == "Qwen/Qwen2.5-VL-3B-Instruct"
    assert [(term.form, term.weight) for term in method.rewards if isinstance(term, JudgeTerm)] == [
        ("hybrid", 1.0)
    ]
    assert isinstance(method.advantages, StableReinforceAdvantages)
    assert method.advantages.normalisation == "group"
    assert any(term.needs_answers for term in method.rewards)


def test_scenes_of_training_and_measurement_are_in_no_other_split() -> None:
    def splits(sources: Sequence[SourceConfig]) -> set[str]:
        return {source.split for source in sources if isinstance(source, ShapesConfig)}

    policies = ("policy", "policy_short")
    others = [
        path
        for path in sorted((RECIPES / "shapes").glob("*.yaml"))
        if path.stem not in (*policies, "judge_stress")
    ]
    taught = {split for path in others for split in splits(read_recipe(path).data.sources)}
    assert taught == {"pretrain", "train"}
    for recipe in [read_recipe(RECIPES / "shapes" / f"{name}.yaml") for name in policies]:
        assert splits(recipe.data.sources) == {"validation"}
        assert splits(recipe.evaluation.questions) == {"benchmark"}
        for source in (*recipe.data.sources, *recipe.evaluation.questions):
            assert isinstance(source, ShapesConfig)
            assert source.text_only == 0.0  # texts without an image could recur


def test_what_is_written_beside_a_run_is_the_same_recipe(tmp_path: Path) -> None:
    recipe = read_recipe(RECIPES / "shapes" / "policy.yaml")
    (tmp_path / "again.yaml").write_text(recipe_yaml(recipe), encoding="utf-8")
    assert read_recipe(tmp_path / "again.yaml") == recipe
    assert "questions" not in recipe_yaml(read_recipe(RECIPES / "shapes" / "naive.yaml"))


TRL = "data.sources=[{type: trl, hub: trl-lib/rlaif-v}]"


@pytest.mark.parametrize(
    ("recipe", "overrides", "said"),
    [
        ("shapes/policy", [TRL, "method.rewards.0.form=hybrid"], "records of trl hold none"),
        ("shapes/policy", [TRL, "data.validation=5"], "records of trl hold no known answer"),
        (
            "shapes/policy",
            ["evaluation.questions=[{type: trl, hub: trl-lib/rlaif-v}]"],
            "records of trl hold no known answer",
        ),
        (
            "shapes/policy",
            ["method.rewards=[{type: length, free_tokens: 48}]"],
            "the term never costs",
        ),
        ("shapes/policy", ["method.rewards=[{type: verifier, weight: 0.0}]"], "all weights are 0"),
        (
            "shapes/policy",
            ["method.rewards=[{type: format, pattern: '('}]"],
            "no regular expression",
        ),
        (
            "shapes/policy",
            ["evaluation.benchmarks=[{name: vl_rewardbench, location: embedded}]"],
            "judges nothing",
        ),
        ("shapes/policy", ["evaluation.best_metric=questions/accuracy"], "questions/greedy"),
        ("shapes/policy", ["method.advantages={normalisation: group, filter: 3.0}"], "never acts"),
        (
            "shapes/policy",
            ["data.validation=5", "evaluation.questions.0.name=held_out"],
            "more than once",
        ),
        ("shapes/naive", ["evaluation.samples=4"], "answers no questions"),
        ("shapes/naive", ["data.sources=[{type: questions, path: x.jsonl}]"], "hold no responses"),
        (
            "shapes/judge_rl",
            ["evaluation.questions=[{type: shapes, level: demo, rows: 9}]"],
            "answers no questions",
        ),
    ],
)
def test_combinations_that_make_no_sense_are_refused_with_a_reason(
    recipe: str, overrides: list[str], said: str
) -> None:
    with pytest.raises(RecipeError, match=said):
        read_recipe(RECIPES / f"{recipe}.yaml", overrides)


def test_a_judge_that_is_not_there_is_named_before_a_start() -> None:
    with pytest.raises(RecipeError, match=r"method\.rewards\.0\.path"):
        read_recipe(
            RECIPES / "shapes" / "policy.yaml", ["method.rewards.0.path=/nowhere/best"], entry="rl"
        )


def test_a_policy_without_a_reward_model_needs_no_score() -> None:
    overrides = ["method.rewards=[{type: verifier}]"]
    assert (
        "questions/best"
        not in read_recipe(RECIPES / "shapes" / "policy.yaml", overrides).held_out_figures
    )
    with pytest.raises(RecipeError, match="possible are"):
        read_recipe(
            RECIPES / "shapes" / "policy.yaml",
            [*overrides, "evaluation.best_metric=questions/best"],
        )
