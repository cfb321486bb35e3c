"""How often labels and a judge prefer the response with more of a property."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrm.data.preference import text, text_pair, text_responses
from mmrm.eval.candidates import BenchmarkRow, Example, RankedExample
from mmrm.eval.results.shortcut_figures import ShortcutFigures, shortcut_figures, shortcuts_table


def example(first: str, second: str, better: int) -> Example:
    """Return a row of two responses."""
    return Example(
        key=f"{first} {second}",
        images=(),
        prompt=(text("user", "what is it?"),),
        responses=text_pair(first, second),
        better=1 if better else 0,
        group="all",
        source="made",
        identity=f"{first} {second}",
        row={},
    )


def figures_by_name(rows: list[BenchmarkRow], credit: list[float]) -> dict[str, ShortcutFigures]:
    """Return the figures of rows that depend on no other row."""
    found = shortcut_figures(rows, np.array(credit), np.arange(len(rows)))
    return {shortcut.name: shortcut for shortcut in found}


def test_labels_and_judge_are_counted_apart() -> None:
    rows: list[BenchmarkRow] = [
        example("a long answer", "short", 0),  # longer is better, the judge is right
        example("a long answer", "short", 1),  # shorter is better, the judge is wrong
        example("short", "a long answer", 0),  # shorter is better, the judge ties
        example("abc", "abd", 0),  # equally long
    ]
    length = figures_by_name(rows, [1.0, 0.0, 0.5, 1.0])["length"]
    assert (length.n, length.equal) == (4, 0.25)
    assert length.labels == (1 + 0 + 0 + 0.5) / 4
    assert length.judge == (1 + 1 + 0.5 + 0.5) / 4
    assert length.excess == pytest.approx(length.judge - length.labels)
    assert length.labels_low < length.labels < length.labels_high
    first = figures_by_name(rows, [1.0, 0.0, 0.5, 1.0])["first"]
    assert (first.labels, first.judge) == (0.75, (1 + 1 + 0.5 + 1) / 4)


@given(
    st.lists(
        st.tuples(
            st.text("ab ", min_size=1, max_size=4),
            st.text("ab ", min_size=1, max_size=4),
            st.integers(0, 1),
        ),
        min_size=2,
        max_size=20,
    )
)
def test_a_judge_that_is_always_right_goes_along_as_the_labels_do(
    responses: list[tuple[str, str, int]],
) -> None:
    rows: list[BenchmarkRow] = [example(*row) for row in responses]
    for shortcut in figures_by_name(rows, [1.0] * len(rows)).values():
        assert (shortcut.judge, shortcut.excess) == (shortcut.labels, 0.0)
    for shortcut in figures_by_name(rows, [0.0] * len(rows)).values():
        assert shortcut.judge == pytest.approx(1 - shortcut.labels)


def test_of_several_responses_the_most_count() -> None:
    row = RankedExample(
        key="k",
        images=(),
        prompt=(text("user", "what is it?"),),
        responses=text_responses("b", "a long one", "a longer one"),
        identity="i",
        ranks=(0, 0, 1),
        group="all",
        source="made",
        row={},
    )
    length = figures_by_name([row, row], [1.0, 1.0])["length"]
    assert length.labels == 0.0


def test_the_table_leaves_out_what_never_differs() -> None:
    rows: list[BenchmarkRow] = [example("a long answer", "short", 0)] * 30
    figures = shortcut_figures(rows, np.ones(30), np.arange(30))
    table = shortcuts_table("title", figures)
    assert [row[0] for row in table.rows] == ["length", "first"]
    assert table.notes == (
        "equal in all rows: lists, headings, bold, code, tables, refusals, prompt_words",
    )
    assert table.rows[0][1] == "100.0 [87.8, 100.0]"
    assert figures[0].line.startswith("The judge prefers the longer response in 100.0 % [87.8,")


def test_rows_without_verdicts_have_no_figures() -> None:
    assert shortcut_figures([], np.empty(0), np.empty(0, np.int64)) == ()
