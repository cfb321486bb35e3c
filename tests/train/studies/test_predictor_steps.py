"""The readings by which a reward model is measured, and the file that loads it."""

import json
from pathlib import Path

import pytest

from mmrm.data.package import recipe_path
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.studies import predictor_steps
from mmrm.train.studies.ablation.variants import Run
from mmrm.train.studies.predictor_steps import readings_of_verdicts, reward_model_path


@pytest.mark.parametrize(
    ("recipe", "readings"),
    [
        ("naive", ("",)),
        ("points", ("",)),
        ("judge_sft", ("hard", "soft")),
        ("judge_verdicts", ("soft",)),
    ],
)
def test_a_judge_that_writes_nothing_is_measured_by_soft_verdicts_alone(
    recipe: str,
    readings: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = recipe_path(f"recipes/shapes/{recipe}.yaml")
    run = Run(recipe, 0, read_recipe(file, [f"output.folder={tmp_path}"]))
    assert readings_of_verdicts(run) == readings

    checkpoint = run.folder / "checkpoint-1"
    monkeypatch.setattr(predictor_steps, "checkpoint_of", lambda _: checkpoint)
    path = reward_model_path(run)
    if readings == ("",):
        assert path == checkpoint
    else:
        settings = json.loads(path.read_text(encoding="utf-8"))
        assert settings["verdicts"] == "soft"
        assert settings.get("rationale") == ("none" if readings == ("soft",) else None)
