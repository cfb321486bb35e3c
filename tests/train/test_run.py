"""What a run says before its first step."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from tests.data.mixtures import mixture, project, row
from train.run import tell_left_out


def test_records_that_were_left_out_are_told_with_the_reasons(tmp_path: Path) -> None:
    rows = [row("<image> first"), row("second"), row("third"), row("<image> fourth")]
    whole = [row("fifth")]
    console = Console(file=io.StringIO(), width=125)
    sources = [project(tmp_path, "one", rows), project(tmp_path, "two", whole)]
    tell_left_out(mixture(tmp_path, sources), console)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "one: 2 of 4 records left out: markers 2\n"
