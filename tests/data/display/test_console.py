"""What a user named is printed as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.table import Table

from mmrm.data.display.console import (
    first_rank_console,
    is_first_rank,
    plain_console,
    say_on_first_rank,
)

CLONE = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    "name", ["[/red]", "[red]", "[/]", "[link=x]", ":car:", r"\[bold]", "[a b"]
)
def test_no_text_is_markup(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(name, title=f"title {name}", caption=f"caption {name}")
    table.add_row(f"  cell {name}")
    console = plain_console(width=60)
    console.print(table, f"line {name}")
    printed = capsys.readouterr().out
    assert all(f"{place} {name}" in printed for place in ("title", "caption", "cell", "line"))


@pytest.mark.parametrize(("rank", "speaks"), [(None, True), ("0", True), ("3", False)])
def test_the_first_rank_alone_speaks(
    rank: str | None,
    speaks: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    first_rank_console().print("to the console")
    say_on_first_rank("to the error output")
    printed = capsys.readouterr()
    assert is_first_rank() is speaks
    assert printed.out == "to the console\n" * speaks
    assert printed.err == "to the error output\n" * speaks


def test_commands_have_no_other_console() -> None:
    files = [
        file
        for room in ("data", "models", "eval", "train")
        for file in (CLONE / room).rglob("*.py")
    ]
    assert [
        file.name
        for file in files
        if "= Console(" in file.read_text() or " Console(" in file.read_text()
    ] == ["console.py"]
