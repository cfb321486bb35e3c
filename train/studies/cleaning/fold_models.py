"""The models of the folds: each is trained without the records of its fold, and scores them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmrm.data.arrays import Floats, Ints
from mmrm.data.errors import UserError
from mmrm.data.preparation.mixing import Mixture
from mmrm.data.storage.files import content_digest, write_whole
from mmrm.eval.contamination.question_overlap import rows_of
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.recipe.recipe import Recipe
from mmrm.train.runs.provenance import recipe_yaml
from mmrm.train.studies.ablation.cached_steps import model_digest, run_step, trained_checkpoint
from mmrm.train.studies.ablation.variants import DONE, RECIPE, Run, state
from mmrm.train.studies.cleaning.folds import LabelledRecords, written_keys
from mmrm.train.studies.cleaning.label_errors import scaled

FOLDS = "folds"
"""The folder of the folds in the folder of the study."""
KEYS = "keys.txt"
"""The file of a fold with the keys of its records."""
LEFT_OUT = "left_out.jsonl"
"""The file of a fold with decisions that leave out all records that its models must not see."""
SCORES = "scores.jsonl"
"""The file of scores, next to the run folder of a model."""


@dataclass(frozen=True, slots=True)
class CleanedRecipe:
    """The recipe whose labels are looked at, and how the models of the folds are trained."""

    path: Path
    overrides: tuple[str, ...]
    steps: int
    """Number of steps of each model."""
    folder: Path
    """The folder of the study."""
    recipe: Recipe

    def overrides_of(self, fold: int, seed: int) -> list[str]:
        """Return the values that replace those of the recipe for the model of a fold.

        The run takes all other records, has the given length, and evaluates nothing. The records
        that the recipe holds out stay out, because they may share images with the fold.
        """
        left_out = self.folder_of_fold(fold) / LEFT_OUT
        decisions = [*self.recipe.data.decisions, str(left_out)]
        return [
            *self.overrides,
            f"data.decisions={json.dumps(decisions)}",
            "data.validation=0",
            "optim.epochs=null",
            f"optim.max_steps={self.steps}",
            "evaluation={benchmarks: [], best_metric: null, at_start: false}",
            f"output.save_every_steps={self.steps}",
            "output.keep_checkpoints=1",
            f"seed={seed}",
            f"data.seed={seed}",
        ]

    def folder_of_fold(self, fold: int) -> Path:
        """Return the folder of a fold."""
        return self.folder / FOLDS / str(fold)

    def run_of(self, fold: int, seed: int) -> Run:
        """Return the training of the model of a fold."""
        folder = self.folder_of_fold(fold) / f"seed-{seed}"
        overrides = [*self.overrides_of(fold, seed), f"output.folder={folder}"]
        recipe = read_recipe(self.path, [*overrides, "output.resume=auto"])
        return Run(f"fold {fold}", seed, recipe)

    def scores_of(self, fold: int, seed: int) -> Path:
        """Return the file of the scores of a fold's model."""
        return self.folder_of_fold(fold) / f"seed-{seed}.{SCORES}"


def read_cleaned_recipe(path: Path, overrides: Sequence[str], steps: int) -> CleanedRecipe:
    """Return the recipe whose labels are looked at.

    Raises:
        UserError: The recipe has faults, or its method trains no judge.
    """
    recipe = read_recipe(path, overrides)
    if recipe.method.judge_type is None:
        raise UserError(
            f"{path}: the method {recipe.method.type} trains no model that judges pairs. Required "
            "is the recipe of a reward model or a judge, because its margins show wrong labels."
        )
    folder = Path(recipe.output.folder) / "cleaning"
    return CleanedRecipe(path, tuple(overrides), steps, folder, recipe)


def write_folds(
    cleaned: CleanedRecipe, mixture: Mixture, records: LabelledRecords, folds: Ints
) -> None:
    """Write the keys of each fold, and the decisions that leave it out.

    The decisions also leave out the rows that the recipe does not train on now, such as held-out
    ones. They could be drawn in place of the rows of the fold.
    """
    keys = records.keys
    other_keys = _keys_of_other_rows(mixture, keys)
    for fold in np.unique(folds).tolist():
        folder = cleaned.folder_of_fold(fold)
        folder.mkdir(parents=True, exist_ok=True)
        keys_of_fold = keys[folds == fold].tolist()
        write_whole(folder / KEYS, "\n".join(written_keys(keys_of_fold)) + "\n")
        lines = []
        for key in written_keys([*keys_of_fold, *other_keys]):
            lines.append(json.dumps({"key": key, "decision": "leave_out"}))
        write_whole(folder / LEFT_OUT, "\n".join(lines) + "\n")


def _keys_of_other_rows(mixture: Mixture, training_keys: Sequence[int] | Any) -> list[int]:
    """Return the keys of the rows of all sources that are equal to no training record."""
    keys_of_sources = [index.rows["record_key"] for index in mixture.indices_without_decisions()]
    # 0 is the key of all rows that cannot be used.
    other_keys = np.setdiff1d(np.concatenate(keys_of_sources), [*training_keys, 0])
    other: list[int] = other_keys.astype(np.uint64).tolist()
    return other


def train_and_score(
    cleaned: CleanedRecipe, num_folds: int, seeds: Sequence[int], launcher: Sequence[str], lock: int
) -> None:
    """Train the models of all folds that are not complete, and let each score its fold.

    Args:
        cleaned: The recipe.
        num_folds: The number of folds.
        seeds: A model of each fold is trained with each of these seeds.
        launcher: The command line that starts each step, such as `python`.
        lock: The file descriptor of the study's lock.

    Raises:
        UserError: If a training or the scoring fails.
    """
    recipe_file = cleaned.folder / RECIPE
    write_whole(recipe_file, recipe_yaml(cleaned.recipe))
    decisions = {path: content_digest(Path(path)) for path in cleaned.recipe.data.decisions}
    for seed in seeds:
        for fold in range(num_folds):
            folder = cleaned.folder_of_fold(fold)
            fold_digests = {
                "the records of the fold": content_digest(folder / KEYS),
                "the records that are left out": content_digest(folder / LEFT_OUT),
            }
            run = cleaned.run_of(fold, seed)
            checkpoint = trained_checkpoint(
                cleaned.path,
                cleaned.overrides_of(fold, seed),
                run.folder,
                launcher,
                lock,
                fold_digests | decisions,
            )
            scores = cleaned.scores_of(fold, seed)
            arguments = [str(recipe_file), checkpoint, str(scores), "--keys", str(folder / KEYS)]
            made_from = {
                "judge": model_digest(checkpoint),
                "recipe": content_digest(recipe_file),
                **fold_digests,
                **decisions,
            }
            run_step(launcher, "eval/score_records.py", arguments, scores, made_from)


def is_scored(cleaned: CleanedRecipe, fold: int, seed: int) -> bool:
    """Return True if a fold's model is trained and its file of scores exists."""
    run = cleaned.run_of(fold, seed)
    return (run.folder / DONE).exists() and cleaned.scores_of(fold, seed).exists()


def state_of(cleaned: CleanedRecipe, fold: int, seed: int) -> str:
    """Return the state of a fold's model: `to do`, `begun`, `trained` or `complete`."""
    if is_scored(cleaned, fold, seed):
        return "complete"
    state_of_run = state(cleaned.run_of(fold, seed))
    return "trained" if state_of_run == "complete" else state_of_run


def margin_of(ranks: Sequence[int], scores: Sequence[float]) -> float:
    """Return the mean of score(better) - score(worse) over all pairs of different ranks.

    Args:
        ranks: The rank of each response; at least two are different.
        scores: The score of each response.
    """
    differences = []
    for better, better_rank in enumerate(ranks):
        for worse, worse_rank in enumerate(ranks):
            if better_rank < worse_rank:
                differences.append(scores[better] - scores[worse])
    return math.fsum(differences) / len(differences)


def out_of_fold_margins(
    cleaned: CleanedRecipe, records: LabelledRecords, folds: Ints, seeds: Sequence[int]
) -> Floats:
    """Return the mean scaled margin of each record over the seeds, shape (records,).

    The margins of each model are divided by their root mean square. A record is NaN if all its
    responses are tied, or if a model could not judge it.

    Args:
        cleaned: The recipe, whose models are complete.
        records: The records.
        folds: The fold of each record, shape (records,).
        seeds: The seeds of the models.
    """
    margins_of_seeds = []
    for seed in seeds:
        scores_by_key: dict[str, list[float]] = {}
        for fold in np.unique(folds).tolist():
            for row in rows_of(cleaned.scores_of(fold, seed)):
                if "scores" in row:
                    scores_by_key[row["key"]] = row["scores"]
        margins = np.full(len(records.records), np.nan)
        for index, key in enumerate(map("{:016x}".format, records.keys.tolist())):
            record = records.records[index]
            if record.has_preference and key in scores_by_key:
                margins[index] = margin_of(record.ranks, scores_by_key[key])
        is_known = np.isfinite(margins)
        margins[is_known] = scaled(margins[is_known], folds[is_known])
        margins_of_seeds.append(margins)
    return np.asarray(np.mean(margins_of_seeds, axis=0))
