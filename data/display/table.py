"""A table of texts that is built once, and rendered for the console, Markdown and pages."""

from dataclasses import dataclass

import rich.table
from markupsafe import Markup
from rich.console import JustifyMethod
from rich.text import Text

from mmrm.data.display.format import with_minus_signs


@dataclass(frozen=True, slots=True)
class Column:
    """The head of a column."""

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
        """Return the table without the column of this name."""
        index = [one.name for one in self.columns].index(column)
        columns = self.columns[:index] + self.columns[index + 1 :]
        rows = tuple(row[:index] + row[index + 1 :] for row in self.rows)
        return Table(self.title, columns, rows, self.notes, self.section_ends, self.row_styles)

    def rich(self) -> rich.table.Table:
        """Return the table for the console, with its title above and its notes below."""
        table = rich.table.Table(
            title=self.title or None,
            caption="\n".join(self.notes) or None,
            show_header=any(column.name for column in self.columns),
        )
        for column in self.columns:
            justify: JustifyMethod = "right" if column.is_number else "left"
            table.add_column(column.name, justify=justify, style=column.style)
        for index, (first, *others) in enumerate(self.rows):
            style = self.row_styles[index] if self.row_styles else ""
            table.add_row(Text(first, style), *others, end_section=index in self.section_ends)
        return table

    def markdown(self) -> str:
        """Return the lines of the table in Markdown, without title and notes."""
        heads = [column.name for column in self.columns]
        rules = ["--:" if column.is_number else "---" for column in self.columns]
        return "\n".join(f"| {' | '.join(row)} |" for row in (heads, rules, *self.rows))

    def html(self) -> Markup:
        """Return the table as HTML, without title and notes; all texts are escaped."""
        heads = [
            Markup('<th scope="col"{}>{}</th>').format(self._attribute(index), column.name)
            for index, column in enumerate(self.columns)
        ]
        rows = [Markup("<tr>{}</tr>").format(self._html_cells(row)) for row in self.rows]
        table = Markup("<table>\n<thead><tr>{}</tr></thead>\n<tbody>\n{}\n</tbody>\n</table>")
        return table.format(Markup("").join(heads), Markup("\n").join(rows))

    def records(self) -> list[dict[str, str]]:
        """Return each row as a mapping of the columns' names to its cells."""
        names = [column.name for column in self.columns]
        return [dict(zip(names, row, strict=False)) for row in self.rows]

    def _attribute(self, index: int) -> Markup:
        """Return the class of a cell: the style sheet aligns cells right unless they are text."""
        is_text = index > 0 and not self.columns[index].is_number
        return Markup(' class="text"') if is_text else Markup("")

    def _html_cells(self, row: tuple[str, ...]) -> Markup:
        """Return the cells of a row; the first one is its head."""
        cells = [Markup('<th scope="row">{}</th>').format(row[0])]
        for index, column in enumerate(self.columns[1:], start=1):
            text = row[index] if index < len(row) else ""
            content = _number(text) if column.is_number else Markup.escape(text)
            cells.append(Markup("<td{}>{}</td>").format(self._attribute(index), content))
        return Markup("").join(cells)


def _number(text: str) -> Markup:
    """Return a number with minus signs, and its interval, if it has one, in a softer colour."""
    mean, bracket, ends = with_minus_signs(text).partition(" [")
    if not bracket:
        return Markup.escape(mean)
    return Markup('{} <span class="interval">[{}</span>').format(mean, ends)
