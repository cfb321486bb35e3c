"""One table, rendered for the console, Markdown and pages."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from mmrm.data.display.console import plain_console
from mmrm.data.display.table import Column, Table

TABLE = Table(
    "cost",
    (Column("variant"), Column("mean [95 %]", is_number=True), Column("")),
    (("2-silu", "-1.0 [-2.0, +0.5]", "worse"), ("<b>", "+3.0", "")),
    ("a note",),
)


def test_markdown_aligns_numbers_right() -> None:
    assert TABLE.markdown().split("\n") == [
        "| variant | mean [95 %] |  |",
        "| --- | --: | --- |",
        "| 2-silu | -1.0 [-2.0, +0.5] | worse |",
        "| <b> | +3.0 |  |",
    ]


def test_html_escapes_texts_and_writes_minus_signs_in_numbers_alone() -> None:
    page = TABLE.html()
    assert '<th scope="row">2-silu</th>' in page
    assert (
        '<td>−1.0 <span class="interval">[−2.0, +0.5]</span></td><td class="text">worse</td>'
        in page
    )
    assert "&lt;b&gt;" in page
    assert "<b>" not in page


def test_records_are_the_cells_by_column() -> None:
    assert TABLE.records()[1] == {"variant": "<b>", "mean [95 %]": "+3.0", "": ""}


def test_a_column_can_be_left_out() -> None:
    without = TABLE.without("mean [95 %]")
    assert without.rows == (("2-silu", "worse"), ("<b>", ""))
    assert [column.name for column in without.columns] == ["variant", ""]


def printed(table: Table) -> str:
    console = plain_console(width=300)
    console.file = io.StringIO()
    console.print(table.rich())
    return console.file.getvalue()


def test_the_console_shows_title_cells_and_notes() -> None:
    text = printed(TABLE)
    for part in ("cost", "2-silu", "-1.0 [-2.0, +0.5]", "worse", "a note"):
        assert part in text


def test_a_table_without_heads_shows_none() -> None:
    assert "┃" in printed(TABLE)
    assert "┃" not in printed(Table("", (Column(""), Column("")), (("pairs/s", "3.5"),)))


CELLS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Z"]), max_size=8)


@given(st.lists(st.tuples(CELLS, CELLS), max_size=5))
def test_every_rendering_has_every_row(rows: list[tuple[str, str]]) -> None:
    table = Table("", (Column("a"), Column("b", is_number=True)), tuple(rows))
    assert table.markdown().count("\n") == 1 + len(rows)
    assert table.html().count("<tr>") == 1 + len(rows)
    assert [tuple(record.values()) for record in table.records()] == rows
