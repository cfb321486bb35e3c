"""Charts and their style: numbers that can be read, nothing that could become markup, colours that can be told apart."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrm.data.display.chart import Axis, Chart, percent, plain
from mmrm.data.display.html import FOLDER

NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=32)
STYLE = (FOLDER / "style.css").read_text()


@given(NUMBERS, NUMBERS)
def test_ticks_are_round_inside_and_told_apart(one: float, other: float) -> None:
    axis = Axis.numbers([one, other])
    ticks, written = zip(*axis.ticks, strict=True)
    assert axis.low < min(one, other) <= max(one, other) < axis.high
    assert 2 <= len(ticks) <= 8
    assert len(set(written)) == len(written)
    reach = axis.high - axis.low
    assert all(axis.low - 1e-5 * reach <= tick <= axis.high + 1e-5 * reach for tick in ticks)
    steps = [after - before for before, after in pairwise(ticks)]
    assert max(steps) - min(steps) <= 1e-6 * max(reach, *map(abs, ticks))


@pytest.mark.parametrize(
    ("axis", "written", "label"),
    [
        (
            Axis.numbers([-2.4e-4, 1e-5], "step"),
            ["−2.5", "−2.0", "−1.5", "−1.0", "−0.5", "0.0"],
            "step ×10⁻⁴",
        ),
        (Axis.numbers([0, 4200]), ["0", "1,000", "2,000", "3,000", "4,000"], ""),
        (Axis.shares([0.0, 0.0022]), ["0.00 %", "0.05 %", "0.10 %", "0.15 %", "0.20 %"], ""),
        (Axis.shares([0.46, 0.91]), ["50 %", "60 %", "70 %", "80 %", "90 %"], ""),
        (Axis.shares(), ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"], ""),
        (Axis.counts(3, "pairs"), ["0", "1", "2", "3"], "pairs"),
        (Axis.numbers([0, 24, 48], "step", [0, 24, 48]), ["0", "24", "48"], "step"),
    ],
)
def test_the_numbers_at_an_axis(axis: Axis, written: list[str], label: str) -> None:
    assert ([words for _, words in axis.ticks], axis.label) == (written, label)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0.0, "0"),
        (12000.0, "12,000"),
        (0.05, "0.05"),
        (2e-5, "2e-5"),
        (-0.5, "−0.5"),
        (1.0, "1"),
        (83.11412, "83.11"),
    ],
)
def test_numbers_are_short(value: float, written: str) -> None:
    assert plain(value) == written


def test_shares_are_percentages() -> None:
    assert [percent(share) for share in (0.0, 0.5, 0.125, 1.0)] == [
        "0 %",
        "50 %",
        "12.5 %",
        "100 %",
    ]


def test_texts_in_a_chart_are_escaped() -> None:
    chart = Chart('"<script>', Axis.numbers([0, 1], "<x>"), Axis.shares())
    chart.dot(0.5, (0.5, 0.1, 0.9), "s0", "<b>&")
    drawing = chart.svg()
    assert "&lt;x&gt;" in drawing
    assert not re.search(r"<(?:x|b|script)>", drawing)
    assert chart.facts == ["<b>&"]


def test_long_numbers_have_room() -> None:
    narrow, wide = (
        Chart("", Axis.numbers([0, 1]), Axis.numbers([low, low + 0.1])) for low in (0, 100_000)
    )
    assert wide.left - narrow.left == 7 * len("100,00")


def colours(scheme: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", scheme))


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(
    "scheme", STYLE.split("@media (prefers-color-scheme: dark)")[:2], ids=["light", "dark"]
)
def test_contrast_meets_wcag_aa(scheme: str) -> None:
    found = colours(scheme.partition("\n* {")[0])
    assert len(found) == 18
    for text in ("ink", "soft", "accent", "right", "wrong", "tie"):
        for ground in ("paper", "card", "tint", "right-tint", "wrong-tint"):
            assert contrast(found[text], found[ground]) >= 4.5, (text, ground)
    for line in ("s0", "s1", "s2", "s3", "s4", "s5"):
        assert contrast(found[line], found["card"]) >= 3.0, line
