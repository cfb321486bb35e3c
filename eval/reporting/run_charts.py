"""The charts of a run's page: training curves, accuracy by step, and an analysis of each result.

The analysis shows calibration, margins, votes, and whether the judge prefers longer responses. A
series with a single value has no chart. It becomes a sentence.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mmrm.data.display.axis import Axis, Point
from mmrm.data.display.chart import Bar, Chart, Dot, Series, level
from mmrm.data.display.format import (
    interval,
    percent,
    short_number,
    signed_points,
    whole_percent,
    with_minus_signs,
)
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.reporting.run_content import Content
from mmrm.eval.results.intervals import wilson
from mmrm.eval.results.result import (
    WORTH,
    Accuracy,
    Ranking,
    Result,
    Votes,
    chance_of_votes,
)
from mmrm.eval.results.run_folder import HELD_OUT
from mmrm.eval.results.shortcut_figures import ShortcutFigures
from mmrm.eval.results.statistics import Bin, Calibration, Histogram, LengthBias
from mmrm.eval.results.summary_table import soft_sentence, uncertainty_sentence
from mmrm.eval.results.uncertainty import (
    ShareWithin,
    TrueScoreCoverage,
    Uncertainty,
    expected_coverage,
)

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
"""Patterns of the names of series by title of their chart. Any other series has its own chart."""
TRAINED = "Accuracy on training pairs"
FRACTIONS = (
    TRAINED,
    "Ties on training pairs",
    "Clipped",
    "Filtered",
    "Rollouts unreadable or cut off",
)
"""Titles of the charts whose numbers are shares of 1."""
LEFT_OUT = "epoch data_epoch step num_* total_flos eval_* train_*"
"""Patterns of counters, of figures of evaluations, and of figures of the whole run."""
POINTS = 200
"""Largest number of points of a line.

A longer series is divided into this number of stretches, whose means and ranges are drawn.
"""
HELD_OUT_LOSS = f"eval_{HELD_OUT}/loss"
"""The name of the loss on held-out records in the log."""
EVALUATED = re.compile(r"eval_([^/]+)/accuracy")
"""Names of the accuracies on benchmarks in the log."""
CHANCE = 0.5
"""The accuracy of guessing between two responses, with half a point for a tie."""
TICKS = 6
"""Up to this number of steps, each one has a tick at the axis."""
RATIOS = (0.1, 0.2, 0.5, 0.7, 1.0, 1.4, 2.0, 5.0, 10.0)
"""Ratios of lengths that have a tick at the axis."""
LARGEST_DEVIATION = 3.0
"""The right end of the x axis of the chart of coverage, in stated standard deviations."""
BLIND = {
    "longest": "the longer response",
    "shortest": "the shorter response",
    "first": "the response listed first",
    "random": "a coin",
}
"""The choice of each judge that sees no content, in words."""

Curve = list[Point]
"""The (step, value) points of one series of the log."""
Log = Sequence[Mapping[str, Any]]
Score = tuple[float, ...]
"""An accuracy and the two ends of its 95 % interval.

The ends are missing if the number of rows is not known.
"""
ScoreByStep = dict[int, Score]


def curves_of_log(log: Log) -> dict[str, Curve]:
    """Return the points of every series of a training log by its name, except LEFT_OUT.

    If a step was repeated, its last value counts.
    """
    values_by_series: dict[str, dict[float, float]] = defaultdict(dict)
    for line in log:
        for name, value in line.items():
            if isinstance(value, int | float) and not _is_left_out(name):
                values_by_series[name][line["step"]] = value
    return {name: list(values.items()) for name, values in values_by_series.items()}


def _is_left_out(name: str) -> bool:
    """Return True for a name in the log that has no chart among the training curves."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in LEFT_OUT.split())


def training_charts(log: Log) -> tuple[list[Chart], list[str]]:
    """Return charts of the series that change in `log`, and sentences about those that do not.

    The charts are in the order of PANELS. The charts of series that PANELS does not name follow.
    """
    remaining = curves_of_log(log)
    charts: list[Chart] = []
    constant_series: list[str] = []
    # A series is in the first chart of PANELS with a pattern that matches its name.
    for title, patterns in PANELS.items():
        curve_by_name: dict[str, Curve] = {}
        for pattern in patterns.split():
            for name in fnmatch.filter(remaining, pattern):
                curve_by_name[name] = remaining.pop(name)
        if len(curve_by_name) > 1:
            # The log has a learning rate for each parameter group. The Trainer's own
            # `learning_rate` is the first group's before the step, and would be drawn twice.
            curve_by_name.pop("learning_rate", None)
        charts += _training_chart(title, curve_by_name, constant_series)
    for name, curve in remaining.items():
        charts += _training_chart(name, {name: curve}, constant_series)
    return charts, constant_series


def _training_chart(
    title: str, curve_by_name: Mapping[str, Curve], constant_series: list[str]
) -> list[Chart]:
    """Return a list with the chart of the series that change; it is empty if no series changes.

    Series with the same points are drawn once, under all their names.

    Args:
        title: The title of the chart.
        curve_by_name: The points of each series.
        constant_series: Gets a sentence about every series that does not change.
    """
    form = whole_percent if title in FRACTIONS else short_number
    prefixes = {name.rpartition("/")[0] for name in curve_by_name}
    has_shared_prefix = len(curve_by_name) > 1 and len(prefixes) == 1
    names_by_curve: dict[tuple[Point, ...], list[str]] = defaultdict(list)
    num_not_finite = 0
    for name, curve in curve_by_name.items():
        finite_points = tuple(point for point in curve if math.isfinite(point[1]))
        num_values = len({value for _, value in finite_points})
        if num_values > 1:
            legend_name = name.rpartition("/")[2] if has_shared_prefix else name
            names_by_curve[finite_points].append(legend_name)
            num_not_finite += len(curve) - len(finite_points)
        else:
            constant_series.append(_constant_series_text(name, curve, finite_points, form))
    if not names_by_curve:
        return []

    steps: list[float] = []
    values: list[float] = []
    for curve_points in names_by_curve:
        steps += [step for step, _ in curve_points]
        values += [value for _, value in curve_points]
    has_chance = title == TRAINED
    heights = [*values, CHANCE] if has_chance else values
    y = Axis.shares(heights) if title in FRACTIONS else Axis.numbers(heights)
    x = Axis.numbers(steps, "step")
    has_legend = len(curve_by_name) > 1
    series = [
        training_series(f"s{number}", ", ".join(names), curve_points, form, has_legend)
        for number, (curve_points, names) in enumerate(names_by_curve.items())
    ]
    if has_chance:
        series.append(_chance_level(x, CHANCE))
    caption = f"Values that are not finite: {num_not_finite}." if num_not_finite else ""
    # A single curve has its last value next to the title.
    last_value = ""
    if len(names_by_curve) == 1:
        [only_curve] = names_by_curve
        last_value = form(only_curve[-1][1])
    return [Chart(title, x, y, tuple(series), caption=caption, value=last_value)]


def _constant_series_text(
    name: str, curve: Curve, finite_points: Sequence[Point], form: Callable[[float], str]
) -> str:
    """Return the text about a series whose finite values are all the same.

    Args:
        name: The name of the series.
        curve: All points of the series.
        finite_points: The points with a finite value; there may be none.
        form: Returns the text of a value.
    """
    value = form(finite_points[0][1]) if finite_points else "never finite"
    text = f"{name}: {value}"
    if len(curve) == 1:
        text += f" at step {curve[0][0]}"
    if 0 < len(finite_points) < len(curve):
        text += " (else not finite)"
    return text


def training_series(
    style: str,
    name: str,
    curve: Sequence[Point],
    form: Callable[[float], str],
    has_legend: bool,
) -> Series:
    """Return the line of a series with a dot at its last point.

    A series of more than POINTS points is divided into POINTS stretches. The line goes through
    their means, and a band shows the range of each.

    Args:
        style: Name of the style of the line.
        name: The name of the series.
        curve: Its points, all finite.
        form: Returns the text of a value.
        has_legend: True if the chart has several series, which a legend names.
    """
    # Each stretch is an array of shape (points, 2) of steps and values.
    stretches = np.array_split(curve, min(POINTS, len(curve)))
    band: list[Point] = []
    if len(curve) > POINTS:
        lower = [(stretch[:, 0].mean(), stretch[:, 1].min()) for stretch in stretches]
        upper = [(stretch[:, 0].mean(), stretch[:, 1].max()) for stretch in stretches]
        # The outline runs along the lower ends, and back along the upper ends.
        band = [*lower, *reversed(upper)]
    means = [stretch.mean(axis=0) for stretch in stretches]
    first_step, first_value = curve[0]
    last_step, last_value = curve[-1]
    values = [value for _, value in curve]
    fact = (
        f"{name}: {form(first_value)} at step {first_step}, "
        f"{form(last_value)} at step {last_step}; "
        f"from {form(min(values))} to {form(max(values))}"
    )
    return Series(
        style,
        name if has_legend else "",
        line=tuple((step, value) for step, value in means),
        band=tuple(band),
        dots=(Dot(last_step, last_value, fact=fact),),
    )


def accuracies_by_step(content: Content) -> dict[str, dict[str, ScoreByStep]]:
    """Return the accuracies by benchmark, run and step, with half a point for a tie.

    The accuracies of checkpoints on disk come from their results. The accuracies of deleted
    checkpoints come from the log, which lacks the number of rows. The number is taken from another
    result on the same benchmark. If there is no such result, the accuracy has no interval.
    """
    scores: dict[str, dict[str, ScoreByStep]] = defaultdict(lambda: defaultdict(dict))
    result_by_benchmark: dict[str, Result] = {}
    for checkpoint in content.checkpoints:
        for name, outcome in checkpoint.outcomes.items():
            result_by_benchmark[name] = outcome.result
    for line in content.log:
        for key, accuracy in line.items():
            match = EVALUATED.fullmatch(key)
            if match is None:
                continue
            name = match[1]
            result = result_by_benchmark.get(name)
            ties = result.protocol["ties"] if result else ProtocolConfig().ties
            # The logged accuracy counts a tie as its protocol does, and the chart as one half.
            tie_credit = (0.5 - WORTH[ties]) * line[f"eval_{name}/ties"]
            num_rows = independent_rows(result.micro) if result else 0
            score = _score_with_interval(accuracy + tie_credit, num_rows)
            scores[name][content.title][int(line["step"])] = score
    for checkpoint in content.checkpoints:
        for name, outcome in checkpoint.outcomes.items():
            overall = outcome.result.micro
            if checkpoint.step is not None and overall.half is not None:
                score = _score_with_interval(overall.half, independent_rows(overall))
                scores[name][checkpoint.run][checkpoint.step] = score
    return scores


def independent_rows(figure: Accuracy) -> float:
    """Return the number of independent rows that would give a figure the same interval.

    It is less than the number of rows if rows share an item or an image.
    """
    return figure.n if figure.effective_n is None else figure.effective_n


def _score_with_interval(accuracy: float, num_rows: float) -> Score:
    """Return an accuracy with Wilson's interval; without it if `num_rows` is 0 (not known)."""
    if num_rows == 0:
        return (accuracy,)
    num_right = min(accuracy * num_rows, num_rows)
    return accuracy, *wilson(num_right, num_rows)


def step_charts(content: Content) -> list[Chart]:
    """Return charts of the accuracies by step, with a line for each run.

    Only benchmarks that were measured at more than one step have a chart. The chart of the loss on
    held-out records is the last one.
    """
    charts = []
    outcomes = content.shown.outcomes
    scores = accuracies_by_step(content)
    # Benchmarks of the shown checkpoint come first, in its order.
    for name in sorted(scores, key=[*outcomes, *scores].index):
        scores_by_run = scores[name]
        most_steps = max(map(len, scores_by_run.values()))
        if most_steps >= 2:
            result = outcomes[name].result if name in outcomes else None
            charts.append(_step_chart(name, scores_by_run, result))
    return charts + held_out_loss_charts(content.log)


def _step_chart(
    benchmark: str, scores_by_run: Mapping[str, ScoreByStep], result: Result | None
) -> Chart:
    """Return the chart of the accuracy on one benchmark by step.

    Args:
        benchmark: Name of the benchmark.
        scores_by_run: The accuracies of each run by step.
        result: The result of the checkpoint that the page shows; None if it has none. The line of
            the best judge that sees no content comes from this result.
    """
    baseline_name = ""
    chance = CHANCE
    baseline_accuracy = CHANCE
    if result is not None:
        chance = result.chance_with_half_ties
        baseline_name, baseline_accuracy = best_baseline(result)
    steps: set[int] = set()
    heights = [chance, baseline_accuracy]
    for score_by_step in scores_by_run.values():
        steps |= score_by_step.keys()
        for score in score_by_step.values():
            heights += score
    ordered_steps = sorted(steps)
    x = Axis.numbers(ordered_steps, "step", ordered_steps if len(steps) <= TICKS else None)
    points_by_run = {run: sorted(scores.items()) for run, scores in scores_by_run.items()}
    series = [*score_lines(x, points_by_run, score_text), _chance_level(x, chance)]
    if baseline_name:
        accuracy_text = whole_percent(round(baseline_accuracy, 3))
        label = f"best without content: {BLIND[baseline_name]}, {accuracy_text}"
        series.append(level(x, baseline_accuracy, label, "level blind"))
    return Chart(benchmark, x, Axis.shares(heights), tuple(series))


def held_out_loss_charts(log: Log) -> list[Chart]:
    """Return a list with the chart of the loss on held-out records by step.

    The list is empty if the log has fewer than two finite losses.
    """
    loss_by_step = {line["step"]: line[HELD_OUT_LOSS] for line in log if HELD_OUT_LOSS in line}
    curve = [(step, loss) for step, loss in sorted(loss_by_step.items()) if math.isfinite(loss)]
    if len(curve) < 2:
        return []
    lowest_step, lowest = min(curve, key=lambda point: point[1])
    caption = f"Lowest at step {short_number(lowest_step)}: {short_number(lowest)}."
    num_not_finite = len(loss_by_step) - len(curve)
    if num_not_finite:
        caption += f" Values that are not finite: {num_not_finite}."
    dots = tuple(
        Dot(step, loss, fact=f"step {short_number(step)}: {short_number(loss)}")
        for step, loss in curve
    )
    return [
        Chart(
            "Loss on held-out records",
            Axis.numbers([step for step, _ in curve], "step"),
            Axis.numbers([loss for _, loss in curve]),
            (Series("s0", line=tuple(curve), dots=dots),),
            caption=caption,
            value=short_number(curve[-1][1]),
        )
    ]


def score_lines(
    x: Axis,
    points_by_name: Mapping[str, Sequence[tuple[float, Score]]],
    form: Callable[[Score], str],
    first_style: int = 0,
) -> list[Series]:
    """Return a line for each name, with a dot and an interval at each of its points.

    Args:
        x: The x axis; its label is part of the sentence about each point.
        points_by_name: The points of each line: a value of the x axis and a score.
        form: Returns the text of a score.
        first_style: The number of the style of the first line.
    """
    series = []
    for number, (name, points) in enumerate(points_by_name.items(), start=first_style):
        dots = []
        for value, score in points:
            fact = f"{name}, {x.label} {short_number(value)}: {form(score)}"
            dots.append(_dot(value, score, fact))
        line = tuple((value, score[0]) for value, score in points)
        series.append(Series(f"s{number}", name, line=line, dots=tuple(dots)))
    return series


def _dot(x: float, score: Score, fact: str) -> Dot:
    """Return the dot of a score at `x`, with its interval if it has one.

    `fact` is the sentence about the dot.
    """
    if len(score) == 1:
        return Dot(x, score[0], fact=fact)
    accuracy, low, high = score
    return Dot(x, accuracy, low, high, fact)


def score_text(score: Score, suffix: str = "") -> str:
    """Return the text of an accuracy in percent, with its interval if it has one.

    `suffix` is a text between the accuracy and its interval, such as " of 300".
    """
    text = f"{percent(score[0])} %{suffix}"
    if len(score) == 1:
        return text
    _, low, high = score
    return f"{text} [{percent(low)}, {percent(high)}]"


def best_baseline(result: Result) -> tuple[str, float]:
    """Return name and accuracy of the best baseline, a judge that sees no content.

    A tie counts half a point. Returns ("", CHANCE) if the result has no baselines.
    """
    accuracies = {
        name: baseline.micro.half
        for name, baseline in result.baselines.items()
        if baseline.micro.half is not None
    }
    return max(accuracies.items(), key=lambda item: item[1], default=("", CHANCE))


def diagnosis(result: Result) -> tuple[list[Chart], list[str]]:
    """Return the charts and the sentences that analyse one result.

    If the judge gave no scores, calibration and margins are left out. If it cast no votes, their
    agreement is left out. If it states no standard deviations, their calibration is left out.
    """
    charts = []
    sentences = []
    if result.calibration:
        confidence = "sigmoid(|margin|)"
        if result.soft:
            confidence = "P(better) of the preferred response"
        charts.append(_calibration_chart(result.calibration, confidence))
    if result.margins:
        charts.append(_margin_histogram(result.margins))
    if result.uncertainty:
        charts.append(_stated_deviation_chart(result.uncertainty))
        charts += _coverage_charts(result.uncertainty.coverage)
        sentences.append(uncertainty_sentence(result.uncertainty))
    if result.ranking:
        sentences.append(_ranking_sentence(result.ranking))
    if result.soft:
        sentences.append(soft_sentence(result.soft))
    if result.votes:
        sentences.append(_votes_sentence(result.votes))
        if len(result.votes.accuracy_at) > 1:
            charts.append(_accuracy_by_votes(result, result.votes.accuracy_at))
    sentences.append(_length_sentence(result.length))
    sentences += _shortcut_sentences(result.shortcuts)
    charts += _accuracy_by_length(result.length, result.chance_with_half_ties)
    return charts, sentences


def _calibration_chart(calibration: Calibration, confidence: str) -> Chart:
    """Return the chart of accuracy by confidence, with the calibration error next to its title.

    `confidence` says in words what the confidence is.
    """
    caption = (
        "Expected calibration error: the mean distance from the dashed line, "
        "where confidence is what it claims."
    )
    if calibration.floor is not None:
        caption += (
            " Chance alone gives a perfectly calibrated judge "
            f"{calibration.floor:.3f} on as many pairs."
        )
    accuracies = [(bin.mean, bin) for bin in calibration.bins]
    diagonal = Series("level", line=((0.5, 0.5), (1.0, 1.0)))
    return Chart(
        "Calibration",
        Axis.shares((0.5, 1.0), f"confidence: {confidence}"),
        Axis.shares(),
        (diagonal, _accuracy_dots(accuracies, whole_percent)),
        caption=caption,
        value=calibration_error_text(calibration),
    )


def _stated_deviation_chart(uncertainty: Uncertainty) -> Chart:
    """Return the chart of accuracy by the probability that follows from stated deviations."""
    reliability = uncertainty.reliability
    caption = (
        "The probability that the response with the higher score is better, from both stated "
        "deviations, against the share of pairs in which it is. A calibrated judge is on the "
        "dashed line, and below it the judge is overconfident. Chance alone gives a calibrated "
        f"judge an error of {reliability.floor:.3f} on as many pairs."
    )
    accuracies = [(bin.mean, bin) for bin in reliability.bins]
    diagonal = Series("level", line=((0.5, 0.5), (1.0, 1.0)))
    return Chart(
        "Stated deviation",
        Axis.shares((0.5, 1.0), "predicted P(better)"),
        Axis.shares(),
        (diagonal, _accuracy_dots(accuracies, whole_percent)),
        caption=caption,
        value=calibration_error_text(reliability),
    )


def _coverage_charts(coverage: TrueScoreCoverage | None) -> list[Chart]:
    """Return a list with the chart of true scores within stated deviations; empty without them."""
    if coverage is None:
        return []
    points = np.linspace(0, LARGEST_DEVIATION, 61)
    expected_line = tuple((float(point), expected_coverage(float(point))) for point in points)
    series = [Series("level", "a calibrated judge", line=expected_line)]
    series.append(_coverage_dots("s0", "in the unit of the true score", coverage.as_stated, -0.04))
    if coverage.on_line:
        series.append(_coverage_dots("s1", "on the line of best fit", coverage.on_line, 0.04))
    if coverage.of_differences:
        name = "differences between responses to a prompt"
        series.append(_coverage_dots("s2", name, coverage.of_differences, 0.12))
    shown_shares = coverage.of_differences or coverage.on_line or coverage.as_stated
    x_ticks = [(value, f"{value:g}") for value in (0.0, 1.0, 2.0, LARGEST_DEVIATION)]
    return [
        Chart(
            "Coverage of true scores",
            Axis(0.0, LARGEST_DEVIATION, "stated standard deviations", x_ticks),
            Axis.shares((0.0, 1.0)),
            tuple(series),
            caption=(
                f"The share of {coverage.n:,} responses whose known score is within the stated "
                f"deviations of the judge's score.{_line_text(coverage)}"
            ),
            value=", ".join(percent(within.share) for within in shown_shares) + " %",
        )
    ]


def _coverage_dots(style: str, name: str, shares: Sequence[ShareWithin], shift: float) -> Series:
    """Return dots of the shares within stated deviations, with their intervals.

    Args:
        style: Name of the style of the dots.
        name: The name in the legend.
        shares: The shares.
        shift: The distance of the dots from their deviations on the x axis, so that the intervals
            of two series do not cover one another.
    """
    dots: list[Dot] = []
    for within in shares:
        text = interval(within.share, within.low, within.high)
        fact = (
            f"{name}, within {within.deviations:g}: {text} %, expected {percent(within.expected)} %"
        )
        dots.append(
            Dot(within.deviations + shift, within.share, within.low, within.high, fact=fact)
        )
    return Series(style, name, dots=tuple(dots))


def _line_text(coverage: TrueScoreCoverage) -> str:
    """Return a sentence on the line from scores to true scores; empty if there is no line."""
    if coverage.slope is None or coverage.offset is None:
        return ""
    sign = "−" if coverage.offset < 0 else "+"
    slope = with_minus_signs(f"{coverage.slope:.3g}")
    return (
        f" The line of best fit is true score = {slope} · score {sign} {abs(coverage.offset):.3g}. "
        "It is for a judge that was trained on comparisons, whose zero and unit are its own."
    )


def calibration_error_text(calibration: Calibration) -> str:
    """Return the text of a calibration error, with its interval if the result has one.

    Results of earlier versions have no interval.
    """
    error = interval(
        calibration.ece,
        calibration.low,
        calibration.high,
        format_number=lambda value: f"{value:.3f}",
    )
    return f"ECE {error}"


def _accuracy_by_votes(result: Result, accuracy_at: Mapping[int, Accuracy]) -> Chart:
    """Return the chart of accuracy by rounds of votes, and of the accuracy of tossed coins.

    In a round of votes the judge sees a pair once in each order of the protocol. The other line is
    the accuracy of tossing a coin for each judgement. It depends on the number of coins, because an
    even number of them may tie. For rows with a ranking the other line is the accuracy of a random
    order, and for soft verdicts, which do not tie, it is one half.

    Args:
        result: The result, for its protocol.
        accuracy_at: The accuracy after each number of rounds.
    """
    x = Axis.numbers(accuracy_at, "rounds of votes", accuracy_at)
    dots = _accuracy_dots(accuracy_at.items(), short_number)
    if result.ranking is not None:
        chance_line = level(x, result.chance, "chance: a random order")
        return Chart("Accuracy by votes", x, Axis.shares(), (dots, chance_line))
    if result.soft is not None:
        chance_line = level(x, result.chance, "chance: a random probability")
        return Chart("Accuracy by votes", x, Axis.shares(), (dots, chance_line))
    protocol = ProtocolConfig.model_validate(result.protocol)
    judgements_per_round = protocol.judgements // protocol.votes
    chances = []
    for num_rounds in range(1, protocol.votes + 1):
        num_coins = num_rounds * judgements_per_round
        chances.append((num_rounds, chance_of_votes(num_coins, protocol.ties)))
    coins = f"chance (ties {protocol.ties}): a coin for each judgement"
    coin_line = Series("level", coins, line=tuple(chances))
    return Chart("Accuracy by votes", x, Axis.shares(), (dots, coin_line))


def _chance_level(x: Axis, chance: float) -> Series:
    """Return the line of the accuracy of guessing, with half a point for a tie."""
    return level(x, chance, f"chance (ties half): {whole_percent(round(chance, 3))}")


def _accuracy_by_length(bias: LengthBias, chance: float) -> list[Chart]:
    """Return a list with the chart of accuracy by ratio of lengths; empty for a single ratio.

    Args:
        bias: The accuracy by ratio of lengths.
        chance: The accuracy of guessing, with half a point for a tie.
    """
    # A bin's mean is the base-2 logarithm of the ratio, None if the bin is empty.
    bin_by_log_ratio = {bin.mean: bin for bin in bias.bins if bin.mean is not None}
    if len(bin_by_log_ratio) < 2:
        return []
    linear_axis = Axis.numbers(bin_by_log_ratio)
    ticks = []
    for ratio in RATIOS:
        if linear_axis.low <= math.log2(ratio) <= linear_axis.high:
            ticks.append((math.log2(ratio), f"{ratio:g} ×"))
    if len(ticks) < 2:
        # One number is no scale. The outermost dots are far enough apart to have one each.
        outermost = (min(bin_by_log_ratio), max(bin_by_log_ratio))
        ticks = [(log_ratio, f"{2**log_ratio:.2g} ×") for log_ratio in outermost]
    x = Axis(linear_axis.low, linear_axis.high, "length: better response ÷ other", ticks)
    dots = _accuracy_dots(
        bin_by_log_ratio.items(), lambda log_ratio: f"{2**log_ratio:.2g} × as long"
    )
    series = (dots, _chance_level(x, chance))
    return [Chart("Accuracy by length", x, Axis.shares(), series)]


def _accuracy_dots(
    accuracies: Iterable[tuple[float | None, Accuracy | Bin]], form: Callable[[float], str]
) -> Series:
    """Return dots of accuracies with intervals; an accuracy of no rows has no dot.

    Args:
        accuracies: Pairs of a value of the x axis, which is None for an empty bin, and an accuracy.
        form: Returns the text of a value of the x axis.
    """
    dots = []
    for x, accuracy in accuracies:
        if x is None or accuracy.n == 0:
            continue
        # With rows none of the three is None.
        score = (accuracy.accuracy or 0.0, accuracy.low or 0.0, accuracy.high or 0.0)
        text = score_text(score, f" of {accuracy.n:,}")
        dots.append(_dot(x, score, f"{form(x)}: {text}"))
    return Series("s0", dots=tuple(dots))


def _margin_histogram(histogram: Histogram) -> Chart:
    """Return the histogram of margins, whose edges are symmetric around zero."""
    counts = histogram.counts
    middle = len(counts) // 2
    x = Axis.numbers(histogram.edges, "margin: score of the better − of the other")
    y = Axis.counts(max(counts), "pairs")
    caption = f"Left of zero the judge is wrong: {sum(counts[:middle]):,} of {sum(counts):,} pairs."
    bars: dict[str, list[Bar]] = {"wrong": [], "right": []}
    for low, high, count in zip(histogram.edges[:-1], histogram.edges[1:], counts, strict=True):
        style = "wrong" if low + high < 0 else "right"  # by the middle of the bar
        fact = f"{short_number(low)} to {short_number(high)}: {count:,}" if count else ""
        bars[style].append(Bar(low, high, count, fact))
    zero = Series("level", line=((0.0, 0.0), (0.0, y.high)))
    series = [Series(style, bars=tuple(bars_of_style)) for style, bars_of_style in bars.items()]
    return Chart("Margins", x, y, (*series, zero), caption)


def _length_sentence(bias: LengthBias) -> str:
    """Return a sentence on the accuracy and the length of the responses."""
    if bias.slope is None or bias.low is None or bias.high is None:
        words = "The lengths of the responses do not vary: no slope."
    else:
        low = signed_points(bias.low)
        high = signed_points(bias.high)
        slope = f"{signed_points(bias.slope)} points [{low}, {high}]"
        words = (
            f"Accuracy changes by {with_minus_signs(slope)} for each doubling of the better "
            "response's length over the other's."
        )
    if bias.prefers_longer is not None and bias.longer_is_better is not None:
        preferred = whole_percent(round(bias.prefers_longer, 3))
        better = whole_percent(round(bias.longer_is_better, 3))
        words += f" The judge prefers the longer response in {preferred} of the pairs; "
        words += f"it is better in {better}."
    return words


def _shortcut_sentences(shortcuts: Sequence[ShortcutFigures]) -> list[str]:
    """Return a sentence on each shortcut in which responses differ, and one on the others."""
    if not shortcuts:
        return [
            "This result has no figures of shortcuts, such as length and format: it is of an earlier "
            "version, or has no readable verdict."
        ]
    sentences = [shortcut.line for shortcut in shortcuts if shortcut.equal < 1]
    equal = [shortcut.name for shortcut in shortcuts if shortcut.equal == 1]
    if equal:
        sentences.append(f"Equal in all rows: {', '.join(equal)}.")
    return sentences


def _ranking_sentence(ranking: Ranking) -> str:
    """Return a sentence on the ranking of all responses, beyond the best ones."""
    pairs = whole_percent(round(ranking.pairs, 3))
    kendall = with_minus_signs(f"{ranking.kendall:.2f}")
    chance = whole_percent(round(ranking.best_chance, 3))
    return (
        f"A row has several responses. Of their pairs of different ranks {pairs} are in the right "
        f"order; Kendall's tau-b is {kendall}. Best of N by a random choice: {chance}."
    )


def _votes_sentence(votes: Votes) -> str:
    """Return a sentence on the agreement of the votes."""
    shares = {
        "agreement": votes.agreement,
        "names the response shown first in": votes.names_first,
        "same verdict in both orders in": votes.order.rate if votes.order else None,
    }
    facts = [f"{votes.votes:,} votes, {votes.unparsable:,} of them unreadable"]
    for name, share in shares.items():
        if share is not None:
            facts.append(f"{name} {whole_percent(round(share, 3))}")
    return "; ".join(facts) + "."
