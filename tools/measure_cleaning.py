"""Measure time and memory of every step of train/clean.py besides training and scoring.

    python tools/measure_cleaning.py                  # 1,000,000 synthetic records
    python tools/measure_cleaning.py --size 10000     # quick

The records are those of tools/measure_memory.py: half are texts, half have an image. In place of the
scores of models, each fold gets random ones, of which 10 % prefer the worse response. Seconds depend on
what else the machine does, processor seconds much less; memory is the most that the process has held
so far.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

import numpy as np
from rich.console import Console
from rich.table import Table

from mmrm.data.arrays import Ints
from mmrm.data.preparation.mixing import Mixture
from mmrm.train.studies.cleaning.fold_models import (
    CleanedRecipe,
    out_of_fold_margins,
    read_cleaned_recipe,
    write_folds,
)
from mmrm.train.studies.cleaning.folds import LabelledRecords, folds_of, read_records
from mmrm.train.studies.cleaning.label_study import (
    Thresholds,
    judged_labels,
    study_result,
    write,
)
from mmrm.train.studies.cleaning.suspects_page import suspects_page
from tools.measure_memory import write_records

FOLDS = 3
RECIPE = """
backbone: {{path: embedded, dtype: float32}}
data:
  sources:
    - {{type: project, name: told, path: {folder}/text.jsonl}}
    - {{type: project, name: seen, path: {folder}, files: ["*.parquet"]}}
  cache: {folder}/cache
  workers: 2
method: {{type: naive}}
optim: {{learning_rate: 1.0e-4, records_per_step: 64, max_steps: 10}}
deepspeed: none
output: {{folder: {folder}/run, save_every_steps: 10}}
"""
Result = TypeVar("Result")


class Steps:
    """Measures steps, and holds a line of the table for each."""

    def __init__(self) -> None:
        self.table = Table(title="train/clean.py without training and scoring")
        for name in ("step", "seconds", "processor seconds", "MiB at most so far"):
            self.table.add_column(name, justify="left" if name == "step" else "right")

    def measure(self, name: str, step: Callable[[], Result]) -> Result:
        """Run a step, add its line to the table, and return its result."""
        start = time.perf_counter()
        processor_start = processor_seconds()
        result = step()
        seconds = time.perf_counter() - start
        used = processor_seconds() - processor_start
        mebibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        self.table.add_row(name, f"{seconds:.1f}", f"{used:.1f}", f"{mebibytes:,.0f}")
        print(
            f"{name}: {seconds:.1f} s, {used:.1f} s of processors, {mebibytes:,.0f} MiB", flush=True
        )
        return result


def processor_seconds() -> float:
    """Return the processor time of this process and of its processes that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def write_scores(cleaned: CleanedRecipe, records: LabelledRecords, folds: Ints) -> None:
    """Write random scores of two responses for each record, as eval/score_records.py does."""
    generator = np.random.default_rng(0)
    sizes = np.abs(generator.normal(1.0, 0.7, len(folds)))
    is_right = generator.random(len(folds)) < 0.9
    margins = np.where(is_right, sizes, -sizes)
    keys = records.keys
    for fold in range(FOLDS):
        lines = []
        for index in np.flatnonzero(folds == fold).tolist():
            row = {"key": f"{keys[index]:016x}", "scores": [float(margins[index]), 0.0]}
            lines.append(json.dumps(row) + "\n")
        cleaned.scores_of(fold, 0).write_text("".join(lines))


def main() -> None:
    """Print a line for each step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=1_000_000, help="number of records")
    size = parser.parse_args().size
    steps = Steps()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_records(folder, size)
        recipe_file = folder / "recipe.yaml"
        recipe_file.write_text(RECIPE.format(folder=folder))
        cleaned = read_cleaned_recipe(recipe_file, (), steps=10)
        steps.measure("open the mixture, first time", lambda: Mixture(cleaned.recipe.data))
        mixture = steps.measure("open the mixture again", lambda: Mixture(cleaned.recipe.data))
        records = steps.measure("read the records", lambda: read_records(mixture))
        folds = steps.measure("divide them into folds", lambda: folds_of(records, FOLDS))
        steps.measure("write the folds", lambda: write_folds(cleaned, mixture, records, folds))
        write_scores(cleaned, records, folds)
        margins = steps.measure(
            "read the scores", lambda: out_of_fold_margins(cleaned, records, folds, [0])
        )
        labels = steps.measure(
            "error rates, probabilities, contradictions",
            lambda: judged_labels(records, margins, Thresholds(0.5, 0.9)),
        )
        result = steps.measure("tables", lambda: study_result(labels, cleaned))
        steps.measure("write the lists", lambda: write(result, labels, cleaned.folder))
        steps.measure(
            "the page of 200 suspects",
            lambda: suspects_page(labels, mixture, "recipe", 200, is_blind=False),
        )
    Console().print(steps.table)


if __name__ == "__main__":
    main()
