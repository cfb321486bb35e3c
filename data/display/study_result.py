"""The result of a study, with the tables and charts that show it."""

from dataclasses import dataclass
from typing import Any

from rich.console import Console

from mmrm.data.display.chart import Chart
from mmrm.data.display.table import Table


@dataclass(frozen=True, slots=True)
class StudyResult:
    """The result of a study: its figures, with the tables, charts and sentences that show them.

    The console, Markdown, HTML and PNG files all show the same tables and charts.
    """

    figures: Any
    """The figures as they are written to a JSON file."""
    tables: tuple[Table, ...] = ()
    """The tables for the console."""
    charts: tuple[Chart, ...] = ()
    sentences: tuple[str, ...] = ()
    """Conclusions, and notes on what is in no table."""
    document: str = ""
    """The report in Markdown."""

    def show(self, console: Console) -> None:
        """Print the tables and the sentences to `console`."""
        for table in self.tables:
            console.print(table.rich())
        for sentence in self.sentences:
            console.print(sentence, highlight=False, soft_wrap=True)
