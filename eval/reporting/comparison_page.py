"""Tables and charts of the variants of a list of runs, and the page of the list.

train/ablate.py and train/predictors.py print and draw the same tables and charts. The page reads
the files that these commands and eval/overoptimisation.py leave in the list's folder.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from mmrm.data.display.axis import Axis
from mmrm.data.display.chart import CHARACTER_WIDTH, WIDTH, Chart, Dot, Series
from mmrm.data.display.format import MISSING, interval, percent, short_number
from mmrm.data.display.html import render
from mmrm.data.display.table import Column, Table
from mmrm.data.storage.files import read_json
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.reporting.overoptimisation_page import (
    JUDGED,
    answers_table,
    conclusions,
    curve_table,
    kl_charts,
    policy_table,
)
from mmrm.eval.reporting.predictors_page import (
    COEFFICIENTS_NOTE,
    GAINS,
    coefficients_table,
    gain_charts,
    models_table,
    table_without_each,
)
from mmrm.eval.reporting.run_charts import HELD_OUT_LOSS, Curve, training_series
from mmrm.eval.reporting.run_content import JsonRow, read_log_lines
from mmrm.eval.results.intervals import Difference
from mmrm.eval.results.result import WORTH
from mmrm.eval.results.run_folder import ABLATION, HELD_OUT, LOG, OVEROPTIMISATION, PREDICTORS

TEMPLATE = Path(__file__).parent / "list.html"
OLD_LIST = (
    "This list was written by an earlier version, whose intervals are too narrow. "
    "Run train/ablate.py again."
)
COST_FORMATS = {
    "pairs": ("pairs", "{:,.0f}"),
    "tokens_a_pair": ("tokens a pair", "{:.0f}"),
    "seconds_a_pair": ("seconds a pair", "{:.4f}"),
    "seconds": ("seconds", "{:.0f}"),
    "use_seconds_a_pair": ("in use: seconds a pair", "{:.4f}"),
    "use_tokens_a_pair": ("tokens written", "{:.1f}"),
}
"""Column and format of each stored cost; the first four are of training."""
COST_NOTE = (
    "Wall-clock time of all processes, without evaluations; in use: the last evaluation. "
    "Means over the seeds."
)
HELD_OUT_ACCURACY = "Accuracy on held-out records, % (ties half)"
COMPARED_SERIES = {"Loss": "loss", "Loss on held-out records": HELD_OUT_LOSS}
"""Series of a run's log that are drawn for all variants in one chart, by the chart's title."""
SHORT_NAME = 12
"""Characters of a name that fit next to a chart of the ordinary width."""
LARGEST_WIDTH = 440
"""Width in pixels up to which the texts of a chart are legible in a narrow window."""
ROW_HEIGHT = 26
"""Height in pixels of a variant in a chart."""
FRAME_HEIGHT = 70
"""Height in pixels of everything in a chart but the variants."""
SEED_OFFSET = 0.25
"""Distance of the seeds' dots from the dot of their mean, in rows of the chart."""


def list_page(folder: Path) -> str:
    """Return the page of a list of runs as HTML, from the files in the list's folder.

    The sections about policies and reward models are left out if their files do not exist.
    """
    ablation = read_json(folder / ABLATION)
    reference = ablation["reference"]
    results = ablation["results"]
    sections = {"variants": "Variants"}
    policies = None
    if (folder / OVEROPTIMISATION).is_file():
        sections["overoptimisation"] = "Against KL"
        policies = _policy_values(read_json(folder / OVEROPTIMISATION))
    reward_models = None
    if (folder / PREDICTORS).is_file():
        sections["predictors"] = "What a reward model is worth"
        reward_models = _reward_model_values(read_json(folder / PREDICTORS), reference)
    changes = changes_table(results) if results else None
    problems: list[str] = []
    training_curves = variant_curve_charts(folder, results, problems)
    if training_curves:
        sections["training"] = "Training"
    costs = ablation.get("costs", {})
    costs_of_variants = cost_table(costs) if costs else None
    return render(
        TEMPLATE,
        title=folder.resolve().name,
        list_name=ablation["list"],
        reference=reference,
        statement=ablation.get("statement") or OLD_LIST,
        missing=[f"{run['variant']}, seed {run['seed']}" for run in ablation["missing"]],
        variants_found=_tables_and_charts(results, reference, "rows"),
        changes=changes,
        costs=costs_of_variants,
        training_curves=training_curves,
        problems=problems,
        policies=policies,
        reward_models=reward_models,
        sections=sections,
    )


def _tables_and_charts(
    results: Sequence[JsonRow], reference: str, unit: str
) -> list[tuple[Table, Chart]]:
    """Return a table and a chart for each benchmark in `results`.

    Args:
        results: The stored rows of a list, one for each variant and benchmark. Instead of a
            benchmark a row may have a figure of a policy.
        reference: The variant from which the others differ.
        unit: The kind of the benchmark's rows, such as "questions".
    """
    pairs = []
    for name, rows in rows_by_benchmark(results).items():
        # Changes are long, and would push the intervals out of a narrow window.
        table = variants_table(name, rows, reference, unit).without("changes")
        pairs.append((table, variants_chart(name, rows)))
    return pairs


def _policy_values(stored: JsonRow) -> dict[str, object]:
    """Return the tables, charts and texts about policies, for the template.

    `stored` is the content of OVEROPTIMISATION.
    """
    points = stored["points"]
    curve = stored["best_of_n"]
    comparisons = stored.get("comparisons")
    tables = [policy_table(points, "Policies against their start", comparisons)]
    tables.append(answers_table(points, len(curve)))
    # Files of earlier versions lack some differences from the start, which is the first point.
    stored_figures = [point.get(name, {}) for point in points[1:] for name in JUDGED]
    has_differences = all("difference" in figure for figure in stored_figures)
    return {
        "about": stored["title"],
        "comparisons": comparisons,
        "charts": kl_charts(points, curve),
        "tables": tables,
        "conclusions": conclusions(points) if has_differences else [],
        "curve": curve_table(curve),
    }


def _reward_model_values(stored: JsonRow, reference: str) -> dict[str, object]:
    """Return the tables, charts and texts about reward models, for the template.

    Args:
        stored: The content of PREDICTORS. Files of earlier versions name no reference.
        reference: The list's first variant, from which the others differ then.
    """
    models = stored["models"]
    # A gain that was measured has its name, charts and tables.
    gains = []
    for gain, name in GAINS.items():
        if not any(gain in model for model in models):
            continue
        correlations = stored["correlations"][gain]
        tables = []
        if correlations:
            tables.append(coefficients_table(gain, correlations))
            tables.append(table_without_each(gain, correlations))
        gains.append((name, gain_charts(models, gain), tables))
    return {
        "missing": stored["missing"],
        "statement": stored.get("statement") or "",
        "note": COEFFICIENTS_NOTE,
        "gains": gains,
        "models": models_table(models),
        "variants": _tables_and_charts(
            stored["variants"], stored.get("reference", reference), "questions"
        ),
    }


def rows_by_benchmark(results: Sequence[JsonRow]) -> dict[str, list[JsonRow]]:
    """Return the stored rows of a list by their benchmark, or by their figure of a policy."""
    # The rows of a benchmark follow one another.
    groups = groupby(results, lambda row: str(row["benchmark"]))
    return {benchmark: list(rows) for benchmark, rows in groups}


def variants_table(
    benchmark: str, rows: Sequence[JsonRow], reference: str, unit: str = "rows", note: str = ""
) -> Table:
    """Return the table of a list's variants on one benchmark, in percent and percentage points.

    Args:
        benchmark: Name of the benchmark, or of the figure of a policy.
        rows: The stored rows of the benchmark.
        reference: The variant from which the others differ.
        unit: The kind of the benchmark's rows, such as "questions".
        note: A sentence below the table about its intervals; empty for none.
    """
    columns = (
        Column("variant"),
        Column("changes"),
        Column("mean [95 %]", is_number=True),
        Column("spread", is_number=True),
        Column("each seed", is_number=True),
        Column(f"minus {reference} [95 %]", is_number=True),
        Column(""),
    )
    title = f"{benchmark}, {rows[0]['n']:,} {unit}"
    cells = tuple(_variant_cells(row) for row in rows)
    return Table(title, columns, cells, (note,) if note else ())


def changes_table(results: Sequence[JsonRow]) -> Table:
    """Return the table of the settings that each variant of a list changes."""
    changes_by_variant = {row["variant"]: row["changes"] or MISSING for row in results}
    columns = (Column("variant"), Column("changes"))
    return Table("changes of the variants", columns, tuple(changes_by_variant.items()))


def _variant_cells(row: JsonRow) -> tuple[str, ...]:
    """Return the cells of a variant in the order of the columns of `variants_table`."""
    difference_text = ""  # the reference does not differ from itself
    if row["difference"] is not None:
        difference = Difference(row["difference"], row["difference_low"], row["difference_high"])
        difference_text = difference.points
    return (
        row["variant"],
        row["changes"],
        interval(row["accuracy"], row["low"], row["high"]),
        percent(row["spread"]),
        " ".join(percent(accuracy) for accuracy in accuracies_of_seeds(row)),
        difference_text,
        row["words"],
    )


def accuracies_of_seeds(row: JsonRow) -> list[float]:
    """Return the accuracies in the columns `seed_…` of a variant's stored row."""
    return [value for key, value in row.items() if key.startswith("seed_")]


def variants_chart(benchmark: str, rows: Sequence[JsonRow]) -> Chart:
    """Return the chart of a benchmark: a line for each variant, with its mean and its seeds.

    The vertical line is the mean of the first variant.

    Args:
        benchmark: Name of the benchmark, or of the figure of a policy.
        rows: The stored rows of the benchmark, one for each variant.
    """
    x_values: list[float] = []
    mean_dots = []
    seed_dots = []
    for index, row in enumerate(rows):
        seed_accuracies = accuracies_of_seeds(row)
        low = row["low"]
        high = row["high"]
        x_values += [row["accuracy"], *seed_accuracies]
        if low is not None:
            x_values += [low, high]
        fact = f"{row['variant']}: {interval(row['accuracy'], low, high)} %"
        mean_dots.append(Dot(row["accuracy"], index, low, high, fact))
        seed_dots += [Dot(accuracy, index + SEED_OFFSET) for accuracy in seed_accuracies]
    names = [row["variant"] for row in rows]
    num_extra_characters = max(0, max(map(len, names)) - SHORT_NAME)
    y = Axis.names(names)
    first = rows[0]
    return Chart(
        f"{benchmark} ({first['n']} rows)",
        Axis.shares(x_values, "accuracy"),
        y,
        (
            Series(
                "level",
                first["variant"],
                line=((first["accuracy"], y.low), (first["accuracy"], y.high)),
            ),
            Series(
                "s0",
                "mean over the seeds [95 %]",
                dots=tuple(mean_dots),
                has_horizontal_intervals=True,
            ),
            Series("s1", "each seed", dots=tuple(seed_dots), shape="small"),
        ),
        width=min(LARGEST_WIDTH, WIDTH + CHARACTER_WIDTH * num_extra_characters),
        height=FRAME_HEIGHT + ROW_HEIGHT * len(rows),
    )


def variant_curve_charts(
    folder: Path, results: Sequence[JsonRow], problems: list[str]
) -> list[Chart]:
    """Return charts of losses and of the held-out accuracy, with a line for each variant of a list.

    A line is the mean over the seeds of a variant at the steps that the logs of all of them have.
    Series that no log has, or that are not finite anywhere, have no chart.

    Args:
        folder: The folder of the list, in which each run has the folder VARIANT/SEED.
        results: The stored rows of the list, which name the variants and their complete seeds.
        problems: Gets a sentence about every line of a log that is broken.
    """
    logs_by_variant: dict[str, list[list[dict[str, Any]]]] = {}
    for row in results:
        seeds = [key.removeprefix("seed_") for key in row if key.startswith("seed_")]
        files = [folder / row["variant"] / seed / LOG for seed in seeds]
        # A run folder may have been removed since. Its figures are still in the tables.
        logs = [read_log_lines(file, problems) for file in files if file.is_file()]
        if logs:
            logs_by_variant[row["variant"]] = logs
    charts = []
    for title in (*COMPARED_SERIES, HELD_OUT_ACCURACY):
        curve_by_variant: dict[str, Curve] = {}
        for variant, logs in logs_by_variant.items():
            curve = mean_curve([_curve_of_log(log, title) for log in logs])
            if curve:
                curve_by_variant[variant] = curve
        if curve_by_variant:
            charts.append(_curve_chart(title, curve_by_variant))
    return charts


def _curve_of_log(log: Sequence[JsonRow], title: str) -> dict[float, float]:
    """Return what the chart with this title shows of a log, by step."""
    if title == HELD_OUT_ACCURACY:
        return held_out_accuracies(log)
    return curve_of_series(log, COMPARED_SERIES[title])


def held_out_accuracies(log: Sequence[JsonRow]) -> dict[float, float]:
    """Return the held-out accuracies of a log in percent by step, with half a point for a tie.

    The log counts a tie as the default protocol does.
    """
    tie_credit = 0.5 - WORTH[ProtocolConfig().ties]
    ties_by_step = curve_of_series(log, f"eval_{HELD_OUT}/ties")
    percent_by_step: dict[float, float] = {}
    for step, accuracy in curve_of_series(log, f"eval_{HELD_OUT}/accuracy").items():
        share_of_ties = ties_by_step.get(step, 0.0)
        percent_by_step[step] = 100 * (accuracy + tie_credit * share_of_ties)
    return percent_by_step


def curve_of_series(log: Sequence[JsonRow], name: str) -> dict[float, float]:
    """Return the finite values of a series of a log by step. The last value of a step counts."""
    value_by_step: dict[float, float] = {}
    for line in log:
        value = line.get(name)
        if isinstance(value, int | float) and math.isfinite(value):
            value_by_step[line["step"]] = value
    return value_by_step


def mean_curve(curves: Sequence[Mapping[float, float]]) -> Curve:
    """Return the means of several curves at the steps that all of them have, ordered by step."""
    shared_steps = set.intersection(*(set(curve) for curve in curves))
    points = []
    for step in sorted(shared_steps):
        points.append((step, fmean(curve[step] for curve in curves)))
    return points


def _curve_chart(title: str, curve_by_variant: Mapping[str, Curve]) -> Chart:
    """Return the chart with the curve of each variant, whose legend names the variants."""
    steps: list[float] = []
    values: list[float] = []
    series = []
    for number, (variant, curve) in enumerate(curve_by_variant.items()):
        steps += [step for step, _ in curve]
        values += [value for _, value in curve]
        series.append(training_series(f"s{number}", variant, curve, short_number, has_legend=True))
    return Chart(title, Axis.numbers(steps, "step"), Axis.numbers(values), tuple(series))


def cost_table(cost_by_variant: Mapping[str, JsonRow]) -> Table:
    """Return the table of the variants' costs in time and tokens."""
    columns = [Column("variant")]
    columns += [Column(name, is_number=True) for name, _ in COST_FORMATS.values()]
    rows = []
    for variant, cost in cost_by_variant.items():
        cells = []
        for key, (_, number_format) in COST_FORMATS.items():
            cells.append(number_format.format(cost[key]))
        rows.append((variant, *cells))
    return Table("cost", tuple(columns), tuple(rows), (COST_NOTE,))
