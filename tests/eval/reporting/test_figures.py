"""Curves and charts: every logged number finds its place, and nothing that is no number reaches a drawing."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.protocol import ProtocolConfig
from eval.reporting import page
from eval.reporting.figures import POINTS, Axis, Chart, curves, diagnosis, percent, plain, series
from eval.results.result import Accuracy, Result
from eval.running.evaluation import evaluate
from tests.eval.made_run import log
from tests.eval.running.test_evaluation import EXAMPLES, ORIGIN, PLAIN, SCORES

NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=32)
NAMES = st.sampled_from(["loss", "kl", "x/y", "margin", "learning_rate/a", "learning_rate/b"])
STYLE = (page.FOLDER / "page.css").read_text()


def test_panels_take_the_series_that_belong_together() -> None:
    found = {figure.title: figure for figure in curves(log(200))}
    assert [name for _, name in found["Learning rate"].legend] == ["language, vision", "head"]
    assert [name for _, name in found["Accuracy on training pairs"].legend] == ["accuracy", "ties"]
    assert list(found)[-1] == "something_new"
    assert {"Loss", "Margin", "Reward", "Length in tokens", "KL", "Clipped", "Gradient norm"} <= found.keys()
    assert "Loss.  loss from 0.69 to" in found["Loss"].svg()
    assert found["Gradient norm"].caption == "Values that are not finite: 1."


def test_what_counts_along_and_what_was_evaluated_is_no_curve() -> None:
    names = series([{"step": 1, "loss": 1.0, "eval_x/accuracy": 0.5, "train_runtime": 3.0, "epoch": 0.1, "note": "text"}])
    assert names == {"loss": [(1.0, 1.0)]}


def test_a_step_that_was_logged_again_counts_once() -> None:
    assert series([{"step": 1, "loss": 1.0}, {"step": 2, "loss": 5.0}, {"step": 1, "loss": 3.0}]) == {
        "loss": [(1.0, 3.0), (2.0, 5.0)]
    }


def test_a_long_series_becomes_means_with_their_range() -> None:
    lines = [{"step": step, "loss": float(step % 2)} for step in range(10 * POINTS)]
    drawing = curves(lines)[0].svg()
    line = re.search(r'class="line s0" d="([^"]*)"', drawing)
    assert line is not None
    assert line[1].count(",") == POINTS
    assert len({point.split(",")[1] for point in line[1].removeprefix("M").split("L")}) == 1  # each mean is one half
    assert 'class="band s0"' in drawing


@given(st.lists(st.dictionaries(NAMES, st.floats(width=32)), max_size=6))
def test_any_log_can_be_drawn(values: list[dict[str, float]]) -> None:
    figures = curves([{"step": step, **line} for step, line in enumerate(values)])
    names = {name for line in values for name in line}
    assert len(figures) == len({name.partition("/")[0] for name in names})
    assert not any(re.search(r'(?:d|x|y|cx|cy)="[^"]*(?:nan|inf)', figure.svg()) for figure in figures)
    assert sum(math.isfinite(value) for line in values for value in line.values()) == 0 or any(
        'class="dot ' in figure.svg() or 'class="line ' in figure.svg() for figure in figures
    )


@given(NUMBERS, NUMBERS)
def test_ticks_are_round_and_inside(one: float, other: float) -> None:
    axis = Axis.around([one, other], "", plain)
    ticks = axis.ticks()
    assert axis.low < min(one, other) <= max(one, other) < axis.high
    assert 2 <= len(ticks) <= 9
    reach = axis.high - axis.low
    assert all(axis.low - 1e-6 * reach <= tick <= axis.high + 1e-6 * reach for tick in ticks)
    steps = [after - before for before, after in pairwise(ticks)]
    assert max(steps) - min(steps) <= 1e-6 * max(reach, *map(abs, ticks))


@pytest.mark.parametrize(
    ("value", "written"),
    [(0.0, "0"), (12000.0, "12,000"), (0.05, "0.05"), (2e-5, "2e-5"), (-0.5, "-0.5"), (1.0, "1")],
)
def test_numbers_are_short(value: float, written: str) -> None:
    assert plain(value) == written


def test_shares_are_percentages() -> None:
    assert [percent(share) for share in (0.0, 0.5, 0.125, 1.0)] == ["0 %", "50 %", "12.5 %", "100 %"]


def test_texts_in_a_chart_are_escaped() -> None:
    chart = Chart('"<script>', Axis(label="<x>"), Axis())
    chart.dot(0.5, 0.5, "s0", "<b>&", (0.1, 0.9))
    chart.level(0.5, "<i>")
    drawing = chart.svg()
    assert "&lt;x&gt;" in drawing
    assert not re.search(r"<(?:x|b|i|script)>", drawing)


def made(groups: dict[str, Accuracy]) -> Result:
    whole = evaluate(EXAMPLES, SCORES, PLAIN, ProtocolConfig(), ORIGIN)
    return whole.model_copy(update={"groups": groups, "baselines": {}})


def test_every_category_has_a_bar_and_empty_ones_are_left_out() -> None:
    score = Accuracy(n=4, right=3, ties=0, unparsable=0, accuracy=0.75, low=0.3, high=0.95, half=0.75)
    empty = Accuracy(n=0, right=0, ties=0, unparsable=0, accuracy=None, low=None, high=None, half=None)
    chart = diagnosis(made({"one": score, "two": score, "none": empty}))[0]
    assert chart.svg().count('class="band s0"') == chart.svg().count('class="whisker s0"') == 2
    assert chart.caption == "1 categories without rows are left out."
    assert "two: 75.0% of 4 [30.0%, 95.0%]" in chart.svg()
    assert diagnosis(made({"none": empty}))[0].caption == "1 categories without rows are left out."


def colours(scheme: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", scheme))


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", STYLE.split("@media (prefers-color-scheme: dark)")[:2], ids=["light", "dark"])
def test_contrast_meets_wcag_aa(scheme: str) -> None:
    found = colours(scheme.partition("\n* {")[0])
    assert len(found) == 18
    for text in ("ink", "soft", "accent", "right", "wrong", "tie"):
        for ground in ("paper", "card", "tint", "right-tint", "wrong-tint"):
            assert contrast(found[text], found[ground]) >= 4.5, (text, ground)
    for line in ("s0", "s1", "s2", "s3", "s4", "s5"):
        assert contrast(found[line], found["card"]) >= 3.0, line
