"""The figures of a page: training curves, the score by step, and what lies behind a score.

Behind a score stand accuracy by category, calibration, margins, votes, and the pull of the longer response. A `Chart` is
inline SVG: colours are classes (`s0` … `s5`, `right`, `wrong`) that the page's style sheet fills in, so that one drawing serves
the light and the dark scheme, and every text is escaped.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

from eval.reporting.content import Content
from eval.results.result import Accuracy, Result, Votes
from eval.results.statistics import Bin, Histogram, LengthBias, wilson

WIDTH, HEIGHT = 360, 240
LEFT, RIGHT, TOP, BOTTOM = 52, 20, 12, 44
STYLES = ("s0", "s1", "s2", "s3", "s4", "s5")
"""Distinct lines; the style sheet gives each a colour and a dash pattern of its own."""

Point = tuple[float, float]


def percent(value: float) -> str:
    """Return a fraction of 1 as a whole percentage where it is one, else with a decimal."""
    return f"{100 * value:.0f} %" if abs(100 * value - round(100 * value)) < 1e-6 else f"{100 * value:.1f} %"


def plain(value: float) -> str:
    """Return a number with as few characters as it takes: 12,000; 0.05; 2e-5."""
    if value and abs(value) < 1e-3:
        return f"{value:.3g}".replace("e-0", "e-")
    return f"{value:,.4f}".rstrip("0").rstrip(".") if abs(value) < 1000 else f"{value:,.0f}"


@dataclass(frozen=True, slots=True)
class Axis:
    """What a direction of a chart shows: by default a fraction of 1."""

    low: float = 0.0
    high: float = 1.0
    label: str = ""
    form: Callable[[float], str] = percent
    """How a number on it is written."""
    at: Sequence[float] | None = None
    """Where numbers stand; round ones are chosen for None."""

    @classmethod
    def around(
        cls, values: Collection[float], label: str, form: Callable[[float], str], at: Sequence[float] | None = None
    ) -> Axis:
        """Return an axis with a margin around `values`, at least one; one of percentages stays inside 0 and 100 %."""
        low, high = min(values), max(values)
        margin = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
        least, most = (0.0, 1.0) if form is percent else (-math.inf, math.inf)
        return cls(max(low - margin, least), min(high + margin, most), label, form, at)

    def ticks(self) -> Sequence[float]:
        """Return where numbers stand on the axis."""
        if self.at is not None:
            return self.at
        found = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(self.low, self.high)
        return [float(value) for value in found if self.low <= value <= self.high]


@dataclass(slots=True)
class Chart:
    """A plot with what stands around it on the page; what is drawn later lies on top."""

    title: str
    x: Axis
    y: Axis
    caption: str = ""
    height: int = HEIGHT
    legend: list[tuple[str, str]] = field(default_factory=list)
    """Style and name of lines."""
    marks: list[Markup] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    """What the marks say to a pointer that rests on them: also the text alternative."""

    def __post_init__(self) -> None:
        """Draw the axes."""
        for value in self.y.ticks():
            self.path([(self.x.low, value), (self.x.high, value)], "grid")
            self.text(self.x.low, value, self.y.form(value), "end", -5, 4)
        for value in self.x.ticks():
            self.text(value, self.y.low, self.x.form(value), "middle", 0, 17)
        self.path([(self.x.low, self.y.low), (self.x.high, self.y.low)], "axis")
        self.text((self.x.low + self.x.high) / 2, self.y.low, self.x.label, "middle", 0, 36)

    def path(self, points: Iterable[Point], style: str, fact: str = "") -> None:
        """Add a line through `points`, or the area inside of them."""
        places = "L".join("{:.1f},{:.1f}".format(*self._place(x, y)) for x, y in points)
        self.marks.append(Markup('<path class="{}" d="M{}"><title>{}</title></path>').format(style, places, fact))
        self.facts.append(fact)

    def dot(self, x: float, score: Sequence[float], style: str, fact: str) -> None:
        """Add a point, with a whisker over its interval if `score` has one."""
        y, *interval = score
        if interval:
            self.path([(x, bound) for bound in interval], f"whisker {style}")
        circle = Markup('<circle class="dot {}" cx="{:.1f}" cy="{:.1f}" r="3.5"><title>{}</title></circle>')
        self.marks.append(circle.format(style, *self._place(x, y), fact))
        self.facts.append(fact)

    def level(self, y: float, words: str) -> None:
        """Add a dashed horizontal line with words on it."""
        self.path([(self.x.low, y), (self.x.high, y)], "level")
        self.text(self.x.high, y, words, "small end", -2, -3)

    def text(self, x: float, y: float, words: str, style: str, right: float = 0, down: float = 0) -> None:
        """Add words, shifted by pixels from a point."""
        x, y = self._place(x, y)
        self.marks.append(Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(style, x + right, y + down, words))

    def svg(self) -> Markup:
        """Return the drawing."""
        description = f"{self.title}. {self.caption} {'; '.join(filter(None, self.facts))}"
        frame = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>')
        return frame.format(WIDTH, self.height, description, Markup("").join(self.marks))

    def _place(self, x: float, y: float) -> Point:
        across = (x - self.x.low) / (self.x.high - self.x.low)
        up = (y - self.y.low) / (self.y.high - self.y.low)
        return LEFT + across * (WIDTH - LEFT - RIGHT), self.height - BOTTOM - up * (self.height - TOP - BOTTOM)


PANELS = {
    "Loss": "loss policy_loss score_loss critique_loss",
    "Perplexity": "perplexity",
    "Accuracy on training pairs": "accuracy ties",
    "Margin": "margin",
    "Reward": "reward reward_mean rewards/*",
    "Spread of the reward": "reward_std reward_spread",
    "Length in tokens": "completions/mean_* completions/min_* completions/max_*",
    "KL": "kl",
    "Entropy": "entropy",
    "Clipped": "clip_ratio/* clipped/* completions/clipped_ratio",
    "Filtered": "filtered/* frac_reward_zero_std",
    "Gradient norm": "grad_norm",
    "Learning rate": "learning_rate/* learning_rate",
    "Records per second": "records_per_second",
    "Tokens per second": "tokens_per_second",
    "Records dropped": "dropped/*",
}
"""Title of a panel to the patterns of its series' names. A series that fits none of them gets a panel of its own."""
FRACTIONS = ("Accuracy on training pairs", "Clipped", "Filtered")
"""Panels whose numbers are fractions of 1."""
LEFT_OUT = "epoch data_epoch step num_* total_flos eval_* train_*"
"""Counters, and figures of evaluations and of the whole run: these are no curves."""
POINTS = 200
"""Points of a line; a longer series is drawn as the means of as many stretches, with the range of each behind it."""
EVALUATED = re.compile(r"eval_([^/]+)/accuracy")
COIN = 0.5
TICKS = 6
"""Steps up to which every one of them is written at the axis."""
ROW, LABEL = 36, 36
"""Height in pixels of a category, and the characters that its name may have."""

Series = dict[str, list[Point]]
Log = Sequence[Mapping[str, Any]]
Score = tuple[float, ...]
"""An accuracy and the two ends of its 95 % interval, which are missing where the number of rows is not known."""
Scores = dict[int, Score]
"""By step."""


def series(log: Log) -> Series:
    """Return the (step, value) points of every series of a Trainer's `log_history`; of a repeated step, the last."""
    found: dict[str, dict[float, float]] = defaultdict(dict)
    for line in log:
        for name, value in line.items():
            if isinstance(value, int | float) and not any(fnmatch.fnmatchcase(name, pattern) for pattern in LEFT_OUT.split()):
                found[name][line["step"]] = value
    return {name: list(points.items()) for name, points in found.items()}


def curves(log: Log) -> list[Chart]:
    """Return a chart for each panel of `log`, in the order of PANELS, then one for each other series."""
    rest, charts = series(log), []
    for title, patterns in PANELS.items():
        inside = {name: rest.pop(name) for pattern in patterns.split() for name in fnmatch.filter(rest, pattern)}
        if len(inside) > 1:
            inside.pop("learning_rate", None)  # Trainer's own: the first group's, as it was before the step
        if inside:
            charts.append(_panel(title, inside))
    return charts + [_panel(name, {name: points}) for name, points in rest.items()]


def _panel(title: str, inside: Series) -> Chart:
    """Return one chart of several series; equal ones are drawn once, and values that are not finite are counted."""
    shared = len({name.rpartition("/")[0] for name in inside}) == 1 < len(inside)
    lines: dict[tuple[Point, ...], list[str]] = defaultdict(list)
    for name, points in inside.items():
        line = tuple(point for point in points if math.isfinite(point[1]))
        lines[line].append(name.rpartition("/")[2] if shared else name)
    steps, values = zip(*(point for points in inside.values() for point in points), strict=True)
    finite = [value for value in values if math.isfinite(value)]
    form = percent if title in FRACTIONS else plain
    caption = f"Values that are not finite: {len(values) - len(finite)}." if len(finite) < len(values) else ""
    chart = Chart(title, Axis.around(steps, "step", plain), Axis.around(finite or [0.0], "", form), caption)
    for style, line in zip(cycle(STYLES), filter(None, lines)):
        parts = np.array_split(line, min(POINTS, len(line)))
        if len(line) > POINTS:
            low, high = ([(part[:, 0].mean(), edge(part[:, 1])) for part in parts] for edge in (np.min, np.max))
            chart.path([*low, *reversed(high)], f"band {style}")
        chart.path([part.mean(axis=0) for part in parts], f"line {style}")
        name = ", ".join(lines[line])
        chart.dot(line[-1][0], line[-1][1:], style, f"{name} from {form(line[0][1])} to {form(line[-1][1])}")
        chart.legend.append((style, name))
    return chart


def measured(content: Content) -> dict[str, dict[str, Scores]]:
    """Return the accuracies by benchmark, run and step.

    A checkpoint that was rotated away took its results along; its accuracy is still in the log, and its interval follows
    from the number of rows, which is that of the benchmark's other results.
    """
    found: dict[str, dict[str, Scores]] = defaultdict(lambda: defaultdict(dict))
    rows = {name: outcome.result.micro.n for checkpoint in content.checkpoints for name, outcome in checkpoint.outcomes.items()}
    for line in content.log:
        for match in filter(None, map(EVALUATED.fullmatch, line)):
            accuracy, n = line[match[0]], rows.get(match[1])
            interval = wilson(round(2 * accuracy * n) / 2, n) if n else ()  # credits are whole or half points
            found[match[1]][content.title][int(line["step"])] = accuracy, *interval
    for checkpoint in content.checkpoints:
        for name, outcome in checkpoint.outcomes.items():
            if checkpoint.step is not None and outcome.result.micro.n:
                found[name][checkpoint.run][checkpoint.step] = _known(outcome.result.micro)
    return found


def steps(content: Content) -> list[Chart]:
    """Return the accuracies by step of each benchmark that was measured at more than one step, a line for each run."""
    charts, shown = [], content.shown.outcomes
    for name, runs in measured(content).items():
        if max(map(len, runs.values())) < 2:
            continue
        blind, level = best_baseline(shown[name].result) if name in shown else ("", COIN)
        heights = [height for scores in runs.values() for score in scores.values() for height in score]
        at = sorted({step for scores in runs.values() for step in scores})
        x = Axis.around(at, "step", plain, at if len(at) <= TICKS else None)
        chart = Chart(name, x, Axis.around([*heights, COIN, level], "", percent), "Whiskers: 95 % intervals.")
        for style, (run, scores) in zip(cycle(STYLES), runs.items()):
            chart.path([(step, score[0]) for step, score in sorted(scores.items())], f"line {style}")
            for step, score in sorted(scores.items()):
                chart.dot(step, score, style, f"{run}, step {step}: {_words(score)}")
            chart.legend.append((style, run))
        chart.level(COIN, "" if blind and abs(level - COIN) < 0.03 else "coin")
        chart.level(level, blind)
        charts.append(chart)
    return charts


def _words(score: Score, rows: str = "") -> str:
    accuracy, *interval = score
    return f"{accuracy:.1%}{rows}" + (f" [{interval[0]:.1%}, {interval[1]:.1%}]" if interval else "")


def best_baseline(result: Result) -> tuple[str, float]:
    """Return name and accuracy (half a point for a tie) of the best judge that sees no content; ("", COIN) if there is none."""
    scores = {name: found.micro.half for name, found in result.baselines.items() if found.micro.half is not None}
    return max(scores.items(), key=lambda item: item[1], default=("", COIN))


def diagnosis(result: Result) -> list[Chart]:
    """Return the figures of one result; those that its judge gives no numbers for are left out."""
    charts = [_categories(result)]
    if found := result.calibration:
        caption = f"ECE {found.ece:.3f}. On the dashed line, confidence is what it claims."
        chart = Chart("Calibration", Axis(0.48, 1.02, "confidence: sigmoid(|margin|)"), Axis(), caption)
        chart.path([(0.5, 0.5), (1.0, 1.0)], "level")
        charts.append(_dots(chart, [(bin.mean, bin) for bin in found.bins]))
    if result.margins:
        charts.append(_margins(result.margins))
    if result.votes:
        charts.append(_votes(result.votes))
    return [*charts, _length(result.length)]


def _dots(chart: Chart, scores: Iterable[tuple[float | None, Accuracy | Bin]]) -> Chart:
    """Draw accuracies with intervals at their places on the x axis; those of no rows are left out."""
    for x, score in scores:
        if x is not None and score.n:
            known = _known(score)
            chart.dot(x, known, "s0", f"{plain(x)}: {_words(known, f' of {score.n}')}")
    return chart


def _known(score: Accuracy | Bin) -> Score:
    """Return accuracy and interval of a score that has rows."""
    return score.accuracy or 0.0, score.low or 0.0, score.high or 0.0


def _categories(result: Result) -> Chart:
    """Return a bar for each category, with its interval and the best judge that sees no content."""
    groups = {name: score for name, score in result.groups.items() if score.n}
    empty = len(result.groups) - len(groups)
    caption = f"{empty} categories without rows are left out." if empty else ""
    height = TOP + BOTTOM + ROW * len(groups)
    chart = Chart("Accuracy by category", Axis(label="accuracy"), Axis(0.0, len(groups) or 1.0, at=()), caption, height)
    blind, accuracy = best_baseline(result)
    chart.legend += [("s0", "accuracy, 95 % interval"), ("level", "coin")]
    chart.legend += [("s1", f"best blind baseline: {blind} ({accuracy:.1%})")] if blind else []
    for low, (name, score) in enumerate(reversed(groups.items())):
        known = _known(score)
        share, *interval = known
        bar = [(0.0, low), (share, low), (share, low + 0.5), (0.0, low + 0.5)]
        chart.path(bar, "band s0", f"{name}: {_words(known, f' of {score.n}')}")
        chart.path([(bound, low + 0.25) for bound in interval], "whisker s0")
        if blind:
            half = result.baselines[blind].groups[name].half or 0.0
            chart.path([(half, low), (half, low + 0.5)], "line s1")
        chart.text(0.0, low + 0.5, f"{percent(round(share, 3))} {name}", "", 2, -4)
    chart.path([(COIN, 0.0), (COIN, chart.y.high)], "level")
    return chart


def _margins(found: Histogram) -> Chart:
    counts, middle = found.counts, len(found.counts) // 2
    x = Axis(found.edges[0], found.edges[-1], "margin: score of the better − of the other", plain)
    caption = (
        f"{sum(counts[:middle])} rows left of zero, {sum(counts[middle:])} at or right of it. Left of zero the judge is wrong."
    )
    chart = Chart("Margins", x, Axis(0.0, 1.05 * max(counts), "", plain), caption)
    for low, high, count in zip(found.edges[:-1], found.edges[1:], counts, strict=True):
        bar = [(low, 0.0), (low, count), (high, count), (high, 0.0)]
        chart.path(bar, "bar wrong" if low + high < 0 else "bar right", f"{plain(low)} to {plain(high)}: {count} rows")
    chart.path([(0.0, 0.0), (0.0, chart.y.high)], "level")
    return chart


def _length(bias: LengthBias) -> Chart:
    caption = "The lengths do not vary: no slope."
    if None not in (slope := (bias.slope, bias.low, bias.high)):
        caption = "{:+.1f} points for each doubling [{:+.1f}, {:+.1f}].".format(*(100 * (value or 0.0) for value in slope))
    if bias.prefers_longer is not None and bias.longer_is_better is not None:
        caption += (
            f" The judge prefers the longer response in {bias.prefers_longer:.1%}; it is better in {bias.longer_is_better:.1%}."
        )
    x = Axis.around([bin.mean or 0.0 for bin in bias.bins if bin.n] or [0.0], "log2 of length: better / other response", plain)
    chart = _dots(Chart("Accuracy by difference of length", x, Axis(), caption), [(bin.mean, bin) for bin in bias.bins])
    chart.level(COIN, "coin")
    return chart


def _votes(votes: Votes) -> Chart:
    rounds = votes.accuracy_at
    shares = {
        "agreement": votes.agreement,
        "names the response shown first in": votes.names_first,
        "same verdict in both orders": votes.order and votes.order.rate,
    }
    facts = [f"{name} {share:.1%}" for name, share in shares.items() if share is not None]
    caption = "; ".join([f"{votes.votes} votes, {votes.unparsable} unreadable", *facts]) + "."
    x = Axis.around(rounds, "rounds of votes", plain, list(rounds))
    chart = _dots(Chart("Votes", x, Axis(), caption), rounds.items())
    chart.level(COIN, "coin")
    return chart
