"""A sweep as CSV, JSON and Markdown.

A sweep in wandb: one run with the picture, the table and a curve for each benchmark and run folder.

The curve of a sweep: score against step with intervals, one panel a benchmark and one line a run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import wandb

from eval.results.intervals import Difference
from eval.results.store import BenchmarkStanding, Summary
from eval.results.tables import percent, shown, write_rows

_INTRODUCTION = """Protocol: {protocol}. Accuracies in percent with 95 % intervals (Wilson); distances from the best by a paired \
bootstrap over rows. Each interval stands for itself: among many checkpoints one is the best by luck alone."""
_HEAD = (
    "| judge | step | accuracy [95 %] | macro | n | ties | ties half | unparsable | behind the best [95 %] |",
    "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
)


def rows(summary: Summary) -> list[dict[str, Any]]:
    """Return one flat row for each result and each broken judge; accuracies are fractions of 1."""
    found = [_row(standing) for standings in summary.standings.values() for standing in standings]
    return found + [{"judge": judge, "standing": "broken", "problem": problem} for judge, problem in summary.broken.items()]


def _row(standing: BenchmarkStanding) -> dict[str, Any]:
    entry, figure = standing.entry, standing.entry.result.micro
    behind = standing.behind or Difference(0.0, 0.0, 0.0)
    return {
        "judge": str(entry.judge),
        "run": entry.run,
        "step": entry.step,
        "benchmark": entry.benchmark,
        **figure.model_dump(),
        "macro": entry.result.macro,
        "behind": behind.mean,
        "behind_low": behind.low,
        "behind_high": behind.high,
        "standing": standing.words,
        "fingerprint": entry.fingerprint,
        "problem": "",
    }


def write_csv(summary: Summary, path: Path) -> None:
    """Write one line for each result and each broken judge."""
    write_rows(rows(summary), path)


def write_json(summary: Summary, path: Path) -> None:
    """Write the rows, with the figures of the groups and the folder of each result (from the file's own folder)."""
    groups = {
        (standing.entry.judge, name): {group: figure.model_dump() for group, figure in standing.entry.result.groups.items()}
        for name, standings in summary.standings.items()
        for standing in standings
    }
    found = [
        {**row, "groups": groups[Path(row["judge"]), row["benchmark"]], "folder": f"results/{row['fingerprint']}"}
        for row in rows(summary)
        if row["standing"] != "broken"
    ]
    best = {row["benchmark"]: row["judge"] for row in found if row["standing"] == "best"}
    whole = {"protocol": summary.label, "best": best, "results": found, "broken": summary.broken}
    path.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def markdown(summary: Summary) -> str:
    """Return a table for each benchmark, and what could not be evaluated."""
    parts = [_INTRODUCTION.format(protocol=summary.label)]
    for name, standings in summary.standings.items():
        notes = dict.fromkeys(f"- {note}" for standing in standings for note in standing.entry.result.notes)
        parts += [f"## {name}", best_of(standings), "\n".join([*_HEAD, *map(_line, standings)]), "\n".join(notes)]
    if summary.broken:
        problems = [f"- {judge}: {problem}" for judge, problem in summary.broken.items()]
        parts += ["## Not evaluated", "\n".join(problems)]
    return "\n\n".join(filter(None, parts)) + "\n"


def best_of(standings: Sequence[BenchmarkStanding]) -> str:
    """Name the best of a benchmark and what the rows cannot tell from it."""
    best = next(standing.entry for standing in standings if standing.behind is None)
    alike = [str(standing.entry.judge) for standing in standings if standing.words == "not distinguishable"]
    return f"Best: {best.judge}, {percent(best.result.micro)}. Not distinguishable from it: {', '.join(alike) or 'none'}."


def _line(standing: BenchmarkStanding) -> str:
    entry, figure = standing.entry, standing.entry.result.micro
    macro = "–" if entry.result.macro is None else f"{100 * entry.result.macro:.1f}"
    step = "" if entry.step is None else str(entry.step)
    cells = [
        str(entry.judge),
        step,
        percent(figure),
        macro,
        str(figure.n),
        str(figure.ties),
        shown(figure),
        str(figure.unparsable),
        behind(standing),
    ]
    return f"| {' | '.join(cells)} |"


def behind(standing: BenchmarkStanding) -> str:
    """Return how far the entry is behind the best, in points."""
    if standing.behind is None:
        return "**best**"
    mean, low, high = (100 * value for value in (standing.behind.mean, standing.behind.low, standing.behind.high))
    words = "" if standing.behind.distinguishable else ", not distinguishable"
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]{words}"


def log(summary: Summary, project: str, folder: Path) -> None:
    """Log the summary to `project`; WANDB_MODE decides where to, else a login, and without one it stays in `folder`.

    Nobody is asked for a key.
    """
    decided = "WANDB_MODE" in os.environ or wandb.login(prompt=False, verify=False)
    mode: Literal["offline"] | None = None if decided else "offline"
    with wandb.init(project=project, job_type="sweep", name=folder.name, dir=folder, mode=mode) as run:
        run.define_metric("*", step_metric="step")
        for line in curves(summary):
            run.log(line)
        found = rows(summary)
        names = list(dict.fromkeys(name for row in found for name in row))
        cells = [[row.get(name) for name in names] for row in found]
        run.log({"results": wandb.Table(columns=names, data=cells), "curve": wandb.Image(str(folder / "sweep.png"))})


def curves(summary: Summary) -> list[dict[str, float]]:
    """Return one line for each result of a checkpoint with a step: `benchmark/run/accuracy`, `/low`, `/high` and `step`."""
    found = []
    for name, standings in summary.standings.items():
        for entry in (standing.entry for standing in standings):
            figure = entry.result.micro
            values = {"accuracy": figure.accuracy, "low": figure.low, "high": figure.high}
            if entry.step is not None:
                shown = {f"{name}/{Path(entry.run).name}/{key}": value for key, value in values.items() if value is not None}
                found.append({"step": float(entry.step), **shown})
    return found


COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito's palette, which colour-blind readers can tell apart."""
MARKS = {"best": ("*", 15), "not distinguishable": ("o", 7), "worse": (".", 6)}
"""Marker and size by standing."""


def draw(summary: Summary, path: Path) -> None:
    """Write the picture; a judge without a step is a horizontal line, the best blind baseline a dotted one."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = len(summary.standings)
    figure = Figure(figsize=(max(6.4, 5.4 * panels), 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    for place, (name, standings) in enumerate(summary.standings.items(), start=1):
        axes = figure.add_subplot(1, panels, place)
        _panel(axes, name, standings)
    for words, (mark, size) in MARKS.items():
        label = {"not distinguishable": "not distinguishable from it", "worse": "worse"}.get(words, words)
        axes.plot([], [], mark, color="dimgrey", markersize=size, label=label)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2 if panels == 1 else 4, fontsize=8)
    figure.savefig(path, dpi=130)


def _panel(axes: Any, name: str, standings: Sequence[BenchmarkStanding]) -> None:
    runs = list(dict.fromkeys(standing.entry.run for standing in standings))
    for number, run in enumerate(runs):
        own = [standing for standing in standings if standing.entry.run == run]
        _run(axes, run, own, COLOURS[number % len(COLOURS)])
    blind, score = _blind(standings[0])
    axes.axhline(score, color="grey", linestyle=":", linewidth=1.2)
    right = {"xy": (0.99, score), "xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right"}
    axes.annotate(f"blind: {blind}", **right, xytext=(0, 3), fontsize=8, color="grey")
    axes.set(title=f"{name} ({standings[0].entry.result.micro.n} rows)", xlabel="optimizer step", ylabel="accuracy [95 %], %")
    axes.grid(alpha=0.25)


def _run(axes: Any, run: str, standings: Sequence[BenchmarkStanding], colour: str) -> None:
    stepped = sorted((s for s in standings if s.entry.step is not None), key=lambda s: s.entry.step or 0)
    if not stepped:
        mark, size = MARKS[standings[0].words]
        score = _percents(standings[0])[0]
        axes.axhline(score, color=colour, linestyle="--", linewidth=1.2, label=_short(run))
        axes.plot([0.97], [score], mark, color=colour, markersize=size, transform=axes.get_yaxis_transform())
        return
    steps = [standing.entry.step for standing in stepped]
    scores, low, high = zip(*(_percents(standing) for standing in stepped), strict=True)
    axes.plot(steps, scores, color=colour, linewidth=1.5, label=_short(run))
    axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
    for standing, step, score in zip(stepped, steps, scores, strict=True):
        mark, size = MARKS[standing.words]
        axes.plot([step], [score], mark, color=colour, markersize=size)


def _percents(standing: BenchmarkStanding) -> tuple[float, float, float]:
    figure = standing.entry.result.micro
    return 100 * (figure.accuracy or 0.0), 100 * (figure.low or 0.0), 100 * (figure.high or 0.0)


def _blind(standing: BenchmarkStanding) -> tuple[str, float]:
    """Return the best judge that sees no content, ties half."""
    scores = {name: 100 * (found.micro.half or 0.0) for name, found in standing.entry.result.baselines.items()}
    best = max(scores, key=lambda name: scores[name])
    return best, scores[best]


def _short(run: str) -> str:
    return run if len(run) <= 40 else f"…{run[-39:]}"
