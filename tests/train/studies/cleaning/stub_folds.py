"""Stands in for the training and the scoring of the models of folds.

`stub_folds.py train/rm.py RUN/recipe.yaml` leaves a checkpoint, and `stub_folds.py
eval/score_records.py RECIPE CHECKPOINT OUT --keys KEYS` writes the scores of a model that knows the
truth about most records. `calls` in the study's folder tells of every start. The training of a run
whose fold stands in `fail` fails.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

if not __package__:  # started by its path: import the mmrm of its own clone
    sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

from mmrm.data.preparation.mixing import Mixture
from mmrm.data.synthetic.source import ShapesSource
from mmrm.eval.score_records import ScoredRecords


def main() -> None:
    """Do as the command does."""
    script, recipe, *arguments = sys.argv[1:]
    study = next(folder for folder in Path(recipe).parents if folder.name == "cleaning")
    with (study / "calls").open("a") as calls:
        calls.write(f"{Path(script).stem} {Path(recipe).parent.relative_to(study)}\n")
    if Path(script).stem == "rm":
        train(Path(recipe), study)
    else:
        checkpoint, out, _, keys = arguments
        score(Path(recipe), Path(checkpoint), Path(out), keys)


def train(recipe: Path, study: Path) -> None:
    """Leave a complete checkpoint, which holds the number of records that it was trained on."""
    fail = study / "fail"
    fold = recipe.parent.parent.name
    if fail.exists() and fold in fail.read_text().split():
        sys.exit("the loss is a teapot")
    records = ScoredRecords.of_recipe(recipe, None)
    checkpoint = recipe.parent / "checkpoint-2"
    checkpoint.mkdir()
    keys = [f"{key:016x}" for key in records.keys.tolist()]
    (checkpoint / "trained_on.json").write_text(json.dumps(keys))
    (checkpoint / "complete").write_text("whole")


def score(recipe: Path, checkpoint: Path, out: Path, file_of_keys: str) -> None:
    """Write scores that are right about the true preference for most records."""
    records = ScoredRecords.of_recipe(recipe, file_of_keys)
    trained_on = set(json.loads((checkpoint / "trained_on.json").read_text()))
    lines = []
    for index, key in zip(records.indices.tolist(), records.keys.tolist(), strict=True):
        written = f"{key:016x}"
        assert written not in trained_on
        margin = np.random.default_rng(key).normal(2.0, 1.0)
        if is_wrong(records.mixture, index):
            margin = -margin
        record = records.mixture[index]
        scores = [margin, 0.0]
        lines.append({"key": written, "ranks": list(record.ranks), "scores": scores})
    out.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def is_wrong(mixture: Mixture, index: int) -> bool:
    """Return True if the label of a training record is wrong on purpose."""
    number, position = mixture.records.locate(index)
    split = mixture.splits[number]
    source = split.config.open(mixture.config.cache_folder)
    assert isinstance(source, ShapesSource)
    return source.is_flipped(int(split.rows[position]))


if __name__ == "__main__":
    main()
