"""What a sweep found, as CSV, JSON, Markdown, a figure, and a wandb run."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mmrm.data.display.png import colours, panels
from mmrm.eval.reporting.run_charts import best_baseline
from mmrm.eval.results.intervals import Difference
from mmrm.eval.results.result_store import Standing, Summary
from mmrm.eval.results.summary_table import cells, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INTRODUCTION = """Protocol: {protocol}. Accuracies in percent, each with its own 95 % interval over rows. Distances from the \
best are paired by row. Their intervals hold at 95 % for all {comparisons} pairs of judges together (Bonferroni), since any of \
them could have been the best. They speak of these checkpoints: other trainings of the same recipes are in none of them."""
_HEAD = (
    "| judge | step | accuracy [95 %] | macro | n | ties | ties half | unparsable | behind the best [95 %] |",
    "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
)
MARKS = {
    "best": ("*", 15, "best"),
    "not distinguishable": ("o", 7, "not distinguishable from it"),
    "worse": (".", 6, "worse"),
}
"""Marker, its size and its label by standing."""


def rows(summary: Summary) -> list[dict[str, Any]]:
    """Return one flat row for each result and each broken judge; accuracies are fractions of 1."""
    found = [_row(standing) for standings in summary.standings.values() for standing in standings]
    return found + [
        {"judge": judge, "standing": "broken", "problem": problem}
        for judge, problem in summary.broken.items()
    ]


def _row(standing: Standing) -> dict[str, Any]:
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
    """Return what sweep.json holds: the rows, with the figures of the groups and the folder of each result (from the file's)."""
    standings = [standing for standings in summary.standings.values() for standing in standings]
    best = {one.benchmark: str(one.judge) for one in standings if one.words == "best"}
    results = [
        {
            **_row(one),
            "groups": {name: figure.model_dump() for name, figure in one.result.groups.items()},
            "folder": f"results/{one.fingerprint}",
        }
        for one in standings
    ]
    return {
        "protocol": summary.label,
        "best": best,
        "comparisons": summary.comparisons,
        "results": results,
        "broken": summary.broken,
    }


def markdown(summary: Summary) -> str:
    """Return a table for each benchmark, and what could not be evaluated."""
    parts = [_INTRODUCTION.format(protocol=summary.label, comparisons=summary.comparisons)]
    for name, standings in summary.standings.items():
        table = [*_HEAD, *(f"| {' | '.join(_cells(standing))} |" for standing in standings)]
        notes = dict.fromkeys(
            f"- {note}" for standing in standings for note in standing.result.notes
        )
        parts += [f"## {name}", best_of(standings), "\n".join(table), "\n".join(notes)]
    if summary.broken:
        parts += [
            "## Not evaluated",
            "\n".join(f"- {judge}: {problem}" for judge, problem in summary.broken.items()),
        ]
    return "\n\n".join(filter(None, parts)) + "\n"


def best_of(standings: Sequence[Standing]) -> str:
    """Name the best of a benchmark and what the rows cannot tell from it."""
    best = next(standing for standing in standings if standing.behind is None)
    alike = [
        str(standing.judge) for standing in standings if standing.words == "not distinguishable"
    ]
    return f"Best: {best.judge}, {percent(best.result.micro)}. Not distinguishable from it: {', '.join(alike) or 'none'}."


def _cells(standing: Standing) -> list[str]:
    found, behind = standing.behind, "**best**"
    if found:
        words = "" if found.distinguishable else ", not distinguishable"
        behind = f"{found.points.replace('+', '')}{words}"
    macro = "–" if standing.result.macro is None else f"{100 * standing.result.macro:.1f}"
    accuracy, *others = cells(standing.result.micro)
    return [
        str(standing.judge),
        "" if standing.step is None else str(standing.step),
        accuracy,
        macro,
        *others,
        behind,
    ]


def log(summary: Summary, project: str, folder: Path) -> None:
    """Log the summary to `project` in one run: the figure, the table, and a curve for each benchmark and run folder.

    WANDB_MODE decides where to, else a login, and without one it stays in `folder`. Nobody is asked for a key.
    """
    import wandb

    decided = "WANDB_MODE" in os.environ or wandb.login(prompt=False, verify=False)
    mode: Literal["offline"] | None = None if decided else "offline"
    with wandb.init(
        project=project, job_type="sweep", name=folder.name, dir=folder, mode=mode
    ) as run:
        run.define_metric("*", step_metric="step")
        for line in curves(summary):
            run.log(line)
        found = rows(summary)
        names = list(dict.fromkeys(name for row in found for name in row))
        table = wandb.Table(
            columns=names, data=[[row.get(name) for name in names] for row in found]
        )
        run.log({"results": table, "curve": wandb.Image(str(folder / "sweep.png"))})


def curves(summary: Summary) -> list[dict[str, float]]:
    """Return one line for each result of a checkpoint with a step: `benchmark/run/accuracy`, `/low`, `/high` and `step`."""
    return [
        {
            f"{row['benchmark']}/{Path(row['run']).name}/{key}": row[key]
            for key in ("accuracy", "low", "high")
        }
        | {"step": row["step"]}
        for row in rows(summary)
        if row.get("step") is not None and row["n"]
    ]


def draw(summary: Summary, path: Path) -> None:
    """Write a figure of score against step with intervals, one panel a benchmark and one line a run.

    A judge without a step is a horizontal line, the best blind baseline a dotted one.
    """
    titles = [
        f"{name} ({standings[0].result.micro.n} rows)"
        for name, standings in summary.standings.items()
    ]
    with panels(path, titles) as found:
        for axes, standings in zip(found, summary.standings.values(), strict=True):
            runs: dict[str, list[Standing]] = defaultdict(list)
            for standing in sorted(standings, key=lambda standing: standing.step or 0):
                runs[standing.run].append(standing)
            for colour, (run, own) in zip(colours(len(runs)), runs.items(), strict=True):
                _draw_run(axes, run if len(run) <= 40 else f"…{run[-39:]}", own, colour)
            blind, score = best_baseline(standings[0].result)
            axes.axhline(100 * score, color="grey", linestyle=":", linewidth=1.2)
            for chance in sorted({one.result.chance for one in standings} - {0.5}):
                axes.axhline(100 * chance, color="grey", linestyle="-.", linewidth=1.2)
            right = axes.get_yaxis_transform()
            axes.text(
                0.99,
                100 * score,
                f"blind: {blind}",
                fontsize=8,
                color="grey",
                transform=right,
                ha="right",
                va="bottom",
            )
            axes.set(xlabel="optimizer step", ylabel="accuracy [95 %], %")
        for marker, size, label in MARKS.values():
            axes.plot([], [], marker, color="dimgrey", markersize=size, label=label)


def _draw_run(axes: Axes, name: str, standings: Sequence[Standing], colour: str) -> None:
    figures = [standing.result.micro for standing in standings]
    scores, low, high = (
        100
        * np.array([(one.accuracy or 0.0, one.low or 0.0, one.high or 0.0) for one in figures]).T
    )
    steps, anchor = [float(standing.step or 0) for standing in standings], axes.transData
    if standings[0].step is None:
        steps, anchor = [0.97], axes.get_yaxis_transform()
        axes.axhline(scores[0], color=colour, linestyle="--", linewidth=1.2, label=name)
    else:
        axes.plot(steps, scores, color=colour, linewidth=1.5, label=name)
        axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
    for step, score, standing in zip(steps, scores, standings, strict=True):
        marker, size, _ = MARKS[standing.words]
        axes.plot(step, score, marker, color=colour, markersize=size, transform=anchor)
