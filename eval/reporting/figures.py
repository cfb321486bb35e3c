"""The figures of a result: calibration, margins, votes, and the pull of the longer response.

Accuracy by category: a radar, with intervals and beside the best judge that sees no content.

The score against the step: every checkpoint that was measured, also those that are no longer on disk.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from eval.reporting.content import Content
from eval.reporting.curves import Panel
from eval.reporting.svg import SERIES, WIDTH, Axis, Chart, drawing, percent, plain
from eval.results.diagnosis import Bin
from eval.results.intervals import wilson
from eval.results.result import Accuracy as Score
from eval.results.result import Result


def diagnosis(result: Result) -> list[Panel]:
    """Return the figures of one result; those that its judge gives no numbers for are left out."""
    found = [categories(result)]
    if result.calibration is not None:
        found.append(_calibration(result))
    if result.margins is not None:
        found.append(_margins(result))
    if result.votes is not None:
        found.append(_votes(result))
    return [*found, _length(result)]


def _calibration(result: Result) -> Panel:
    assert result.calibration is not None
    chart = Chart(Axis(0.48, 1.02, "confidence: sigmoid(|margin|)", percent), shares())
    chart.line([(0.5, 0.5), (1.0, 1.0)], "level")
    _binned(chart, result.calibration.bins)
    ece = result.calibration.ece
    said = f"Accuracy by confidence; the expected calibration error is {ece:.3f}."
    return Panel("Calibration", chart.svg(said), f"ECE {ece:.3f}. On the dashed line, confidence is what it claims.")


def _margins(result: Result) -> Panel:
    assert result.margins is not None
    edges, counts = result.margins.edges, result.margins.counts
    chart = Chart(
        Axis(edges[0], edges[-1], "margin: score of the better − of the other", plain),
        Axis(0, 1.05 * max(counts), "", plain),
    )
    for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True):
        chart.bar(low, high, count, "wrong" if low + high < 0 else "right", f"{plain(low)} to {plain(high)}: {count} rows")
    chart.upright(0.0)
    middle = len(counts) // 2
    said = f"{sum(counts[:middle])} rows left of zero, {sum(counts[middle:])} at or right of it"
    return Panel("Margins", chart.svg(f"Histogram of margins: {said}."), f"{said}. Left of zero the judge is wrong.")


def _length(result: Result) -> Panel:
    bias = result.length
    filled = [bin.mean for bin in bias.bins if bin.mean is not None]
    chart = Chart(Axis.around(filled or [0.0], "log2 of length: better / other response", plain), shares())
    chart.level(COIN, "coin")
    _binned(chart, bias.bins)
    caption = "The lengths do not vary: no slope."
    if bias.slope is not None and bias.low is not None and bias.high is not None:
        caption = f"{100 * bias.slope:+.1f} points for each doubling [{100 * bias.low:+.1f}, {100 * bias.high:+.1f}]."
    if bias.prefers_longer is not None and bias.longer_is_better is not None:
        caption += (
            f" The judge prefers the longer response in {bias.prefers_longer:.1%}; it is better in {bias.longer_is_better:.1%}."
        )
    return Panel("Accuracy by difference of length", chart.svg(f"Accuracy by difference of length. {caption}"), caption)


def _votes(result: Result) -> Panel:
    assert result.votes is not None
    votes, rounds = result.votes, result.votes.accuracy_at
    chart = Chart(Axis.around(rounds, "rounds of votes", plain), shares(), list(rounds))
    chart.level(COIN, "coin")
    for number, score in rounds.items():
        chart.point(number, score.accuracy or 0.0, "s0", f"{number}: {spoken(score)}", (score.low or 0.0, score.high or 0.0))
    facts = [f"{votes.votes} votes, {votes.unparsable} unreadable"]
    facts += [f"agreement {votes.agreement:.1%}"] if votes.agreement is not None else []
    facts += [f"names the response shown first in {votes.names_first:.1%}"] if votes.names_first is not None else []
    facts += [f"same verdict in both orders {votes.order.rate:.1%}"] if votes.order and votes.order.rate is not None else []
    caption = "; ".join(facts) + "."
    return Panel("Votes", chart.svg(f"Accuracy by rounds of votes. {caption}"), caption)


def _binned(chart: Chart, bins: Sequence[Bin]) -> None:
    filled = [(bin.n, bin.mean, bin.accuracy, bin.low, bin.high) for bin in bins]
    for n, mean, accuracy, low, high in filled:
        if mean is not None and accuracy is not None and low is not None and high is not None:
            title = f"{plain(mean)}: {accuracy:.1%} of {n} rows [{low:.1%}, {high:.1%}]"
            chart.point(mean, accuracy, "s0", title, (low, high))


COIN = 0.5
RADIUS, LABEL_RADIUS = 82, 94
CENTRE = (WIDTH / 2, 122)
LABEL_CHARACTERS = {"middle": 24, "start": 12, "end": 12}
"""What fits above or below the radar, and beside it."""


def categories(result: Result) -> Panel:
    """Return a radar of the groups' accuracies, or points in a row where there are fewer than three."""
    groups = {name: group for name, group in result.groups.items() if group.accuracy is not None}
    said = "; ".join(f"{name} {spoken(group)}" for name, group in groups.items())
    empty = len(result.groups) - len(groups)
    caption = f" {empty} categories without rows are left out." if empty else ""
    if len(groups) < 3:
        return Panel("Accuracy by category", _row(groups).svg(f"Accuracy by category: {said}."), caption)
    name, blind = best_baseline(result)
    others = {group: result.baselines[name].groups[group].half or 0.0 for group in groups} if name else {}
    legend = (("s0", "accuracy, 95 % interval"), *([("s1", f"best blind baseline: {name}")] if name else []), ("level", "coin"))
    svg = drawing(_radar(groups, others), f"Radar of accuracy by category: {said}. Best blind baseline: {name} ({blind:.1%}).")
    return Panel("Accuracy by category", svg, f"Rings at 25, 50, 75 and 100 %.{caption}", legend)


def best_baseline(result: Result) -> tuple[str, float]:
    """Return name and accuracy (half a point for a tie) of the best judge that sees no content; ("", 0) if none was computed."""
    scores = {name: found.micro.half for name, found in result.baselines.items() if found.micro.half is not None}
    name = max(scores, key=lambda name: scores[name], default="")
    return name, scores.get(name, 0.0)


def _radar(groups: Mapping[str, Score], others: Mapping[str, float]) -> Markup:
    rings = [_outline([share] * len(groups), "level" if share == COIN else "grid") for share in (0.25, COIN, 0.75, 1.0)]
    low, high = ([score.low or 0.0 for score in groups.values()], [score.high or 0.0 for score in groups.values()])
    between = Markup('<path class="band s0" fill-rule="evenodd" d="{}{}"/>').format(_polygon(high), _polygon(low))
    parts = [*rings, between, *([_outline(list(others.values()), "line s1")] if others else [])]
    parts.append(_outline([score.accuracy or 0.0 for score in groups.values()], "line s0"))
    for place, (name, score) in enumerate(groups.items()):
        x, y = _spoke(place, len(groups), score.accuracy or 0.0)
        dot = Markup('<circle class="dot s0" cx="{:.1f}" cy="{:.1f}" r="3.5"><title>{}: {}</title></circle>')
        parts.append(dot.format(x, y, name, spoken(score)))
        parts.append(_label(place, len(groups), name, score))
    return Markup("").join(parts)


def _label(place: int, count: int, name: str, score: Score) -> Markup:
    x, y = _spoke(place, count, LABEL_RADIUS / RADIUS)
    side = "middle" if abs(x - CENTRE[0]) < 8 else "start" if x > CENTRE[0] else "end"
    room = LABEL_CHARACTERS[side]
    short = name if len(name) <= room else name[: room - 1] + "…"
    text = Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}<tspan class="strong" x="{:.1f}" dy="14">{}</tspan></text>')
    return text.format(side, x, y - 3 + 5 * (y - CENTRE[1]) / LABEL_RADIUS, short, x, percent(round(score.accuracy or 0.0, 3)))


def _spoke(place: int, count: int, share: float) -> tuple[float, float]:
    angle = 2 * math.pi * place / count - math.pi / 2
    return CENTRE[0] + RADIUS * share * math.cos(angle), CENTRE[1] + RADIUS * share * math.sin(angle)


def _polygon(shares: Sequence[float]) -> str:
    corners = [_spoke(place, len(shares), share) for place, share in enumerate(shares)]
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in corners) + "Z"


def _outline(shares: Sequence[float], style: str) -> Markup:
    return Markup('<path class="{}" d="{}"/>').format(style, _polygon(shares))


def _row(groups: Mapping[str, Score]) -> Chart:
    names = list(groups)
    chart = Chart(Axis(-0.5, len(names) - 0.5, "", lambda place: names[round(place)]), shares(), range(len(names)))
    chart.level(COIN, "coin")
    for place, (name, score) in enumerate(groups.items()):
        chart.point(place, score.accuracy or 0.0, "s0", f"{name}: {spoken(score)}", (score.low or 0.0, score.high or 0.0))
    return chart


def shares() -> Axis:
    """Return an axis from 0 to 100 %."""
    return Axis(0.0, 1.0, "", percent)


def spoken(score: Score) -> str:
    """Return an accuracy with its rows and its interval, as a text alternative says it."""
    return f"{score.accuracy or 0.0:.1%} of {score.n} [{score.low or 0.0:.1%}, {score.high or 0.0:.1%}]"


TICKS = 6
"""Steps up to which every one of them is written at the axis."""


@dataclass(frozen=True, slots=True)
class StepScore:
    """An accuracy at a step of a run, with its 95 % interval where the number of rows is known."""

    step: int
    accuracy: float
    interval: tuple[float, float] | None


def score_by_step(title: str, runs: Mapping[str, Sequence[StepScore]], blind: tuple[str, float] | None) -> Panel:
    """Return accuracies with intervals against the step, a line for each run; `blind` is the best judge that sees no content."""
    points = [point for measured in runs.values() for point in measured]
    heights = [height for point in points for height in (point.accuracy, *(point.interval or ()))]
    levels = [COIN, *([blind[1]] if blind else [])]
    steps = sorted({point.step for point in points})
    y = Axis.around([*heights, *levels], "", percent, (0, 1))
    chart = Chart(Axis.around(steps, "step", plain), y, steps if len(steps) <= TICKS else None)
    chart.level(COIN, "" if blind and abs(blind[1] - COIN) < 0.03 else "coin")
    if blind:
        chart.level(blind[1], blind[0])
    for number, measured in enumerate(runs.values()):
        style = f"s{number % SERIES}"
        chart.line([(point.step, point.accuracy) for point in measured], style)
        for point in measured:
            chart.point(point.step, point.accuracy, style, f"step {point.step}: {_measured(point)}", point.interval)
    said = "; ".join(f"{run}: {_said(found)}" for run, found in runs.items())
    legend = tuple((f"s{number % SERIES}", run) for number, run in enumerate(runs)) if len(runs) > 1 else ()
    return Panel(title, chart.svg(f"Accuracy by step. {said}."), "Whiskers: 95 % intervals.", legend)


def _said(points: Sequence[StepScore]) -> str:
    """Return every point in words, or the ends and the highest where there are many."""
    ends = [points[0], max(points, key=lambda point: point.accuracy), points[-1]]
    told = points if len(points) <= 2 * TICKS else ends
    words = "; first, highest and last" if told is ends else ""
    return f"{len(points)} checkpoints{words}: " + ", ".join(f"step {point.step} {_measured(point)}" for point in told)


def measured(content: Content) -> dict[str, dict[str, list[StepScore]]]:
    """Return the accuracies by benchmark, run and step.

    A checkpoint that was rotated away took its results along; its accuracy is still in the log, and its interval follows
    from the number of rows, which is that of the benchmark's other results.
    """
    found: dict[str, dict[str, dict[int, StepScore]]] = {}
    rows: dict[str, int] = {}
    for checkpoint in content.checkpoints:
        for name, outcome in checkpoint.outcomes.items():
            score = outcome.result.micro
            rows[name] = score.n
            if checkpoint.step is not None and score.accuracy is not None and score.low is not None and score.high is not None:
                steps = found.setdefault(name, {}).setdefault(checkpoint.run, {})
                steps[checkpoint.step] = StepScore(checkpoint.step, score.accuracy, (score.low, score.high))
    for line in content.log:
        for key, accuracy in line.items():
            name = key.removeprefix("eval_").removesuffix("/accuracy")
            if key == f"eval_{name}/accuracy" and "/" not in name:
                interval = _interval(accuracy, rows[name]) if name in rows else None
                steps = found.setdefault(name, {}).setdefault(content.title, {})
                steps.setdefault(int(line["step"]), StepScore(int(line["step"]), accuracy, interval))
    return {name: {run: [steps[step] for step in sorted(steps)] for run, steps in runs.items()} for name, runs in found.items()}


def _interval(accuracy: float, n: int) -> tuple[float, float]:
    return wilson(round(2 * accuracy * n) / 2, n)  # credits are whole or half points


def _measured(point: StepScore) -> str:
    interval = f" [{point.interval[0]:.1%}, {point.interval[1]:.1%}]" if point.interval else ""
    return f"{point.accuracy:.1%}{interval}"
