"""Every shipped recipe is a recipe, can be planned, and says what its paper says."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmrm.data.preparation.recipe_section import pairs_together_of
from mmrm.data.sources.hpdv3 import Hpdv3Config
from mmrm.data.sources.shared.file_source import FilesConfig
from mmrm.eval.judges.released.picture_model import HEAD
from mmrm.train.methods.critic.config import CriticConfig
from mmrm.train.methods.naive.config import NaiveConfig
from mmrm.train.objectives.gaussian.config import GaussianConfig
from mmrm.train.planning.dry_run import plan_lines
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.recipe.recipe import Recipe
from tests.train.shipped import FOLDER, RECIPES


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_a_shipped_recipe_is_read_and_planned(path: Path) -> None:
    plan = plan_lines(read_recipe(path))
    assert plan["steps"]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_a_shipped_recipe_names_its_command(path: Path) -> None:
    assert (
        f"# {'':2}deepspeed train/{read_recipe(path).method.script}.py recipes/{path.relative_to(FOLDER)}"
        in path.read_text(encoding="utf-8")
    )


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_the_data_card_of_a_shipped_recipe_has_the_order_of_its_run(path: Path) -> None:
    method = read_recipe(path).method
    if isinstance(method, NaiveConfig | CriticConfig):
        assert pairs_together_of(path) == method.pairs_together
    else:
        assert pairs_together_of(path) == 1


def test_basereward_is_the_papers() -> None:
    """The values that the paper (arXiv 2509.16127) states."""
    recipe = read_recipe(FOLDER / "basereward.yaml")
    assert recipe.backbone.path == "Qwen/Qwen2.5-VL-7B-Instruct"
    assert (recipe.head.layers, recipe.head.activation) == (2, "silu")
    assert recipe.method == NaiveConfig(type="naive")
    assert (recipe.optim.learning_rate, recipe.optim.records_per_step) == (3e-6, 128)
    assert [(b.name, b.location) for b in recipe.evaluation.benchmarks] == [
        ("vl_rewardbench", "hub"),
        ("multimodal_rewardbench", "hub"),
    ]
    assert (recipe.backbone.dtype, recipe.deepspeed) == ("bfloat16", "zero3")
    assert all(isinstance(source, FilesConfig) and source.hub for source in recipe.data.sources)


@pytest.mark.parametrize(
    ("name", "backbone"),
    [
        ("hps", "Qwen/Qwen2-VL-7B-Instruct"),
        ("edit_reward", "Qwen/Qwen2.5-VL-7B-Instruct"),
    ],
)
def test_models_of_pictures_are_trained_as_their_authors_configure(
    name: str, backbone: str
) -> None:
    """The values of hpsv3/config/HPSv3_7B.yaml and EditReward/config/EditReward-Qwen2.5-7B-VL.yaml.

    Both files agree in all values that are compared here, except for the backbone.
    """
    recipe = read_recipe(FOLDER / f"{name}.yaml")
    assert recipe.backbone.path == backbone
    assert (recipe.backbone.min_pixels, recipe.backbone.max_pixels) == (200704, 200704)
    assert recipe.backbone.dtype == "bfloat16"
    # The head with which the released weights are loaded is the one that is trained.
    released = HEAD.model_dump(exclude={"read"})
    assert recipe.head.model_dump(exclude={"read"}) == released
    assert recipe.optim.learning_rate == 2e-6
    assert (recipe.optim.epochs, recipe.optim.warmup_ratio) == (10, 0.05)
    assert (recipe.optim.schedule, recipe.deepspeed) == ("constant", "zero2")
    assert isinstance(recipe.method, NaiveConfig)
    assert recipe.method.objective == GaussianConfig(type="gaussian", loss="expected")
    [source] = recipe.data.sources
    if isinstance(source, Hpdv3Config):
        assert source.minimum_confidence == 0.95  # confidence_threshold


def test_steps_are_whole_and_given_by_epochs_or_by_number() -> None:
    recipe = read_recipe(FOLDER / "basereward.yaml", ["optim.epochs=1.5"])
    assert recipe.steps(1000) == 12  # an epoch has 7 whole steps and a smaller one
    assert recipe.steps(127) == 1
    assert (
        read_recipe(FOLDER / "basereward.yaml", ["optim.epochs=null", "optim.max_steps=3"]).steps(
            1000
        )
        == 3
    )


def test_nothing_in_a_recipe_can_be_changed_or_coerced() -> None:
    recipe = read_recipe(FOLDER / "basereward.yaml")
    with pytest.raises(ValueError, match="frozen"):
        recipe.seed = 1  # type: ignore[misc]
    with pytest.raises(ValueError, match="valid integer"):
        Recipe.model_validate({**recipe.resolved(), "seed": "1"})


def test_the_ablation_scale_differs_from_basereward_in_data_and_benchmarks_only() -> None:
    full, ablation = (
        read_recipe(FOLDER / f"{name}.yaml") for name in ("basereward", "basereward_200k")
    )
    same = ("backbone", "head", "method", "optim", "deepspeed", "seed")
    assert {name: ablation.resolved()[name] for name in same} == {
        name: full.resolved()[name] for name in same
    }
    assert ablation.data.validation == full.data.validation == 1000
    assert [source.type for source in ablation.data.sources] == [
        "mm_rlhf",
        "rlaif_v",
        "vlfeedback",
        "wildvision_battle",
        "povid",
    ]
    assert sum(source.cap or 17_000 for source in ablation.data.sources[1:]) == 100_000
    assert ablation.data.sources[0].cap is None
