"""What a run says before its first step."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from tests.data.mixtures import mixture, project, row
from tests.train import worker
from tests.train.ranks import run_ranks
from train.runs.build import tell_left_out


def test_records_that_were_left_out_are_told_with_the_reasons(tmp_path: Path) -> None:
    rows = [row("<image> first"), row("second"), row("third"), row("<image> fourth")]
    whole = [row("fifth")]
    console = Console(file=io.StringIO(), width=125)
    sources = [project(tmp_path, "one", rows), project(tmp_path, "two", whole)]
    tell_left_out(mixture(tmp_path, sources), console)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "one: 2 of 4 records left out: markers 2\n"


def test_a_run_tells_before_its_first_step(tmp_path: Path) -> None:
    recipe = worker.prepare(tmp_path)
    source = project(tmp_path, "own", [row(f"{'<image> ' * (number == 3)}question {number}") for number in range(9)])
    data = {"sources": [source], "cache": str(tmp_path / "cache"), "workers": 1}
    changes = ["optim.max_steps=1", "evaluation.benchmarks=[]", "evaluation.best_metric=null", f"data={json.dumps(data)}"]
    printed = run_ranks(tmp_path / "log", worker.recipe_run, [str(recipe), *changes], ranks=1)
    assert "own: 1 of 9 records left out: markers 1" in printed
