"""The readings by which a reward model is measured, and the file that loads it."""

import json
from pathlib import Path
from typing import Any

import pytest

from mmrm.data.package import recipe_path
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.studies import predictor_steps
from mmrm.train.studies.ablation.variants import Run
from mmrm.train.studies.predictor_steps import (
    folder_of_results,
    readings_of_verdicts,
    reward_model_path,
)


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


def test_benchmarks_are_judged_again_by_another_protocol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[Any] = []
    monkeypatch.setattr(predictor_steps, "checkpoint_of", lambda run: run.folder / "checkpoint-1")
    monkeypatch.setattr(predictor_steps, "digests_of_model", lambda _: {"judge": "0"})
    monkeypatch.setattr(predictor_steps, "run_step", lambda *arguments: steps.append(arguments[-1]))
    file = recipe_path("recipes/shapes/judge_sft.yaml")
    for votes in (1, 3):
        overrides = [f"output.folder={tmp_path}", f"evaluation.protocol.votes={votes}"]
        overrides.append("evaluation.judging.temperature=1.0")
        run = Run("judge_sft", 0, read_recipe(file, overrides))
        assert folder_of_results(run, "soft", ["python"]).name == "eval-soft"
    once, thrice = steps
    assert once != thrice
    assert {key for key in once if once[key] != thrice[key]} == {"protocol"}
