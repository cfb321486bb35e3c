"""The page of a list of runs: its variants side by side, and beside them what was found out about policies and reward models.

Read are the files that train/ablate.py, eval/overoptimisation.py and train/predictors.py leave in the list's folder.
"""

from collections.abc import Mapping
from typing import Any

from mmrm.data.display.chart import Axis, Chart
from mmrm.eval.reporting.number_format import scored
from mmrm.eval.reporting.run_charts import Score, lines, words_of
from mmrm.eval.reporting.run_content import FIGURES, Row
from mmrm.eval.results.intervals import Difference

KL = "KL from the start, nats"


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
