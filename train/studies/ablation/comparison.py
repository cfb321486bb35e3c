"""The comparison of the variants of a list: a line for each variant and benchmark, with intervals.

Intervals are over rows and seeds. Policies are compared by every figure of their answers to each
set of questions.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmrm.data.arrays import Floats, Ints
from mmrm.data.errors import PredictionsError
from mmrm.eval.results.intervals import (
    LEAST_SEEDS,
    Difference,
    accuracy_over_seeds,
    difference_over_seeds,
    spread,
)
from mmrm.eval.results.predictions import (
    credits_by,
    item_by,
    item_codes,
    predictions_in,
    read_predictions,
)
from mmrm.train.studies.ablation.variants import Ablation, Run, compared_on


@dataclass(frozen=True, slots=True)
class VariantLine:
    """The accuracy of the runs of one variant on one benchmark, as shares of 1."""

    variant: str
    n: int
    """Rows of the benchmark."""
    seeds: dict[int, float]
    """Each complete run's accuracy by its seed."""
    accuracy: float
    """The mean over the seeds."""
    low: float | None
    high: float | None
    """The 95 % interval over trainings and rows; None with fewer than three seeds."""
    spread: float | None
    """None with one seed."""
    difference: Difference | None
    """The accuracy minus that of the list's first variant.

    None for the first variant itself, and if it has no complete run.
    """

    @property
    def words(self) -> str:
        """A text: the variant is better or worse than the first one. Empty without a difference."""
        return self.difference.words if self.difference else ""


def statement(reference: str, comparisons: int) -> str:
    """Return the sentence on the intervals of a table, for the console, Markdown and the page."""
    return (
        f"95 % intervals over trainings and rows, none below {LEAST_SEEDS} seeds. Intervals of "
        f"differences from {reference} are paired by row and hold at 95 % for all {comparisons} "
        "comparisons together (Bonferroni): `better` and `worse` are said where they exclude 0."
    )


def comparisons_in(lines: Mapping[str, Sequence[VariantLine]]) -> int:
    """Return the number of differences from the first variant in all tables, at least 1."""
    num_differences = 0
    for of_benchmark in lines.values():
        num_differences += sum(line.difference is not None for line in of_benchmark)
    return max(1, num_differences)


@dataclass(frozen=True, slots=True)
class Credits:
    """Credits of a run on one benchmark, or for one figure of a policy."""

    by_row: dict[str, float]
    item_by_row: dict[str, str]
    """Rows of one item are not independent."""


def lines_of(runs: Sequence[Run], reference: str) -> dict[str, list[VariantLine]]:
    """Return the lines of complete runs by benchmark, or by figure of a policy.

    Args:
        runs: The runs, variant by variant in the order of the list.
        reference: The variant from which the others differ.

    Raises:
        PredictionsError: If the runs were evaluated on different rows.
    """
    credits_by_figure: dict[str, dict[str, dict[int, Floats]]] = {}
    items_by_figure: dict[str, Ints] = {}
    refuse_other_questions(runs)
    credits_of_runs = [credits_in(run) for run in runs]
    for figure in credits_of_runs[0] if runs else ():
        variants: dict[str, dict[int, Floats]] = {}
        keys: list[str] = []
        for run, by_figure in zip(runs, credits_of_runs, strict=True):
            if figure not in by_figure:  # the best by a judge, if the reward has no judge
                continue
            credits = by_figure[figure]
            by_key = credits.by_row
            if not keys:
                keys = sorted(by_key)
                items_by_figure[figure] = item_codes([credits.item_by_row[key] for key in keys])
            if by_key.keys() != set(keys):
                raise PredictionsError(
                    f"{figure}: {run} was evaluated on {len(by_key)} rows and the first run on "
                    f"{len(keys)}, {len(by_key.keys() & set(keys))} of them in both. The variants "
                    "of a list must share benchmarks and limits: take that change out, or train "
                    "all runs again"
                )
            variants.setdefault(run.variant, {})[run.seed] = np.array([by_key[key] for key in keys])
        credits_by_figure[figure] = variants
    return lines_by_figure(credits_by_figure, reference, items_by_figure)


def lines_by_figure(
    credits_by_figure: Mapping[str, Mapping[str, Mapping[int, Floats]]],
    reference: str,
    items_by_figure: Mapping[str, Ints],
) -> dict[str, list[VariantLine]]:
    """Return the lines of each figure; the intervals of all their differences hold together.

    Args:
        credits_by_figure: Credits of shape (rows,) by figure, variant and seed.
        reference: The variant from which the others differ.
        items_by_figure: The number of each row's item, shape (rows,); the rows of a missing figure
            are independent.
    """
    comparisons = 0
    for variants in credits_by_figure.values():
        if reference in variants:
            comparisons += len(variants) - 1
    lines: dict[str, list[VariantLine]] = {}
    for figure, variants in credits_by_figure.items():
        items = items_by_figure.get(figure)
        first = variants.get(reference, {})
        lines[figure] = [
            line(name, seeds, {} if name == reference else first, items, max(1, comparisons))
            for name, seeds in variants.items()
        ]
    return lines


def credits_in(run: Run) -> dict[str, Credits]:
    """Return the credits of a judge by benchmark, or of a policy by `NAME/greedy` and so on."""
    credits: dict[str, Credits] = {}
    if run.recipe.method.evaluated_on == "benchmarks":
        files = predictions_in(run.folder)
        for name in compared_on(run.recipe):
            records = read_predictions(files[name])
            credits[name] = Credits(credits_by(records), item_by(records))
        return credits
    for name in run.recipe.question_sets:
        with (run.folder / "answers" / f"{name}.jsonl").open(encoding="utf-8") as file:
            for row in map(json.loads, file):
                for figure, credit in row["credits"].items():
                    of_figure = credits.setdefault(f"{name}/{figure}", Credits({}, {}))
                    of_figure.by_row[row["id"]] = credit
                    of_figure.item_by_row[row["id"]] = row.get("item", row["id"])
    return credits


def refuse_other_questions(runs: Sequence[Run]) -> None:
    """Raise PredictionsError if policies of a list answered different questions under one identity.

    Credits are paired by the identities of questions, which are labels: the file behind a source
    can change between two runs. Answers of earlier versions have no `key` and are not compared.
    """
    keys: dict[tuple[str, str], str] = {}
    for run in runs:
        if run.recipe.method.evaluated_on == "benchmarks":
            continue
        for name in run.recipe.question_sets:
            with (run.folder / "answers" / f"{name}.jsonl").open(encoding="utf-8") as file:
                for row in map(json.loads, file):
                    if (
                        "key" in row
                        and keys.setdefault((name, row["id"]), row["key"]) != row["key"]
                    ):
                        raise PredictionsError(
                            f"{name}: under {row['id']} {run} answered another question than an "
                            "earlier run of the list did, so that the two cannot be compared. The "
                            "data behind evaluation.questions have changed. Train all runs again."
                        )


def line(
    variant: str,
    seeds: Mapping[int, Floats],
    first: Mapping[int, Floats],
    items: Ints | None = None,
    comparisons: int = 1,
) -> VariantLine:
    """Return the line of one variant.

    Args:
        variant: Its name.
        seeds: Its credits of shape (rows,) by seed.
        first: The first variant's credits; empty for its own line.
        items: The number of each row's item, shape (rows,); None if every row is independent.
        comparisons: Differences that are read together.
    """
    credits = np.array(list(seeds.values()))
    difference = None
    if first:
        reference = np.array(list(first.values()))
        difference = difference_over_seeds(credits, reference, items, comparisons)
    estimate = accuracy_over_seeds(credits, items)
    return VariantLine(
        variant,
        n=credits.shape[1],
        seeds={seed: float(np.mean(of_seed)) for seed, of_seed in seeds.items()},
        accuracy=estimate.mean,
        low=estimate.low,
        high=estimate.high,
        spread=spread(credits.mean(axis=1)),
        difference=difference,
    )


def rows(ablation: Ablation, lines: Mapping[str, Sequence[VariantLine]]) -> list[dict[str, Any]]:
    """Return a flat row for each line; accuracies are shares of 1."""
    flat_rows = []
    for benchmark, of_benchmark in lines.items():
        for line in of_benchmark:
            flat_rows.append(_row(benchmark, line, ablation.changes[line.variant]))
    return flat_rows


def _row(benchmark: str, line: VariantLine, changes: str) -> dict[str, Any]:
    """Return the flat row of a variant on one benchmark."""
    row: dict[str, Any] = {
        "benchmark": benchmark,
        "variant": line.variant,
        "changes": changes,
        "n": line.n,
        "seeds": len(line.seeds),
        "accuracy": line.accuracy,
        "low": line.low,
        "high": line.high,
        "spread": line.spread,
        "difference": None,
        "difference_low": None,
        "difference_high": None,
        "words": line.words,
    }
    if line.difference is not None:
        row["difference"] = line.difference.mean
        row["difference_low"] = line.difference.low
        row["difference_high"] = line.difference.high
    for seed, accuracy in line.seeds.items():
        row[f"seed_{seed}"] = accuracy
    return row
