"""Tables and charts of policies against the KL divergence from their start.

They are made from figures.json of eval/overoptimisation.py, so that the command, the
page of a list of runs, and the picture show the same.
"""

from collections.abc import Callable, Mapping, Sequence

from mmrm.data.display.axis import Axis
from mmrm.data.display.chart import Chart
from mmrm.data.display.format import MISSING, interval, percent, signed, with_minus_signs
from mmrm.data.display.table import Column, Table
from mmrm.eval.reporting.run_charts import Score, score_lines, score_text
from mmrm.eval.reporting.run_content import JsonRow
from mmrm.eval.results.intervals import Difference

KL = "KL from the start, nats"
JUDGED = ("greedy", "sampled", "pass", "score")
"""Figures whose difference from the start is called better or worse."""
BEST_OF = {"best": "best of n", "pass": "pass@n", "majority": "majority of n"}
"""Figures of n answers of the start, and their names."""


def policy_table(points: Sequence[JsonRow], title: str, comparisons: int | None) -> Table:
    """Return the table of the start (the policy before training) and of all policies.

    Accuracies are in percent, and differences from the start in percentage points.

    Args:
        points: The start, and every policy at every step.
        title: The title of the table.
        comparisons: Number of differences whose intervals hold together. Files of earlier versions
            lack it.
    """
    heads = ["run", "seeds", "step", "KL", "score", "greedy [95 %]", "sampled [95 %]"]
    heads += ["best", "pass", "majority", "greedy - start", "sampled - start"]
    note = (
        f"intervals of differences: 95 % for all {comparisons} together, over questions; over "
        "trainings too with three seeds or more; none with two"
    )
    columns = tuple(Column(head, is_number=head != "run") for head in heads)
    rows = tuple(_policy_row(point) for point in points)
    return Table(title, columns, rows, (note,))


def _policy_row(point: JsonRow) -> tuple[str, ...]:
    """Return the cells of a policy at one step, in the order of the heads in `policy_table`."""
    # The policy before training has no seeds, and neither have policies in files of earlier
    # versions.
    seeds_text = str(len(point["seeds"])) if point["step"] and "seeds" in point else ""
    cells = [point["run"], seeds_text, str(point["step"])]
    cells += [f"{point['kl']['mean']:.2f}", signed(point["score"]["mean"])]
    for name in ("greedy", "sampled"):
        cells.append(_figure_text(point[name], percent))
    for name in BEST_OF:
        # Files of earlier versions lack some of these figures.
        cells.append(percent(point[name]["mean"]) if name in point else MISSING)
    for name in ("greedy", "sampled"):
        change = difference(point, name)
        cells.append(MISSING if change is None else change.points)
    return tuple(cells)


def _figure_text(stored: JsonRow, form: Callable[[float], str]) -> str:
    """Return the text of a stored figure, with its interval if it has one.

    `form` returns the text of a number.
    """
    return interval(stored["mean"], stored.get("low"), stored.get("high"), form)


def difference(point: JsonRow, name: str) -> Difference | None:
    """Return the figure `name` of a policy minus that of the policy before training.

    Returns None if `point` is the policy before training.
    """
    stored = point[name].get("difference")
    return Difference(*stored) if stored else None


def conclusions(points: Sequence[JsonRow]) -> list[str]:
    """Return a sentence on each policy at its last step, such as "the policy became better"."""
    last_step_by_run: dict[str, int] = {}
    for point in points:
        last_step_by_run[point["run"]] = max(last_step_by_run.get(point["run"], 0), point["step"])
    sentences = []
    for point in points:
        if point["step"] == 0:  # the policy before training
            continue
        if point["step"] == last_step_by_run[point["run"]]:
            sentences.append(conclusion(point))
    return sentences


def conclusion(point: JsonRow) -> str:
    """Return a sentence with the verdict on a policy at one step, and its changes by training."""
    changes: dict[str, Difference] = {}
    for name in JUDGED:
        change = difference(point, name)
        if change is not None:
            changes[name] = change
    figures = []
    for name, change in changes.items():
        # The score of a reward model is no share, so it has no percentage points.
        text = signed(change.mean) if name == "score" else change.points
        figures.append(f"{name} {text}")
    verdicts = {name: change.words for name, change in changes.items()}
    outcome = _outcome(verdicts)
    return f"{point['run']}, step {point['step']}: {outcome} ({', '.join(figures)})"


def _outcome(verdicts: Mapping[str, str]) -> str:
    """Return the verdict on a policy.

    Args:
        verdicts: The verdict on each of its figures, compared with the start: "better", "worse",
            "too few seeds" or another text.
    """
    if verdicts["greedy"] == "too few seeds":
        return "two trainings are too few to tell"
    if verdicts["greedy"] == "better":
        return "the policy became better"
    if "worse" in (verdicts["greedy"], verdicts["sampled"]):
        if verdicts["score"] == "better":
            return "over-optimised: the score rose and answers became worse"
        return "answers became worse"
    if verdicts["sampled"] == "better":
        return "sharpening: sampled answers became better, the greedy one did not"
    return "no difference from the start can be told"


def answers_table(points: Sequence[JsonRow], num_answers: int) -> Table:
    """Return the table of each policy's score and accuracies with several answers, with intervals.

    Args:
        points: The policy before training, and every policy at every step.
        num_answers: The number of answers to each question.
    """
    heads = ["run", "step", "score [95 %]", f"best of {num_answers} [95 %]"]
    heads += [f"pass@{num_answers} [95 %]", f"majority of {num_answers} [95 %]"]
    rows = []
    for point in points:
        cells = [point["run"], str(point["step"]), _figure_text(point["score"], signed)]
        for name in BEST_OF:
            cells.append(_figure_text(point[name], percent) if name in point else MISSING)
        rows.append(tuple(cells))
    columns = tuple(Column(head, is_number=head != "run") for head in heads)
    return Table("several answers", columns, tuple(rows))


def curve_table(curve: Sequence[JsonRow]) -> Table:
    """Return the table of figures of the policy before training, for several n.

    Args:
        curve: A row for each n, with the score and accuracies of the best of n answers. The table
            has only the rows whose n is a power of 2 or the largest n.
    """
    heads = ("n", "KL at most", "score", *(f"{name} [95 %]" for name in BEST_OF.values()))
    rows = []
    for line in curve:
        is_power_of_two = int(line["n"]).bit_count() == 1
        if not is_power_of_two and line["n"] != len(curve):
            continue
        cells = [f"{line['n']:.0f}", f"{line['kl_at_most']:.2f}", signed(line["score"])]
        for name in BEST_OF:
            # Files of earlier versions have no intervals.
            low = line.get(f"{name}_low")
            high = line.get(f"{name}_high")
            cells.append(interval(line[name], low, high))
        rows.append(tuple(cells))
    columns = tuple(Column(head, is_number=True) for head in heads)
    note = "95 % intervals over questions"
    return Table("the start without training", columns, tuple(rows), (note,))


def kl_charts(points: Sequence[JsonRow], curve: Sequence[JsonRow]) -> list[Chart]:
    """Return charts of accuracy and score against the KL divergence from the start.

    The start is the policy before training. The last chart shows the accuracies of its n answers.

    Args:
        points: The start, and every policy at every step.
        curve: The figures of the best of n answers of the start, a row for each n.
    """
    charts = [
        _chart_against_kl("Sampled answers", points, "sampled", _best_of_n(curve, "best")),
        _chart_against_kl("Greedy answers", points, "greedy", []),
        _chart_against_kl("Score of the reward model", points, "score", _best_of_n(curve, "score")),
    ]
    scores_by_name: dict[str, list[tuple[float, Score]]] = {}
    for figure, name in BEST_OF.items():
        scores_by_name[name] = [(line["n"], _score_of_line(line, figure)) for line in curve]
    x = Axis.numbers([line["n"] for line in curve], "n")
    y = Axis.shares(_heights(scores_by_name))
    # All charts of the picture share a legend, so this chart begins with a colour of its own.
    num_used_styles = len(charts[0].series)
    series = score_lines(x, scores_by_name, score_text, first_style=num_used_styles)
    charts.append(Chart("n answers of the start", x, y, tuple(series)))
    return charts


def _best_of_n(curve: Sequence[JsonRow], name: str) -> list[tuple[float, Score]]:
    """Return the points of a line: a KL divergence and the figure `name` for each n.

    Choosing the best of n answers moves a policy by this KL divergence at most. `curve` has a row
    for each n.
    """
    return [(line["kl_at_most"], _score_of_line(line, name)) for line in curve]


def _chart_against_kl(
    title: str, points: Sequence[JsonRow], name: str, best_of_n: list[tuple[float, Score]]
) -> Chart:
    """Return the chart of one figure, with a line from the untrained policy for each run.

    Args:
        title: Title of the chart.
        points: The policy before training (the start), and every policy at every step.
        name: The key of the figure.
        best_of_n: The points of the start's n answers; empty if the chart has no line of them.
    """
    start, *trained = points
    scores_by_run: dict[str, list[tuple[float, Score]]] = {}
    for run in dict.fromkeys(point["run"] for point in trained):
        run_points = [start, *(point for point in trained if point["run"] == run)]
        # An estimate of the KL divergence may be below 0.
        scores_by_run[run] = [
            (max(point["kl"]["mean"], 0.0), _score(point[name])) for point in run_points
        ]
    if best_of_n:
        scores_by_run["start, best of n"] = best_of_n
    kl_values: list[float] = []
    for scores in scores_by_run.values():
        kl_values += [kl for kl, _ in scores]
    x = Axis.numbers(kl_values, KL)
    heights = _heights(scores_by_run)
    if name == "score":
        return Chart(
            title, x, Axis.numbers(heights), tuple(score_lines(x, scores_by_run, _signed_score))
        )
    return Chart(title, x, Axis.shares(heights), tuple(score_lines(x, scores_by_run, score_text)))


def _heights(scores_by_name: Mapping[str, Sequence[tuple[float, Score]]]) -> list[float]:
    """Return all values that the y axis has to hold: scores and the ends of their intervals."""
    heights: list[float] = []
    for scores in scores_by_name.values():
        for _, score in scores:
            heights += score
    return heights


def _signed_score(score: Score) -> str:
    """Return the text of a mean score of the reward model, with its interval if it has one."""
    if len(score) == 1:
        return with_minus_signs(signed(score[0]))
    mean, low, high = score
    return with_minus_signs(interval(mean, low, high, signed))


def _score(stored: Mapping[str, float | None]) -> Score:
    """Return a stored figure, with its interval if it was stored with one."""
    values = [stored.get(key) for key in ("mean", "low", "high")]
    return tuple(value for value in values if value is not None)


def _score_of_line(line: JsonRow, name: str) -> Score:
    """Return the figure `name` of n answers, with its interval if the file has one."""
    return _score(
        {"mean": line[name], "low": line.get(f"{name}_low"), "high": line.get(f"{name}_high")}
    )
