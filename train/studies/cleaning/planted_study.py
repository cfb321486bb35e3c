"""The study of what cleaning regains, on data whose wrong labels are known.

A list of variants has the same records with more or fewer wrong labels. For each run of the list,
models of folds find the labels that are probably wrong (label_study.py), and the recipe is trained
again without them. Two other ways to leave out as many records are compared: those on which the
trained model itself has the largest loss, and records that are drawn at random.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmrm.data.arrays import Floats, Ints
from mmrm.data.display.console import plain_console
from mmrm.data.display.format import MISSING, interval, percent, signed_points
from mmrm.data.display.study_result import StudyResult
from mmrm.data.display.table import Column, Table
from mmrm.data.errors import UserError
from mmrm.data.preparation.decisions import written_key
from mmrm.data.storage.files import content_digest, write_json, write_whole
from mmrm.data.storage.output_lock import locked_folder
from mmrm.data.synthetic.source import ShapesConfig
from mmrm.eval.contamination.question_overlap import rows_of
from mmrm.eval.results.intervals import (
    Difference,
    Estimate,
    accuracy_over_seeds,
    contrast_over_seeds,
    difference_over_seeds,
    ratio_over_seeds,
)
from mmrm.eval.results.predictions import item_codes
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.studies.ablation.cached_steps import (
    checkpoint_of,
    model_digest,
    run_step,
    trained_checkpoint,
)
from mmrm.train.studies.ablation.comparison import Credits, credits_in
from mmrm.train.studies.ablation.variants import DONE, RECIPE, Ablation, Run, state
from mmrm.train.studies.cleaning import label_study
from mmrm.train.studies.cleaning.fold_models import (
    CleanedRecipe,
    margin_of,
    read_cleaned_recipe,
)
from mmrm.train.studies.cleaning.label_study import (
    FLIP,
    LEAVE_OUT,
    JudgedLabels,
    estimate_in_words,
)
from mmrm.train.studies.predictor_steps import train_list

FOLDER = "planted"
"""The folder of the study, in the folder of the list of runs."""
CLEANED = "cleaned"
LOSS = "largest loss left out"
RANDOM = "random left out"
FOLDER_BY_METHOD = {CLEANED: "cleaned", LOSS: "loss", RANDOM: "random"}
"""The ways to treat the records, with the folder of the model that is trained on the rest."""
SEEN_SCORES = "seen_scores.jsonl"
"""The file of the scores that the model of a run gives the records that it was trained on."""
RIGHT = "right"
"""The column of models that are trained on right labels."""
PLANTED = "planted"
"""The column of models that are trained on the wrong labels of a variant."""

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PlantedRun:
    """A complete run on data with known wrong labels, and the runs after each way to treat them."""

    run: Run
    labels: JudgedLabels
    retrained: Mapping[str, Run]
    """By the way to treat the records, a run on the rest."""


def run(ablation: Ablation, options: argparse.Namespace) -> StudyResult:
    """Train and clean what is not complete, and compare.

    Args:
        ablation: The list of runs. Its first variant has no wrong labels.
        options: The options of train/clean_planted.py.

    Raises:
        UserError: The wrong labels of the list are not known, or a training or scoring fails.
    """
    refuse_unsuited_list(ablation)
    if any(state(trained) != "complete" for trained in ablation.runs):
        train_list(options)
    incomplete = [str(trained) for trained in ablation.runs if state(trained) != "complete"]
    if incomplete:
        raise UserError(
            f"{ablation.path}: these runs are not complete: {', '.join(incomplete)}. Required are "
            "all of them, because each is compared with the others. Look into their logs, and start "
            "the command again."
        )
    console = plain_console(stderr=True)
    planted_runs = []
    with locked_folder(ablation.folder / FOLDER) as lock:
        for trained in ablation.runs:
            if trained.variant != ablation.reference:
                console.print(f"{trained}", highlight=False)
                planted_runs.append(planted_run(trained, options, lock))
    return study_result(ablation, planted_runs)


def refuse_unsuited_list(ablation: Ablation) -> None:
    """Raise UserError unless the first variant has no wrong label, and all others have known ones."""
    for trained in ablation.runs:
        shares = []
        for source in trained.recipe.data.sources:
            if isinstance(source, ShapesConfig):
                shares.append(source.flipped)
        has_wrong_labels = any(share > 0 for share in shares)
        if trained.variant == ablation.reference and has_wrong_labels:
            raise UserError(
                f"{ablation.path}: the first variant, {trained.variant}, has wrong labels "
                "(flipped). Required is one without any, because the others are compared with it."
            )
        if trained.variant != ablation.reference and not has_wrong_labels:
            raise UserError(
                f"{ablation.path}: the variant {trained.variant} has no wrong labels that are "
                "known. Required is a source of type shapes with `flipped`; train/clean.py searches "
                "for wrong labels in other data."
            )


def plan(ablation: Ablation, options: argparse.Namespace) -> Table:
    """Return a table of the trainings of each run, and how many of them are complete.

    Args:
        ablation: The list of runs.
        options: The options of train/clean_planted.py.
    """
    refuse_unsuited_list(ablation)
    columns = (
        Column("variant"),
        Column("seed", is_number=True),
        Column("run"),
        Column("models of folds", is_number=True),
        Column("trained again", is_number=True),
    )
    rows = []
    num_trainings = len(ablation.runs)
    for trained in ablation.runs:
        cells = [MISSING, MISSING]
        if trained.variant != ablation.reference:
            num_trainings += options.folds + len(FOLDER_BY_METHOD)
            folder = trained.folder / "cleaning"
            num_folds = len(list(folder.glob(f"folds/*/seed-{trained.seed}/{DONE}")))
            num_retrained = 0
            for name in FOLDER_BY_METHOD.values():
                num_retrained += (folder / name / DONE).exists()
            cells = [
                f"{num_folds} of {options.folds}",
                f"{num_retrained} of {len(FOLDER_BY_METHOD)}",
            ]
        rows.append((trained.variant, str(trained.seed), state(trained), *cells))
    note = f"{num_trainings:,} trainings. Folder: {ablation.folder}"
    return Table(f"{ablation.path.stem}, complete trainings", columns, tuple(rows), (note,))


def planted_run(trained: Run, options: argparse.Namespace, lock: int) -> PlantedRun:
    """Clean the data of a complete run, and train it again after each way to treat the records.

    Args:
        trained: The run.
        options: The options of train/clean_planted.py.
        lock: The file descriptor of the study's lock.

    Raises:
        UserError: If a training or scoring fails.
    """
    recipe_file = trained.folder / RECIPE
    cleaned = read_cleaned_recipe(recipe_file, [], options.steps)
    options_of_run = argparse.Namespace(**(vars(options) | {"seeds": [trained.seed]}))
    labels, _ = label_study.run(cleaned, options_of_run)
    label_study.write(label_study.study_result(labels, cleaned), labels, cleaned.folder)
    losses = write_largest_losses(trained, cleaned, labels, options.launcher)
    drawn = write_random_records(trained, cleaned, labels)
    lists_by_method = {
        CLEANED: [cleaned.folder / LEAVE_OUT, cleaned.folder / FLIP],
        LOSS: [losses],
        RANDOM: [drawn],
    }
    retrained = {}
    for method, lists in lists_by_method.items():
        paths = [*trained.recipe.data.decisions, *map(str, lists)]
        overrides = [f"data.decisions={json.dumps(paths)}"]
        folder = cleaned.folder / FOLDER_BY_METHOD[method]
        made_from = {path: content_digest(Path(path)) for path in paths}
        trained_checkpoint(recipe_file, overrides, folder, options.launcher, lock, made_from)
        recipe = read_recipe(recipe_file, [*overrides, f"output.folder={folder}"])
        retrained[method] = Run(f"{trained.variant}, {method}", trained.seed, recipe)
    return PlantedRun(trained, labels, retrained)


def num_suspects(labels: JudgedLabels) -> int:
    """Return the number of records that the cleaning flips or leaves out."""
    return sum(decision != "keep" for decision in labels.decisions)


def write_largest_losses(
    trained: Run, cleaned: CleanedRecipe, labels: JudgedLabels, launcher: Sequence[str]
) -> Path:
    """Leave out as many records as the cleaning changes: those of the largest training loss.

    The loss of a pair falls with its margin, so these are the records with the smallest margins of
    the run's own model, which was trained on them.

    Returns:
        The file of the decisions.
    """
    checkpoint = str(checkpoint_of(trained))
    scores = cleaned.folder / SEEN_SCORES
    recipe_file = trained.folder / RECIPE
    run_step(
        launcher,
        "eval/score_records.py",
        [str(recipe_file), checkpoint, str(scores)],
        scores,
        {"judge": model_digest(checkpoint), "recipe": content_digest(recipe_file)},
    )
    margin_by_key = {}
    for row in rows_of(scores):
        if "scores" in row and len(set(row["ranks"])) > 1:
            margin_by_key[row["key"]] = margin_of(row["ranks"], row["scores"])
    keys = sorted(margin_by_key, key=lambda key: (margin_by_key[key], key))
    return write_left_out(cleaned.folder / "loss.jsonl", keys[: num_suspects(labels)])


def write_random_records(trained: Run, cleaned: CleanedRecipe, labels: JudgedLabels) -> Path:
    """Leave out as many records as the cleaning changes, drawn at random with the run's seed.

    Returns:
        The file of the decisions.
    """
    keys = np.sort(labels.records.keys)
    generator = np.random.default_rng(trained.seed)
    drawn = generator.choice(keys, num_suspects(labels), replace=False)
    return write_left_out(cleaned.folder / "random.jsonl", map(written_key, drawn.tolist()))


def write_left_out(file: Path, keys: Iterable[str]) -> Path:
    """Write decisions that leave out the records with these keys, and return the file."""
    lines = [json.dumps({"key": key, "decision": "leave_out"}) for key in keys]
    write_whole(file, "".join(f"{line}\n" for line in lines))
    return file


def study_result(ablation: Ablation, planted_runs: Sequence[PlantedRun]) -> StudyResult:
    """Return the figures of all variants, with their tables and the report.

    Args:
        ablation: The list of runs, all of them complete.
        planted_runs: The runs with wrong labels, and those after each way to treat the records.
    """
    found = []
    rates = []
    accuracies = []
    references = [trained for trained in ablation.runs if trained.variant == ablation.reference]
    credits_of_references = [credits_in(trained) for trained in references]
    runs_by_variant: dict[str, list[PlantedRun]] = {}
    for planted in planted_runs:
        runs_by_variant.setdefault(planted.run.variant, []).append(planted)
    num_lines = len(runs_by_variant) * len(credits_of_references[0])
    for variant, runs in runs_by_variant.items():
        found += found_figures(variant, runs)
        rates += rate_figures(variant, runs)
        credits_by_method = {
            RIGHT: credits_of_references,
            PLANTED: [credits_in(planted.run) for planted in runs],
        }
        for method in FOLDER_BY_METHOD:
            credits_by_method[method] = [credits_in(planted.retrained[method]) for planted in runs]
        for benchmark in credits_of_references[0]:
            accuracies.append(accuracy_figures(variant, benchmark, credits_by_method, num_lines))
    tables = (
        rate_table(rates),
        found_table(found),
        accuracy_table(accuracies),
        change_table(accuracies, num_lines),
    )
    sections = [f"# {ablation.path.stem}"]
    for table in tables:
        sections += [f"## {table.title}", table.markdown(), *table.notes]
    return StudyResult(
        {
            "list": str(ablation.path),
            "rates": rates,
            "found": found,
            "accuracies": accuracies,
        },
        tables=tables,
        document="\n\n".join(sections) + "\n",
    )


def write(result: StudyResult, folder: Path) -> None:
    """Write planted.json and planted.md."""
    write_json(folder / "planted.json", result.figures)
    write_whole(folder / "planted.md", result.document)


@dataclass(frozen=True, slots=True)
class KnownLabels:
    """The labels of a variant: the truth about each record, and the decisions of all seeds."""

    is_wrong: Bools
    """Whether each label is wrong, shape (records,)."""
    clusters: Ints
    """The cluster of each record, shape (records,)."""
    decisions: npt.NDArray[np.str_]
    """The decision about each record by the models of each seed, shape (seeds, records)."""
    margins: Floats
    """The margin of each record by the models of each seed, NaN without one, (seeds, records)."""

    @classmethod
    def of_runs(cls, runs: Sequence[PlantedRun]) -> KnownLabels:
        """Return the labels of a variant.

        Raises:
            UserError: The seeds have different records.
        """
        decisions = []
        margins = []
        first = runs[0].labels.records
        for planted in runs:
            if not np.array_equal(planted.labels.records.keys, first.keys):
                raise UserError(
                    f"{planted.run}: its training records are not those of {runs[0].run}. Required "
                    "are equal ones, because intervals are over trainings on the same records. Do "
                    "not let the sources of the list depend on the seed."
                )
            decisions.append(planted.labels.decisions)
            margins.append(planted.labels.margins)
        is_wrong = np.array([bool(record.is_wrong) for record in first.records])
        return cls(is_wrong, first.clusters, np.array(decisions), np.array(margins))

    @property
    def accuracy(self) -> float:
        """The share of records about which a model of the folds agrees with the right label.

        Margins of 0 count half. Records without a margin do not count.
        """
        right_margins = np.where(self.is_wrong, -self.margins, self.margins)
        credits = (np.sign(right_margins) + 1) / 2
        return float(np.nanmean(credits))


def found_figures(variant: str, runs: Sequence[PlantedRun]) -> list[dict[str, Any]]:
    """Return precision and recall of the decisions in a variant, as they are written to the file.

    Precision is the share of selected labels that are wrong, and recall the share of wrong labels
    that are selected, both of the decisions of all seeds together.
    """
    labels = KnownLabels.of_runs(runs)
    is_flipped = labels.decisions == "flip"
    is_suspected = labels.decisions != "keep"
    figures = []
    for decision, is_selected in (("flip", is_flipped), ("flip or leave out", is_suspected)):
        is_wrong = np.broadcast_to(labels.is_wrong, is_selected.shape)
        is_hit = (is_selected & is_wrong).astype(float)
        precision: dict[str, float | None] | None = None
        if is_selected.any():
            estimate = ratio_over_seeds(is_hit, is_selected.astype(float), labels.clusters)
            precision = estimate.plain
        recall = ratio_over_seeds(is_hit, is_wrong.astype(float), labels.clusters)
        figures.append(
            {
                "variant": variant,
                "decision": decision,
                "seeds": [planted.run.seed for planted in runs],
                "records": len(labels.is_wrong),
                "wrong": int(labels.is_wrong.sum()),
                "models_are_right": labels.accuracy,
                "selected": float(is_selected.sum(axis=1).mean()),
                "precision": precision,
                "recall": recall.plain,
            }
        )
    return figures


def rate_figures(variant: str, runs: Sequence[PlantedRun]) -> list[dict[str, Any]]:
    """Return the true and the estimated error rates of each source, by seed."""
    records = runs[0].labels.records.records
    figures = []
    for source in label_study.sources_of(runs[0].labels):
        are_wrong = [bool(record.is_wrong) for record in records if record.source == source]
        estimates = {}
        for planted in runs:
            for errors in planted.labels.errors.sources:
                if errors.source == source:
                    rate = Estimate(errors.rate, errors.low, errors.high)
                    estimates[planted.run.seed] = rate.plain
        figures.append(
            {
                "variant": variant,
                "source": source,
                "true": float(np.mean(are_wrong)),
                "estimates": estimates,
            }
        )
    return figures


def rate_table(rates: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of the true and the estimated error rates, in percent."""
    seeds = list(rates[0]["estimates"])
    columns = (
        Column("variant"),
        Column("source"),
        Column("true %", is_number=True),
        *(Column(f"seed {seed} % [95 %]", is_number=True) for seed in seeds),
    )
    rows = []
    num_held = 0
    errors = []
    for figures in rates:
        cells = []
        for estimate in figures["estimates"].values():
            cells.append(estimate_in_words(estimate))
            num_held += estimate["low"] <= figures["true"] <= estimate["high"]
            errors.append(abs(estimate["mean"] - figures["true"]))
        rows.append((figures["variant"], figures["source"], percent(figures["true"]), *cells))
    note = (
        f"{num_held} of {len(errors)} intervals hold the true rate. The largest error of an "
        f"estimate is {percent(max(errors))} points."
    )
    return Table("shares of wrong labels", columns, tuple(rows), (note,))


def accuracy_figures(
    variant: str,
    benchmark: str,
    credits_by_method: Mapping[str, Sequence[Mapping[str, Credits]]],
    comparisons: int,
) -> dict[str, Any]:
    """Return the accuracies of a variant on a benchmark, and what the wrong labels change.

    Args:
        variant: The name of the variant.
        benchmark: The name of the benchmark.
        credits_by_method: By the way to treat the records, for each seed the credits of the run by
            benchmark.
        comparisons: The number of variants and benchmarks whose intervals hold together.
    """
    first = credits_by_method[RIGHT][0][benchmark]
    rows = sorted(first.by_row)
    items = item_codes([first.item_by_row[row] for row in rows])
    credits: dict[str, Floats] = {}
    for method, credits_of_seeds in credits_by_method.items():
        by_seed = []
        for credits_of_run in credits_of_seeds:
            by_row = credits_of_run[benchmark].by_row
            by_seed.append([by_row[row] for row in rows])
        credits[method] = np.array(by_seed)
    accuracies = {}
    for method, values in credits.items():
        accuracies[method] = accuracy_over_seeds(values, items).plain
    gains = {}
    for method in FOLDER_BY_METHOD:
        gain = difference_over_seeds(credits[method], credits[PLANTED], items, comparisons)
        gains[method] = plain(gain)
    lost = difference_over_seeds(credits[RIGHT], credits[PLANTED], items, comparisons)
    weighted = [(1.0, credits[CLEANED]), (-0.5, credits[PLANTED]), (-0.5, credits[RIGHT])]
    above_half = contrast_over_seeds(weighted, items, comparisons)
    return {
        "variant": variant,
        "benchmark": benchmark,
        "rows": len(rows),
        "accuracy": accuracies,
        "lost": plain(lost),
        "gain": gains,
        "above_half": plain(above_half),
        "regained": gains[CLEANED]["mean"] / lost.mean if lost.distinguishable else None,
    }


def plain(difference: Difference) -> dict[str, Any]:
    """Return a difference as it is written to the file."""
    return {"mean": difference.mean, "low": difference.low, "high": difference.high}


def found_table(found: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of precision and recall, in percent."""
    columns = (
        Column("variant"),
        Column("wrong", is_number=True),
        Column("models right %", is_number=True),
        Column("decision"),
        Column("selected", is_number=True),
        Column("precision % [95 %]", is_number=True),
        Column("recall % [95 %]", is_number=True),
    )
    rows = []
    for figures in found:
        rows.append(
            (
                figures["variant"],
                f"{figures['wrong']:,} of {figures['records']:,}",
                percent(figures["models_are_right"]),
                figures["decision"],
                f"{figures['selected']:,.1f}",
                estimate_in_words(figures["precision"]),
                estimate_in_words(figures["recall"]),
            )
        )
    note = (
        "Means over the seeds. Models right: the share of records about which a model of the folds "
        "agrees with the right label. Intervals are over trainings and records, none below three "
        "seeds."
    )
    return Table("wrong labels that are found", columns, tuple(rows), (note,))


def accuracy_table(accuracies: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of the accuracies, in percent."""
    methods = list(accuracies[0]["accuracy"])
    columns = (
        Column("benchmark"),
        Column("variant"),
        *(Column(method, is_number=True) for method in methods),
    )
    rows = []
    for figures in accuracies:
        cells = []
        for method in methods:
            cells.append(estimate_in_words(figures["accuracy"][method]))
        rows.append((figures["benchmark"], figures["variant"], *cells))
    note = (
        "Accuracy in percent of models that are trained on right labels, on the planted ones, and "
        "on the rest after each way to treat them. The three ways change equally many records. "
        "Intervals are over trainings and rows, none below three seeds."
    )
    return Table("accuracy", columns, tuple(rows), (note,))


def change_table(accuracies: Sequence[Mapping[str, Any]], comparisons: int) -> Table:
    """Return the table of what wrong labels cost and what is regained, in percentage points."""
    columns = (
        Column("benchmark"),
        Column("variant"),
        Column("lost", is_number=True),
        *(Column(method, is_number=True) for method in FOLDER_BY_METHOD),
        Column("share regained", is_number=True),
        Column("cleaned - half", is_number=True),
    )
    rows = []
    for figures in accuracies:
        cells = [_points(figures["lost"])]
        for method in FOLDER_BY_METHOD:
            cells.append(_points(figures["gain"][method]))
        regained = figures["regained"]
        cells.append(MISSING if regained is None else f"{percent(regained)} %")
        cells.append(_points(figures["above_half"]))
        rows.append((figures["benchmark"], figures["variant"], *cells))
    note = (
        "Percentage points. Lost: right labels minus planted ones. The next columns: a way to treat "
        "the records minus the planted labels. Share regained: the gain of the cleaned data by what "
        "was lost, if the loss is certain. Cleaned - half: the cleaned data minus the middle of right "
        "and planted labels; above 0, more than half is regained. The intervals of a column hold "
        f"together for its {comparisons} lines at 95 % (Bonferroni), over trainings and rows."
    )
    return Table("what wrong labels cost, and what is regained", columns, tuple(rows), (note,))


def _points(difference: Mapping[str, Any]) -> str:
    """Return a difference, as it is written to the file, in percentage points."""
    return interval(difference["mean"], difference["low"], difference["high"], signed_points)
