"""Figures as files: a panel for each title, and each label once in the legend below them."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from mmrm.data.display.png import COLOURS, colours, panels


def test_panels_stand_side_by_side_and_share_a_legend(tmp_path: Path) -> None:
    with panels(tmp_path / "figure.png", ["one", "two"], 3.0) as found:
        assert [axes.get_title() for axes in found] == ["one", "two"]
        for axes in found:
            axes.plot([1, 2], [1, 2], color=COLOURS[0], label="run")
            figure = axes.figure
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["run"]
    with Image.open(tmp_path / "figure.png") as image:
        assert image.width > 2 * image.height


def test_no_two_runs_have_one_colour() -> None:
    for count in range(40):
        found = colours(count)
        assert len(set(found)) == count
        assert tuple(found) == COLOURS[:count] or count > len(COLOURS)
