"""The comparison of the variants of a list: a line for each variant and benchmark, with intervals.

Reward models are compared by their accuracy on each benchmark. Policies are compared by figures of
their answers to each set of questions, such as `greedy`, the accuracy of greedy answers. Both are
means of credits: a credit is the number of points, from 0 to 1, that a run has on a row of a
benchmark or on a question. Intervals are over rows and seeds.
"""

import json
from collections.abc import Callable, Mapping, Sequence
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
    """The accuracy of the runs of one variant on one benchmark, as shares of 1.

    For a policy it is a figure of its answers to a set of questions.
    """

    variant: str
    n: int
    """Number of rows of the benchmark."""
    seeds: dict[int, float]
    """Each complete run's accuracy by its seed."""
    accuracy: float
    """The mean over the seeds."""
    low: float | None
    high: float | None
    """The 95 % interval over trainings and rows; None with fewer than three seeds."""
    spread: float | None
    """The standard deviation over the seeds; None with one seed."""
    difference: Difference | None
    """The accuracy minus that of the list's first variant.

    None for the first variant itself, and if it has no complete run.
    """

    @property
    def words(self) -> str:
        """`better` or `worse` than the first variant; empty if neither is certain."""
        return self.difference.words if self.difference else ""


def statement(reference: str, comparisons: int) -> str:
    """Return the sentences that explain the intervals of a table.

    Args:
        reference: The variant from which the others differ.
        comparisons: The number of differences in all tables.
    """
    scope = ""
    if comparisons > 1:
        scope = f" for all {comparisons} comparisons together (Bonferroni)"
    return (
        f"95 % intervals over trainings and rows, none below {LEAST_SEEDS} seeds. Intervals of "
        f"differences from {reference} are paired by row and hold at 95 %{scope}. A variant is "
        "called better or worse if its interval excludes 0."
    )


def comparisons_in(lines: Mapping[str, Sequence[VariantLine]]) -> int:
    """Return the number of differences from the first variant in all tables, at least 1."""
    num_differences = 0
    for lines_of_benchmark in lines.values():
        num_differences += sum(line.difference is not None for line in lines_of_benchmark)
    return max(1, num_differences)


@dataclass(frozen=True, slots=True)
class Credits:
    """The points from 0 to 1 that a run has on each row of a benchmark, by the row's key.

    For a policy, the rows are questions, and the points are those of one figure of its answers.
    """

    by_row: dict[str, float]
    item_by_row: dict[str, str]
    """The item of each row. Rows of one item, such as questions on one image, are not
    independent."""


def lines_of(
    runs: Sequence[Run],
    reference: str,
    read_credits: Callable[[Run], dict[str, Credits]] | None = None,
) -> dict[str, list[VariantLine]]:
    """Return the lines of all variants, by benchmark or by figure of a policy.

    Args:
        runs: The complete runs, variant by variant in the order of the list.
        reference: The variant from which the others differ.
        read_credits: Reads the credits of a run by figure; None takes `credits_in`.

    Raises:
        PredictionsError: If the runs were evaluated on different rows.
    """
    if not runs:
        return {}
    refuse_other_questions(runs)
    credits_by_figure: dict[str, dict[str, dict[int, Floats]]] = {}
    items_by_figure: dict[str, Ints] = {}
    read_credits = read_credits or credits_in
    credits_of_runs = [read_credits(run) for run in runs]
    for figure in credits_of_runs[0]:
        credits_by_variant: dict[str, dict[int, Floats]] = {}
        row_keys: list[str] = []  # those of the first run
        for run, credits_of_run in zip(runs, credits_of_runs, strict=True):
            # A policy whose reward has no judge lacks the accuracy of the judge's best answer.
            if figure not in credits_of_run:
                continue
            credits = credits_of_run[figure]
            by_row = credits.by_row
            if not row_keys:
                row_keys = sorted(by_row)
                items_by_figure[figure] = item_codes([credits.item_by_row[key] for key in row_keys])
            if by_row.keys() != set(row_keys):
                raise PredictionsError(
                    f"{figure}: {run} was evaluated on {len(by_row)} rows and the first run on "
                    f"{len(row_keys)}, {len(by_row.keys() & set(row_keys))} of them in both. The "
                    "variants of a list must share benchmarks and limits: take that change out, or "
                    "train all runs again"
                )
            credits_by_seed = credits_by_variant.setdefault(run.variant, {})
            credits_by_seed[run.seed] = np.array([by_row[key] for key in row_keys])
        credits_by_figure[figure] = credits_by_variant
    return lines_by_figure(credits_by_figure, reference, items_by_figure)


def lines_by_figure(
    credits_by_figure: Mapping[str, Mapping[str, Mapping[int, Floats]]],
    reference: str,
    items_by_figure: Mapping[str, Ints],
) -> dict[str, list[VariantLine]]:
    """Return the lines of each figure.

    The intervals of the differences of all figures hold together: the chance that all of them
    contain the true value is 95 %.

    Args:
        credits_by_figure: Credits of shape (rows,) by figure, variant and seed.
        reference: The variant from which the others differ.
        items_by_figure: The number of each row's item, shape (rows,); the rows of a missing figure
            are independent.
    """
    num_comparisons = 0
    for credits_by_variant in credits_by_figure.values():
        if reference in credits_by_variant:
            num_comparisons += len(credits_by_variant) - 1
    lines: dict[str, list[VariantLine]] = {}
    for figure, credits_by_variant in credits_by_figure.items():
        items = items_by_figure.get(figure)
        lines[figure] = []
        for variant, credits_by_seed in credits_by_variant.items():
            reference_credits = credits_by_variant.get(reference, {})
            if variant == reference:
                reference_credits = {}  # it has no difference from itself
            lines[figure].append(
                variant_line(
                    variant, credits_by_seed, reference_credits, items, max(1, num_comparisons)
                )
            )
    return lines


def credits_in(run: Run) -> dict[str, Credits]:
    """Read the credits of a complete run: its points from 0 to 1 on every row or question.

    The keys are benchmarks for a reward model, and sets of questions with figures, such as
    `scenes/greedy`, for a policy.
    """
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
                identity = row["id"]
                for figure, credit in row["credits"].items():
                    credits_of_figure = credits.setdefault(f"{name}/{figure}", Credits({}, {}))
                    credits_of_figure.by_row[identity] = credit
                    # Earlier versions did not store items.
                    credits_of_figure.item_by_row[identity] = row.get("item", identity)
    return credits


def refuse_other_questions(runs: Sequence[Run]) -> None:
    """Raise PredictionsError if policies of a list answered different questions under one identity.

    The credits of two policies are paired by the identities of questions. An identity is only a
    label, and its question is another one if the file behind a source was changed between two runs.
    The `key` of an answer is a digest of its question. Earlier versions did not store it, and their
    answers are not compared.
    """
    key_by_question: dict[tuple[str, str], str] = {}
    for run in runs:
        if run.recipe.method.evaluated_on == "benchmarks":
            continue
        for name in run.recipe.question_sets:
            with (run.folder / "answers" / f"{name}.jsonl").open(encoding="utf-8") as file:
                for row in map(json.loads, file):
                    if "key" not in row:
                        continue
                    key_of_first_run = key_by_question.setdefault((name, row["id"]), row["key"])
                    if key_of_first_run != row["key"]:
                        raise PredictionsError(
                            f"{name}: under {row['id']} {run} answered another question than an "
                            "earlier run of the list did, so that the two cannot be compared. The "
                            "data behind evaluation.questions have changed. Train all runs again."
                        )


def variant_line(
    variant: str,
    credits_by_seed: Mapping[int, Floats],
    reference_credits: Mapping[int, Floats],
    items: Ints | None = None,
    comparisons: int = 1,
) -> VariantLine:
    """Return the line of one variant on one benchmark.

    Args:
        variant: The name of the variant.
        credits_by_seed: Its credits of shape (rows,) by seed.
        reference_credits: The credits of the variant from which it differs, of shape (rows,) by
            seed; empty for a line without a difference.
        items: The number of each row's item, shape (rows,); None if every row is independent.
        comparisons: The number of differences whose intervals hold together.
    """
    credits = np.array(list(credits_by_seed.values()))
    difference = None
    if reference_credits:
        reference = np.array(list(reference_credits.values()))
        difference = difference_over_seeds(credits, reference, items, comparisons)
    estimate = accuracy_over_seeds(credits, items)
    return VariantLine(
        variant,
        n=credits.shape[1],
        seeds={seed: float(np.mean(values)) for seed, values in credits_by_seed.items()},
        accuracy=estimate.mean,
        low=estimate.low,
        high=estimate.high,
        spread=spread(credits.mean(axis=1)),
        difference=difference,
    )


def flat_rows(
    ablation: Ablation, lines: Mapping[str, Sequence[VariantLine]]
) -> list[dict[str, Any]]:
    """Return each line as a row without nested values, for a CSV or JSON file.

    Args:
        ablation: The list, which has the changes of each variant.
        lines: The lines of each benchmark.
    """
    rows = []
    for benchmark, lines_of_benchmark in lines.items():
        for line in lines_of_benchmark:
            rows.append(_flat_row(benchmark, line, ablation.changes[line.variant]))
    return rows


def _flat_row(benchmark: str, line: VariantLine, changes: str) -> dict[str, Any]:
    """Return the line of a variant on one benchmark as a row without nested values."""
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
