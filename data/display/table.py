"""A table of texts that is built once, and rendered for the console, in Markdown and in HTML."""

from dataclasses import dataclass

import rich.table
from markupsafe import Markup
from rich.console import JustifyMethod
from rich.text import Text

from mmrm.data.display.format import with_minus_signs


@dataclass(frozen=True, slots=True)
class Column:
    """The heading of a table's column, and how its cells are shown."""

    name: str
    is_number: bool = False
    """Numbers are aligned right."""
    style: str = ""
    """A style of rich for the column's cells on the console, such as "dim"."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under named columns.

    `Table("cost", (Column("variant"), Column("pairs", is_number=True)), (("naive", "25,600"),))`
    is "| variant | pairs |", "| --- | --: |" and "| naive | 25,600 |" in Markdown.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    """The cells; a row may have fewer of them than there are columns."""
    notes: tuple[str, ...] = ()
    """Sentences below the table on the console."""
    section_ends: tuple[int, ...] = ()
    """Indices of rows below which the console shows a rule."""
    row_styles: tuple[str, ...] = ()
    """Styles of rich for the first cell of each row, such as "bold"; empty for plain cells."""

    def without(self, column: str) -> "Table":
        """Return the table without the column whose name is `column`."""
        names = [table_column.name for table_column in self.columns]
        index = names.index(column)
        columns = self.columns[:index] + self.columns[index + 1 :]
        rows = tuple(row[:index] + row[index + 1 :] for row in self.rows)
        return Table(self.title, columns, rows, self.notes, self.section_ends, self.row_styles)

    def rich(self) -> rich.table.Table:
        """Return the table as one of rich, with its title above and its notes below."""
        table = rich.table.Table(
            title=self.title or None,
            caption="\n".join(self.notes) or None,
            show_header=any(column.name for column in self.columns),
        )
        for column in self.columns:
            justify: JustifyMethod = "right" if column.is_number else "left"
            table.add_column(column.name, justify=justify, style=column.style)
        for index, (first_cell, *other_cells) in enumerate(self.rows):
            style = self.row_styles[index] if self.row_styles else ""
            is_section_end = index in self.section_ends
            table.add_row(Text(first_cell, style), *other_cells, end_section=is_section_end)
        return table

    def markdown(self) -> str:
        """Return the lines of the table in Markdown, without title and notes."""
        headings = [column.name for column in self.columns]
        alignments = ["--:" if column.is_number else "---" for column in self.columns]
        lines = [f"| {' | '.join(cells)} |" for cells in (headings, alignments, *self.rows)]
        return "\n".join(lines)

    def html(self) -> Markup:
        """Return the table as HTML, without title and notes; all texts are escaped."""
        headings = []
        for index, column in enumerate(self.columns):
            heading = Markup('<th scope="col"{}>{}</th>')
            headings.append(heading.format(self._class_attribute(index), column.name))
        rows = [Markup("<tr>{}</tr>").format(self._html_cells(row)) for row in self.rows]
        table = Markup("<table>\n<thead><tr>{}</tr></thead>\n<tbody>\n{}\n</tbody>\n</table>")
        return table.format(Markup("").join(headings), Markup("\n").join(rows))

    def records(self) -> list[dict[str, str]]:
        """Return a mapping for each row, from the name of a column to the cell.

        A row with fewer cells than there are columns has no key for the others.
        """
        names = [column.name for column in self.columns]
        return [dict(zip(names, row, strict=False)) for row in self.rows]

    def _class_attribute(self, index: int) -> Markup:
        """Return the HTML attribute `class` of the cells in the column `index`; it may be empty.

        The style sheet aligns cells to the right, except for the first column and the class `text`.
        """
        is_text = index > 0 and not self.columns[index].is_number
        return Markup(' class="text"') if is_text else Markup("")

    def _html_cells(self, row: tuple[str, ...]) -> Markup:
        """Return the cells of a row as HTML; the first one is the heading of the row."""
        cells = [Markup('<th scope="row">{}</th>').format(row[0])]
        for index, column in enumerate(self.columns[1:], start=1):
            text = row[index] if index < len(row) else ""
            content = _number(text) if column.is_number else Markup.escape(text)
            cells.append(Markup("<td{}>{}</td>").format(self._class_attribute(index), content))
        return Markup("").join(cells)


def _number(text: str) -> Markup:
    """Return a number as HTML, such as "83.1 [80.0, 85.7]".

    Hyphens become minus signs. The interval, if there is one, gets a softer colour.
    """
    mean, separator, interval = with_minus_signs(text).partition(" [")
    if not separator:
        return Markup.escape(mean)
    return Markup('{} <span class="interval">[{}</span>').format(mean, interval)
