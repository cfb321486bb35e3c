"""What reward models are worth: each step once, each figure from its place, coefficients over the models that have both."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.eval.reporting.test_figures import made
from tests.train.minimal import MINIMAL, write
from tests.train.test_on_policy import LAUNCHER, POLICY
from train import predictors
from train.ablation.variants import Run
from train.recipe.recipe import STAND_IN, Recipe

LIST = """\
evaluation: {at_start: false, best_metric: null, benchmarks: [{name: vl_rewardbench, location: embedded}]}
output: {folder: OUT, save_every_steps: 100, keep_checkpoints: 1}
variants:
  bad: {extends: base.yaml}
  good: {extends: base.yaml, head.layers: 1}
  good-judge: {extends: judge.yaml}
"""
JUDGE = MINIMAL.replace("{type: naive}", "{type: language_model, target: judgement}")
EVALUATION = "evaluation: {questions: [{type: shapes, level: demo, split: benchmark, rows: 4}]}\n"


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    """Write the list, whose folder is `out`; evaluations leave a result there and replace 0.125, its accuracy with ties half."""
    write(tmp_path, MINIMAL, "base.yaml")
    write(tmp_path, JUDGE, "judge.yaml")
    write(tmp_path, POLICY + EVALUATION, "policy.yaml")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "stub").touch()
    result = made({})
    micro = result.micro.model_copy(update={"accuracy": 0.3, "half": 0.125})
    (tmp_path / "out" / "result.json").write_text(
        result.model_copy(update={"micro": micro}).model_dump_json()
    )
    return write(tmp_path, LIST.replace("OUT", str(tmp_path / "out")), "list.yaml")


def run(listed: Path, *more: str) -> dict[str, Any]:
    asked = [
        "--seeds",
        "0",
        "1",
        "--policy",
        "embedded",
        "--questions",
        "{type: shapes}",
        "--compared",
        "2",
    ]
    paid = ["--policy-recipe", str(listed.with_name("policy.yaml")), "--pays", "bad", "good"]
    predictors.main([str(listed), *asked, *paid, "--launcher", LAUNCHER, *more])
    found: dict[str, Any] = json.loads(
        (listed.parent / "out" / "predictors" / "predictors.json").read_text()
    )
    return found


def calls(listed: Path) -> list[str]:
    return [
        " ".join(line.split()[:2])
        for line in (listed.parent / "out" / "calls").read_text().splitlines()
    ]


def test_every_model_is_measured_by_the_same_answers(
    listed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(listed)
    models = {(one["variant"], one["seed"]): one for one in found["models"]}
    assert list(models) == [
        (name, seed) for seed in (0, 1) for name in ("bad", "good", "good-judge")
    ]
    assert [models[name, 0]["questions"] for name in ("bad", "good", "good-judge")] == [3, 3, 2]
    assert [models[name, 0]["paradigm"] for name in ("good", "good-judge")] == ["Naive-RM", "judge"]
    assert [models[name, 1]["AUC"] for name in ("bad", "good")] == [0.5, 1.0]
    assert [models[name, 1]["vl_rewardbench accuracy"] for name in ("bad", "good")] == [0.6, 0.9]
    assert (
        models["bad", 0]["best_of_gain"][0] == 0.5
    )  # the best by score is right, half of the answers are
    assert models["bad", 0]["rl_greedy_gain"][0] == -0.25
    assert models["good", 0]["rl_greedy_gain"][0] == 0.25
    assert models["good", 0]["rl_sampled_gain"][0] == 0
    assert "rl_greedy_gain" not in models["good", 1]  # the first seed pays
    assert found["missing"] == [
        f"{figure}: known of 3 variants, a coefficient needs 6"
        for figure in ("AUC", "vl_rewardbench accuracy", "vl_rewardbench ECE")
    ]
    variants = {
        one["variant"]: one
        for one in found["variants"]
        if one["benchmark"] == "AUC inside a question"
    }
    assert {name: (one["n"], one["accuracy"]) for name, one in variants.items()} == {
        "bad": (2, 0.5),  # the questions that the judge was asked about, too
        "good": (2, 1.0),
        "good-judge": (2, 1.0),
    }
    assert variants["good"]["difference"] == 0.5
    assert found["correlations"]["best_of_gain"] == {}  # which is the same for all models
    folder = listed.parent / "out" / "predictors"
    table = (folder / "predictors.md").read_text()
    assert "| bad | 0 | Naive-RM | 3 | 50.0 | 60.0 | " in table
    assert "| good-judge | 1 | judge | 2 | 100.0 | 90.0 | " in table
    assert (folder / "predictors.png").stat().st_size > 5000
    assert "predictors.md" in capsys.readouterr().out
    made_once = calls(listed)
    assert sorted(made_once) == sorted(set(made_once))
    assert run(listed) == found
    assert calls(listed) == made_once


def test_what_failed_is_missing_and_told_and_a_killed_command_ends_the_same(
    listed: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (listed.parent / "out" / "fail").write_text("rm good/1")
    partly = run(listed)
    assert partly["missing"][0] == "good, seed 1"
    assert "not in the tables: good, seed 1" in capfd.readouterr().out
    (listed.parent / "out" / "fail").write_text("rl predictors/policies/good")
    for file in (listed.parent / "out" / "predictors" / "policies" / "good").glob("*.json"):
        file.unlink()
    with pytest.raises(SystemExit) as end:
        run(listed)
    assert end.value.code == 2
    (listed.parent / "out" / "fail").unlink()
    assert len(run(listed)["models"]) == 6


def test_what_cannot_be_asked_is_said(listed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [
        str(listed),
        "--policy",
        "embedded",
        "--questions",
        "{type: shapes}",
        "--launcher",
        sys.executable,
    ]
    with pytest.raises(SystemExit):
        predictors.main([*asked, "--pays", "bad"])
    assert "--pays and --policy-recipe go together" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        predictors.main(
            [*asked, "--pays", "better", "--policy-recipe", str(listed.with_name("policy.yaml"))]
        )
    assert "--pays better: the variants of" in capsys.readouterr().err


def test_a_coefficient_is_over_the_models_that_have_both() -> None:
    """Seven models of six variants: AUC goes with the gain; of five variants, the other figure's are too few."""
    others = [None, 0.2, 0.3, 0.3, 0.4, 0.5, 0.6]
    runs = [
        model_of(0.5 + place / 20, place / 10, other, "aabcdef"[place])
        for place, other in enumerate(others)
    ]
    runs[1] = model_of(0.55, 0.1, None, "a")
    found = predictors.correlations(runs)["best_of_gain"]
    assert list(found) == ["AUC"]  # no judge is among them
    assert predictors.too_few(runs) == ["other: known of 5 variants, a coefficient needs 6"]
    assert (found["AUC"].models, found["AUC"].recipes) == (7, 6)
    assert [found["AUC"].pearson[0], found["AUC"].spearman[0]] == pytest.approx([1.0, 1.0])
    assert list(found["AUC"].without) == list("abcdef")


def test_judges_that_compare_are_also_left_out() -> None:
    scoring = [model_of(0.6 + place / 20, place / 10, None, str(place)) for place in range(6)]
    judges = [model_of(0.2, 0.5, None, "judge", {"type": "language_model", "target": "judgement"})]
    found = predictors.correlations([*scoring, *judges])["best_of_gain"]
    assert {name: one.models for name, one in found.items()} == {"AUC": 7, "AUC, without judges": 6}
    assert found["AUC"].pearson[0] < 0.5
    assert found["AUC, without judges"].pearson[0] == pytest.approx(1.0)


def test_auc_of_one_half_of_the_questions_predicts_the_gain_on_the_other() -> None:
    """Models whose answers to the even questions were lucky by chance: the same answers make a coefficient of 1, halves of -1."""
    models = []
    for place in range(6):
        model = model_of(0.5 + place / 20, place / 10, None, str(place))
        lucky = {str(number): place / 10 * (-1) ** number for number in range(4)}
        by_question = {predictors.AUC: lucky, predictors.GAIN: lucky}
        models.append(replace(model, by_question=by_question))
    found = predictors.correlations(models)["best_of_gain"]["AUC"]
    assert found.pearson[0] == pytest.approx(-1.0)


def model_of(
    auc: float, gain: float, other: float | None, variant: str, method: dict[str, str] | None = None
) -> predictors.Model:
    figures = {"AUC": auc} | ({} if other is None else {"other": other})
    recipe = Recipe.model_validate(STAND_IN | ({"method": method} if method else {}))
    return predictors.Model(
        Run(variant, 0, recipe),
        10,
        figures,
        {"best_of_gain": (gain, 0.0, 0.0)},
        {
            predictors.AUC: dict.fromkeys(("0", "1"), auc),
            predictors.GAIN: dict.fromkeys(("0", "1"), gain),
        },
    )
