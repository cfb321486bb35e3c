"""Stated deviations go from scores into result, predictions, page and card. Judges without them leave everything as it was."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mmrm.data.preference import Preference, text, text_pair, text_responses
from mmrm.eval.benchmarks.preference_folder import example_from_record
from mmrm.eval.candidates import Example, Scores
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.reporting.run_charts import diagnosis
from mmrm.eval.results.predictions import read_predictions, write_predictions
from mmrm.eval.results.result import Result, read_result
from mmrm.eval.results.summary_table import results_table
from mmrm.eval.suite.suite import evaluate, write_result
from mmrm.train.runs.model_card import figures
from tests.eval.suite.test_suite import EXAMPLES, ORIGIN, PLAIN, SCORES

BENCHMARK = replace(PLAIN, item=None)


def simulated(stated_share: float, num_rows: int = 600) -> tuple[list[Example], list[Scores]]:
    """Return rows with true scores 3 · score + 1, and scores of a judge that states a share of its real deviations."""
    generator = np.random.default_rng(7)
    examples: list[Example] = []
    scores: list[Scores] = []
    for number in range(num_rows):
        means = generator.normal(0, 2, 2)
        stds = generator.uniform(0.4, 2, 2)
        true_scores = 3 * generator.normal(means, stds) + 1
        row = replace(
            EXAMPLES[0],
            key=f"row {number}",
            prompt=(text("user", f"Question {number}?"),),
            images=(),
            responses=text_pair(f"first {number}", f"second {number}"),
            better=1 if true_scores[1] > true_scores[0] else 0,
            true_scores=(float(true_scores[0]), float(true_scores[1])),
        )
        examples.append(row)
        stated = tuple((stated_share * stds).tolist())
        scores.append(Scores(tuple(means.tolist()), attributes={"std": stated}))
    return examples, scores


def evaluated(examples: Sequence[Example], scores: Sequence[Scores]) -> Result:
    return evaluate(examples, scores, BENCHMARK, ProtocolConfig(), ORIGIN)


@pytest.mark.parametrize(
    ("stated_share", "words"),
    [(1.0, "not distinguishable from calibrated"), (0.4, "overconfident")],
)
def test_a_result_holds_what_its_deviations_are_worth(
    tmp_path: Path, stated_share: float, words: str
) -> None:
    result = evaluated(*simulated(stated_share))
    assert result.uncertainty is not None
    assert result.uncertainty.words == words
    assert (result.uncertainty.n, result.uncertainty.left_out) == (600, 0)
    assert result.uncertainty.coverage is not None
    assert result.uncertainty.coverage.slope == pytest.approx(3, abs=0.1)
    within = result.uncertainty.coverage.on_line
    assert [share.contains_expected for share in within] == [stated_share == 1.0] * 2
    write_result(result, tmp_path / "result.json")
    assert read_result(tmp_path / "result.json") == result

    charts, sentences = diagnosis(result)
    titles = [chart.title for chart in charts]
    assert titles[:4] == ["Calibration", "Margins", "Stated deviation", "Coverage of true scores"]
    assert "expected 68.3 %" in charts[3].facts[0]
    assert f"Stated deviations on 600 pairs: {words}; predicted P(better)" in sentences[0]
    table = results_table({"plain": result}, title="", baselines=False)
    assert table.notes[1] == f"plain: {sentences[0]}"
    card = figures({"plain": result})
    assert card[2].startswith("The checkpoint states a standard deviation with each score.")
    assert f"| plain | 600 | {words} |" in card[3]


def test_deviations_do_not_change_other_figures_and_their_absence_leaves_no_trace(
    tmp_path: Path,
) -> None:
    """A result, predictions, charts, tables and cards without deviations have the keys of before."""
    examples, scores = simulated(1.0, 40)
    with_deviations = evaluated(examples, scores)
    plain_scores = [Scores(row_scores.values) for row_scores in scores]
    plain = evaluated(examples, plain_scores)
    assert plain.uncertainty is None
    assert with_deviations.model_copy(update={"uncertainty": None}) == plain
    assert "uncertainty" not in plain.model_dump(mode="json")
    assert "uncertainty" not in json.loads(plain.model_dump_json())
    keys = list(with_deviations.model_dump(mode="json"))
    keys.remove("uncertainty")
    assert keys == list(plain.model_dump(mode="json"))
    sentences = diagnosis(plain)[1]
    assert [line for line in diagnosis(with_deviations)[1] if line in sentences] == sentences
    assert not any("deviation" in line for line in sentences)
    assert len(diagnosis(with_deviations)[1]) > len(sentences)
    assert len(figures({"plain": plain})) == 2
    assert len(results_table({"plain": plain}, title="", baselines=False).notes) == 1

    write_predictions(examples, scores, BENCHMARK, ProtocolConfig(), tmp_path / "with")
    write_predictions(examples, plain_scores, BENCHMARK, ProtocolConfig(), tmp_path / "without")
    rows = read_predictions(tmp_path / "with" / "predictions.jsonl")
    assert [row.pop("std") for row in rows] == [list(one.attributes["std"]) for one in scores]
    assert rows == read_predictions(tmp_path / "without" / "predictions.jsonl")


def test_an_earlier_result_is_read() -> None:
    result = evaluate(EXAMPLES, SCORES, PLAIN, ProtocolConfig(), ORIGIN)
    stored = result.model_dump(mode="json")
    assert Result.model_validate_json(json.dumps(stored)) == result


def test_true_scores_are_the_means_of_attributes_in_the_order_of_the_row() -> None:
    record = Preference(
        identity="records:0",
        prompt=(text("user", "How many?"),),
        responses=text_responses("Three.", "Four."),
        attributes={"right": (1.0, 0.0), "clear": (4.0, 2.0)},
    )
    row = example_from_record(record)
    assert row.true_scores is not None
    assert (row.true_scores[row.better], row.true_scores[1 - row.better]) == (2.5, 1.0)
    unknown = replace(record, attributes={"right": (1.0, float("nan"))})
    found = example_from_record(unknown).true_scores
    assert found is not None
    assert np.isnan(found[1 - row.better])
    other_questions = [replace(record, prompt=(text("user", f"{n}?"),)) for n in range(20)]
    rows = [example_from_record(one) for one in other_questions]
    assert {one.better for one in rows} == {0, 1}
    assert all(one.true_scores and one.true_scores[one.better] == 2.5 for one in rows)
    assert example_from_record(replace(record, attributes={})).true_scores is None
