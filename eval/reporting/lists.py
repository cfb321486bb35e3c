"""The page of a list of runs: its variants side by side, and beside them what was found out about policies and reward models.

Read are the files that train/ablate.py, eval/overoptimisation.py and train/predictors.py leave in the list's folder.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle, groupby
from pathlib import Path
from typing import Any

from data.pages.chart import Axis, Chart, percent
from data.pages.template import render
from data.storage.files import read_json
from eval.reporting.content import ABLATION, FIGURES, Row
from eval.reporting.figures import STYLES, Score, lines, words_of
from eval.results.intervals import Difference

TEMPLATE = Path(__file__).parent / "list.html"
OVEROPTIMISATION, PREDICTORS = (
    Path("overoptimisation", "figures.json"),
    Path("predictors", "predictors.json"),
)
KL = "KL from the start, nats"
GAINS = {
    "best_of_gain": "best-of-N gain",
    "rl_greedy_gain": "RL gain, greedy",
    "rl_sampled_gain": "RL gain, sampled",
}
"""What a reward model is worth: where it is stored, and how it is called."""
ABOUT_A_MODEL = ("variant", "seed", "paradigm", "questions", *GAINS)
"""What is no figure of a reward model."""


def list_page(folder: Path) -> str:
    """Return the page of a list as HTML."""
    found = read_json(folder / ABLATION)
    over, predictors = (
        read_json(folder / file) if (folder / file).is_file() else None
        for file in (OVEROPTIMISATION, PREDICTORS)
    )
    missing = [f"{run['variant']}, seed {run['seed']}" for run in found["missing"]]
    parts = {
        "variants": "Variants",
        "overoptimisation": "Against KL",
        "predictors": "What a reward model is worth",
    }
    there = dict(zip(parts, (True, over, predictors), strict=True))
    return render(
        TEMPLATE,
        title=folder.resolve().name,
        list=found,
        missing=missing,
        benchmarks=benchmarks(found["results"]),
        answers=benchmarks(predictors["variants"]) if predictors else [],
        costs=found.get("costs", {}),
        over=over and overoptimisation(over),
        predictors=predictors and predictors_of(predictors),
        sections=[(anchor, name) for anchor, name in parts.items() if there[anchor]],
    )


def benchmarks(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows of a list's table by benchmark."""
    return [
        benchmark(name, list(own)) for name, own in groupby(rows, lambda row: str(row["benchmark"]))
    ]


def benchmark(name: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the lines of a benchmark, or of a figure of a policy, with places in percent of a drawing that holds all of them."""
    lines = [
        {
            **row,
            "each": [row[key] for key in row if key.startswith("seed_")],
            "against": _difference(row),
        }
        for row in rows
    ]
    axis = Axis.shares(
        [
            value
            for line in lines
            for value in (line["low"], line["high"], *line["each"])
            if value is not None
        ]
    )
    width = axis.high - axis.low
    ticks = [
        (100 * (at - axis.low) / width, written.removesuffix(" %"))
        for at, written in (axis.ticks[0], axis.ticks[-1])
    ]
    return {
        "name": name,
        "rows": lines,
        "ticks": ticks,
        "place": lambda value: round(100 * (value - axis.low) / width, 2),
    }


def _difference(row: Row) -> Difference | None:
    return (
        None
        if row["difference"] is None
        else Difference(row["difference"], row["difference_low"], row["difference_high"])
    )


def overoptimisation(found: Row) -> dict[str, Any]:
    """Return the points of policies, the curve of best-of-n without training, and their charts."""
    points, curve = found["points"], found["best_of_n"]
    for point in points:
        point["name"] = f"{point['run']}, step {point['step']}" if point["step"] else point["run"]
        for name in ("greedy", "sampled"):
            difference = point[name].get("difference")
            point[name]["against"] = Difference(*difference) if difference else None
    heads = {name: words.format(len(curve)) for name, words in FIGURES.items() if name in points[0]}
    start, runs = points[0], list(dict.fromkeys(point["run"] for point in points[1:]))
    at_start = {run: [start, *(point for point in points if point["run"] == run)] for run in runs}

    def against_kl(title: str, name: str, without: str) -> Chart:
        """Return the chart of a figure: every run from the start on, and the start's best of n answers."""
        series: dict[str, list[tuple[float, Score]]] = {
            run: [(max(one["kl"]["mean"], 0.0), score_of(one[name])) for one in own]
            for run, own in at_start.items()
        }
        if without:
            series["start, best of n"] = [
                (line["kl_at_most"], score_of_line(line, without)) for line in curve
            ]
        heights = [value for line in series.values() for _, score in line for value in score]
        is_score = name == "score"
        places = [x for line in series.values() for x, _ in line]
        chart = Chart(
            title,
            Axis.numbers(places, KL),
            Axis.numbers(heights) if is_score else Axis.shares(heights),
        )
        lines(chart, series, scored if is_score else words_of)
        return chart

    charts = [
        against_kl("Sampled answers", "sampled", "best"),
        against_kl("Greedy answers", "greedy", ""),
        against_kl("Score of the reward model", "score", "score"),
    ]
    of_start = {
        words: [(line["n"], score_of_line(line, name)) for line in curve]
        for name, words in BEST_OF.items()
    }
    heights = [value for line in of_start.values() for _, score in line for value in score]
    charts.append(
        Chart(
            "n answers of the start",
            Axis.numbers([line["n"] for line in curve], "n"),
            Axis.shares(heights),
        )
    )
    lines(charts[-1], of_start, words_of)
    doubled = [line for line in curve if int(line["n"]).bit_count() == 1 or line is curve[-1]]
    return {
        "about": found["title"],
        "comparisons": found.get("comparisons"),
        "points": points,
        "heads": heads,
        "curve": doubled,
        "charts": charts,
    }


BEST_OF = {"best": "best of n", "pass": "pass@n", "majority": "majority of n"}
"""What n answers reach, and how it is called."""


def score_of(stored: Mapping[str, float | None]) -> Score:
    """Return a stored figure, without an interval if there is none for two seeds."""
    values = [stored.get(key) for key in ("mean", "low", "high")]
    return tuple(value for value in values if value is not None)


def score_of_line(line: Mapping[str, float | None], name: str) -> Score:
    """Return a figure of n answers; files of earlier versions have no interval."""
    keys = {"mean": name, "low": f"{name}_low", "high": f"{name}_high"}
    return score_of({key: line.get(column) for key, column in keys.items()})


def scored(score: Score) -> str:
    """Return a mean score with its interval as a text."""
    mean, *interval = score
    return signed(mean) + (f" [{signed(interval[0])}, {signed(interval[1])}]" if interval else "")


def signed(value: float) -> str:
    """Return a number with its sign and two decimals."""
    return f"{value:+.2f}".replace("-", "−")


def predictors_of(found: Row) -> dict[str, Any]:
    """Return the reward models with their figures and gains, the coefficients, and a chart of each gain against each accuracy."""
    models = [
        model
        | {
            "gains": {gain: Difference(*model[gain]) for gain in GAINS if gain in model},
            "name": f"{model['variant']}, seed {model['seed']}",
        }
        for model in found["models"]
    ]
    figures = list(
        dict.fromkeys(
            name for model in found["models"] for name in model if name not in ABOUT_A_MODEL
        )
    )
    gains = {gain: words for gain, words in GAINS.items() if any(gain in model for model in models)}
    against = [name for name in figures if name == "AUC" or name.endswith(" accuracy")]
    coefficients = {
        gain: {
            name: [
                one["models"],
                *(
                    f"{signed(mean)} [{signed(low)}, {signed(high)}]"
                    for mean, low, high in (one["pearson"], one["spearman"])
                ),
                [
                    f"{signed(pearson)} without {recipe}"
                    for recipe, (pearson, _) in one.get("without", {}).items()
                ],
            ]
            for name, one in found["correlations"][gain].items()
        }
        for gain in gains
    }
    return {
        "models": models,
        "figures": figures,
        "gains": gains,
        "coefficients": coefficients,
        "charts": {
            gain: [chart for name in against for chart in scatter(models, gain, name)]
            for gain in gains
        },
        "missing": found["missing"],
        "statement": found.get("statement"),
    }


def scatter(models: Sequence[Mapping[str, Any]], gain: str, figure: str) -> list[Chart]:
    """Return the chart of a gain against a figure, a kind of dot for each paradigm; none where no model has both."""
    both = [model for model in models if gain in model and figure in model]
    if not both:
        return []
    x = Axis.shares([model[figure] for model in both], figure)
    y = Axis.numbers([0.0, *(100 * value for model in both for value in model[gain])], "points")
    chart = Chart(f"{GAINS[gain]} by {figure}", x, y)
    for style, paradigm in zip(cycle(STYLES), dict.fromkeys(model["paradigm"] for model in models)):
        own = [model for model in both if model["paradigm"] == paradigm]
        for model in own:
            points = model["gains"][gain].points.replace("-", "−")
            fact = f"{model['name']} ({paradigm}): {figure} {percent(round(model[figure], 3))}, {points}"
            chart.dot(model[figure], [100 * value for value in model[gain]], style, fact)
        chart.legend += [(f"dot {style}", paradigm)] if own else []
    chart.level(0.0, "no gain")
    return [chart]
