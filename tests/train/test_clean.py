"""The command that finds wrong labels: folds, runs that are not repeated, lists, tables and refusals."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmrm.data.errors import UserError
from mmrm.data.preparation.mixing import Mixture
from mmrm.train import clean
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.studies.cleaning.fold_models import read_cleaned_recipe, write_folds
from mmrm.train.studies.cleaning.folds import folds_of, read_records
from tests.data.mixtures import mixture, project, row

STUB = Path(__file__).parent / "studies" / "cleaning" / "stub_folds.py"
LAUNCHER = f"{sys.executable} {STUB}"
NUM_RECORDS = 240
RECIPE = """
backbone: {{path: embedded, dtype: float32}}
data:
  sources:
    - {{type: shapes, level: demo, rows: {rows}, flipped: {flipped}}}
  cache: {folder}/cache
  workers: 1
method: {{type: naive}}
optim: {{learning_rate: 5.0e-4, records_per_step: 32, max_steps: 10, token_budget: 4096}}
deepspeed: none
evaluation:
  benchmarks:
    - {{name: vl_rewardbench, location: embedded}}
output: {{folder: {folder}/run, save_every_steps: 10}}
"""


def written_recipe(folder: Path, rows: int = NUM_RECORDS, flipped: float = 0.2) -> Path:
    """Write a recipe of the embedded world, and return its path."""
    path = folder / "mine.yaml"
    path.write_text(RECIPE.format(folder=folder, rows=rows, flipped=flipped))
    return path


def calls(folder: Path) -> list[str]:
    """Return the starts of the stub, one line each."""
    file = folder / "run" / "cleaning" / "calls"
    return file.read_text().splitlines() if file.exists() else []


def lines_of(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the lines of a file of the study."""
    text = (folder / "run" / "cleaning" / name).read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.slow
def test_wrong_labels_are_found_listed_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = written_recipe(tmp_path)
    arguments = [str(recipe), "--steps", "2", "--folds", "2", "--launcher", LAUNCHER]
    clean.main([*arguments, "--dry-run"])
    plan = " ".join(capsys.readouterr().out.split())
    assert "2 runs, 4 steps, and 240 records to score" in plan
    assert calls(tmp_path) == []

    # A run that fails ends the command. What is complete is not repeated.
    study = tmp_path / "run" / "cleaning"
    study.mkdir(parents=True)
    (study / "fail").write_text("1")
    with pytest.raises(SystemExit) as end:
        clean.main(arguments)
    assert end.value.code != 0
    assert calls(tmp_path) == ["rm folds/0/seed-0", "score_records .", "rm folds/1/seed-0"]
    (study / "fail").unlink()
    clean.main(arguments)
    assert calls(tmp_path)[3:] == ["rm folds/1/seed-0", "score_records ."]
    clean.main(arguments)
    assert len(calls(tmp_path)) == 5
    assert "Label right" in (study / "suspects.html").read_text()

    found = json.loads((study / "labels.json").read_text())
    (planted,) = found["planted"]
    (source,) = found["sources"]
    assert planted["records"] == NUM_RECORDS
    assert planted["auc"] > 0.9
    assert planted["suspected"]["precision"]["mean"] > 0.8
    assert planted["suspected"]["recall"]["mean"] > 0.6
    rate = source["error_rate"]
    assert rate["low"] <= planted["wrong"] / NUM_RECORDS <= rate["high"]

    suspects = lines_of(tmp_path, "suspects.jsonl")
    flips = lines_of(tmp_path, "flip.jsonl")
    left_out = lines_of(tmp_path, "leave_out.jsonl")
    probabilities = [suspect["probability"] for suspect in suspects]
    assert probabilities == sorted(probabilities, reverse=True)
    assert len(flips) == planted["flip"]["selected"]
    assert len(flips) + len(left_out) == planted["suspected"]["selected"]
    assert all(line["probability"] >= 0.9 for line in flips)
    assert "prefer the other response" in suspects[0]["reason"]

    # The recipe takes the lists, and most of its labels are then right.
    lists = [str(study / "flip.jsonl"), str(study / "leave_out.jsonl")]
    cleaned = read_recipe(recipe, [f"data.decisions={json.dumps(lists)}"])
    records = read_records(Mixture(cleaned.data)).records
    assert len(records) == NUM_RECORDS - len(left_out)
    share_before = planted["wrong"] / NUM_RECORDS
    assert sum(record.is_wrong is True for record in records) < 0.5 * share_before * NUM_RECORDS

    # Another number of folds would mix the results of two divisions.
    with pytest.raises(SystemExit, match="folds 2 / 3"):
        clean.main([str(recipe), "--steps", "2", "--folds", "3", "--launcher", LAUNCHER])


def test_no_image_prompt_or_record_is_in_two_folds(tmp_path: Path) -> None:
    rows = []
    for number in range(40):
        prompt = f"prompt {number % 13}"
        rows.append(row(prompt, chosen=f"good {number}", rejected=f"bad {number}"))
    rows.append(rows[0])
    found = mixture(tmp_path, [project(tmp_path, "mine", rows)])
    records = read_records(found)
    folds = folds_of(records, 3)
    prompts = np.arange(41) % 13
    prompts[40] = 0
    for number in range(13):
        assert len(set(folds[prompts == number].tolist())) == 1
    sizes = np.bincount(folds)
    assert sizes.min() >= 11  # clusters of three and four records
    # The folds depend on the content alone.
    reversed_rows = mixture(tmp_path, [project(tmp_path, "mine", rows[::-1])])
    assert folds_of(read_records(reversed_rows), 3).tolist()[::-1] == folds.tolist()
    with pytest.raises(UserError, match=r"--folds is 14, .* 13 groups"):
        folds_of(records, 14)


def test_the_models_of_a_fold_do_not_see_what_the_recipe_holds_out(tmp_path: Path) -> None:
    recipe = written_recipe(tmp_path, rows=40)
    cleaned = read_cleaned_recipe(recipe, ["data.validation=10", "data.sources.0.cap=20"], 2)
    data = Mixture(cleaned.recipe.data)
    records = read_records(data)
    folds = folds_of(records, 2)
    write_folds(cleaned, data, records, folds)
    for fold in (0, 1):
        run = cleaned.run_of(fold, seed=3)
        trained = Mixture(run.recipe.data)
        keys = set(trained.decision_keys().tolist())
        assert keys == set(records.keys[folds != fold].tolist())
        assert run.recipe.optim.max_steps == 2
        assert run.recipe.optim.epochs is None
        assert run.recipe.evaluation.benchmarks == []
        assert (run.recipe.seed, run.recipe.data.seed) == (3, 3)


def test_a_recipe_without_a_judge_is_refused() -> None:
    policy = Path(__file__).resolve().parents[2] / "recipes" / "shapes" / "policy.yaml"
    with pytest.raises(UserError, match="trains no model that judges pairs"):
        read_cleaned_recipe(policy, [], 2)


def test_a_flip_threshold_below_the_other_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["mine.yaml", "--steps", "2", "--flip-above", "0.3"]
    with pytest.raises(SystemExit):
        clean.parse(arguments)
    assert "--flip-above must not be below --leave-out-above" in capsys.readouterr().err
