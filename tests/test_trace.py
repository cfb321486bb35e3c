"""A walk through the house: which files run, in order, from a record's file to its loss and from a benchmark row to its figure.

    python -m pytest tests/test_trace.py -s

prints both walks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from PIL import Image

from mmrm.train.recipe.parsing import parse_arguments
from mmrm.train.runs.build import assemble
from mmrm.train.runs.environment import run_environment
from tests.train import worker

CLONE = Path(__file__).resolve().parents[1]
FLOORS = ("data", "models", "eval", "train")


@contextmanager
def walk(files: list[str]) -> Iterator[None]:
    """Append to `files` every project file that is entered or returned to."""

    def note(frame: FrameType, event: str, argument: Any) -> None:
        now = frame.f_back if event == "return" else frame
        if event not in ("call", "return") or now is None:
            return
        path = Path(now.f_code.co_filename)
        if path.is_relative_to(CLONE) and path.relative_to(CLONE).parts[0] in FLOORS:
            name = str(path.relative_to(CLONE))
            if not files or files[-1] != name:
                files.append(name)

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


@pytest.fixture
def recipe(tmp_path: Path) -> list[str]:
    """Return a command line that trains on four records of a file and evaluates two rows of a benchmark."""
    path = worker.prepare(tmp_path)
    Image.new("RGB", (56, 56), "red").save(tmp_path / "red.png")
    record = {
        "images": ["red.png"],
        "prompt": "Which colour?",
        "chosen": "Red.",
        "rejected": "Blue.",
    }
    (tmp_path / "records.jsonl").write_text(
        "".join(json.dumps(record | {"prompt": f"Colour {i}?"}) + "\n" for i in range(4))
    )
    return [
        str(path),
        f"data.sources=[{{type: project, path: {tmp_path / 'records.jsonl'}}}]",
        f"data.cache={tmp_path / 'cache'}",
        "optim.records_per_step=1",
        "deepspeed=none",
    ]


def test_the_walks_of_a_record_and_of_a_row_are_printed(recipe: list[str]) -> None:
    launch = parse_arguments(recipe, "rm", "")
    with run_environment(seed=0, deterministic=False, deepspeed=False):
        trainer: Any = assemble(launch)[0]
        trainer.create_optimizer_and_scheduler(2)
        to_the_loss: list[str] = []
        with walk(to_the_loss):
            step = trainer.train_dataset[0]
            trainer.training_step(trainer.model, step)
        to_the_figure: list[str] = []
        with walk(to_the_figure):
            trainer.evaluate_benchmarks(trainer.model, 0)
    for title, files in (
        ("a record to its loss", to_the_loss),
        ("a benchmark row to its figure", to_the_figure),
    ):
        print(f"\n{title}: {len(set(files))} files, {len(files)} steps\n  " + "\n  ".join(files))
    assert "data/storage/row_files.py" in to_the_loss
    assert "train/supervised/objectives.py" in to_the_loss
