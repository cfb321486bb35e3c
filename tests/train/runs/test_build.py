"""What a run says before its first step."""

from __future__ import annotations

import json
from pathlib import Path

from tests.data.mixtures import project, row
from tests.train import worker
from tests.train.ranks import run_ranks


def test_a_run_tells_before_its_first_step(tmp_path: Path) -> None:
    recipe = worker.prepare(tmp_path)
    source = project(tmp_path, "own", [row(f"{'<image> ' * (number == 3)}question {number}") for number in range(9)])
    data = {"sources": [source], "cache": str(tmp_path / "cache"), "workers": 1}
    changes = ["optim.max_steps=1", "evaluation.benchmarks=[]", "evaluation.best_metric=null", f"data={json.dumps(data)}"]
    printed = run_ranks(tmp_path / "log", worker.recipe_run, [str(recipe), *changes], ranks=1)
    assert "own: 1 of 9 records left out: markers 1" in printed
