"""The command that measures what cleaning regains on known wrong labels, with stubs for all models."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mmrm.data.errors import UserError
from mmrm.train import clean_planted
from mmrm.train.studies.ablation.comparison import Credits
from mmrm.train.studies.ablation.variants import Run
from mmrm.train.studies.cleaning.folds import LabelledRecord, LabelledRecords
from mmrm.train.studies.cleaning.label_study import JudgedLabels, Thresholds
from mmrm.train.studies.cleaning.planted_study import (
    CLEANED,
    LOSS,
    RANDOM,
    PlantedRun,
    accuracy_figures,
    change_table,
    found_figures,
    found_table,
)
from mmrm.train.studies.cleaning.preference_cycles import RecordPreferences
from tests.train.test_clean import STUB

LAUNCHER = f"{sys.executable} {STUB}"
PROBABILITIES = {"keep": 0.1, "leave_out": 0.6, "flip": 0.95}
LIST = """
backbone: {{path: embedded, dtype: float32}}
data:
  sources:
    - {{type: shapes, level: demo, rows: 240}}
  cache: {folder}/cache
  workers: 1
method: {{type: naive}}
optim: {{learning_rate: 5.0e-4, records_per_step: 32, max_steps: 10, token_budget: 4096}}
deepspeed: none
evaluation: {{benchmarks: [{{name: vl_rewardbench, location: embedded}}], at_start: false}}
output: {{folder: {folder}/runs, save_every_steps: 10}}
variants:
  right: {{}}
  wrong: {{data.sources.0.flipped: 0.2}}
"""


def written_list(folder: Path, text: str = LIST) -> Path:
    """Write a list with 20 % wrong labels in its second variant, and return its path."""
    path = folder / "list.yaml"
    path.write_text(text.format(folder=folder))
    return path


@pytest.mark.slow
def test_cleaning_regains_more_than_random_records_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(written_list(tmp_path)), "--steps", "2", "--folds", "2"]
    arguments += ["--launcher", LAUNCHER]
    clean_planted.main([*arguments, "--dry-run"])
    plan = " ".join(capsys.readouterr().out.split())
    assert "7 trainings" in plan
    assert not (tmp_path / "runs").exists()

    clean_planted.main(arguments)
    calls = tmp_path / "runs" / "wrong" / "0" / "cleaning" / "calls"
    num_calls = len(calls.read_text().splitlines())
    assert num_calls == 2 * 2 + 3  # two models of folds with their scores, and three runs
    clean_planted.main(arguments)
    assert len(calls.read_text().splitlines()) == num_calls

    result = json.loads((tmp_path / "runs" / "planted" / "planted.json").read_text())
    flips, suspects = result["found"]
    assert (flips["decision"], suspects["decision"]) == ("flip", "flip or leave out")
    assert 40 < suspects["wrong"] < 70
    assert suspects["precision"]["mean"] > 0.8
    assert suspects["recall"]["mean"] > 0.7
    assert flips["selected"] < suspects["selected"]
    assert suspects["models_are_right"] > 0.95  # the stub is wrong where its margin is below 0
    (rates,) = result["rates"]
    assert rates["true"] == pytest.approx(suspects["wrong"] / 240)
    estimate = rates["estimates"]["0"]
    assert estimate["low"] <= rates["true"] <= estimate["high"]

    (figures,) = result["accuracies"]
    assert figures["rows"] == 400
    accuracy = {method: found["mean"] for method, found in figures["accuracy"].items()}
    assert accuracy["planted"] < accuracy["right"] - 0.1
    assert accuracy["cleaned"] > accuracy["largest loss left out"] > accuracy["random left out"]
    assert figures["lost"]["mean"] == pytest.approx(accuracy["right"] - accuracy["planted"])
    gain = figures["gain"]["cleaned"]["mean"]
    assert gain == pytest.approx(accuracy["cleaned"] - accuracy["planted"])
    assert figures["above_half"]["mean"] == pytest.approx(gain - figures["lost"]["mean"] / 2)
    assert figures["above_half"]["mean"] > 0
    assert figures["regained"] is None  # one seed does not show that anything was lost
    for name in ("loss.jsonl", "random.jsonl"):
        lines = (calls.parent / name).read_text().splitlines()
        decisions = [json.loads(line) for line in lines]
        assert len({decision["key"] for decision in decisions}) == len(lines)
        suspected = (calls.parent / "flip.jsonl", calls.parent / "leave_out.jsonl")
        assert len(lines) == sum(len(path.read_text().splitlines()) for path in suspected)
    assert "what wrong labels cost" in (tmp_path / "runs" / "planted" / "planted.md").read_text()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("right: {{}}", "right: {{data.sources.0.flipped: 0.1}}", "the first variant, right, has"),
        ("flipped: 0.2", "flipped: 0.0", "the variant wrong has no wrong labels"),
    ],
)
def test_lists_whose_wrong_labels_are_not_known_are_refused(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    path = written_list(tmp_path, LIST.replace(old, new))
    with pytest.raises(SystemExit, match=message):
        clean_planted.main([str(path), "--steps", "2", "--launcher", "false"])
    assert not (tmp_path / "runs").exists()


def labels_of(keys: list[int], decisions: list[str]) -> JudgedLabels:
    """Return labels of pairs whose first two are wrong, with these decisions."""
    records = []
    for index, key in enumerate(keys):
        preferences = RecordPreferences(index, (("a", "b"),))
        records.append(LabelledRecord(key, "shapes", index, (0, 1), preferences, index < 2))
    probabilities = [PROBABILITIES[decision] for decision in decisions]
    clusters = np.arange(len(keys))
    unused: Any = None
    return JudgedLabels(
        LabelledRecords(tuple(records), clusters),
        np.zeros(len(keys)),
        np.array(probabilities),
        unused,
        unused,
        Thresholds(0.5, 0.9),
    )


def planted_run(keys: list[int], decisions: list[str], seed: int) -> PlantedRun:
    """Return a run with such labels."""
    recipe: Any = SimpleNamespace(output=SimpleNamespace(folder="runs"))
    return PlantedRun(Run("wrong", seed, recipe), labels_of(keys, decisions), {})


def test_precision_and_recall_are_those_of_all_seeds_together() -> None:
    keys = [5, 6, 7, 8, 9]
    runs = [
        planted_run(keys, ["flip", "keep", "keep", "leave_out", "keep"], 0),
        planted_run(keys, ["flip", "leave_out", "keep", "keep", "keep"], 1),
        planted_run(keys, ["leave_out", "keep", "flip", "keep", "keep"], 2),
    ]
    flips, suspects = found_figures("wrong", runs)
    assert (flips["selected"], suspects["selected"]) == (1.0, 2.0)
    assert flips["precision"]["mean"] == pytest.approx(2 / 3)
    assert suspects["precision"]["mean"] == pytest.approx(4 / 6)
    assert flips["recall"]["mean"] == pytest.approx(2 / 6)
    assert suspects["recall"]["mean"] == pytest.approx(4 / 6)
    assert 0 <= suspects["recall"]["low"] < suspects["recall"]["high"] <= 1
    assert suspects["models_are_right"] == 0.5  # all margins are 0
    nothing = [planted_run(keys, ["keep"] * 5, seed) for seed in range(3)]
    flips, _ = found_figures("wrong", nothing)
    assert flips["precision"] is None
    assert flips["recall"]["mean"] == 0
    assert "–" in str(found_table([flips]).rows)


def test_seeds_with_other_records_are_refused() -> None:
    decisions = ["keep"] * 3
    runs = [planted_run([5, 6, 7], decisions, 0), planted_run([5, 6, 8], decisions, 1)]
    with pytest.raises(UserError, match="its training records are not those of"):
        found_figures("wrong", runs)


def test_what_is_lost_and_regained_has_intervals() -> None:
    """Each of three seeds answers 1,000 rows: 90 % right, 60 % after wrong labels, 80 % cleaned."""
    shares = {"right": 0.9, "planted": 0.6, CLEANED: 0.8, LOSS: 0.7, RANDOM: 0.6}
    credits_by_method = {}
    for method, share in shares.items():
        credits_of_seeds = []
        for seed in range(3):
            by_row = {}
            for number in range(1000):
                # Other rows are wrong with each seed, equally many.
                by_row[f"{number:04}"] = float((number + seed) % 10 < 10 * share - 1e-9)
            credits = Credits(by_row, {row: row for row in by_row})
            credits_of_seeds.append({"b": credits})
        credits_by_method[method] = credits_of_seeds
    figures = accuracy_figures("wrong", "b", credits_by_method, 1)
    assert figures["lost"]["mean"] == pytest.approx(0.3)
    assert figures["lost"]["low"] > 0
    assert figures["gain"][CLEANED]["mean"] == pytest.approx(0.2)
    assert figures["gain"][RANDOM]["mean"] == pytest.approx(0.0)
    assert figures["regained"] == pytest.approx(2 / 3)
    assert figures["above_half"]["mean"] == pytest.approx(0.05)
    assert figures["above_half"]["low"] > 0
    cells = change_table([figures], 1).rows[0]
    assert cells[:2] == ("b", "wrong")
    assert cells[6] == "66.7 %"
