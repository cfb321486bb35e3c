"""The study of wrong labels: margins of models that did not see a record, and what they say of it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmrm.data.arrays import Floats, Ints
from mmrm.data.display.format import MISSING, interval, percent
from mmrm.data.display.study_result import StudyResult
from mmrm.data.display.table import Column, Table
from mmrm.data.errors import UserError
from mmrm.data.preparation.decisions import Decision, written_key
from mmrm.data.preparation.mixing import Mixture
from mmrm.data.preparation.recipe_section import image_tokens_of_recipe
from mmrm.data.storage.files import digest, write_json, write_json_lines, write_whole
from mmrm.data.storage.output_lock import locked_folder
from mmrm.eval.results.intervals import Estimate, share_interval
from mmrm.train.runs.provenance import recipe_yaml
from mmrm.train.studies.ablation.cached_steps import keep_settings
from mmrm.train.studies.cleaning.fold_models import (
    CleanedRecipe,
    out_of_fold_margins,
    state_of,
    train_and_score,
    write_folds,
)
from mmrm.train.studies.cleaning.folds import LabelledRecords, folds_of, read_records
from mmrm.train.studies.cleaning.label_errors import LabelErrors, label_errors
from mmrm.train.studies.cleaning.preference_cycles import Contradictions, contradictions

SUSPECTS = "suspects.jsonl"
LEAVE_OUT = "leave_out.jsonl"
FLIP = "flip.jsonl"
REPORT = "labels"
"""The name of the report without its ending: labels.json and labels.md."""
LEAST_PAIRS = 20
"""The fewest pairs with a margin from which error rates are estimated."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The probabilities from which on a label is acted upon."""

    leave_out: float
    flip: float

    def decision(self, probability: float) -> Decision:
        """Return the decision about a label that is wrong with this probability."""
        if probability >= self.flip:
            return "flip"
        if probability >= self.leave_out:
            return "leave_out"
        return "keep"


@dataclass(frozen=True)
class JudgedLabels:
    """The training records of a recipe with what is known of their labels."""

    records: LabelledRecords
    margins: Floats
    """The margin of each record, NaN if it has none, shape (records,)."""
    probabilities: Floats
    """The probability that each label is wrong, NaN without a margin, shape (records,)."""
    errors: LabelErrors
    contradictions: Contradictions
    thresholds: Thresholds

    @cached_property
    def decisions(self) -> list[Decision]:
        """The decision about each record by its probability. It is `keep` without a margin."""
        probabilities = np.nan_to_num(self.probabilities).tolist()
        return [self.thresholds.decision(probability) for probability in probabilities]

    @cached_property
    def suspects(self) -> list[int]:
        """The indices of the suspicious records, the most probably wrong ones first.

        A record is suspicious if it is probably wrong, or on a cycle of preferences.
        """
        is_on_cycle = self.contradictions.on_cycle
        indices = []
        for index, decision in enumerate(self.decisions):
            if decision != "keep" or is_on_cycle[index]:
                indices.append(index)
        probabilities = np.nan_to_num(self.probabilities)
        return sorted(indices, key=lambda index: (-probabilities[index], index))

    def reasons(self, index: int) -> list[str]:
        """Return the reasons why a record is suspicious, as sentences for people."""
        reasons = []
        if self.decisions[index] != "keep":
            reasons.append(
                f"Models that were not trained on it prefer the other response (margin "
                f"{self.margins[index]:+.2f}). The label is wrong with probability "
                f"{self.probabilities[index]:.2f}."
            )
        if self.contradictions.contradicted[index]:
            reasons.append("Another record prefers the other one of two responses.")
        elif self.contradictions.on_cycle[index]:
            reasons.append("It is on a cycle of preferences among the responses to its prompt.")
        return reasons

    def suspect(self, index: int) -> dict[str, Any]:
        """Return a suspicious record as it is written to suspects.jsonl."""
        record = self.records.records[index]
        margin: float | None = None
        probability: float | None = None
        if np.isfinite(self.margins[index]):
            margin = float(self.margins[index])
            probability = float(self.probabilities[index])
        return {
            "key": written_key(record.key),
            "decision": self.decisions[index],
            "source": record.source,
            "row": record.row,
            "margin": margin,
            "probability": probability,
            "on_cycle": bool(self.contradictions.on_cycle[index]),
            "contradicted": bool(self.contradictions.contradicted[index]),
            "reason": " ".join(self.reasons(index)),
        }


@dataclass(frozen=True, slots=True)
class OpenedData:
    """The training data of a recipe in folds."""

    mixture: Mixture
    records: LabelledRecords
    folds: Ints
    """The fold of each record, shape (records,)."""

    @classmethod
    def of(cls, cleaned: CleanedRecipe, num_folds: int) -> OpenedData:
        """Return the training data of a recipe in folds.

        Raises:
            UserError: The data cannot be read, or cannot be divided into so many folds.
        """
        image_tokens, _ = image_tokens_of_recipe(cleaned.path)
        mixture = Mixture(cleaned.recipe.data, image_tokens)
        records = read_records(mixture)
        return cls(mixture, records, folds_of(records, num_folds))


def plan(cleaned: CleanedRecipe, options: argparse.Namespace) -> Table:
    """Return a table of the runs, each with its steps and the pairs that it scores.

    Args:
        cleaned: The recipe.
        options: The options of train/clean.py.
    """
    data = OpenedData.of(cleaned, options.folds)
    columns = (
        Column("fold"),
        Column("seed", is_number=True),
        Column("state"),
        Column("steps", is_number=True),
        Column("records to train on", is_number=True),
        Column("records to score", is_number=True),
    )
    num_records = len(data.folds)
    rows = []
    for seed in options.seeds:
        for fold in range(options.folds):
            num_of_fold = int((data.folds == fold).sum())
            rows.append(
                (
                    str(fold),
                    str(seed),
                    state_of(cleaned, fold, seed),
                    f"{cleaned.steps:,}",
                    f"{num_records - num_of_fold:,}",
                    f"{num_of_fold:,}",
                )
            )
    num_clusters = len(np.unique(data.records.clusters))
    num_runs = len(rows)
    note = (
        f"{num_records:,} records in {num_clusters:,} groups that share no image and no prompt. "
        f"{num_runs:,} runs, {num_runs * cleaned.steps:,} steps, and "
        f"{num_records * len(options.seeds):,} records to score. Folder: {cleaned.folder}"
    )
    return Table("models of the folds", columns, tuple(rows), (note,))


def run(cleaned: CleanedRecipe, options: argparse.Namespace) -> tuple[JudgedLabels, OpenedData]:
    """Train and score what is not complete, and return what is known of each label.

    Args:
        cleaned: The recipe.
        options: The options of train/clean.py.

    Raises:
        UserError: A training or scoring fails, or there are too few records with a margin.
    """
    data = OpenedData.of(cleaned, options.folds)
    with locked_folder(cleaned.folder) as lock:
        keep_settings(
            cleaned.folder / "settings.json",
            options,
            ("folds", "steps"),
            recipe=digest(recipe_yaml(cleaned.recipe)),
        )
        write_folds(cleaned, data.mixture, data.records, data.folds)
        train_and_score(cleaned, options.folds, options.seeds, options.launcher, lock)
        margins = out_of_fold_margins(cleaned, data.records, data.folds, options.seeds)
    thresholds = Thresholds(options.leave_out_above, options.flip_above)
    return judged_labels(data.records, margins, thresholds), data


def judged_labels(
    records: LabelledRecords, margins: Floats, thresholds: Thresholds
) -> JudgedLabels:
    """Return what margins and contradictions say of the label of each record.

    Args:
        records: The records.
        margins: The margin of each record, NaN if it has none, shape (records,).
        thresholds: The probabilities from which on a label is acted upon.

    Raises:
        UserError: Fewer than LEAST_PAIRS records have a margin.
    """
    has_margin = np.isfinite(margins)
    num_margins = int(has_margin.sum())
    if num_margins < LEAST_PAIRS:
        raise UserError(
            f"{num_margins:,} of {len(margins):,} records have a preference and could be judged. "
            f"Required are {LEAST_PAIRS} or more, because error rates are estimated from them. Add "
            "records, or correct those that cannot be judged."
        )
    indices = np.flatnonzero(has_margin).tolist()
    sources = [records.records[index].source for index in indices]
    errors = label_errors(margins[has_margin], sources, records.clusters[has_margin])
    probabilities = np.full(len(margins), np.nan)
    probabilities[has_margin] = errors.probabilities
    found = contradictions([record.preferences for record in records.records])
    return JudgedLabels(records, margins, probabilities, errors, found, thresholds)


def study_result(labels: JudgedLabels, cleaned: CleanedRecipe) -> StudyResult:
    """Return the figures by source, with their tables and the report."""
    by_source = [figures_of_source(labels, source) for source in sources_of(labels)]
    planted = planted_figures(labels)
    tables = [source_table(by_source)]
    if planted:
        tables.append(planted_table(planted))
    sentences = [ASSUMPTIONS]
    sections = [f"# Labels of {cleaned.path.stem}"]
    for table in tables:
        sections += [f"## {table.title}", table.markdown(), *table.notes]
    sections.append(ASSUMPTIONS)
    figures = {
        "recipe": str(cleaned.path),
        "steps": cleaned.steps,
        "thresholds": {
            "leave_out": labels.thresholds.leave_out,
            "flip": labels.thresholds.flip,
        },
        "cycles": labels.contradictions.num_components,
        "sources": by_source,
        "planted": planted,
    }
    return StudyResult(
        figures,
        tables=tuple(tables),
        sentences=tuple(sentences),
        document="\n\n".join(sections) + "\n",
    )


ASSUMPTIONS = (
    "The probabilities assume that a difficult pair is mislabelled as often as an easy one. If "
    "mostly difficult pairs are, the error rates are too low. Pairs about which the models are "
    "confidently wrong count as mislabelled: look at the suspects before you flip them."
)
"""The sentence about what the estimates assume."""


def sources_of(labels: JudgedLabels) -> list[str]:
    """Return the labels of the sources, in their order."""
    return list(dict.fromkeys(record.source for record in labels.records.records))


def figures_of_source(labels: JudgedLabels, source: str) -> dict[str, Any]:
    """Return the figures of one source, as they are written to labels.json."""
    is_of_source = np.array([record.source == source for record in labels.records.records])
    has_preference = np.array([record.has_preference for record in labels.records.records])
    has_margin = np.isfinite(labels.margins)
    decisions = np.array(labels.decisions)
    figures: dict[str, Any] = {
        "source": source,
        "records": int(is_of_source.sum()),
        "tied": int((is_of_source & ~has_preference).sum()),
        "not_judged": int((is_of_source & has_preference & ~has_margin).sum()),
        "error_rate": None,
    }
    for errors in labels.errors.sources:
        if errors.source == source:
            rate = Estimate(errors.rate, errors.low, errors.high)
            figures["error_rate"] = rate.plain
    margins = labels.margins[is_of_source & has_margin]
    figures["agreement"] = None
    if len(margins):
        credits = (np.sign(margins) + 1) / 2
        clusters = labels.records.clusters[is_of_source & has_margin]
        figures["agreement"] = share_interval(credits, clusters).plain
    for decision in ("flip", "leave_out"):
        figures[decision] = int((is_of_source & (decisions == decision)).sum())
    figures["on_cycle"] = int((is_of_source & labels.contradictions.on_cycle).sum())
    figures["contradicted"] = int((is_of_source & labels.contradictions.contradicted).sum())
    return figures


def source_table(by_source: Sequence[dict[str, Any]]) -> Table:
    """Return the table of the figures of all sources."""
    columns = (
        Column("source"),
        Column("records", is_number=True),
        Column("without margin", is_number=True),
        Column("models agree % [95 %]", is_number=True),
        Column("wrong labels % [95 %]", is_number=True),
        Column("flip", is_number=True),
        Column("leave out", is_number=True),
        Column("on cycles", is_number=True),
        Column("contradicted", is_number=True),
    )
    rows = []
    for figures in by_source:
        rows.append(
            (
                figures["source"],
                f"{figures['records']:,}",
                f"{figures['tied'] + figures['not_judged']:,}",
                estimate_in_words(figures["agreement"]),
                estimate_in_words(figures["error_rate"]),
                f"{figures['flip']:,}",
                f"{figures['leave_out']:,}",
                f"{figures['on_cycle']:,}",
                f"{figures['contradicted']:,}",
            )
        )
    note = (
        "Without margin: all responses are tied, or a model could not judge the record. On cycles: "
        "records whose preferences contradict others, those with the opposite preference of the "
        "same two responses (contradicted) among them."
    )
    return Table("labels by source", columns, tuple(rows), (note,))


def estimate_in_words(estimate: dict[str, float | None] | None) -> str:
    """Return an estimate as `Estimate.plain` in percent, and a dash for None."""
    if estimate is None or estimate["mean"] is None:
        return MISSING
    return interval(estimate["mean"], estimate["low"], estimate["high"])


def planted_figures(labels: JudgedLabels) -> list[dict[str, Any]]:
    """Return precision and recall of the decisions, by source with known wrong labels.

    The flips, and all records that are flipped or left out, are compared with the labels that are
    known to be wrong. `auc` is the probability that a wrong label has a smaller margin than a right
    one. It is 0.5 by chance.
    """
    figures = []
    for source in sources_of(labels):
        indices = []
        for index, record in enumerate(labels.records.records):
            if record.source == source and record.is_wrong is not None:
                indices.append(index)
        is_wrong = np.array([labels.records.records[index].is_wrong for index in indices], bool)
        if not is_wrong.any():
            continue
        positions = np.array(indices)
        decisions = np.array(labels.decisions)[positions]
        clusters = labels.records.clusters[positions]
        probabilities = np.nan_to_num(labels.probabilities[positions])
        row: dict[str, Any] = {
            "source": source,
            "records": len(indices),
            "wrong": int(is_wrong.sum()),
            "auc": rank_share(labels.margins[positions], is_wrong),
        }
        is_flipped = decisions == "flip"
        is_suspected = is_flipped | (decisions == "leave_out")
        for name, is_selected in (("flip", is_flipped), ("suspected", is_suspected)):
            row[name] = _precision_and_recall(is_selected, is_wrong, probabilities, clusters)
        figures.append(row)
    return figures


def _precision_and_recall(
    is_selected: npt.NDArray[np.bool_],
    is_wrong: npt.NDArray[np.bool_],
    probabilities: Floats,
    clusters: Ints,
) -> dict[str, Any]:
    """Return how many selected labels are wrong, and how many wrong labels are selected.

    Args:
        is_selected: Whether each record is selected, shape (records,).
        is_wrong: Whether each label is wrong; at least one is, shape (records,).
        probabilities: The probability that each label is wrong, shape (records,).
        clusters: The cluster of each record, shape (records,).
    """
    recall = share_interval(is_selected[is_wrong].astype(np.float64), clusters[is_wrong])
    figures: dict[str, Any] = {
        "selected": int(is_selected.sum()),
        "recall": recall.plain,
        "precision": None,
        "expected_precision": None,
    }
    if is_selected.any():
        credits = is_wrong[is_selected].astype(np.float64)
        figures["precision"] = share_interval(credits, clusters[is_selected]).plain
        figures["expected_precision"] = float(probabilities[is_selected].mean())
    return figures


def rank_share(margins: Floats, is_wrong: npt.NDArray[np.bool_]) -> float | None:
    """Return the share of pairs of a wrong and a right label whose wrong one has a smaller margin.

    Equal margins count half. Records without a margin do not count. The result is None without any
    such pair.

    Args:
        margins: The margin of each record, NaN without one, shape (records,).
        is_wrong: Whether each label is wrong, shape (records,).
    """
    is_known = np.isfinite(margins)
    of_right = np.sort(margins[is_known & ~is_wrong])
    of_wrong = margins[is_known & is_wrong]
    if not len(of_right) or not len(of_wrong):
        return None
    num_not_above = np.searchsorted(of_right, of_wrong, side="right")
    num_below = np.searchsorted(of_right, of_wrong, side="left")
    return float(1 - (num_not_above + num_below).mean() / 2 / len(of_right))


def planted_table(planted: Sequence[dict[str, Any]]) -> Table:
    """Return the table of precision and recall, in percent."""
    columns = (
        Column("source"),
        Column("records", is_number=True),
        Column("wrong", is_number=True),
        Column("AUC", is_number=True),
        Column("decision"),
        Column("selected", is_number=True),
        Column("precision % [95 %]", is_number=True),
        Column("expected", is_number=True),
        Column("recall % [95 %]", is_number=True),
    )
    rows = []
    for figures in planted:
        for name, words in (("flip", "flip"), ("suspected", "flip or leave out")):
            selection = figures[name]
            rows.append(
                (
                    figures["source"],
                    f"{figures['records']:,}",
                    f"{figures['wrong']:,}",
                    percent(figures["auc"]),
                    words,
                    f"{selection['selected']:,}",
                    estimate_in_words(selection["precision"]),
                    percent(selection["expected_precision"]),
                    estimate_in_words(selection["recall"]),
                )
            )
    note = (
        "Labels of the embedded world that are wrong on purpose (`flipped`). Expected: the mean "
        "probability of the selected records. AUC: the share of pairs of a wrong and a right label "
        "whose wrong one has the smaller margin."
    )
    return Table("labels that are known to be wrong", columns, tuple(rows), (note,))


def write(result: StudyResult, labels: JudgedLabels, folder: Path) -> None:
    """Write the suspects, the lists of decisions, and the report."""
    suspects = [labels.suspect(index) for index in labels.suspects]
    write_json_lines(folder / SUSPECTS, suspects)
    for file, decision in ((FLIP, "flip"), (LEAVE_OUT, "leave_out")):
        lines = [suspect for suspect in suspects if suspect["decision"] == decision]
        write_whole(folder / file, "".join(f"{json.dumps(line)}\n" for line in lines))
    write_json(folder / f"{REPORT}.json", result.figures)
    write_whole(folder / f"{REPORT}.md", result.document)
