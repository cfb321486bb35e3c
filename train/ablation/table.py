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

from data.errors import PredictionsError
from eval.protocol import Floats
from eval.reporting.charts import COLOURS, panels
from eval.results.predictions import credits_by, predictions_in, read_predictions
from eval.results.statistics import Difference, accuracy_over_seeds, paired_bootstrap, spread
from train.ablation.costs import COST, COST_COLUMNS, Cost
from train.ablation.variants import Ablation, Run, compared_on
from train.recipe.methods import PolicyConfig

_INTRODUCTION = """Overall accuracy in percent of each run's last checkpoint, as the mean over the seeds. 95 % intervals by a \
bootstrap over rows and seeds together; with one seed they know of rows only. Spread: the standard deviation over seeds. \
Differences from {reference} are paired by row and by seed. Each interval stands for itself: among many variants one is the best \
by luck alone."""
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
    low: float
    high: float
    spread: float | None
    """None with one seed."""
    difference: Difference | None
    """The variant minus the first one, over the seeds of both; None for the first one and where no seed is complete for both."""

    @property
    def words(self) -> str:
        """Say whether the runs tell the variant from the first one."""
        return self.difference.words if self.difference else ""


def lines_of(runs: Sequence[Run], reference: str) -> dict[str, list[VariantLine]]:
    """Return the lines of complete runs by benchmark, or figure of a policy, variants in the order of the list."""
    lines = {}
    refuse_other_questions(runs)
    credits_of_runs = [credits_in(run) for run in runs]
    for figure in credits_of_runs[0] if runs else ():
        variants: dict[str, dict[int, Floats]] = {}
        keys: list[str] = []
        for run, by_figure in zip(runs, credits_of_runs, strict=True):
            if figure not in by_figure:  # the best by a judge, where the reward has none
                continue
            by_key = by_figure[figure]
            keys = keys or sorted(by_key)
            if by_key.keys() != set(keys):
                raise PredictionsError(
                    f"{figure}: {run} was evaluated on {len(by_key)} rows and the first run on {len(keys)}, "
                    f"{len(by_key.keys() & set(keys))} of them in both. The variants of a list must share benchmarks and "
                    "limits: take that change out, or train all runs again"
                )
            variants.setdefault(run.variant, {})[run.seed] = np.array([by_key[key] for key in keys])
        first = variants.get(reference, {})
        lines[figure] = [
            line(name, seeds, {} if name == reference else first)
            for name, seeds in variants.items()
        ]
    return lines


def credits_in(run: Run) -> dict[str, dict[str, float]]:
    """Return each figure's credits by row: of a judge on every benchmark, of a policy `NAME/greedy` and the like."""
    if not isinstance(run.recipe.method, PolicyConfig):
        files = predictions_in(run.folder)
        return {name: credits_by(read_predictions(files[name])) for name in compared_on(run.recipe)}
    found: dict[str, dict[str, float]] = {}
    for name in run.recipe.question_sets:
        with (run.folder / "answers" / f"{name}.jsonl").open(encoding="utf-8") as file:
            for row in map(json.loads, file):
                for figure, credit in row["credits"].items():
                    found.setdefault(f"{name}/{figure}", {})[row["id"]] = credit
    return found


def refuse_other_questions(runs: Sequence[Run]) -> None:
    """Raise PredictionsError if policies of a list answered different questions under one identity.

    Credits are paired by the identities of questions, which are labels: the file behind a source can
    change between two runs. Answers of earlier versions have no `key` and are not compared.
    """
    keys: dict[tuple[str, str], str] = {}
    for run in runs:
        if not isinstance(run.recipe.method, PolicyConfig):
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


def line(variant: str, seeds: Mapping[int, Floats], first: Mapping[int, Floats]) -> VariantLine:
    """Return one line; `first` holds the first variant's credits, empty for its own line."""
    credits = np.array(list(seeds.values()))
    both = [seed for seed in seeds if seed in first]
    difference = None
    if both:
        difference = paired_bootstrap(
            np.array([seeds[seed] for seed in both]), np.array([first[seed] for seed in both])
        )
    accuracies = {seed: float(np.mean(one)) for seed, one in seeds.items()}
    over_seeds = (*accuracy_over_seeds(credits), spread(credits.mean(axis=1)))
    return VariantLine(variant, credits.shape[1], accuracies, *over_seeds, difference)


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
    parts = [f"# {ablation.path.stem}", _INTRODUCTION.format(reference=ablation.reference)]
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


def console_table(reference: str, benchmark: str, lines: Sequence[VariantLine]) -> Table:
    """Return the lines of one benchmark for the console."""
    variant, *figures, words = (name.format(reference=reference) for name in COLUMNS)
    numbers = (Column(name, justify="right") for name in figures)
    title, caption = f"{benchmark}, {lines[0].n} rows", "bootstrap over rows and seeds, 95 %"
    table = Table(variant, *numbers, words, title=title, caption=caption)
    for line in lines:
        table.add_row(*cells(line))
    return table


def cells(line: VariantLine) -> list[str]:
    """Return a line as texts in the order of the columns, in percent and percentage points."""
    accuracy = f"{100 * line.accuracy:.1f} [{100 * line.low:.1f}, {100 * line.high:.1f}]"
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
            mean, low, high = (
                100 * np.array([(line.accuracy, line.low, line.high) for line in found]).T
            )
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
