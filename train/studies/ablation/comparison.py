"""The runs of an ablation as one table and figure: for each benchmark a line a variant, with intervals over rows and seeds.

For policies the same of every figure on each set of questions, in place of a benchmark.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Column, Table

from mmrm.data.arrays import Floats, Ints
from mmrm.data.display.png import COLOURS, panels
from mmrm.data.errors import PredictionsError
from mmrm.eval.results.intervals import (
    LEAST_SEEDS,
    Difference,
    Estimate,
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
from mmrm.train.studies.ablation.run_costs import COST, COST_COLUMNS, Cost
from mmrm.train.studies.ablation.variants import Ablation, Run, compared_on

_INTRODUCTION = """Overall accuracy in percent of each run's last checkpoint, as the mean over the seeds. Spread: the standard \
deviation over seeds. {statement}"""
COLUMNS = ("variant", "mean [95 %]", "spread", "each seed", "minus {reference} [95 %]", "")


@dataclass(frozen=True, slots=True)
class VariantLine:
    """What the runs of one variant reach on one benchmark; accuracies are fractions of 1."""

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
    """The variant minus the first one; None for the first one, and if no seed of the first one is complete."""

    @property
    def words(self) -> str:
        """Say whether the runs tell the variant from the first one."""
        return self.difference.words if self.difference else ""


def statement(reference: str, comparisons: int) -> str:
    """Return the sentence on the intervals of a table that console, Markdown and page print."""
    return (
        f"95 % intervals over trainings and rows, none below {LEAST_SEEDS} seeds. Intervals of differences from {reference} "
        f"are paired by row and hold at 95 % for all {comparisons} comparisons together (Bonferroni): `better` and `worse` are "
        "said where they exclude 0."
    )


def comparisons_in(lines: Mapping[str, Sequence[VariantLine]]) -> int:
    """Return the number of differences from the first variant in all tables together, at least 1."""
    return max(1, sum(line.difference is not None for found in lines.values() for line in found))


@dataclass(frozen=True, slots=True)
class Credits:
    """Credits of a run on one benchmark, or for one figure of a policy."""

    by_row: dict[str, float]
    item_by_row: dict[str, str]
    """Rows of one item are not independent."""


def lines_of(runs: Sequence[Run], reference: str) -> dict[str, list[VariantLine]]:
    """Return the lines of complete runs by benchmark, or figure of a policy, variants in the order of the list."""
    credits_by_figure: dict[str, dict[str, dict[int, Floats]]] = {}
    items_by_figure: dict[str, Ints] = {}
    refuse_other_questions(runs)
    credits_of_runs = [credits_in(run) for run in runs]
    for figure in credits_of_runs[0] if runs else ():
        variants: dict[str, dict[int, Floats]] = {}
        keys: list[str] = []
        for run, by_figure in zip(runs, credits_of_runs, strict=True):
            if figure not in by_figure:  # the best by a judge, where the reward has none
                continue
            credits = by_figure[figure]
            by_key = credits.by_row
            if not keys:
                keys = sorted(by_key)
                items_by_figure[figure] = item_codes([credits.item_by_row[key] for key in keys])
            if by_key.keys() != set(keys):
                raise PredictionsError(
                    f"{figure}: {run} was evaluated on {len(by_key)} rows and the first run on {len(keys)}, "
                    f"{len(by_key.keys() & set(keys))} of them in both. The variants of a list must share benchmarks and "
                    "limits: take that change out, or train all runs again"
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
        items_by_figure: The number of each row's item, shape (rows,); a figure that is missing has independent rows.
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
    """Return the credits of each figure: of a judge on every benchmark, of a policy `NAME/greedy` and the like."""
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

    Credits are paired by the identities of questions, which are labels: the file behind a source can
    change between two runs. Answers of earlier versions have no `key` and are not compared.
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
    """Return a flat row for each line; accuracies are fractions of 1."""
    return [
        {
            "benchmark": benchmark,
            "variant": line.variant,
            "changes": ablation.changes[line.variant],
            **asdict(line),
            "seeds": len(line.seeds),
            "difference": line.difference and line.difference.mean,
            "difference_low": line.difference and line.difference.low,
            "difference_high": line.difference and line.difference.high,
            "words": line.words,
            **{f"seed_{seed}": accuracy for seed, accuracy in line.seeds.items()},
        }
        for benchmark, found in lines.items()
        for line in found
    ]


def markdown(
    ablation: Ablation,
    lines: Mapping[str, Sequence[VariantLine]],
    spent: Mapping[str, Cost],
    missing: Sequence[Run],
) -> str:
    """Return a table for each benchmark, one of the costs, and the runs that are in none."""
    said = statement(ablation.reference, comparisons_in(lines))
    parts = [f"# {ablation.path.stem}", _INTRODUCTION.format(statement=said)]
    variant, *figures = (name.format(reference=ablation.reference) for name in COLUMNS)
    for benchmark, found in lines.items():
        table = [[variant, "changes", *figures], ["---", "---", "--:", "--:", "--:", "--:", "---"]]
        table += [
            [line.variant, ablation.changes[line.variant], *cells(line)[1:]] for line in found
        ]
        parts += [
            f"## {benchmark} ({found[0].n} rows)",
            "\n".join(f"| {' | '.join(row)} |" for row in table),
        ]
    if spent:
        table = [
            [variant, *COST_COLUMNS],
            ["---", *["--:"] * len(COST_COLUMNS)],
            *([name, *one.cells] for name, one in spent.items()),
        ]
        parts += ["## Cost", COST, "\n".join(f"| {' | '.join(row)} |" for row in table)]
    if missing:
        parts += ["## Not in the tables", "\n".join(f"- {run}: {run.folder}" for run in missing)]
    return "\n\n".join(parts) + "\n"


def console_table(
    reference: str, benchmark: str, lines: Sequence[VariantLine], comparisons: int
) -> Table:
    """Return the lines of one benchmark for the console; `comparisons` are those of all tables together."""
    variant, *figures, words = (name.format(reference=reference) for name in COLUMNS)
    numbers = (Column(name, justify="right") for name in figures)
    title = f"{benchmark}, {lines[0].n} rows"
    caption = statement(reference, comparisons)
    table = Table(variant, *numbers, words, title=title, caption=caption)
    for line in lines:
        table.add_row(*cells(line))
    return table


def cells(line: VariantLine) -> list[str]:
    """Return a line as texts in the order of the columns, in percent and percentage points."""
    accuracy = Estimate(line.accuracy, line.low, line.high).percent
    spread = "–" if line.spread is None else f"{100 * line.spread:.1f}"
    seeds = " ".join(f"{100 * accuracy:.1f}" for accuracy in line.seeds.values())
    difference = line.difference.points if line.difference else ""
    return [line.variant, accuracy, spread, seeds, difference, line.words]


def draw(lines: Mapping[str, Sequence[VariantLine]], path: Path) -> None:
    """Write a figure: accuracy with its interval by variant, one panel a benchmark, and a dot for each seed.

    The vertical line is the first variant's mean.
    """
    titles = [f"{name} ({found[0].n} rows)" for name, found in lines.items()]
    with panels(path, titles, 1.6 + 0.38 * max(map(len, lines.values()))) as drawn:
        for axes, found in zip(drawn, lines.values(), strict=True):
            names = [line.variant for line in found]
            # As floats: None, for fewer than three seeds, becomes nan, which is not drawn.
            ends = [(line.accuracy, line.low, line.high) for line in found]
            mean, low, high = 100 * np.array(ends, dtype=float).T
            axes.axvline(mean[0], color="lightgrey", zorder=0)
            axes.errorbar(
                mean,
                names,
                xerr=[mean - low, high - mean],
                fmt="o",
                color=COLOURS[0],
                capsize=3,
                label="mean over seeds [95 %]",
            )
            seeds = [
                (100 * accuracy, line.variant) for line in found for accuracy in line.seeds.values()
            ]
            axes.plot(
                *zip(*seeds, strict=True),
                ".",
                color=COLOURS[1],
                markersize=5,
                label="each seed",
                zorder=3,
            )
            axes.invert_yaxis()
            axes.set_xlabel("accuracy, %")
