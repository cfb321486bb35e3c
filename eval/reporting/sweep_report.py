"""The results of a sweep as CSV, JSON, Markdown, a picture, and a wandb run."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from mmrm.data.display.axis import Axis
from mmrm.data.display.chart import Chart, Dot, Series, Shape, level, save_png
from mmrm.data.display.format import percent
from mmrm.data.display.table import Column, Table
from mmrm.eval.reporting.run_charts import best_baseline
from mmrm.eval.results.intervals import Difference
from mmrm.eval.results.result_store import Standing, Summary
from mmrm.eval.results.summary_table import accuracy_cells, accuracy_text

_INTRODUCTION = (
    "Protocol: {protocol}. Accuracies in percent, each with its own 95 % interval over rows. "
    "Distances from the best are paired by row. Their intervals hold at 95 % for all {comparisons} "
    "pairs of judges together (Bonferroni), since any of them could have been the best. They speak "
    "of these checkpoints: other trainings of the same recipes are in none of them."
)
_HEADS = (
    *("judge", "step", "accuracy [95 %]", "macro", "n", "ties", "ties half", "unparsable"),
    "behind the best [95 %]",
)
MARKS: dict[str, tuple[Shape, str]] = {
    "best": ("star", "best"),
    "not distinguishable": ("dot", "not distinguishable from it"),
    "worse": ("small", "worse"),
}
"""Shape and label of a dot by standing."""
LONGEST_NAME = 40
"""Characters of the name of a run in the legend; of longer names the end is shown."""


def all_standings(summary: Summary) -> Iterator[Standing]:
    """Yield the standing of every judge on every benchmark."""
    for standings in summary.standings.values():
        yield from standings


def rows(summary: Summary) -> list[dict[str, Any]]:
    """Return one flat row for each result and each broken judge; accuracies are shares of 1."""
    broken = [
        {"judge": judge, "standing": "broken", "problem": problem}
        for judge, problem in summary.broken.items()
    ]
    return [_row(standing) for standing in all_standings(summary)] + broken


def _row(standing: Standing) -> dict[str, Any]:
    """Return the flat row of one result."""
    behind = standing.behind or Difference(0.0, 0.0, 0.0)
    return {
        "judge": str(standing.judge),
        "run": standing.run,
        "step": standing.step,
        "benchmark": standing.benchmark,
        **standing.result.micro.model_dump(),
        "macro": standing.result.macro,
        "behind": behind.mean,
        "behind_low": behind.low,
        "behind_high": behind.high,
        "standing": standing.words,
        "fingerprint": standing.fingerprint,
        "problem": "",
    }


def in_full(summary: Summary) -> dict[str, Any]:
    """Return the content of sweep.json, the rows with the figures of the groups.

    The folder of each result is relative to that of sweep.json.
    """
    best: dict[str, str] = {}
    results = []
    for standing in all_standings(summary):
        if standing.words == "best":
            best[standing.benchmark] = str(standing.judge)
        groups = standing.result.groups.items()
        results.append(
            {
                **_row(standing),
                "groups": {name: figure.model_dump() for name, figure in groups},
                "folder": f"results/{standing.fingerprint}",
            }
        )
    return {
        "protocol": summary.label,
        "best": best,
        "comparisons": summary.comparisons,
        "results": results,
        "broken": summary.broken,
    }


def markdown(summary: Summary) -> str:
    """Return a table for each benchmark, and a list of the judges that could not be evaluated."""
    parts = [_INTRODUCTION.format(protocol=summary.label, comparisons=summary.comparisons)]
    for name, standings in summary.standings.items():
        parts += [f"## {name}", best_of(standings), standings_table(name, standings).markdown()]
        notes: dict[str, None] = {}
        for standing in standings:
            notes |= dict.fromkeys(standing.result.notes)
        if notes:
            parts.append("\n".join(f"- {note}" for note in notes))
    if summary.broken:
        broken = [f"- {judge}: {problem}" for judge, problem in summary.broken.items()]
        parts += ["## Not evaluated", "\n".join(broken)]
    return "\n\n".join(parts) + "\n"


def best_of(standings: Sequence[Standing]) -> str:
    """Name the best judge of a benchmark, and the judges that the rows cannot distinguish from it."""
    best = next(standing for standing in standings if standing.behind is None)
    alike = [
        str(standing.judge) for standing in standings if standing.words == "not distinguishable"
    ]
    accuracy = accuracy_text(best.result.micro)
    others = ", ".join(alike) or "none"
    return f"Best: {best.judge}, {accuracy}. Not distinguishable from it: {others}."


def standings_table(benchmark: str, standings: Sequence[Standing]) -> Table:
    """Return the table of all judges on one benchmark."""
    columns = tuple(Column(head, is_number=head != "judge") for head in _HEADS)
    return Table(benchmark, columns, tuple(_cells(standing) for standing in standings))


def _cells(standing: Standing) -> tuple[str, ...]:
    """Return the cells of a judge."""
    step = "" if standing.step is None else str(standing.step)
    accuracy, *others = accuracy_cells(standing.result.micro)
    macro = percent(standing.result.macro)
    return (str(standing.judge), step, accuracy, macro, *others, _distance(standing.behind))


def _distance(behind: Difference | None) -> str:
    """Return the difference of a judge from the best judge; None for the best judge itself."""
    if behind is None:
        return "**best**"
    points = behind.points.replace("+", "")
    return points if behind.distinguishable else f"{points}, not distinguishable"


def log(summary: Summary, project: str, folder: Path) -> None:
    """Log the summary to a wandb project in one run: the picture, the table, and curves.

    There is a curve for each benchmark and run folder. The variable WANDB_MODE decides where the
    run is logged, else a login. Without either the run stays in `folder`. The command never asks
    for a key.
    """
    import wandb

    is_decided = "WANDB_MODE" in os.environ or wandb.login(prompt=False, verify=False)
    mode: Literal["offline"] | None = None if is_decided else "offline"
    with wandb.init(
        project=project, job_type="sweep", name=folder.name, dir=folder, mode=mode
    ) as run:
        run.define_metric("*", step_metric="step")
        for line in curves(summary):
            run.log(line)
        flat_rows = rows(summary)
        names: dict[str, None] = {}
        for row in flat_rows:
            names |= dict.fromkeys(row)
        cells = [[row.get(name) for name in names] for row in flat_rows]
        table = wandb.Table(columns=list(names), data=cells)
        run.log({"results": table, "curve": wandb.Image(str(folder / "sweep.png"))})


def curves(summary: Summary) -> list[dict[str, float]]:
    """Return one line for each result of a checkpoint with a step.

    A line has `step`, and `benchmark/run/accuracy`, `/low` and `/high`.
    """
    curve_lines = []
    for row in rows(summary):
        if row.get("step") is None or not row["n"]:
            continue
        prefix = f"{row['benchmark']}/{Path(row['run']).name}"
        line = {f"{prefix}/{key}": row[key] for key in ("accuracy", "low", "high")}
        curve_lines.append(line | {"step": row["step"]})
    return curve_lines


def draw(summary: Summary, path: Path) -> None:
    """Write the charts of all benchmarks side by side to a PNG file."""
    charts = [_chart(name, standings) for name, standings in summary.standings.items()]
    save_png(charts, path)


def _chart(benchmark: str, standings: Sequence[Standing]) -> Chart:
    """Return the chart of accuracy by step, with a line and a band of intervals for each run.

    A judge without a step is a horizontal line, and so are chance and the best baseline.
    """
    result = standings[0].result
    blind, blind_accuracy = best_baseline(result)
    chances = sorted({standing.result.chance for standing in standings} - {0.5})
    steps = [standing.step for standing in standings if standing.step is not None]
    x = Axis.numbers(steps or [0], "optimizer step")
    heights = [blind_accuracy, *chances]
    standings_by_run: dict[str, list[Standing]] = defaultdict(list)
    for standing in sorted(standings, key=lambda standing: standing.step or 0):
        standings_by_run[standing.run].append(standing)
        heights += _score(standing)
    series: list[Series] = []
    for number, (run, of_run) in enumerate(standings_by_run.items()):
        name = run if len(run) <= LONGEST_NAME else f"…{run[1 - LONGEST_NAME :]}"
        series += _run_series(f"s{number}", name, of_run, x)
    series.append(level(x, blind_accuracy, f"blind: {blind}", "level blind"))
    series += [level(x, chance, "chance") for chance in chances]
    series += [Series("level", label, shape=shape) for shape, label in MARKS.values()]
    y = Axis.shares(heights, "accuracy [95 %]")
    return Chart(f"{benchmark} ({result.micro.n} rows)", x, y, tuple(series))


def _score(standing: Standing) -> tuple[float, float, float]:
    """Return the accuracy and the ends of its interval; zeros if there are no rows."""
    accuracy = standing.result.micro
    return accuracy.accuracy or 0.0, accuracy.low or 0.0, accuracy.high or 0.0


def _run_series(style: str, name: str, standings: Sequence[Standing], x: Axis) -> list[Series]:
    """Return the line of a run, and dots whose shapes show the standing of each checkpoint."""
    places = [standing.step for standing in standings]
    scores = [_score(standing) for standing in standings]
    if places[0] is None:
        height = scores[0][0]
        line = level(x, height, name, style)
        places_of_dots = [x.low + 0.97 * (x.high - x.low)]
    else:
        places_of_dots = [float(place or 0) for place in places]
        middle = zip(places_of_dots, (score[0] for score in scores), strict=True)
        lower = zip(places_of_dots, (score[1] for score in scores), strict=True)
        upper = zip(places_of_dots, (score[2] for score in scores), strict=True)
        band = (*lower, *reversed(list(upper)))
        line = Series(style, name, line=tuple(middle), band=band)
    series = [line]
    for place, score, standing in zip(places_of_dots, scores, standings, strict=False):
        shape, _ = MARKS[standing.words]
        series.append(Series(style, dots=(Dot(place, score[0]),), shape=shape))
    return series
