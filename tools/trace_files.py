"""Print which of the project's files run, in order, for one record and for one benchmark row.

    python tools/trace_files.py

The first list leads from a record's file to the loss of its step, the second one from a benchmark
row to the figure that is logged. A file is listed each time that a call enters it or returns to it
from another file. The model is a tiny one with random weights, and nothing is kept.
"""

from __future__ import annotations

import sys
from pathlib import Path

CLONE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CLONE))  # the clone, installed or not

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from PIL import Image

from mmrm.train.recipe.parsing import parse_arguments
from mmrm.train.runs.build import assemble
from mmrm.train.runs.environment import run_environment
from tests.train import worker

PACKAGE = CLONE / "mmrm"


def main() -> None:
    """Trace one training step of one record and one evaluation of two rows, and print both lists."""
    form = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=form).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        to_the_loss, to_the_figure = trace_run(Path(folder))
    print_files("a record to its loss", to_the_loss)
    print_files("a benchmark row to its figure", to_the_figure)


def trace_run(folder: Path) -> tuple[list[str], list[str]]:
    """Return the files from a record to its loss, and those from a benchmark row to its figure."""
    launch = parse_arguments(write_recipe(folder), "rm", "")
    to_the_loss: list[str] = []
    to_the_figure: list[str] = []
    with run_environment(seed=0, deterministic=False, deepspeed=False):
        trainer: Any = assemble(launch)[0]
        trainer.create_optimizer_and_scheduler(2)
        with tracing(to_the_loss):
            step = trainer.train_dataset[0]
            trainer.training_step(trainer.model, step)
        with tracing(to_the_figure):
            trainer.evaluate_benchmarks(trainer.model, 0)
    return to_the_loss, to_the_figure


def write_recipe(folder: Path) -> list[str]:
    """Write a tiny model, a recipe and four records with a picture; return the command line."""
    recipe = worker.prepare(folder)
    Image.new("RGB", (56, 56), "red").save(folder / "red.png")
    records = folder / "records.jsonl"
    with records.open("w", encoding="utf-8") as file:
        for number in range(4):
            record = {
                "images": ["red.png"],
                "prompt": f"Colour {number}?",
                "chosen": "Red.",
                "rejected": "Blue.",
            }
            file.write(json.dumps(record) + "\n")
    return [
        str(recipe),
        f"data.sources=[{{type: project, path: {records}}}]",
        f"data.cache={folder / 'cache'}",
        "optim.records_per_step=1",
        "deepspeed=none",
    ]


@contextmanager
def tracing(files: list[str]) -> Iterator[None]:
    """Append to `files` every file of the project that is entered or returned to."""

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            now: FrameType | None = frame
        elif event == "return":
            now = frame.f_back
        else:
            return
        if now is None:
            return
        path = Path(now.f_code.co_filename)
        if not path.is_relative_to(PACKAGE):
            return
        name = str(path.relative_to(PACKAGE))
        if files[-1:] != [name]:
            files.append(name)

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def print_files(title: str, files: list[str]) -> None:
    """Print a list of files below its title."""
    print(f"\n{title}: {len(set(files))} files, {len(files)} steps")
    for name in files:
        print(f"  {name}")


if __name__ == "__main__":
    main()
