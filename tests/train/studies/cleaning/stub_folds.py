"""Stands in for the training and the scoring of models in studies of wrong labels.

`stub_folds.py train/rm.py RUN/recipe.yaml` leaves a checkpoint. If the recipe has benchmarks, it also
leaves predictions, of which the fewer are right the more labels of the training data are wrong.
`stub_folds.py eval/score_records.py RECIPE CHECKPOINT OUT [--keys KEYS]` writes the scores of a
model that knows the truth about most records which it was not trained on, and less about the
others. `calls` in the study's folder tells of every start. The training of a run whose fold stands
in `fail` fails.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

if not __package__:  # started by its path: import the mmrm of its own clone
    sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

from mmrm.data.preparation.decisions import FlippedSource
from mmrm.data.preparation.mixing import Mixture
from mmrm.data.synthetic.source import ShapesSource
from mmrm.eval.score_records import ScoredRecords
from mmrm.train.recipe.parsing import read_recipe


def main() -> None:
    """Do as the command does."""
    script, recipe, *arguments = sys.argv[1:]
    study = study_of(Path(recipe))
    with (study / "calls").open("a") as calls:
        calls.write(f"{Path(script).stem} {Path(recipe).parent.relative_to(study)}\n")
    if Path(script).stem == "rm":
        train(Path(recipe), study)
        return
    checkpoint, out, *keys = arguments
    score(Path(recipe), Path(checkpoint), Path(out), keys[1] if keys else None)


def study_of(recipe: Path) -> Path:
    """Return the folder of the search for wrong labels, or that of the run if it is not of one."""
    for folder in recipe.parents:
        if folder.name == "cleaning":
            return folder
    return recipe.parent


def train(recipe: Path, study: Path) -> None:
    """Leave a complete checkpoint, which holds the keys of the records that it was trained on."""
    fail = study / "fail"
    fold = recipe.parent.parent.name
    if fail.exists() and fold in fail.read_text().split():
        sys.exit("the loss is a teapot")
    records = ScoredRecords.of_recipe(recipe, None)
    checkpoint = recipe.parent / "checkpoint-2"
    checkpoint.mkdir()
    keys = [f"{key:016x}" for key in records.keys.tolist()]
    (checkpoint / "trained_on.json").write_text(json.dumps(keys))
    settings = read_recipe(recipe)
    are_wrong = [is_wrong(records.mixture, index) for index in records.indices.tolist()]
    accuracy = 0.9 - float(np.mean(are_wrong))
    for benchmark in settings.evaluation.benchmarks:
        folder = checkpoint / "eval" / benchmark.name
        folder.mkdir(parents=True)
        generator = np.random.default_rng(settings.seed)
        is_right = generator.random(400) < accuracy
        lines = []
        for number, credit in enumerate(is_right.astype(float).tolist()):
            lines.append(json.dumps({"key": f"row {number}", "credit": credit}) + "\n")
        (folder / "predictions.jsonl").write_text("".join(lines))
    speed = {"step": 2, "records_per_second": 32.0, "tokens_per_second": 6400.0}
    (recipe.parent / "log.jsonl").write_text(json.dumps(speed) + "\n")
    (checkpoint / "complete").write_text("whole")


def score(recipe: Path, checkpoint: Path, out: Path, file_of_keys: str | None) -> None:
    """Write scores that are right about the true preference for most records."""
    records = ScoredRecords.of_recipe(recipe, file_of_keys)
    trained_on = set(json.loads((checkpoint / "trained_on.json").read_text()))
    lines = []
    for index, key in zip(records.indices.tolist(), records.keys.tolist(), strict=True):
        written = f"{key:016x}"
        has_seen = written in trained_on
        assert has_seen == (file_of_keys is None)
        margin = np.random.default_rng(key).normal(2.0, 1.0)
        if is_wrong(records.mixture, index):
            # A model that has seen the wrong label agrees with it more often.
            margin = 1.0 - margin if has_seen else -margin
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
    row = int(split.rows[position])
    was_flipped = isinstance(split.source, FlippedSource) and row in split.source.rows
    return source.is_flipped(row) != was_flipped


if __name__ == "__main__":
    main()
