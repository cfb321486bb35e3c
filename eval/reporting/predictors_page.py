"""Tables and charts of reward models: their figures, and the gain of a policy from each.

They are made from predictors.json of train/predictors.py, so that the command, its
Markdown, its picture, and the page of a list of runs show the same.
"""

from collections.abc import Mapping, Sequence

from mmrm.data.display.axis import Axis
from mmrm.data.display.chart import Chart, Dot, Series, level
from mmrm.data.display.format import (
    MISSING,
    interval,
    percent,
    signed,
    whole_percent,
    with_minus_signs,
)
from mmrm.data.display.table import Column, Table
from mmrm.eval.reporting.run_content import JsonRow
from mmrm.eval.results.intervals import Difference

GAINS = {
    "best_of_gain": "best-of-N gain",
    "rl_greedy_gain": "RL gain, greedy",
    "rl_sampled_gain": "RL gain, sampled",
}
"""The names of gains by the keys under which they are stored."""

OF_POLICIES = ("gains_by_policy_seed", "policy_spreads")
"""Keys of a stored model with the gains of single policies, and with their standard deviations."""

ABOUT_A_MODEL = ("variant", "seed", "paradigm", "questions", *GAINS, *OF_POLICIES)
"""Keys of a stored model that are not its figures."""

COEFFICIENTS_NOTE = (
    "Coefficients are over the means of the variants. A figure on one half of the questions "
    "predicts the gain on the other half: figure A, gain B, and the other way round. Spearman and "
    "Pearson are the means of both. No question or image is in both halves. Intervals are of a "
    "bootstrap over questions and over variants. The chance of the questions makes coefficients "
    "smaller; the agreement of a figure, or of the gain, with itself over the halves shows by how "
    "much. Accuracies count half a point for a tie or for two orders that disagree. A judge that "
    "writes nothing has no hard verdicts, and is in no coefficient with those of other judges."
)


def figure_names(models: Sequence[JsonRow]) -> list[str]:
    """Return the names of the figures that any of the models has, in the order of their columns."""
    names: dict[str, None] = {}
    for model in models:
        names |= dict.fromkeys(name for name in model if name not in ABOUT_A_MODEL)
    return list(names)


def models_table(models: Sequence[JsonRow]) -> Table:
    """Return the table of the models' figures in percent, and of their gains in percentage points.

    A gain is the improvement of a policy whose answers the model chooses or rewards. Its interval
    is over questions. If several policies were trained with a model, the standard deviation of
    their gains over seeds is in a column of its own.
    """
    figures = figure_names(models)
    spread_gains = []
    for gain in GAINS:
        if any(_policy_spread(model, gain) for model in models):
            spread_gains.append(gain)
    columns = [Column("model"), Column("seed", is_number=True), Column("paradigm")]
    columns += [Column("questions", is_number=True)]
    columns += [Column(name, is_number=True) for name in figures]
    columns += [Column(f"{name} [95 %]", is_number=True) for name in GAINS.values()]
    columns += [
        Column(f"{GAINS[gain]}, spread over seeds", is_number=True) for gain in spread_gains
    ]
    rows = []
    for model in models:
        cells = [model["variant"], str(model["seed"]), model["paradigm"]]
        cells.append(f"{model['questions']:,}")
        cells += [percent(model.get(name)) for name in figures]
        for gain in GAINS:
            cells.append(Difference(*model[gain]).points if gain in model else MISSING)
        for gain in spread_gains:
            cells.append(_policy_spread(model, gain) or MISSING)
        rows.append(tuple(cells))
    return Table("models", tuple(columns), tuple(rows))


def _policy_spread(model: JsonRow, gain: str) -> str:
    """Return the standard deviation of a gain over policies, such as "1.2 (3 seeds)".

    It is empty if a model trained one policy or none, and in files of earlier versions.
    """
    spread = model.get("policy_spreads", {}).get(gain)
    if spread is None:
        return ""
    num_seeds = len(model["gains_by_policy_seed"][gain])
    return f"{percent(spread)} ({num_seeds} seeds)"


def coefficients_table(gain: str, correlations: Mapping[str, JsonRow]) -> Table:
    """Return the table of each figure's correlation with a gain on the other half of the questions.

    A gain is the improvement of a policy whose answers the model chooses or rewards.

    Args:
        gain: The key of the gain.
        correlations: The stored correlation of each figure with the gain.
    """
    columns = (
        Column("figure"),
        Column("models", is_number=True),
        Column("Spearman [95 %]", is_number=True),
        Column("figure A, gain B", is_number=True),
        Column("figure B, gain A", is_number=True),
        Column("agreement of the figure", is_number=True),
        Column("of the gain", is_number=True),
        Column("Pearson [95 %]", is_number=True),
        Column("Pearson without one variant"),
    )
    rows = []
    for name, correlation in correlations.items():
        pearson = _coefficient(correlation["pearson"])
        spearman = _coefficient(correlation["spearman"])
        # Files of earlier versions have no directions.
        directions = [_coefficient(each) for each in correlation.get("directions", [])]
        agreements = [
            signed(correlation[key]) if key in correlation else MISSING
            for key in ("figure_agreement", "gain_agreement")
        ]
        without = range_without_one(correlation.get("without", {}))
        cells = [name, str(correlation["models"]), spearman, *(directions or [MISSING, MISSING])]
        rows.append((*cells, *agreements, pearson, without))
    return Table(GAINS[gain], columns, tuple(rows))


def _coefficient(stored: Sequence[float]) -> str:
    """Return the text of a coefficient, which is stored as its value and its interval's ends."""
    coefficient, low, high = stored
    return interval(coefficient, low, high, signed)


def range_without_one(without: Mapping[str, Sequence[float]]) -> str:
    """Return a text with the lowest and the highest Pearson coefficient without one variant.

    Args:
        without: Pearson's and Spearman's coefficient by the variant that is left out. If it is
            empty, the text is MISSING.
    """
    if not without:
        return MISSING
    lowest = min(without, key=lambda name: without[name][0])
    highest = max(without, key=lambda name: without[name][0])
    return (
        f"{signed(without[lowest][0])} (without {lowest}) to "
        f"{signed(without[highest][0])} (without {highest})"
    )


def table_without_each(gain: str, correlations: Mapping[str, JsonRow]) -> Table:
    """Return the table of Pearson's coefficients, computed without each variant in turn.

    It has a row for each variant that is left out, and a column for each figure.

    Args:
        gain: The key of the gain.
        correlations: The stored correlation of each figure with the gain.
    """
    # The keys are the variants that are left out of any correlation, in their order.
    variants: dict[str, None] = {}
    for correlation in correlations.values():
        variants |= dict.fromkeys(correlation.get("without", {}))
    rows = []
    for variant in variants:
        cells = [variant]
        for correlation in correlations.values():
            coefficients = correlation.get("without", {}).get(variant)
            cells.append(MISSING if coefficients is None else signed(coefficients[0]))
        rows.append(tuple(cells))
    heads = [Column("without"), *(Column(name, is_number=True) for name in correlations)]
    title = f"{GAINS[gain]}: Pearson without each variant in turn"
    return Table(title, tuple(heads), tuple(rows))


def gain_charts(models: Sequence[JsonRow], gain: str) -> list[Chart]:
    """Return charts of a gain against AUC and against the accuracy on each benchmark.

    Args:
        models: The stored models with their figures and gains.
        gain: The key of the gain.
    """
    figures = [name for name in figure_names(models) if name == "AUC" or name.endswith(" accuracy")]
    paradigms = list(dict.fromkeys(model["paradigm"] for model in models))
    charts = []
    for figure in figures:
        measured_models = [model for model in models if gain in model and figure in model]
        if measured_models:
            charts.append(_scatter_chart(measured_models, paradigms, gain, figure))
    return charts


def _scatter_chart(
    models: Sequence[JsonRow], paradigms: Sequence[str], gain: str, figure: str
) -> Chart:
    """Return the chart of a gain in percentage points against a figure.

    Args:
        models: Models that have both.
        paradigms: The paradigms of all models of the study, so that each has the same colour in
            every chart.
        gain: The key of the gain.
        figure: The figure on the x axis.
    """
    x = Axis.shares([model[figure] for model in models], figure)
    heights = [0.0]
    for model in models:
        heights += [100 * value for value in model[gain]]  # the mean and its interval's ends
    series = []
    for number, paradigm in enumerate(paradigms):
        dots = [_dot(model, gain, figure) for model in models if model["paradigm"] == paradigm]
        if dots:
            series.append(Series(f"s{number}", paradigm, dots=tuple(dots)))
    series.append(level(x, 0.0, "no gain"))
    return Chart(f"{GAINS[gain]} by {figure}", x, Axis.numbers(heights, "points"), tuple(series))


def _dot(model: JsonRow, gain: str, figure: str) -> Dot:
    """Return the dot of a model in the chart of a gain against a figure, with the gain's interval.

    `gain` and `figure` are keys of the model.
    """
    mean, low, high = (100 * value for value in model[gain])
    points = with_minus_signs(Difference(*model[gain]).points)
    fact = (
        f"{model['variant']}, seed {model['seed']} ({model['paradigm']}): "
        f"{figure} {whole_percent(round(model[figure], 3))}, {points}"
    )
    return Dot(model[figure], mean, low, high, fact)
