"""The study of which source of a mixture hurts: effects of sources on benchmarks and held-out pairs.

The effect of a source is measured by training: without it, and with twice as much of it, at equal
steps and pairs (train/studies/source_variants.py). Gradients give a cheap estimate of it, which is
called its influence (train/studies/influence.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from rich.console import Console

from mmrm.data.display.axis import Axis
from mmrm.data.display.chart import Chart, Dot, Series, save_png
from mmrm.data.display.format import MISSING, interval, signed, signed_points
from mmrm.data.display.study_result import StudyResult
from mmrm.data.display.table import Column, Table
from mmrm.data.errors import UserError
from mmrm.data.storage.files import read_json, write_json, write_whole
from mmrm.data.storage.output_lock import locked_folder
from mmrm.eval.results.correlation import (
    LEAST_RECIPES,
    pearson,
    ranks,
    spearman_interval,
    varies,
)
from mmrm.eval.results.intervals import LEAST_SEEDS, Difference
from mmrm.eval.results.predictions import credits_by, item_by, predictions_in, read_predictions
from mmrm.eval.results.run_folder import HELD_OUT
from mmrm.models.families.backbone_shape import shape_of
from mmrm.models.families.family import Shape
from mmrm.train.planning.dry_run import duration, rounded
from mmrm.train.planning.memory import GIB, trained
from mmrm.train.planning.step_cost import step_cost
from mmrm.train.recipe.recipe import Recipe
from mmrm.train.studies.ablation.cached_steps import checkpoint_of, model_digest
from mmrm.train.studies.ablation.comparison import (
    Credits,
    VariantLine,
    comparisons_in,
    lines_of,
)
from mmrm.train.studies.ablation.study import plan as plan_of_runs
from mmrm.train.studies.ablation.variants import Ablation, Run, compared_on, state
from mmrm.train.studies.influence import Products, mean_influence
from mmrm.train.studies.source_variants import TWICE, WHOLE, WITHOUT, drawn_sources

GPUS = (1, 8)
"""Numbers of GPUs for which the plan has the cost."""
OTHERS = "others"
"""Key of the influence of a source on the held-out pairs of all other sources."""
ALL = "all"
"""Key of the influence of a source on all held-out pairs."""
INFLUENCES = {ALL: "influence on held-out pairs", OTHERS: "on those of the other sources"}
"""The column of each influence, by its key."""
OFFSET = 0.15
"""Distance of the two dots of a source from its name, in rows of a chart."""
ROW_HEIGHT = 34
"""Height in pixels of a source in a chart."""
FRAME_HEIGHT = 70
"""Height in pixels of everything in a chart but the sources."""

STEPS_NOTE = (
    "Differences of the accuracy from the whole mixture, in percentage points. left out: no pair of "
    "the source is drawn. twice: the source is drawn twice as often relative to the others. All runs "
    "have {steps:,} steps and {pairs:,} pairs."
)
INTERVAL_NOTE = (
    "95 % intervals over trainings and rows, none below {seeds} seeds. They are paired by row and "
    "hold at 95 % for all {comparisons} comparisons together (Bonferroni)."
)
RANKING_NOTE = (
    "The sources are in the order of the mean over {figures} of what leaving them out changes: the "
    "first one hurts most. hurts: an interval of any figure excludes 0, above it without the source "
    "or below it with twice as much. helps: the reverse."
)
HELD_OUT_NOTE = (
    "Labels of held-out pairs come from the sources: those of a source with wrong labels are wrong, "
    "too. Differences without intervals."
)
INFLUENCE_NOTE = (
    "Mean inner product of the gradients of {pairs} training pairs of the source and of the held-out "
    "pairs, at the last checkpoint of the whole mixture ({checkpoints}), with intervals over pairs "
    "that hold at 95 % for all of a table together. Above 0, a small step of gradient descent on "
    "the source lowers the loss of the held-out pairs. It is no accuracy, and its scale has no "
    "meaning outside of a table."
)
CORRELATION_NOTE = (
    "Spearman's coefficient, over the sources, of the influence with what leaving the source out "
    "costs: 1 if both name the same order. {count} sources{scope}."
)


@dataclass(frozen=True, slots=True)
class Effects:
    """The effects of one source on all figures: benchmarks, and held-out pairs."""

    source: str
    left_out: dict[str, Difference]
    """The accuracy without the source minus that of the whole mixture, by figure."""
    twice: dict[str, Difference]
    """The accuracy with twice as much of the source minus that of the whole mixture, by figure."""

    @property
    def words(self) -> str:
        """The effect in words: `hurts`, `helps`, `mixed` or `not distinguishable`.

        It is `too few seeds` if there are no intervals, and `not known` if no run is complete.
        """
        differences = [*self.left_out.values(), *self.twice.values()]
        if not differences:
            return "not known"
        if all(difference.low is None for difference in differences):
            return "too few seeds"
        # An accuracy that is higher without the source speaks against it.
        signed_effects = [-difference.mean for difference in certain(self.left_out)]
        signed_effects += [difference.mean for difference in certain(self.twice)]
        helps = any(effect > 0 for effect in signed_effects)
        hurts = any(effect < 0 for effect in signed_effects)
        if helps and hurts:
            return "mixed"
        if helps or hurts:
            return "helps" if helps else "hurts"
        return "not distinguishable"

    def mean_left_out(self, figures: Sequence[str]) -> float | None:
        """Return the mean over figures of what leaving the source out changes; None if unknown."""
        return mean_of(self.left_out, figures)

    def mean_twice(self, figures: Sequence[str]) -> float | None:
        """Return the mean over figures of what twice as much changes; None if it is not known."""
        return mean_of(self.twice, figures)


def certain(differences: Mapping[str, Difference]) -> list[Difference]:
    """Return the differences whose intervals exclude 0."""
    return [difference for difference in differences.values() if difference.distinguishable]


def mean_of(differences: Mapping[str, Difference], figures: Sequence[str]) -> float | None:
    """Return the mean of the differences of some figures; None if one of them is missing."""
    if not all(figure in differences for figure in figures):
        return None
    return fmean(differences[figure].mean for figure in figures)


def refuse_influence(recipe: Recipe) -> None:
    """Raise UserError if the influence of sources cannot be computed for a recipe."""
    if recipe.data.validation < 1:
        raise UserError(
            "--influence compares the gradients of a source with those of held-out pairs, and "
            "data.validation is 0. Hold some out, for example data.validation=200."
        )


def plan(ablation: Ablation, num_influence_pairs: int | None) -> tuple[list[Table], list[str]]:
    """Return the tables of the runs and of their cost, and sentences on what is not in them.

    Args:
        ablation: The runs.
        num_influence_pairs: The pairs of each source whose gradients are computed; None for none.
    """
    tables = [plan_of_runs(ablation)]
    sentences = []
    recipe = ablation.runs[0].recipe
    shape = shape_of(recipe.backbone.path)
    if recipe.backbone.path == "embedded":
        sentences.append("Hours are not estimated: the embedded backbone is trained on CPUs.")
    elif shape is None:
        sentences.append("Hours are not estimated: the backbone's config.json is not at hand.")
    else:
        tables.append(cost_table(ablation, shape))
    if num_influence_pairs is not None:
        sentences.append(influence_cost(ablation, num_influence_pairs, shape))
    return tables, sentences


def cost_table(ablation: Ablation, shape: Shape) -> Table:
    """Return the estimated hours of all runs that are not complete, by the number of GPUs."""
    num_runs = sum(state(run) != "complete" for run in ablation.runs)
    recipe = ablation.runs[0].recipe
    num_steps = recipe.steps(0)  # known from optim.max_steps
    columns = (
        Column("GPUs", is_number=True),
        *(Column(name, is_number=True) for name in ("a run", "all runs", "GPU hours")),
    )
    rows = []
    for num_gpus in GPUS:
        cost = step_cost(recipe, shape, num_gpus)
        hours = num_steps * max(cost.compute, cost.waiting[recipe.deepspeed]) / 3600
        all_hours = num_runs * hours
        gpu_hours = rounded(all_hours * num_gpus, 1)
        rows.append((str(num_gpus), duration(hours), duration(all_hours), gpu_hours))
    title = f"cost of {num_runs} runs of {num_steps:,} steps"
    note = (
        "Without evaluations and without starts. `python train/rm.py RECIPE --dry-run` prints the "
        "assumptions, and on which GPUs the recipe fits."
    )
    return Table(title, columns, tuple(rows), (note,))


def influence_cost(ablation: Ablation, num_pairs: int, shape: Shape | None) -> str:
    """Return a sentence about the passes and the memory that the influence takes."""
    recipe = ablation.runs[0].recipe
    num_sources = len(recipe.data.sources)
    num_checkpoints = sum(run.variant == WHOLE for run in ablation.runs)
    num_passes = num_checkpoints * (num_sources * num_pairs + 2 * recipe.data.validation)
    text = f"Influence: {num_passes:,} forward and backward passes of one pair, on one device"
    if shape is None:
        return f"{text}."
    _, num_trained = trained(recipe, shape)
    gib = (2 * num_sources + 1) * 4 * num_trained / GIB
    return f"{text}, and {gib:.1f} GiB for gradients of {num_trained / 1e6:,.1f} M trained weights."


def influences(ablation: Ablation, num_pairs: int, console: Console) -> list[Products]:
    """Return the inner products of gradients at the last checkpoint of each run of the mixture.

    They are stored next to the runs, and are not computed again for the same checkpoint.

    Args:
        ablation: The runs.
        num_pairs: The number of training pairs of each source.
        console: Receives the progress.
    """
    # Imports torch, which takes seconds and is not needed for the plan.
    from mmrm.train.studies.pair_gradients import products_at

    products = []
    with locked_folder(ablation.folder):
        for run in ablation.runs:
            if run.variant != WHOLE or state(run) != "complete":
                continue
            checkpoint = checkpoint_of(run)
            made_from = {"checkpoint": model_digest(str(checkpoint)), "pairs": num_pairs}
            file = ablation.folder / "influence" / f"{run.seed}.json"
            stored = read_json(file) if file.is_file() else {}
            if stored.get("made_from") != made_from:
                console.print(f"influence, seed {run.seed}: {checkpoint}", soft_wrap=True)
                at_checkpoint = products_at(run.recipe, checkpoint, num_pairs, console)
                stored = {"made_from": made_from, **at_checkpoint.plain}
                file.parent.mkdir(parents=True, exist_ok=True)
                write_json(file, stored)
            products.append(Products.from_plain(stored))
    return products


def credits_of_sources(run: Run) -> dict[str, Credits]:
    """Read the credits of a complete run on the benchmarks, and on the held-out pairs."""
    files = predictions_in(run.folder)
    credits = {}
    for figure in figures_of(run.recipe):
        records = read_predictions(files[figure])
        credits[figure] = Credits(credits_by(records), item_by(records))
    return credits


def figures_of(recipe: Recipe) -> list[str]:
    """Return the names of the benchmarks and, if the recipe has any, of the held-out pairs."""
    figures = list(compared_on(recipe))
    if f"{HELD_OUT}/accuracy" in recipe.held_out_figures and HELD_OUT not in figures:
        figures.append(HELD_OUT)
    return figures


def effects_of(sources: Sequence[str], lines: Mapping[str, Sequence[VariantLine]]) -> list[Effects]:
    """Return the effects of each source from the lines of its two variants."""
    effects = []
    for source in sources:
        left_out: dict[str, Difference] = {}
        twice: dict[str, Difference] = {}
        for figure, lines_of_figure in lines.items():
            for line in lines_of_figure:
                if line.difference is None:
                    continue
                if line.variant == f"{WITHOUT}{source}":
                    left_out[figure] = line.difference
                if line.variant == f"{TWICE}{source}":
                    twice[figure] = line.difference
        effects.append(Effects(source, left_out, twice))
    return effects


def ranked(effects: Sequence[Effects], figures: Sequence[str]) -> list[Effects]:
    """Return the effects of all sources, that of the source that hurts most first.

    Sources whose runs are not complete come last.
    """

    def gain_without(effect: Effects) -> float:
        mean = effect.mean_left_out(figures)
        return -float("inf") if mean is None else mean

    return sorted(effects, key=gain_without, reverse=True)


def held_out_by_source(runs: Sequence[Run]) -> dict[str, dict[str, float]]:
    """Return the accuracy of each variant on the held-out pairs of each source, over the seeds."""
    credits: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        credits_by_source = credits.setdefault(run.variant, {})
        for record in read_predictions(predictions_in(run.folder)[HELD_OUT]):
            credits_by_source.setdefault(record["group"], []).append(record["credit"])
    accuracies: dict[str, dict[str, float]] = {}
    for variant, credits_by_source in credits.items():
        accuracies[variant] = {
            source: fmean(values) for source, values in credits_by_source.items()
        }
    return accuracies


def influence_figures(
    products: Sequence[Products], sources: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return the influence of each source on all held-out pairs, and on parts of them.

    The parts are the pairs of all other sources, and the pairs of each source.
    """
    figures: dict[str, dict[str, Any]] = {}
    for source in sources:
        others = [name for name in sources if name != source]
        targets = {ALL: list(sources), OTHERS: others}
        estimates = {}
        for key, names in targets.items():
            estimate = mean_influence(products, source, names, len(sources) * len(targets))
            estimates[key] = estimate.plain
        by_target = {}
        for target in sources:
            estimate = mean_influence(products, source, [target], len(sources) ** 2)
            by_target[target] = estimate.plain
        figures[source] = {**estimates, "by_source": by_target}
    return figures


@dataclass(frozen=True, slots=True)
class RankCorrelation:
    """Spearman's coefficient over sources; the interval is None with too few sources."""

    coefficient: float
    low: float | None
    high: float | None


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> RankCorrelation | None:
    """Return the rank correlation of two figures of the same sources.

    The result is None if one of them is the same for all sources.
    """
    x_values = np.array(x)
    y_values = np.array(y)
    if not varies(x_values) or not varies(y_values):
        return None
    coefficient = pearson(ranks(x_values), ranks(y_values))
    if len(x) < LEAST_RECIPES:
        return RankCorrelation(coefficient, None, None)
    low, high = spearman_interval(coefficient, len(x))
    return RankCorrelation(coefficient, low, high)


def correlations(
    effects: Sequence[Effects], influence: Mapping[str, Mapping[str, Any]], figures: Sequence[str]
) -> dict[str, dict[str, RankCorrelation | None]]:
    """Return the rank correlation of each influence with what leaving a source out costs.

    Sources whose runs are not complete are left out.

    Args:
        effects: The effects of the sources.
        influence: The influences of each source, as `influence_figures` returns them.
        figures: The benchmarks, and the held-out pairs.

    Returns:
        The correlations by figure and by key of the influence.
    """
    by_figure: dict[str, dict[str, RankCorrelation | None]] = {}
    for figure in figures:
        known = [effect for effect in effects if figure in effect.left_out]
        if len(known) < 2:
            continue
        losses = [-effect.left_out[figure].mean for effect in known]
        by_figure[figure] = {}
        for key in INFLUENCES:
            values = [influence[effect.source][key]["mean"] for effect in known]
            by_figure[figure][key] = rank_correlation(values, losses)
    return by_figure


def study_result(ablation: Ablation, products: Sequence[Products]) -> StudyResult:
    """Return the figures of the complete runs, with their tables, charts and the report.

    Args:
        ablation: The runs.
        products: The inner products of gradients at each checkpoint of the mixture; empty without
            --influence.
    """
    recipe = ablation.runs[0].recipe
    complete = [run for run in ablation.runs if state(run) == "complete"]
    missing = [str(run) for run in ablation.runs if run not in complete]
    sources = drawn_sources(recipe.data)
    figures = figures_of(recipe)
    lines = lines_of(complete, WHOLE, credits_of_sources)
    interval_note = INTERVAL_NOTE.format(seeds=LEAST_SEEDS, comparisons=comparisons_in(lines))
    ranking_figures = list(compared_on(recipe))
    effects = ranked(effects_of(sources, lines), ranking_figures)
    influence = influence_figures(products, sources) if products else {}

    num_steps = recipe.steps(0)  # known from optim.max_steps
    num_pairs = num_steps * recipe.optim.records_per_step
    notes = [
        STEPS_NOTE.format(steps=num_steps, pairs=num_pairs),
        interval_note,
        RANKING_NOTE.format(figures=" and ".join(ranking_figures)),
    ]
    tables = [summary_table(effects, ranking_figures, influence)]
    charts = []
    for figure in lines:
        tables.append(figure_table(figure, effects, lines[figure]))
        charts.append(effects_chart(figure, effects))
    by_source: dict[str, dict[str, float]] = {}
    if HELD_OUT in lines:
        by_source = held_out_by_source(complete)
        tables.append(held_out_table(by_source, sources))
    by_figure: dict[str, dict[str, RankCorrelation | None]] = {}
    if products:
        by_figure = correlations(effects, influence, figures)
        tables.append(influence_table(influence, sources, products))
        tables.append(correlation_table(by_figure, len(sources)))
        charts.append(influence_chart(influence, [effect.source for effect in effects]))
    sections = [f"# Which source: {ablation.path.stem}", *notes]
    for table in tables:
        sections += [f"## {table.title}", table.markdown()]
        sections += table.notes
    if missing:
        sections += ["## Not in the tables", "\n".join(f"- {name}" for name in missing)]
        notes.append(f"not in the tables: {', '.join(missing)}")
    stored = {
        "recipe": str(ablation.path),
        "steps": num_steps,
        "pairs": num_pairs,
        "seeds": sorted({run.seed for run in ablation.runs}),
        "statement": interval_note,
        "ranked_by": ranking_figures,
        "sources": [stored_effects(effect, ranking_figures) for effect in effects],
        "whole": {figure: whole_accuracy(lines[figure]) for figure in lines},
        "held_out_by_source": by_source,
        "influence": influence,
        "rank_correlation": stored_correlations(by_figure),
        "missing": missing,
    }
    return StudyResult(
        stored,
        tables=tuple(tables),
        charts=tuple(charts),
        sentences=tuple(notes),
        document="\n\n".join(sections) + "\n",
    )


def stored_effects(effects: Effects, ranking_figures: Sequence[str]) -> dict[str, Any]:
    """Return the effects of a source in the form that is written to JSON."""
    return {
        "source": effects.source,
        "effect": effects.words,
        "left_out_mean": effects.mean_left_out(ranking_figures),
        "twice_mean": effects.mean_twice(ranking_figures),
        "left_out": {figure: asdict(effect) for figure, effect in effects.left_out.items()},
        "twice": {figure: asdict(effect) for figure, effect in effects.twice.items()},
    }


def stored_correlations(
    by_figure: Mapping[str, Mapping[str, RankCorrelation | None]],
) -> dict[str, dict[str, Any]]:
    """Return rank correlations in the form that is written to JSON."""
    stored: dict[str, dict[str, Any]] = {}
    for figure, by_key in by_figure.items():
        stored[figure] = {}
        for key, correlation in by_key.items():
            stored[figure][key] = None if correlation is None else asdict(correlation)
    return stored


def whole_accuracy(lines: Sequence[VariantLine]) -> dict[str, float | None] | None:
    """Return the accuracy of the whole mixture with its interval; None if no run is complete."""
    for line in lines:
        if line.variant == WHOLE:
            return {"accuracy": line.accuracy, "low": line.low, "high": line.high}
    return None


def points_text(share: float | None) -> str:
    """Return a difference in percentage points, and a dash for None."""
    return MISSING if share is None else signed_points(share)


def difference_text(difference: Difference | None) -> str:
    """Return a difference with its interval in percentage points, and a dash for None."""
    return MISSING if difference is None else difference.points


def signed_number(value: float) -> str:
    """Return a number with its sign and two significant digits, such as "+0.031" or "-1.2e-05"."""
    return f"{value:+.2g}"


def influence_text(estimate: Mapping[str, float]) -> str:
    """Return a stored influence with its interval."""
    return interval(estimate["mean"], estimate["low"], estimate["high"], signed_number)


def summary_table(
    effects: Sequence[Effects],
    ranking_figures: Sequence[str],
    influence: Mapping[str, Mapping[str, Any]],
) -> Table:
    """Return the table of all sources, that of the source that hurts most first."""
    columns = [
        Column("source"),
        Column("left out, mean", is_number=True),
        Column("twice, mean", is_number=True),
        Column("the source"),
    ]
    if influence:
        columns += [Column(f"{name} [95 %]", is_number=True) for name in INFLUENCES.values()]
    rows = []
    for effect in effects:
        cells = [
            effect.source,
            points_text(effect.mean_left_out(ranking_figures)),
            points_text(effect.mean_twice(ranking_figures)),
            effect.words,
        ]
        if influence:
            cells += [influence_text(influence[effect.source][key]) for key in INFLUENCES]
        rows.append(tuple(cells))
    title = f"sources, mean over {' and '.join(ranking_figures)}"
    return Table(title, tuple(columns), tuple(rows))


def figure_table(figure: str, effects: Sequence[Effects], lines: Sequence[VariantLine]) -> Table:
    """Return the table of the effects of all sources on a benchmark, or on held-out pairs."""
    columns = (
        Column("source"),
        Column("left out [95 %]", is_number=True),
        Column("twice [95 %]", is_number=True),
    )
    rows = []
    for effect in effects:
        left_out = difference_text(effect.left_out.get(figure))
        twice = difference_text(effect.twice.get(figure))
        rows.append((effect.source, left_out, twice))
    notes = []
    for line in lines:
        if line.variant == WHOLE:
            accuracy = interval(line.accuracy, line.low, line.high)
            notes.append(f"The whole mixture has {accuracy} %.")
    return Table(f"{figure}, {lines[0].n:,} rows", columns, tuple(rows), tuple(notes))


def held_out_table(by_variant: Mapping[str, Mapping[str, float]], sources: Sequence[str]) -> Table:
    """Return the table of each variant's accuracy on the held-out pairs of each source."""
    columns = [Column("mixture")]
    columns += [Column(f"pairs of {source}", is_number=True) for source in sources]
    whole = by_variant.get(WHOLE, {})
    rows = []
    for variant, accuracy_by_source in by_variant.items():
        cells = [variant]
        for source in sources:
            accuracy = accuracy_by_source.get(source)
            reference = whole.get(source)
            if accuracy is None or reference is None:
                cells.append(MISSING)
            elif variant == WHOLE:
                cells.append(f"{100 * accuracy:.1f} %")
            else:
                cells.append(signed_points(accuracy - reference))
        rows.append(tuple(cells))
    title = "held-out pairs by source"
    return Table(title, tuple(columns), tuple(rows), (HELD_OUT_NOTE,))


def influence_table(
    influence: Mapping[str, Mapping[str, Any]],
    sources: Sequence[str],
    products: Sequence[Products],
) -> Table:
    """Return the table of the influence of each source on the held-out pairs of each source."""
    columns = [Column("trained on")]
    columns += [Column(f"pairs of {source} [95 %]", is_number=True) for source in sources]
    rows = []
    for source in sources:
        by_target = influence[source]["by_source"]
        rows.append((source, *(influence_text(by_target[target]) for target in sources)))
    counts = sorted({len(values) for at_step in products for values in at_step.of_training})
    note = INFLUENCE_NOTE.format(
        pairs=" or ".join(map(str, counts)),
        checkpoints="one seed" if len(products) == 1 else f"{len(products)} seeds",
    )
    return Table("influence by gradients", tuple(columns), tuple(rows), (note,))


def correlation_table(
    by_figure: Mapping[str, Mapping[str, RankCorrelation | None]], num_sources: int
) -> Table:
    """Return the table of the rank correlations of influences with effects."""
    columns = [Column("effect on")]
    columns += [Column(name, is_number=True) for name in INFLUENCES.values()]
    rows = []
    for figure, by_key in by_figure.items():
        cells = [figure]
        for key in INFLUENCES:
            correlation = by_key[key]
            if correlation is None:
                cells.append(MISSING)
            else:
                low = correlation.low
                high = correlation.high
                cells.append(interval(correlation.coefficient, low, high, signed))
        rows.append(tuple(cells))
    scope = ", with a 95 % interval over sources"
    if num_sources < LEAST_RECIPES:
        scope = f" say little: an interval needs {LEAST_RECIPES}"
    note = CORRELATION_NOTE.format(count=num_sources, scope=scope)
    return Table("rank correlation of influence and training", tuple(columns), tuple(rows), (note,))


def effects_chart(figure: str, effects: Sequence[Effects]) -> Chart:
    """Return the chart of a figure: for each source, both differences with their intervals."""
    values = [0.0]
    left_out_dots: list[Dot] = []
    twice_dots: list[Dot] = []
    for index, effect in enumerate(effects):
        for differences, dots, row in (
            (effect.left_out, left_out_dots, index - OFFSET),
            (effect.twice, twice_dots, index + OFFSET),
        ):
            if figure in differences:
                dot = difference_dot(effect.source, differences[figure], row)
                dots.append(dot)
                values += [value for value in (dot.x, dot.low, dot.high) if value is not None]
    y = Axis.names([effect.source for effect in effects])
    return Chart(
        figure,
        Axis.numbers(values, "minus the whole mixture, points"),
        y,
        (
            Series("level", "the whole mixture", line=((0.0, y.low), (0.0, y.high))),
            Series("s0", "left out", dots=tuple(left_out_dots), has_horizontal_intervals=True),
            Series("s1", "twice", dots=tuple(twice_dots), has_horizontal_intervals=True),
        ),
        height=FRAME_HEIGHT + ROW_HEIGHT * len(effects),
    )


def difference_dot(source: str, difference: Difference, row: float) -> Dot:
    """Return the dot of a difference, in percentage points, in a row of a chart."""
    low = None if difference.low is None else 100 * difference.low
    high = None if difference.high is None else 100 * difference.high
    return Dot(100 * difference.mean, row, low, high, f"{source}: {difference.points}")


def influence_chart(influence: Mapping[str, Mapping[str, Any]], sources: Sequence[str]) -> Chart:
    """Return the chart of the influences of each source with their intervals."""
    values = [0.0]
    series = []
    y = Axis.names(sources)
    for number, (key, name) in enumerate(INFLUENCES.items()):
        dots = []
        for index, source in enumerate(sources):
            estimate = influence[source][key]
            mean = estimate["mean"]
            low = estimate["low"]
            high = estimate["high"]
            row = index + (2 * number - 1) * OFFSET
            fact = f"{source}: {influence_text(estimate)}"
            dots.append(Dot(mean, row, low, high, fact))
            values += [mean, low, high]
        series.append(
            Series(f"s{number + 2}", name, dots=tuple(dots), has_horizontal_intervals=True)
        )
    zero = Series("level", "", line=((0.0, y.low), (0.0, y.high)))
    return Chart(
        "influence by gradients",
        Axis.numbers(values, "inner product"),
        y,
        (zero, *series),
        height=FRAME_HEIGHT + ROW_HEIGHT * len(sources),
    )


def write(result: StudyResult, folder: Path) -> None:
    """Write which_source.json, which_source.md and, if a run is complete, which_source.png."""
    write_json(folder / "which_source.json", result.figures)
    write_whole(folder / "which_source.md", result.document)
    if result.charts:
        save_png(result.charts, folder / "which_source.png")
