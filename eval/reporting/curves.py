"""Training curves: every series of numbers that a Trainer logged, sorted into panels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from eval.reporting.svg import SERIES, Axis, Chart, Point, percent, plain

PANELS: dict[str, tuple[str, ...]] = {
    "Loss": ("loss", "policy_loss", "score_loss", "critique_loss"),
    "Perplexity": ("perplexity",),
    "Accuracy on training pairs": ("accuracy", "ties"),
    "Margin": ("margin",),
    "Reward": ("reward", "reward_mean", "rewards/"),
    "Spread of the reward": ("reward_std", "reward_spread"),
    "Length in tokens": ("completions/mean_", "completions/min_", "completions/max_"),
    "KL": ("kl",),
    "Entropy": ("entropy",),
    "Clipped": ("clip_ratio/", "clipped/", "completions/clipped_ratio"),
    "Filtered": ("filtered/", "frac_reward_zero_std"),
    "Gradient norm": ("grad_norm",),
    "Learning rate": ("learning_rate/", "learning_rate"),
    "Records per second": ("records_per_second",),
    "Tokens per second": ("tokens_per_second",),
    "Records dropped": ("dropped/",),
}
"""Title of a panel to the names of its series; a name that ends in / or _ stands for all that begin with it. A series
that is named nowhere gets a panel of its own."""
SHARES = ("Accuracy on training pairs", "Clipped", "Filtered")
"""Panels whose numbers are fractions of 1."""
LEFT_OUT = ("epoch", "data_epoch", "step", "num_tokens", "total_flos")
"""What merely counts along; so do the figures of evaluations (`eval_…`) and of the whole run (`train_…`)."""
POINTS = 200
"""Points of a line; a longer series is drawn as the mean of as many stretches, with its range behind it."""

Series = dict[str, list[Point]]
Log = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Panel:
    """A picture with what stands around it."""

    title: str
    svg: Markup
    caption: str = ""
    legend: tuple[tuple[str, str], ...] = ()
    """Style and name of each line, where there are several."""


def series(log: Log) -> Series:
    """Return the (step, value) points of every series of a Trainer's `log_history`; of a repeated step, the last."""
    found: dict[str, dict[float, float]] = {}
    for line in log:
        for name, value in line.items():
            if name not in LEFT_OUT and not name.startswith(("eval_", "train_")) and isinstance(value, int | float):
                found.setdefault(name, {})[float(line["step"])] = float(value)
    return {name: sorted(points.items()) for name, points in found.items()}


def curves(log: Log) -> list[Panel]:
    """Return a figure for each panel of `log`, in the order of PANELS, then one for each other series."""
    rest = series(log)
    figures = []
    for title, names in PANELS.items():
        inside = {name: rest.pop(name) for wanted in names for name in list(rest) if _meant(wanted, name)}
        if len(inside) > 1:
            inside.pop("learning_rate", None)  # Trainer's own: the first group's, as it was before the step
        if inside:
            figures.append(panel(title, inside))
    return figures + [panel(name, {name: points}) for name, points in rest.items()]


def panel(title: str, inside: Series) -> Panel:
    """Return one chart of several series; equal ones are drawn once, and numbers that are not finite are counted."""
    finite = {name: [point for point in points if math.isfinite(point[1])] for name, points in inside.items()}
    broken = sum(map(len, inside.values())) - sum(map(len, finite.values()))
    lines = _merged({name: points for name, points in finite.items() if points})
    caption = f"Values that are not finite: {broken}." if broken else ""
    if not lines:
        return Panel(title, Markup(""), caption)
    share = title in SHARES
    x = Axis.around([step for points in lines.values() for step, _ in points], "step", plain)
    y = Axis.around(
        [value for points in lines.values() for _, value in points], "", percent if share else plain, (0, 1) if share else None
    )
    chart = Chart(x, y)
    styles = {name: f"s{number % SERIES}" for number, name in enumerate(lines)}
    for name, points in lines.items():
        _draw(chart, points, styles[name])
    said = "; ".join(f"{name} from {y.form(points[0][1])} to {y.form(points[-1][1])}" for name, points in lines.items())
    legend = tuple((style, name) for name, style in styles.items()) if len(inside) > 1 else ()
    return Panel(title, chart.svg(f"{title} by step: {said}."), caption, legend)


def _meant(wanted: str, name: str) -> bool:
    return name.startswith(wanted) if wanted.endswith(("/", "_")) else name == wanted


def _merged(lines: Series) -> Series:
    """Return the series, those of equal points under one name; what all names share up to a slash is left out."""
    shared = len({name.rpartition("/")[0] for name in lines}) == 1 < len(lines)
    names: dict[tuple[Point, ...], list[str]] = {}
    for name, points in lines.items():
        names.setdefault(tuple(points), []).append(name.rpartition("/")[2] if shared else name)
    return {", ".join(same): list(points) for points, same in names.items()}


def _draw(chart: Chart, points: list[Point], style: str) -> None:
    if len(points) == 1:
        chart.point(*points[0], style, f"step {plain(points[0][0])}: {chart.y.form(points[0][1])}")
        return
    if len(points) > POINTS:
        stretches = [stretch for stretch in np.array_split(np.array(points), POINTS) if len(stretch)]
        middles = [float(stretch[:, 0].mean()) for stretch in stretches]
        low, high = (list(zip(middles, [float(end(s[:, 1])) for s in stretches], strict=True)) for end in (np.min, np.max))
        chart.band(low, high, style)
        points = list(zip(middles, [float(stretch[:, 1].mean()) for stretch in stretches], strict=True))
    chart.line(points, style)
