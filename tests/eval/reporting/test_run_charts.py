"""Curves and charts: every logged number finds its place, and nothing that is no number reaches a drawing."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.reporting.run_charts import POINTS, curves_of_log, diagnosis, training_charts
from mmrm.eval.results.result import Accuracy, Result
from mmrm.eval.results.statistics import Bin
from mmrm.eval.suite.suite import evaluate
from tests.eval.made_run import log
from tests.eval.make import votes
from tests.eval.suite.test_suite import EXAMPLES, ORIGIN, PLAIN, SCORES

NAMES = st.sampled_from(["loss", "kl", "x/y", "margin", "learning_rate/a", "learning_rate/b"])


def test_panels_take_the_series_that_belong_together() -> None:
    charts, constant = training_charts(log(200))
    found = {figure.title: figure for figure in charts}
    assert [name for _, name in found["Learning rate"].legend] == ["language, vision", "head"]
    assert list(found)[-1] == "something_new"
    assert {
        "Loss",
        "Margin",
        "Reward",
        "Length in tokens",
        "KL",
        "Clipped",
        "Gradient norm",
    } <= found.keys()
    assert (
        found["Loss"]
        .facts[0]
        .startswith("loss: 0.69 at step 0, 0.1768 at step 200; from 0.1768 to 0.70")
    )
    assert found["Loss"].value == "0.1768"
    assert found["Gradient norm"].caption == "Values that are not finite: 1."
    assert constant == ["ties: 1 %"]  # one value is no chart


def test_a_value_that_never_changes_is_said_in_words() -> None:
    lines = [
        {"step": step, "loss": 1.0 / step, "kl": 0.0, "rewards/a": 1.0, "rewards/b": step / 9.0}
        for step in range(1, 9)
    ]
    lines[0]["entropy"] = 2.0
    lines[0]["grad_norm"] = math.nan
    lines[1]["kl"] = math.inf
    charts, constant = training_charts(lines)
    assert [chart.title for chart in charts] == ["Loss", "Parts of the reward"]
    assert [chart.legend for chart in charts] == [[], [("line s0", "b")]]
    assert constant == [
        "rewards/a: 1",
        "kl: 0 (else not finite)",
        "entropy: 2 at step 1",
        "grad_norm: never finite at step 1",
    ]


def test_accuracy_in_training_stands_above_the_line_of_chance() -> None:
    lines = [{"step": step, "accuracy": 0.7 + step / 100} for step in range(9)]
    chart = training_charts(lines)[0][0]
    assert chart.legend == [("level", "chance (ties half): 50 %")]
    assert chart.y.low < 0.5
    assert chart.y.low > 0.4


def test_what_counts_along_and_what_was_evaluated_is_no_curve() -> None:
    names = curves_of_log(
        [
            {
                "step": 1,
                "loss": 1.0,
                "eval_x/accuracy": 0.5,
                "train_runtime": 3.0,
                "epoch": 0.1,
                "note": "text",
            }
        ]
    )
    assert names == {"loss": [(1.0, 1.0)]}


def test_a_step_that_was_logged_again_counts_once() -> None:
    assert curves_of_log(
        [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 5.0}, {"step": 1, "loss": 3.0}]
    ) == {"loss": [(1.0, 3.0), (2.0, 5.0)]}


def test_a_long_series_becomes_means_with_their_range() -> None:
    lines = [{"step": step, "loss": float(step % 2)} for step in range(10 * POINTS)]
    drawing = training_charts(lines)[0][0].svg()
    line = re.search(r'class="line s0" d="([^"]*)"', drawing)
    assert line is not None
    assert line[1].count(",") == POINTS
    assert (
        len({point.split(",")[1] for point in line[1].removeprefix("M").split("L")}) == 1
    )  # each mean is one half
    assert 'class="band s0"' in drawing


@given(st.lists(st.dictionaries(NAMES, st.floats(width=32)), max_size=6))
def test_any_log_can_be_drawn_or_said(values: list[dict[str, float]]) -> None:
    charts, constant = training_charts([{"step": step, **line} for step, line in enumerate(values)])
    assert not any(re.search(r'(?:d|x|y|cx|cy)="[^"]*(?:nan|inf)', chart.svg()) for chart in charts)
    changing = {
        name for name in {name for line in values for name in line}
        if len({line[name] for line in values if math.isfinite(line.get(name, math.nan))}) > 1
    }  # fmt: skip
    said = " ".join(fact for chart in charts for fact in chart.facts)
    assert all(name.rpartition("/")[2] in said for name in changing)
    assert len(constant) + len(changing) == len({name for line in values for name in line})


def made(groups: dict[str, Accuracy]) -> Result:
    whole = evaluate(EXAMPLES, SCORES, PLAIN, ProtocolConfig(), ORIGIN)
    return whole.model_copy(update={"groups": groups, "baselines": {}})


def test_one_value_is_no_chart_and_every_sentence_is_there() -> None:
    charts, sentences = diagnosis(made({}))
    assert [chart.title for chart in charts] == ["Calibration", "Margins", "Accuracy by length"]
    assert [chart.legend for chart in charts] == [[], [], [("level", "chance (ties half): 50 %")]]
    about_length, longer, first, equal = sentences
    assert about_length.startswith("Accuracy changes by")
    assert longer.startswith("The judge prefers the longer response in ")
    assert "listed first" in first
    assert equal.startswith("Equal in all rows: lists, headings")
    older = made({}).model_copy(update={"shortcuts": ()})
    assert "shortcuts" in made({}).model_dump()
    assert "shortcuts" not in older.model_dump()  # as in files of earlier versions
    assert Result.model_validate(older.model_dump()) == older
    assert diagnosis(older)[1][1].startswith("This result has no figures of shortcuts")


def test_calibration_stands_with_its_interval_and_floor() -> None:
    result = made({})
    calibration = result.calibration
    assert calibration is not None
    chart = next(chart for chart in diagnosis(result)[0] if chart.title == "Calibration")
    assert (
        chart.value == f"ECE {calibration.ece:.3f} [{calibration.low:.3f}, {calibration.high:.3f}]"
    )
    assert f"a perfectly calibrated judge {calibration.floor:.3f} on as many pairs" in chart.caption
    before = replace(calibration, low=None, high=None, floor=None)  # as earlier versions stored it
    older = result.model_copy(update={"calibration": before})
    chart = next(chart for chart in diagnosis(older)[0] if chart.title == "Calibration")
    assert chart.value == f"ECE {calibration.ece:.3f}"


def test_chance_of_a_judge_by_votes_is_below_half_where_ties_are_wrong() -> None:
    verdicts = [votes(0, 1, 0, 0)] * 4
    result = evaluate(EXAMPLES, verdicts, PLAIN, ProtocolConfig(votes=2), ORIGIN)
    chart = next(chart for chart in diagnosis(result)[0] if chart.title == "Accuracy by votes")
    assert chart.legend == [("level", "chance (ties wrong): a coin for each judgement")]
    coins = next(series for series in chart.series if series.style == "level")
    (one, two) = coins.line
    assert [*one, *two] == pytest.approx([1, 0.25, 2, 5 / 16])


def test_lengths_of_a_narrow_range_have_a_scale() -> None:
    result = made({})
    bins = tuple(
        Bin(mean - 0.01, mean + 0.01, 9, mean, 0.5, 0.3, 0.7) for mean in (-0.2, 0.05, 0.25)
    )
    narrow = result.model_copy(update={"length": replace(result.length, bins=bins)})
    chart = next(chart for chart in diagnosis(narrow)[0] if chart.title == "Accuracy by length")
    assert [text for _, text in chart.x.ticks] == ["0.87 ×", "1.2 ×"]
