"""The `data` section of a recipe and the command that plans it: what is refused, what is printed."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from mmrm.data.errors import RecipeError, UserError
from mmrm.data.preparation.mixing import MixtureConfig
from mmrm.data.preparation.recipe_section import (
    images_together_of,
    pairs_together_of,
    read_data_section,
)
from tests.data.mixtures import everything, mixture

ROOT = Path(__file__).resolve().parents[3]
WITHOUT = ("shapes_predictors", "shapes_reward_models", "shapes_ties")
"""Lists whose variants bring their data."""
RECIPES = [
    path for path in sorted((ROOT / "recipes").rglob("*.yaml")) if path.parent.name != "judges"
]


@pytest.mark.parametrize(
    ("section", "place"),
    [
        ({"sources": []}, "sources"),
        ({"sources": [{"type": "shape"}]}, "'shapes'"),
        ({"sources": [{"type": "project", "path": "a", "wieght": 2}]}, "project.wieght"),
        ({"sources": [{"type": "project", "path": "a", "weight": "2"}]}, "project.weight"),
        ({"sources": [{"type": "project", "path": "a", "weight": 0}]}, "project.weight"),
        ({"sources": [{"type": "project", "path": "a"}] * 2}, "occurs more than once"),
        (
            {
                "sources": [{"type": "project", "path": "a"}],
                "stages": [{"name": "x", "sources": ["b"]}],
            },
            "'x' draws from 'b'",
        ),
        (
            {"sources": [{"type": "project", "path": "a", "revision": "1"}]},
            "only a data set on the hub has revisions",
        ),
        (
            {"sources": [{"type": "shapes", "level": "nope", "rows": 1}]},
            "is not in the generated data set",
        ),
        (
            {"sources": [{"type": "shapes", "level": "demo", "rows": 1, "kinds": ["counting"]}]},
            "text_only must be 0",
        ),
        ({"sources": [{"type": "povid"}]}, "povid.images"),
        ({"sources": [{"type": "project", "path": "a", "name": "../x"}]}, "project.name"),
        ({"sources": [{"type": "project", "path": "a"}], "seed": -1}, "seed"),
        (
            {"sources": [{"type": "project", "path": "a"}], "filters": {"identical": 1}},
            "filters.identical",
        ),
    ],
)
def test_a_wrong_section_is_refused(section: dict[str, Any], place: str) -> None:
    with pytest.raises(ValidationError, match=place):
        MixtureConfig.model_validate(section)


def test_the_embedded_world_is_a_source(tmp_path: Path) -> None:
    shapes = {"type": "shapes", "level": "demo", "rows": 60, "text_only": 0.5}
    found = mixture(tmp_path, [shapes], validation=10)
    assert (len(found), len(found.validation)) == (50, 10)
    assert found[0] == pickle.loads(pickle.dumps(found))[0]
    (card,) = found.card().sources
    assert card.estimated
    assert 0 < card.multimodal < card.kept
    only = mixture(tmp_path, [shapes | {"kinds": ["counting"], "text_only": 0.0}])
    assert {record.category for record in everything(only)} == {"reasoning"}
    with pytest.raises(UserError, match="a generated source cannot be divided"):
        mixture(tmp_path, [shapes], text_per_multimodal=0.5)


def test_parsing_imports_nothing_heavy() -> None:
    heavy = ("torch", "transformers", "datasets", "pyarrow")
    code = f"import sys, mmrm.data.preparation.mixing; print([name for name in {heavy} if name in sys.modules])"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


def test_the_section_of_an_extended_recipe_is_laid_over_its_base(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "base.yaml").write_text(
        "backbone: {path: x}\ndata: {sources: [{type: project, path: a}], seed: 3, filters: {refusals: true, max_tokens: 9}}\n"
    )
    (tmp_path / "deep" / "same.yaml").write_text("extends: ../base.yaml\nmethod: {type: critic}\n")
    (tmp_path / "deep" / "top.yaml").write_text(
        "extends: same.yaml\ndata: {seed: 4, filters: {max_tokens: null}, sources: {0: {weight: 2}}}\n"
    )
    assert read_data_section(tmp_path / "deep" / "same.yaml") == read_data_section(
        tmp_path / "base.yaml"
    )
    found = read_data_section(tmp_path / "deep" / "top.yaml")
    assert (found.seed, found.filters.refusals, found.filters.max_tokens, len(found.sources)) == (
        4,
        True,
        None,
        1,
    )
    assert found.sources[0].weight == 2
    assert found.sources[0].type == "project"
    (tmp_path / "base.yaml").write_text("extends: deep/top.yaml\n")
    with pytest.raises(UserError, match="extends itself"):
        read_data_section(tmp_path / "deep" / "top.yaml")
    (tmp_path / "base.yaml").write_text("backbone: {path: x}\n")
    with pytest.raises(UserError, match=r"data\n +this key is required"):
        read_data_section(tmp_path / "base.yaml")


@pytest.mark.parametrize(
    ("method", "pairs_together", "images_together"),
    [
        ("{type: naive}", 4, 1),
        ("{type: naive, pairs_together: 1}", 1, 1),
        ("{type: critic, pairs_together: 7, images_together: 9}", 7, 9),
        ("{type: stable_reinforce, template: short}", 1, 1),
        ("{type: policy}", 1, 1),
    ],
)
def test_the_data_card_brings_together_what_the_method_does(
    tmp_path: Path, method: str, pairs_together: int, images_together: int
) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"data: {{sources: [{{type: project, path: a}}]}}\nmethod: {method}\n")
    assert pairs_together_of(recipe) == pairs_together
    assert images_together_of(recipe) == images_together


def test_what_is_wrong_with_the_section_is_said_with_its_line_and_the_nearest_key(
    tmp_path: Path,
) -> None:
    write = (
        "data:\n  sources:\n    - {type: shapes, weigth: 2}\n  validation: many\nanything: else\n"
    )
    (tmp_path / "r.yaml").write_text(write)
    with pytest.raises(RecipeError) as caught:
        read_data_section(tmp_path / "r.yaml")
    found = {problem.key: problem for problem in caught.value.problems}
    assert {key: problem.where.rpartition(":")[2] for key, problem in found.items()} == {
        "data.sources.0.weigth": "3",
        "data.sources.0.level": "3",
        "data.sources.0.rows": "3",
        "data.validation": "4",
    }
    assert "did you mean weight?" in found["data.sources.0.weigth"].message


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_the_data_of_every_recipe_is_understood(recipe: Path) -> None:
    if recipe.stem in WITHOUT:
        with pytest.raises(RecipeError, match="this key is required"):
            read_data_section(recipe)
    else:
        assert read_data_section(recipe).sources


LARGER = {"vision_config": {"patch_size": 16, "spatial_merge_size": 2}}
"""Tokens of 32 x 32 pixels: 60 x 40 pixels grow to 192 x 128, and with tokens of 28 x 28 to 196 x 140, which are 35."""
TILED = {"downsample_ratio": 0.5, "vision_config": {"image_size": [56, 56], "patch_size": [14, 14]}}


def test_the_plan_prints_and_saves_the_card_from_any_folder(
    two: list[dict[str, Any]], tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        json.dumps(
            {
                "model": {"anything": 1},
                "data": {"sources": two, "validation": 10, "cache": str(tmp_path / "c")},
            }
        )
    )
    command = [
        sys.executable,
        str(ROOT / "data" / "mixture.py"),
        str(recipe),
        "--save",
        str(tmp_path / "card.json"),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "140 records to train on" in done.stdout
    assert "An epoch by tenths" in done.stdout
    card = json.loads((tmp_path / "card.json").read_text())
    assert card["total"] == {
        "rows": 150,
        "held_out": 10,
        "kept": 140,
        "drawn": 140,
        "multimodal": 25,
        "images": 25,
        "videos": 0,
        "image_tokens": 25 * 6,  # 60 x 40 pixels grow to 84 x 56
        "text_tokens": card["total"]["text_tokens"],
    }
    assert "an image is 4 to 1,280 tokens" in done.stdout, "without a backbone, Qwen2.5-VL's"
    backbone = tmp_path / "backbone"
    backbone.mkdir()
    for config, limits, tokens in (
        (LARGER, {"min_pixels": 20000}, 6 * 4),
        (TILED, {"max_pixels": 7 * 56**2}, 7 * 4),
    ):
        (backbone / "config.json").write_text(json.dumps(config))
        section = {"path": str(backbone), **limits}
        recipe.write_text(json.dumps(json.loads(recipe.read_text()) | {"backbone": section}))
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert (
            json.loads((tmp_path / "card.json").read_text())["total"]["image_tokens"] == 25 * tokens
        ), done.stdout
    assert (
        "1 to 6 tiles of 56 x 56 pixels, several with one of the whole, 4 to 28 tokens"
        in done.stdout
    )
    (backbone / "config.json").unlink()
    assert (
        "may not be those of"
        in subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    )
    recipe.write_text("data: {sources: [{type: project}]}")
    failed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert failed.returncode == 2
    assert "Give `path`" in failed.stderr
    assert "Traceback" not in failed.stderr
