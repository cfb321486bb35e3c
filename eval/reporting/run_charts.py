"""The figures of a page: training curves, the score by step, and what lies behind a score.

Behind a score stand calibration, margins, votes, and the pull of the longer response. What has one value only is no figure: it
is said in words.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np

from mmrm.data.display.chart import Axis, Chart, Point, percent, plain
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.reporting.run_content import Content
from mmrm.eval.results.intervals import wilson
from mmrm.eval.results.result import WORTH, Accuracy, Result, Votes, chance_of_votes
from mmrm.eval.results.run_folder import HELD_OUT
from mmrm.eval.results.statistics import Bin, Calibration, Histogram, LengthBias

STYLES = ("s0", "s1", "s2", "s3", "s4", "s5")
"""Distinct lines; the style sheet gives each a colour and a dash pattern of its own."""
PANELS = {
    "Loss": "loss policy_loss score_loss critique_loss",
    "Perplexity": "perplexity",
    "Accuracy on training pairs": "accuracy",
    "Ties on training pairs": "ties",
    "Margin": "margin",
    "Reward": "reward reward_mean rewards/*/mean",
    "Spread of the reward": "reward_std reward_spread rewards/*/std",
    "Parts of the reward": "rewards/*",
    "Length in tokens": "completions/mean_length completions/min_length completions/max_length",
    "Length of ended rollouts": "completions/*_terminated_length",
    "KL": "kl",
    "Entropy": "entropy",
    "Clipped": "clip_ratio/* clipped/* completions/clipped_ratio",
    "Filtered": "filtered/* frac_reward_zero_std",
    "Largest advantage": "largest_advantage",
    "Largest log ratio": "largest_log_ratio",
    "Prompts too long": "rollouts/prompts_too_long",
    "Rollouts unreadable or cut off": "rollouts/*",
    "Gradient norm": "grad_norm",
    "Learning rate": "learning_rate/* learning_rate",
    "Records per second": "records_per_second",
    "Tokens per second": "tokens_per_second",
    "Seconds per step": "step_time",
    "Records dropped": "dropped/*",
}
"""Title of a panel to the patterns of its series' names. A series that fits none of them gets a panel of its own."""
TRAINED = "Accuracy on training pairs"
FRACTIONS = (
    TRAINED,
    "Ties on training pairs",
    "Clipped",
    "Filtered",
    "Rollouts unreadable or cut off",
)
"""Panels whose numbers are fractions of 1."""
LEFT_OUT = "epoch data_epoch step num_* total_flos eval_* train_*"
"""Counters, and figures of evaluations and of the whole run: these are no curves."""
POINTS = 200
"""Points of a line; a longer series is drawn as the means of as many stretches, with the range of each behind it."""
HELD_OUT_LOSS = f"eval_{HELD_OUT}/loss"
"""The loss on held-out records, as the log names it."""
EVALUATED = re.compile(r"eval_([^/]+)/accuracy")
CHANCE, GUESSING = 0.5, "chance (ties half): 50 %"
TICKS = 6
"""Steps up to which every one of them is written at the axis."""
RATIOS = (0.1, 0.2, 0.5, 0.7, 1.0, 1.4, 2.0, 5.0, 10.0)
"""Ratios of lengths that are written at the axis."""
BLIND = {
    "longest": "the longer response",
    "shortest": "the shorter response",
    "first": "the response listed first",
    "random": "a coin",
}
"""What a judge that sees no content chooses, in words."""

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
            if isinstance(value, int | float) and not any(
                fnmatch.fnmatchcase(name, pattern) for pattern in LEFT_OUT.split()
            ):
                found[name][line["step"]] = value
    return {name: list(points.items()) for name, points in found.items()}


def curves(log: Log) -> tuple[list[Chart], list[str]]:
    """Return charts of what changes in `log`, in the order of PANELS, then of other series; and what does not, in words."""
    rest, charts, constant = series(log), list[Chart](), list[str]()
    for title, patterns in PANELS.items():
        inside = {
            name: rest.pop(name)
            for pattern in patterns.split()
            for name in fnmatch.filter(rest, pattern)
        }
        if len(inside) > 1:
            inside.pop(
                "learning_rate", None
            )  # Trainer's own: the first group's, as it was before the step
        charts += _panel(title, inside, constant)
    for name, points in rest.items():
        charts += _panel(name, {name: points}, constant)
    return charts, constant


def _panel(title: str, inside: Series, constant: list[str]) -> list[Chart]:
    """Return a chart of the series that change, if any, equal ones drawn once; the others go to `constant` in words."""
    form = percent if title in FRACTIONS else plain
    shared = len({name.rpartition("/")[0] for name in inside}) == 1 < len(inside)
    lines: dict[tuple[Point, ...], list[str]] = defaultdict(list)
    lost = 0
    for name, points in inside.items():
        line = tuple(point for point in points if math.isfinite(point[1]))
        if len({value for _, value in line}) > 1:
            lines[line].append(name.rpartition("/")[2] if shared else name)
            lost += len(points) - len(line)
        else:
            value = form(line[0][1]) if line else "never finite"
            at = f" at step {points[0][0]}" if len(points) == 1 else ""
            lone = " (else not finite)" if 0 < len(line) < len(points) else ""
            constant.append(f"{name}: {value}{at}{lone}")
    if not lines:
        return []
    places, values = zip(*(point for line in lines for point in line), strict=True)
    level = [CHANCE] if title == TRAINED else []
    y = Axis.shares([*values, *level]) if form is percent else Axis.numbers(values)
    chart = Chart(
        title,
        Axis.numbers(places, "step"),
        y,
        f"Values that are not finite: {lost}." if lost else "",
    )
    for style, line in zip(cycle(STYLES), lines):
        parts = np.array_split(line, min(POINTS, len(line)))
        if len(line) > POINTS:
            low, high = (
                [(part[:, 0].mean(), edge(part[:, 1])) for part in parts]
                for edge in (np.min, np.max)
            )
            chart.path([*low, *reversed(high)], f"band {style}")
        chart.path([part.mean(axis=0) for part in parts], f"line {style}")
        name, (first, begun), (last, ended) = ", ".join(lines[line]), line[0], line[-1]
        least, *_, most = sorted(value for _, value in line)
        fact = f"{name}: {form(begun)} at step {first}, {form(ended)} at step {last}; from {form(least)} to {form(most)}"
        chart.dot(last, [ended], style, fact)
        chart.value = form(ended) if len(lines) == 1 else ""
        chart.legend += [(f"line {style}", name)] if len(inside) > 1 else []
    if level:
        chart.level(CHANCE, GUESSING)
    return [chart]


def measured(content: Content) -> dict[str, dict[str, Scores]]:
    """Return the accuracies by benchmark, run and step, with half a point for a tie: as chance and the blind judges have it.

    A checkpoint that was rotated away took its results along; its accuracy is still in the log, and its interval follows
    from the number of rows, which is that of the benchmark's other results.
    """
    found: dict[str, dict[str, Scores]] = defaultdict(lambda: defaultdict(dict))
    known = {
        name: outcome.result
        for checkpoint in content.checkpoints
        for name, outcome in checkpoint.outcomes.items()
    }
    for line in content.log:
        for match in filter(None, map(EVALUATED.fullmatch, line)):
            name = match[1]
            ties = known[name].protocol["ties"] if name in known else ProtocolConfig().ties
            credit = line[match[0]] + (0.5 - WORTH[ties]) * line[f"eval_{name}/ties"]
            found[name][content.title][int(line["step"])] = _score(
                credit, independent_rows(known[name].micro) if name in known else 0
            )
    for checkpoint in content.checkpoints:
        for name, outcome in checkpoint.outcomes.items():
            if checkpoint.step is not None and (half := outcome.result.micro.half) is not None:
                rows = independent_rows(outcome.result.micro)
                found[name][checkpoint.run][checkpoint.step] = _score(half, rows)
    return found


def independent_rows(figure: Accuracy) -> float:
    """Return the number of independent rows that would tell as much as those of a figure."""
    return figure.n if figure.effective_n is None else figure.effective_n


def _score(credit: float, n: float) -> Score:
    """Return an accuracy with Wilson's interval for `n` independent rows; without an interval if `n` is 0."""
    if n == 0:
        return (credit,)
    return credit, *wilson(min(credit * n, n), n)


def steps(content: Content) -> list[Chart]:
    """Return the accuracies by step of each benchmark that was measured at more than one step, a line for each run."""
    charts, shown = [], content.shown.outcomes
    found = measured(content)
    for name in sorted(found, key=[*shown, *found].index):
        runs = found[name]
        if max(map(len, runs.values())) < 2:
            continue
        blind, level = best_baseline(shown[name].result) if name in shown else ("", CHANCE)
        heights = [
            height for scores in runs.values() for score in scores.values() for height in score
        ]
        at = sorted({step for scores in runs.values() for step in scores})
        x = Axis.numbers(at, "step", at if len(at) <= TICKS else None)
        chart = Chart(name, x, Axis.shares([*heights, CHANCE, level]))
        lines(chart, {run: sorted(scores.items()) for run, scores in runs.items()}, words_of)
        chart.level(CHANCE, GUESSING)
        if blind:
            chart.level(
                level,
                f"best without content: {BLIND[blind]}, {percent(round(level, 3))}",
                "level blind",
            )
        charts.append(chart)
    return charts + held_out_loss(content.log)


def held_out_loss(log: Log) -> list[Chart]:
    """Return a chart of the loss on held-out records by step; none if it was measured fewer than twice."""
    loss_by_step = {line["step"]: line[HELD_OUT_LOSS] for line in log if HELD_OUT_LOSS in line}
    points = [(step, loss) for step, loss in sorted(loss_by_step.items()) if math.isfinite(loss)]
    if len(points) < 2:
        return []
    losses = [loss for _, loss in points]
    lowest_step, lowest = min(points, key=lambda point: point[1])
    chart = Chart(
        "Loss on held-out records",
        Axis.numbers([step for step, _ in points], "step"),
        Axis.numbers(losses),
    )
    chart.value = plain(losses[-1])
    chart.caption = f"Lowest at step {plain(lowest_step)}: {plain(lowest)}."
    num_lost = len(loss_by_step) - len(points)
    if num_lost:
        chart.caption += f" Values that are not finite: {num_lost}."
    chart.path(points, "line s0")
    for step, loss in points:
        chart.dot(step, [loss], "s0", f"step {plain(step)}: {plain(loss)}")
    return [chart]


def lines(
    chart: Chart, found: Mapping[str, Sequence[tuple[float, Score]]], form: Callable[[Score], str]
) -> None:
    """Draw a line for each name through values at places on the x axis, with the intervals of those that have one."""
    for style, (name, points) in zip(cycle(STYLES), found.items()):
        chart.path([(x, score[0]) for x, score in points], f"line {style}")
        for x, score in points:
            chart.dot(x, score, style, f"{name}, {chart.x.label} {plain(x)}: {form(score)}")
        chart.legend.append((f"line {style}", name))


def words_of(score: Score, rows: str = "") -> str:
    """Return an accuracy as a text, with its interval if it has one."""
    accuracy, *interval = score
    return f"{100 * accuracy:.1f} %{rows}" + (
        f" [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]" if interval else ""
    )


def best_baseline(result: Result) -> tuple[str, float]:
    """Return name and accuracy (half a point for a tie) of the best judge that sees no content; ("", CHANCE) without one."""
    scores = {
        name: found.micro.half
        for name, found in result.baselines.items()
        if found.micro.half is not None
    }
    return max(scores.items(), key=lambda item: item[1], default=("", CHANCE))


def diagnosis(result: Result) -> tuple[list[Chart], list[str]]:
    """Return the charts of one result, and sentences; what its judge gives no numbers for is left out."""
    charts, sentences = [], []
    if found := result.calibration:
        chart = Chart(
            "Calibration", Axis.shares((0.5, 1.0), "confidence: sigmoid(|margin|)"), Axis.shares()
        )
        chart.caption = "Expected calibration error: the mean distance from the dashed line, where confidence is what it claims."
        if found.floor is not None:
            chart.caption += f" Chance alone gives a perfectly calibrated judge {found.floor:.3f} on as many pairs."
        chart.value = error_of(found)
        chart.path([(0.5, 0.5), (1.0, 1.0)], "level")
        charts.append(_dots(chart, {bin.mean: bin for bin in found.bins}, percent))
    if result.margins:
        charts.append(_margins(result.margins))
    if result.votes:
        sentences.append(_votes(result.votes))
        if len(rounds := result.votes.accuracy_at) > 1:
            chart = Chart(
                "Accuracy by votes", Axis.numbers(rounds, "rounds of votes", rounds), Axis.shares()
            )
            charts.append(_dots(chart, rounds, plain))
            _chance_by_rounds(chart, result)
    sentences.append(_length(result.length))
    if len(bins := {bin.mean: bin for bin in result.length.bins if bin.mean is not None}) > 1:
        around = Axis.numbers(bins)
        ticks = [
            (math.log2(ratio), f"{ratio:g} ×")
            for ratio in RATIOS
            if around.low <= math.log2(ratio) <= around.high
        ]
        x = Axis(around.low, around.high, "length: better response ÷ other", ticks)
        charts.append(
            _dots(
                Chart("Accuracy by length", x, Axis.shares()),
                bins,
                lambda ratio: f"{2**ratio:.2g} × as long",
            )
        )
        charts[-1].level(CHANCE, GUESSING)
    return charts, sentences


def error_of(found: Calibration) -> str:
    """Return a calibration error with its interval, which results of earlier versions lack."""
    if found.low is None or found.high is None:
        return f"ECE {found.ece:.3f}"
    return f"ECE {found.ece:.3f} [{found.low:.3f}, {found.high:.3f}]"


def _chance_by_rounds(chart: Chart, result: Result) -> None:
    """Draw the accuracy of a coin for each judgement, which depends on how many judgements there are."""
    protocol = ProtocolConfig.model_validate(result.protocol)
    chances = {}
    for rounds in range(1, protocol.votes + 1):
        judgements = rounds * protocol.judgements // protocol.votes
        chances[rounds] = chance_of_votes(judgements, protocol.ties)
    chart.path(chances.items(), "level")
    chart.legend.append(("level", f"chance (ties {protocol.ties}): a coin for each judgement"))


def _dots(
    chart: Chart, scores: Mapping[Any, Accuracy | Bin], form: Callable[[float], str]
) -> Chart:
    """Draw accuracies with intervals at their places on the x axis; those of no rows are left out."""
    for x, score in scores.items():
        if x is not None and score.n:
            known = score.accuracy or 0.0, score.low or 0.0, score.high or 0.0
            chart.dot(x, known, "s0", f"{form(x)}: {words_of(known, f' of {score.n:,}')}")
    return chart


def _margins(found: Histogram) -> Chart:
    counts, middle = found.counts, len(found.counts) // 2
    x = Axis.numbers(found.edges, "margin: score of the better − of the other")
    caption = f"Left of zero the judge is wrong: {sum(counts[:middle]):,} of {sum(counts):,} pairs."
    chart = Chart("Margins", x, Axis.counts(max(counts), "pairs"), caption)
    for low, high, count in zip(found.edges[:-1], found.edges[1:], counts, strict=True):
        bar = [(low, 0.0), (low, count), (high, count), (high, 0.0)]
        fact = f"{plain(low)} to {plain(high)}: {count:,}"
        chart.path(bar, "bar wrong" if low + high < 0 else "bar right", fact if count else "")
    chart.path([(0.0, 0.0), (0.0, chart.y.high)], "level")
    return chart


def _length(bias: LengthBias) -> str:
    words = "The lengths of the responses do not vary: no slope."
    if None not in (slope := (bias.slope, bias.low, bias.high)):
        points = "{:+.1f} points [{:+.1f}, {:+.1f}]".format(
            *(100 * (value or 0.0) for value in slope)
        ).replace("-", "−")
        words = f"Accuracy changes by {points} for each doubling of the better response's length over the other's."
    if bias.prefers_longer is not None and bias.longer_is_better is not None:
        words += f" The judge prefers the longer response in {percent(round(bias.prefers_longer, 3))} of the pairs; it is better "
        words += f"in {percent(round(bias.longer_is_better, 3))}."
    return words


def _votes(votes: Votes) -> str:
    shares = {
        "agreement": votes.agreement,
        "names the response shown first in": votes.names_first,
        "same verdict in both orders in": votes.order.rate if votes.order else None,
    }
    facts = [
        f"{name} {percent(round(share, 3))}" for name, share in shares.items() if share is not None
    ]
    return (
        "; ".join([f"{votes.votes:,} votes, {votes.unparsable:,} of them unreadable", *facts]) + "."
    )
