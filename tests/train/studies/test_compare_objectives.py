"""The comparison of objectives: each figure of known scores, and rows that hide the order of records."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmrm.data.errors import UserError
from mmrm.data.preference import Preference, Response
from mmrm.eval.contamination.question_overlap import Question
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.studies.ablation.variants import Ablation, Run
from mmrm.train.studies.compare_objectives import (
    ACCURACY,
    ATTRIBUTES,
    AUC,
    BEST,
    ComparedModel,
    ScoredQuestion,
    coverage_of_ratings,
    measured_model,
    records_of_source,
    row_of_record,
    study_result,
    variant_lines,
)

RECIPE = Path(__file__).resolve().parents[3] / "recipes" / "shapes" / "naive.yaml"
SOURCE = (
    "{type: shapes_rated, level: demo, split: benchmark, rows: 60, responses: 8, noise: 1.0, "
    "courtesy: 0.5}"
)


@cache
def rated_records() -> list[Preference]:
    """Return the records of SOURCE."""
    return records_of_source(SOURCE, ATTRIBUTES, "shapes_rated")


def question(scores: list[float], stds: list[float] | None = None) -> ScoredQuestion:
    """Return a question with four answers, of which the first two are equally good."""
    return ScoredQuestion(
        quality=np.array([1 / 3, 1 / 3, 1.0, 0.0]),
        ratings=np.array([1.0, 1.5, 3.0, 0.0]),
        is_courteous=np.array([0.0, 1.0, 0.0, 1.0]),
        scores=np.array(scores),
        stds=None if stds is None else np.array(stds),
    )


@pytest.mark.parametrize(
    ("scores", "accuracy", "auc", "best", "courtesy"),
    [
        ([1.0, 1.0, 2.0, 0.0], 1.0, 1.0, 1.0, [0.5]),
        ([1.0, 2.0, 0.0, 3.0], 0.0, 0.0, 0.0, [1.0]),
        ([5.0, 4.0, 4.0, 4.0], 0.0, 0.5, 1 / 3, [0.0]),
        ([2.0, 2.0, 2.0, 2.0], 0.5, 0.5, (1 / 3 + 1 / 3 + 1 + 0) / 4, [0.5]),
    ],
)
def test_figures_of_a_question(
    scores: list[float], accuracy: float, auc: float, best: float, courtesy: list[float]
) -> None:
    scored = question(scores)
    assert scored.accuracy() == accuracy
    assert scored.auc() == pytest.approx(auc)
    assert scored.best() == pytest.approx(best)
    assert scored.courtesy_points() == courtesy


def test_answers_that_are_equally_good_have_no_order() -> None:
    scored = ScoredQuestion(np.ones(3), np.ones(3), np.zeros(3), np.arange(3.0), None)
    assert (scored.accuracy(), scored.auc(), scored.courtesy_points()) == (None, None, [])
    assert scored.best() == 1.0


def test_the_rows_of_a_source_hide_the_order_of_its_records() -> None:
    records = rated_records()
    places_of_best = []
    for record in records:
        row = row_of_record(record)
        assert row == row_of_record(record)
        assert Question.of_row(row).key == Question.of_record(record).key
        assert sorted(row["responses"]) == sorted(response.text for response in record.responses)
        for response, rating in zip(row["responses"], row["rating"], strict=True):
            index = record.responses.index(Response.of_text(response))
            assert record.attributes["rating"][index] == rating
        places_of_best.append(row["responses"].index(record.responses[0].text))
    assert len(set(places_of_best)) == 8
    assert places_of_best.count(0) < 20


def test_a_source_without_true_scores_is_refused() -> None:
    with pytest.raises(UserError, match="has no attribute 'quality'"):
        records_of_source("{type: shapes, level: demo, rows: 3}", ATTRIBUTES, "shapes_rated")
    with pytest.raises(UserError, match="--questions"):
        records_of_source("{type: shapes_rated, level: none, rows: 3}", ATTRIBUTES, "shapes_rated")


def scored_file(folder: Path, score: Callable[[dict[str, Any], int], float], std: float) -> Path:
    """Write the questions of SOURCE with the scores of a model, and return the file."""
    lines = []
    for record in rated_records():
        row = row_of_record(record)
        row["scores"] = [score(row, index) for index in range(8)]
        row["score_std"] = [std] * 8
        lines.append(json.dumps(row))
    file = folder / "scored.jsonl"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def run_of(variant: str, seed: int, folder: Path) -> Run:
    """Return a run that is not trained."""
    overrides = [f"seed={seed}", f"output.folder={folder / variant / str(seed)}"]
    return Run(variant, seed, read_recipe(RECIPE, overrides))


def test_a_model_that_knows_the_truth_is_right_everywhere(tmp_path: Path) -> None:
    file = scored_file(tmp_path, lambda row, index: row["quality"][index], 0.6)
    model = measured_model(run_of("best", 0, tmp_path), file, set())
    assert set(model.by_question[ACCURACY].values()) == {1.0}
    assert set(model.by_question[AUC].values()) == {1.0}
    assert len(model.by_question[BEST]) == 60
    assert model.gain > 0.3
    assert model.courtesy == 0.5
    assert model.coverage is not None
    assert model.coverage.n == 480
    within_one, within_two = model.coverage.of_differences
    assert 0.5 < within_one.share < within_two.share < 1


def test_a_model_that_only_likes_courtesy_gains_nothing(tmp_path: Path) -> None:
    file = scored_file(tmp_path, lambda row, index: row["wording"][index], 1.0)
    model = measured_model(run_of("polite", 0, tmp_path), file, set())
    assert model.courtesy == 1.0
    assert abs(float(np.mean(list(model.by_question[AUC].values()))) - 0.5) < 0.05
    assert abs(model.gain) < 0.08


def test_questions_that_were_trained_on_are_left_out(tmp_path: Path) -> None:
    file = scored_file(tmp_path, lambda row, index: row["quality"][index], 1.0)
    keys = [Question.of_record(record).key for record in rated_records()]
    model = measured_model(run_of("best", 0, tmp_path), file, set(keys[:20]))
    assert len(model.by_question[BEST]) == 40


def test_deviations_of_the_right_size_cover_the_ratings() -> None:
    rng = np.random.default_rng(0)
    questions = []
    for _ in range(500):
        means = rng.normal(size=4)
        stds = rng.choice([0.5, 2.0], size=4)
        ratings = 3 * means + 1 + 3 * stds * rng.normal(size=4)
        questions.append(ScoredQuestion(np.zeros(4), ratings, np.zeros(4), means, stds))
    result = coverage_of_ratings(questions)
    assert result is not None
    assert result.slope == pytest.approx(3, abs=0.3)
    for share in (*result.on_line, *result.of_differences):
        assert abs(share.share - share.expected) < 0.05
    assert coverage_of_ratings([*questions, question([1.0, 2.0, 3.0, 4.0])]) is None


def models_of_two_variants(folder: Path) -> list[ComparedModel]:
    """Return three models that know the truth and three that know nothing."""
    models = []
    for seed in range(3):
        noise = np.random.default_rng(seed)
        random_file = scored_file(folder, lambda row, index, noise=noise: noise.random(), 1.0)  # type: ignore[misc]
        models.append(measured_model(run_of("random", seed, folder), random_file, set()))
        true_file = scored_file(folder, lambda row, index: row["quality"][index], 1.0)
        models.append(measured_model(run_of("true", seed, folder), true_file, set()))
    return models


def test_tables_compare_variants_by_every_figure(tmp_path: Path) -> None:
    models = models_of_two_variants(tmp_path)
    lines = variant_lines(models, "random")
    assert list(lines) == [ACCURACY, AUC, BEST]
    for lines_of_figure in lines.values():
        assert [line.variant for line in lines_of_figure] == ["random", "true"]
        assert lines_of_figure[1].words == "better"
    runs = tuple(model.run for model in models)
    for run in runs:
        run.folder.mkdir(parents=True)
        (run.folder / "run.json").write_text("{}")
        (run.folder / "log.jsonl").write_text("")
    ablation = Ablation(Path("list.yaml"), tmp_path, {"random": "", "true": ""}, runs)
    result = study_result(models, ablation)
    assert [table.title for table in result.tables] == [
        "accuracy, 60 questions",
        "AUC inside a question, 60 questions",
        "best of N, 60 questions",
        "gain and wording",
        "coverage of the stated deviation",
    ]
    assert result.figures["missing"] == []
    assert [stored["seed"] for stored in result.figures["models"]] == [0, 1, 2, 0, 1, 2]
    for table in result.tables:
        assert table.title in result.document
    json.dumps(result.figures)
