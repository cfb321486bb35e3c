"""The study of sources: words and order of effects, rank correlations, tables, charts, and what a plan costs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mmrm.data.errors import UserError
from mmrm.eval.results.intervals import Difference
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.studies.ablation.variants import Ablation, Run
from mmrm.train.studies.influence import Products
from mmrm.train.studies.source_variants import source_ablation
from mmrm.train.studies.which_source import (
    Effects,
    correlations,
    effects_of,
    figures_of,
    influence_cost,
    influence_figures,
    plan,
    rank_correlation,
    ranked,
    refuse_influence,
    study_result,
    write,
)
from tests.train.minimal import write as write_recipe

RECIPE = """\
backbone: {path: embedded, dtype: float32}
data:
  sources:
    - {type: shapes, name: good, level: demo, rows: 300}
    - {type: shapes, name: bad, level: demo, rows: 300, seed: 1, flipped: 1.0}
  validation: 20
method: {type: naive}
optim: {learning_rate: 1.0e-4, records_per_step: 60, epochs: 1}
evaluation:
  benchmarks: [{name: vl_rewardbench, location: embedded, limit: 40}]
output: {save_every_steps: 5, folder: OUT}
"""
SHARES = {
    "whole": 0.7,
    "without-good": 0.3,
    "twice-good": 0.75,
    "without-bad": 0.95,
    "twice-bad": 0.55,
}
"""The planted share of right rows of each variant."""


def ablation_in(folder: Path, seeds: tuple[int, ...] = (0, 1, 2)) -> Ablation:
    path = write_recipe(folder, RECIPE.replace("OUT", str(folder / "out")))
    return source_ablation(path, [], 3, seeds)


def complete(run: Run, share: float) -> None:
    """Leave the files of a complete run, of whose rows this share is right."""
    generator = np.random.default_rng([run.seed, round(100 * share)])
    for figure, num_rows in (("vl_rewardbench", 400), ("held_out", 20)):
        credits = (generator.random(num_rows) < share).astype(float)
        rows = []
        for index, credit in enumerate(credits.tolist()):
            group = "good" if index % 2 else "bad"
            rows.append({"key": f"row {index}", "credit": credit, "group": group})
        folder = run.folder / "eval" / figure
        folder.mkdir(parents=True)
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "predictions.jsonl").write_text(lines)
    (run.folder / "run.json").write_text('{"checkpoint": "checkpoint-3"}')


def products(scale: float = 1.0) -> Products:
    """Return inner products by which `good` helps its own held-out pairs and `bad` harms them."""
    generator = np.random.default_rng(7)
    signs = ((1.0, -1.0), (-1.0, 1.0))
    of_training = [generator.normal(row, 0.1, (30, 2)) * scale for row in signs]
    of_held_out = [generator.normal(row, 0.1, (10, 2)) * scale for row in signs]
    return Products(("good", "bad"), tuple(of_training), tuple(of_held_out))


def effects(source: str, left_out: Difference | None, twice: Difference | None) -> Effects:
    found = Effects(source, {}, {})
    if left_out is not None:
        found.left_out["b"] = left_out
    if twice is not None:
        found.twice["b"] = twice
    return found


@pytest.mark.parametrize(
    ("left_out", "twice", "words"),
    [
        ((0.1, 0.05, 0.2), (0.0, -0.1, 0.1), "hurts"),
        ((0.0, -0.1, 0.1), (-0.1, -0.2, -0.05), "hurts"),
        ((-0.1, -0.2, -0.05), (0.0, -0.1, 0.1), "helps"),
        ((0.0, -0.1, 0.1), (0.1, 0.05, 0.2), "helps"),
        ((0.1, 0.05, 0.2), (0.1, 0.05, 0.2), "mixed"),
        ((0.1, -0.05, 0.2), (-0.1, -0.2, 0.05), "not distinguishable"),
        ((0.1, None, None), (-0.1, None, None), "too few seeds"),
    ],
)
def test_words_follow_the_intervals(
    left_out: tuple[float, float | None, float | None],
    twice: tuple[float, float | None, float | None],
    words: str,
) -> None:
    assert effects("s", Difference(*left_out), Difference(*twice)).words == words


def test_the_source_that_hurts_most_comes_first_and_unknown_ones_last() -> None:
    found = [
        effects("helps", Difference(-0.3, None, None), None),
        effects("missing", None, Difference(0.5, None, None)),
        effects("hurts", Difference(0.2, None, None), None),
    ]
    assert [effect.source for effect in ranked(found, ["b"])] == ["hurts", "helps", "missing"]


def test_a_rank_correlation_of_few_sources_has_no_interval() -> None:
    few = rank_correlation([1.0, 5.0, 2.0], [10.0, 30.0, 20.0])
    assert few is not None
    assert (few.coefficient, few.low, few.high) == (1.0, None, None)
    many = rank_correlation(
        [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], [1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 6.0]
    )
    assert many is not None
    assert many.low is not None
    assert many.high is not None
    assert many.low < many.coefficient < many.high
    assert rank_correlation([1.0, 1.0], [1.0, 2.0]) is None


def test_influence_is_correlated_with_the_loss_by_leaving_out() -> None:
    """A source whose absence costs accuracy, and whose influence is high, makes a coefficient of 1."""
    found = [
        effects("a", Difference(-0.3, None, None), None),
        effects("b", Difference(0.1, None, None), None),
        effects("missing", None, None),
    ]
    influence = {
        "a": {"all": {"mean": 2.0}, "others": {"mean": -1.0}},
        "b": {"all": {"mean": 1.0}, "others": {"mean": 3.0}},
        "missing": {"all": {"mean": 9.0}, "others": {"mean": 9.0}},
    }
    by_key = correlations(found, influence, ["b"])["b"]
    assert by_key["all"] is not None
    assert by_key["others"] is not None
    assert by_key["all"].coefficient == 1.0
    assert by_key["others"].coefficient == -1.0


def test_influences_on_own_and_on_other_held_out_pairs() -> None:
    figures = influence_figures([products(), products(3.0)], ["good", "bad"])
    good = figures["good"]
    assert good["others"]["mean"] == pytest.approx(-2.0, abs=0.1)
    assert good["by_source"]["good"]["mean"] == pytest.approx(2.0, abs=0.1)
    assert good["by_source"]["bad"]["mean"] == pytest.approx(-2.0, abs=0.1)
    assert good["all"]["mean"] == pytest.approx(0.0, abs=0.1)
    assert good["all"]["low"] < good["all"]["mean"] < good["all"]["high"]


def test_planted_results_name_the_source_that_hurts(tmp_path: Path) -> None:
    ablation = ablation_in(tmp_path)
    for run in ablation.runs:
        complete(run, SHARES[run.variant])
    result = study_result(ablation, [products()])
    first, second = result.figures["sources"]
    assert (first["source"], first["effect"]) == ("bad", "hurts")
    assert (second["source"], second["effect"]) == ("good", "helps")
    assert first["left_out_mean"] == pytest.approx(0.25, abs=0.05)
    assert first["twice_mean"] == pytest.approx(-0.15, abs=0.05)
    difference = first["left_out"]["vl_rewardbench"]
    assert difference["low"] < difference["mean"] < difference["high"]
    # Two figures, and two variants of each of two sources.
    assert "hold at 95 % for all 8 comparisons together" in result.figures["statement"]
    assert result.figures["ranked_by"] == ["vl_rewardbench"]
    assert result.figures["whole"]["vl_rewardbench"]["accuracy"] == pytest.approx(0.7, abs=0.05)
    assert result.figures["pairs"] == 180
    assert result.figures["missing"] == []
    assert set(result.figures["held_out_by_source"]) == set(SHARES)
    assert set(result.figures["held_out_by_source"]["whole"]) == {"good", "bad"}
    titles = [table.title for table in result.tables]
    assert titles == [
        "sources, mean over vl_rewardbench",
        "vl_rewardbench, 400 rows",
        "held_out, 20 rows",
        "held-out pairs by source",
        "influence by gradients",
        "rank correlation of influence and training",
    ]
    write(result, tmp_path)
    stored = json.loads((tmp_path / "which_source.json").read_text())
    assert stored["rank_correlation"]["vl_rewardbench"]["all"]["low"] is None
    document = (tmp_path / "which_source.md").read_text()
    assert "| bad | +2" in document
    assert "2 sources say little: an interval needs 6." in document
    assert (tmp_path / "which_source.png").stat().st_size > 1000


def test_missing_runs_are_named_and_their_source_comes_last(tmp_path: Path) -> None:
    ablation = ablation_in(tmp_path, (0,))
    for run in ablation.runs:
        if run.variant != "without-bad":
            complete(run, SHARES[run.variant])
    result = study_result(ablation, [])
    assert result.figures["missing"] == ["without-bad, seed 0"]
    assert [source["source"] for source in result.figures["sources"]] == ["good", "bad"]
    assert result.figures["sources"][0]["effect"] == "too few seeds"
    assert result.figures["sources"][1]["left_out_mean"] is None
    assert "- without-bad, seed 0" in result.document
    assert result.figures["influence"] == {}
    assert "influence" not in result.document


def test_nothing_complete_makes_no_table_of_figures(tmp_path: Path) -> None:
    result = study_result(ablation_in(tmp_path, (0,)), [])
    write(result, tmp_path)
    assert len(result.figures["missing"]) == 5
    assert result.charts == ()
    assert [source["effect"] for source in result.figures["sources"]] == ["not known"] * 2
    assert not (tmp_path / "which_source.png").exists()


def test_effects_are_those_of_both_variants_of_a_source() -> None:
    assert effects_of(["a"], {}) == [Effects("a", {}, {})]


def test_figures_are_the_benchmarks_and_the_held_out_pairs(tmp_path: Path) -> None:
    path = write_recipe(tmp_path, RECIPE)
    assert figures_of(read_recipe(path)) == ["vl_rewardbench", "held_out"]
    assert figures_of(read_recipe(path, ["evaluation.benchmarks=[]"])) == ["held_out"]
    assert figures_of(read_recipe(path, ["data.validation=0"])) == ["vl_rewardbench"]


def test_influence_needs_held_out_pairs(tmp_path: Path) -> None:
    path = write_recipe(tmp_path, RECIPE)
    refuse_influence(read_recipe(path))
    with pytest.raises(UserError, match=r"data\.validation is 0"):
        refuse_influence(read_recipe(path, ["data.validation=0"]))


def test_a_plan_has_the_hours_of_the_runs_that_are_left(tmp_path: Path) -> None:
    ablation = ablation_in(tmp_path)
    tables, sentences = plan(ablation, None)
    assert [len(table.rows) for table in tables] == [15]
    assert sentences == ["Hours are not estimated: the embedded backbone is trained on CPUs."]
    path = tmp_path / "recipe.yaml"
    overrides = ["backbone.path=Qwen/Qwen2.5-VL-7B-Instruct", "backbone.dtype=bfloat16"]
    large = source_ablation(path, overrides, 300, [0, 1])
    tables, sentences = plan(large, 50)
    assert tables[1].title == "cost of 10 runs of 300 steps"
    assert [row[0] for row in tables[1].rows] == ["1", "8"]
    # Two seeds, 50 pairs of two sources, and 20 held-out pairs twice.
    assert sentences[0].startswith("Influence: 280 forward and backward passes of one pair")
    assert "GiB for gradients of" in sentences[0]
    complete(large.runs[0], 0.5)
    tables, _ = plan(large, None)
    assert tables[1].title == "cost of 9 runs of 300 steps"


def test_without_a_config_of_the_backbone_there_is_no_memory(tmp_path: Path) -> None:
    ablation = ablation_in(tmp_path, (0,))
    text = influence_cost(ablation, 5, None)
    assert text == "Influence: 50 forward and backward passes of one pair, on one device."
