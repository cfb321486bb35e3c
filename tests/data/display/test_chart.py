"""Charts and their style: legible numbers, no text that becomes markup, distinct colours."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mmrm.data.display.axis import Axis
from mmrm.data.display.chart import (
    PALETTE,
    Bar,
    Chart,
    Dot,
    Series,
    colours,
    level,
    save_png,
    swatch,
)
from mmrm.data.display.html import FOLDER

NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=32)
CLONE = Path(__file__).resolve().parents[3]
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


def test_texts_in_a_chart_are_escaped() -> None:
    dots = (Dot(0.5, 0.5, 0.1, 0.9, "<b>&"),)
    series = (Series("s0", "<i>", dots=dots),)
    chart = Chart('"<script>', Axis.numbers([0, 1], "<x>"), Axis.shares(), series)
    drawing = chart.svg()
    assert "&lt;x&gt;" in drawing
    assert not re.search(r"<(?:x|b|script)>", drawing)
    assert chart.facts == ["<b>&"]


def test_long_numbers_have_room() -> None:
    starts = []
    for low in (0, 100_000):
        chart = Chart("", Axis.numbers([0, 1]), Axis.numbers([low, low + 0.1]), ())
        starts.append(float(re.findall(r'class="axis" d="M([0-9.]+),', chart.svg())[0]))
    narrow, wide = starts
    assert wide - narrow == 7 * len("100,00")


def lines_and_dots() -> Chart:
    """Return a chart with every kind of mark."""
    x = Axis.numbers([0, 10], "step")
    series = (
        Series("s0", "run", line=((0, 0.1), (10, 0.9)), band=((0, 0.0), (10, 0.8), (10, 1.0))),
        Series("s1", "dots", dots=(Dot(5, 0.5, 0.4, 0.6, "half"), Dot(6, 0.5))),
        Series("s1", dots=(Dot(7, 0.5),), shape="cross"),
        Series("right", bars=(Bar(1, 2, 0.3, "a bar"),)),
        level(x, 0.5, "chance"),
    )
    return Chart("title", x, Axis.shares(), series)


def test_a_chart_lists_its_names_and_facts() -> None:
    chart = lines_and_dots()
    assert chart.legend == [("line s0", "run"), ("dot s1", "dots"), ("level", "chance")]
    assert chart.facts == ["half", "a bar"]


def test_a_drawing_has_all_marks_in_their_order() -> None:
    drawing = lines_and_dots().svg()
    classes = re.findall(r'class="([^"]*)"', drawing)
    marks = classes[classes.index("band s0") :]
    assert marks == [
        *("band s0", "line s0", "whisker s1", "dot s1", "dot s1", "line s1", "bar right", "level"),
    ]


def test_styles_repeat_on_a_page_and_not_in_a_file() -> None:
    styles = [f"s{number}" for number in range(14)]
    pages = [Series(style).page_style for style in styles]
    assert pages == [f"s{number % 6}" for number in range(14)]
    assert len(set(colours(styles).values()) - {"grey", PALETTE[0], PALETTE[1]}) == 14
    assert [Series(style).page_style for style in ("level blind", "right")] == [
        *("level blind", "right")
    ]


def test_an_interval_may_be_along_the_x_axis() -> None:
    upright = Series("s0", dots=(Dot(5, 0.5, 0.4, 0.6),))
    across = Series("s0", dots=(Dot(5, 0.5, 4, 6),), has_horizontal_intervals=True)
    assert upright.whisker(upright.dots[0]) == ((5, 0.4), (5, 0.6))
    assert across.whisker(across.dots[0]) == ((4, 0.5), (6, 0.5))
    assert upright.whisker(Dot(5, 0.5)) == ()


def test_every_class_of_a_drawing_and_of_a_legend_has_a_style() -> None:
    chart = lines_and_dots()
    samples = "".join(swatch(style) for style, _ in chart.legend)
    names = set(re.findall(r'class="([^"]*)"', chart.svg() + samples))
    for name in {part for classes in names for part in classes.split()}:
        assert re.search(rf"\.{name}\b", STYLE), name


def test_charts_of_a_file_are_side_by_side(tmp_path: Path) -> None:
    lines_and_dots().png(tmp_path / "one.png")
    save_png([lines_and_dots()] * 2, tmp_path / "two.png")
    with Image.open(tmp_path / "one.png") as one, Image.open(tmp_path / "two.png") as two:
        assert two.width > 1.5 * one.width
        assert two.height == one.height


def test_charts_are_drawn_in_one_place() -> None:
    """A sheet of images (data/shapes.py) is no chart."""
    drawing = []
    drawn_by_hand = []
    for floor in ("data", "models", "eval", "train"):
        for file in (CLONE / floor).rglob("*.py"):
            if "from matplotlib" in file.read_text(encoding="utf-8"):
                drawing.append(str(file.relative_to(CLONE)))
        for file in (CLONE / floor).rglob("*.html"):
            if "<svg" in file.read_text(encoding="utf-8"):
                drawn_by_hand.append(str(file.relative_to(CLONE)))
    assert sorted(drawing) == ["data/display/chart.py", "data/shapes.py"]
    assert drawn_by_hand == []


def test_no_two_runs_have_one_colour() -> None:
    for count in range(1, 40):
        found = list(colours(f"s{number}" for number in range(count)).values())
        own = [colour for colour in found if colour != "grey"][-count:]
        assert len(set(own)) == count
        if count <= len(PALETTE):
            assert own == list(PALETTE[:count])


def scheme_colours(scheme: str) -> dict[str, str]:
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
    found = scheme_colours(scheme.partition("\n* {")[0])
    assert len(found) == 18
    for text in ("ink", "soft", "accent", "right", "wrong", "tie"):
        for ground in ("paper", "card", "tint", "right-tint", "wrong-tint"):
            assert contrast(found[text], found[ground]) >= 4.5, (text, ground)
    for line in ("s0", "s1", "s2", "s3", "s4", "s5"):
        assert contrast(found[line], found["card"]) >= 3.0, line
