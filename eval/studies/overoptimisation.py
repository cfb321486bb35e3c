"""Over-optimisation: policies by step, against the KL divergence from their start.

Every policy answers the same questions, greedily and sampled. Its answers are verified, and scored
by the reward model. The start is also measured by the best of n of its answers, without training.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmrm.data.arrays import Floats, Ints
from mmrm.data.display.chart import save_png
from mmrm.data.display.console import plain_console
from mmrm.data.display.study_result import StudyResult
from mmrm.data.errors import UserError
from mmrm.data.preference import Preference
from mmrm.data.storage.files import write_json
from mmrm.eval.contamination.question_overlap import Question, TrainingPrompts
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.loading import load_judge
from mmrm.eval.policies.answering import items_of_questions
from mmrm.eval.policies.best_of import best_of, best_of_kl, best_score, majority, pass_at
from mmrm.eval.policies.divergence import Measurement, Point
from mmrm.eval.policies.policy_runs import PolicyRun
from mmrm.eval.reporting.overoptimisation_page import (
    BEST_OF,
    JUDGED,
    conclusions,
    curve_table,
    kl_charts,
    policy_table,
)
from mmrm.eval.results.intervals import (
    Difference,
    Estimate,
    accuracy_over_seeds,
    mean_interval,
    mean_over_seeds,
    paired_difference,
    share_interval,
)
from mmrm.eval.results.run_folder import RECIPE
from mmrm.eval.suite.fingerprint import shared_digest
from mmrm.models.distributed import gather, rank

Credits = Mapping[str, Floats]
"""The value of each figure for every question, shape (questions,)."""
SHARES = ("greedy", "sampled", *BEST_OF)
"""Figures that are shares of 1."""


def run(options: argparse.Namespace, device: torch.device, output: Path) -> StudyResult | None:
    """Measure every policy on all ranks, and return the result on the first one.

    The caller holds the lock of `output`.

    Args:
        options: `runs`, `judge` or None, the numbers of `questions` and `samples`, `steps` or None,
            and `token_budget`.
        device: The device of this rank.
        output: The folder that gets a file for each policy, which is not measured again.
    """
    runs = comparable_runs(options.runs)
    first = runs[0]
    judge = options.judge or (Path(first.judge) if first.judge else None)
    if judge is None:
        raise UserError(
            f"{first.folder} was trained without a judge: name the one that scores, --judge PATH."
        )
    console = plain_console()
    runtime = Runtime(device, options.token_budget)
    all_questions = first.questions(options.questions)
    trained = gather({} if rank() else trained_questions(all_questions, runs, judge))[0]
    questions = [one for index, one in enumerate(all_questions) if index not in trained]
    scoring = (load_judge(judge, runtime).judge, shared_digest(judge))
    measurement = Measurement(
        first, questions, options.samples, scoring, output / "points", runtime
    )
    points = [measurement.point(None, 0, None, console)]
    for policy_run in runs:
        for step, path in checkpoints_of(policy_run, options.steps).items():
            points.append(measurement.point(policy_run, step, path, console))
    if rank():
        return None
    title = f"{len(questions):,} questions, {options.samples} answers each, judge {judge}"
    if trained:
        title += f"; {len(trained):,} questions left out because they were trained on"
    return study_result(points, title, items_of_questions(questions))


def comparable_runs(folders: Sequence[Path]) -> list[PolicyRun]:
    """Return the runs in folders of runs and of lists.

    Raises:
        UserError: If there is none, or if they differ in what all of them have to share.
    """
    runs: list[PolicyRun] = []
    for folder in folders:
        runs += PolicyRun.in_folder(folder)
    if not runs:
        raise UserError(f"{folders[0]}: no run of this list came to its end.")
    first = runs[0]
    for other in runs[1:]:
        differing = []
        if other.start != first.start:
            differing.append("start")
        if other.sampling != first.sampling:
            differing.append("sampling")
        if other.source != first.source:
            differing.append("source")
        if differing:
            raise UserError(
                f"{other.folder} and {first.folder} differ in their {differing[0]}, "
                "so that they cannot be compared."
            )
    return runs


def checkpoints_of(policy_run: PolicyRun, steps: Sequence[int] | None) -> dict[int, Path]:
    """Return the checkpoints of a run by step; those of `steps` alone, if any are given.

    Raises:
        UserError: If there is none.
    """
    checkpoints = policy_run.checkpoints()
    if not steps:
        if not checkpoints:
            raise UserError(f"{policy_run.folder} holds no whole checkpoint.")
        return checkpoints
    chosen = {step: path for step, path in checkpoints.items() if step in steps}
    if not chosen:
        raise UserError(f"{policy_run.folder} holds no whole checkpoint of these steps.")
    return chosen


def trained_questions(
    questions: Sequence[Preference], runs: Sequence[PolicyRun], judge: Path
) -> dict[int, str]:
    """Return the indices of questions that a run or the judge was trained on, with a source.

    Raises:
        UserError: If so many were trained on that they are refused.
    """
    trained_on = TrainingPrompts()
    for policy_run in runs:
        trained_on.add_run(policy_run.folder / RECIPE)
    trained_on.add_model(runs[0].start.path)
    if judge.is_dir():
        trained_on.add_model(str(judge))
    else:
        trained_on.note(f"{judge}: it is no checkpoint, so its training is not known")
    for note in trained_on.notes:
        print(f"not compared with the questions: {note}", file=sys.stderr)
    compared = [Question.of_record(question) for question in questions]
    remedy = "Measure on questions that no run trains on (evaluation.questions in the recipes)."
    return trained_on.questions_to_leave_out(compared, "evaluation.questions", remedy)


def study_result(points: Sequence[Point], title: str, items: Ints | None = None) -> StudyResult:
    """Return the figures of all policies, with their tables, charts and conclusions.

    Args:
        points: The start, and every policy at every step and seed.
        title: The questions, answers and judge.
        items: The number of each question's item; None if every question is independent.
    """
    start = points[0]
    curve = best_of_curve(start, items)
    seeds_by_policy: dict[tuple[str, int], list[Point]] = {}
    for point in points:
        seeds_by_policy.setdefault((point.run, point.step), []).append(point)
    comparisons = len(JUDGED) * max(1, len(seeds_by_policy) - 1)
    rows = [
        policy_figures(seeds, start.credits, items, comparisons)
        for seeds in seeds_by_policy.values()
    ]
    figures = {"title": title, "comparisons": comparisons, "points": rows, "best_of_n": curve}
    tables = (policy_table(rows, title, comparisons), curve_table(curve))
    return StudyResult(figures, tables, tuple(kl_charts(rows, curve)), tuple(conclusions(rows)))


def write(result: StudyResult, folder: Path) -> None:
    """Write the figures and the picture."""
    write_json(folder / "figures.json", result.figures)
    save_png(result.charts, folder / "picture.png")


def policy_figures(
    points: Sequence[Point], start: Credits, items: Ints | None = None, comparisons: int = 1
) -> dict[str, Any]:
    """Return the figures of a run's step with intervals, and the paired differences from the start.

    Args:
        points: The seeds of one run at one step.
        start: The values of the start on the same questions.
        items: The number of each question's item; None if every question is independent.
        comparisons: Differences from the start that are read together.
    """
    figures: dict[str, Any] = {
        "run": points[0].run,
        "step": points[0].step,
        "seeds": [point.seed for point in points],
    }
    by_seed = [point.credits for point in points]
    for name in by_seed[0]:
        values = np.array([credits[name] for credits in by_seed])
        is_share = name in SHARES
        figures[name] = estimate(values, items, is_share).plain
        if points[0].step:
            change = change_from_start(values, start[name], items, comparisons, is_share)
            figures[name]["difference"] = [change.mean, change.low, change.high]
    return figures


def estimate(values: Floats, items: Ints | None, is_share: bool) -> Estimate:
    """Return the mean of values of shape (seeds, questions).

    Its interval is over questions alone if there is one seed, else over trainings too.
    """
    if len(values) == 1:
        return share_interval(values[0], items) if is_share else mean_interval(values[0], items)
    return accuracy_over_seeds(values, items) if is_share else mean_over_seeds(values, items)


def change_from_start(
    values: Floats, start: Floats, items: Ints | None, comparisons: int, is_share: bool
) -> Difference:
    """Return the mean of values (seeds, questions) minus those of the start (questions,)."""
    if len(values) == 1 and is_share:
        return paired_difference(values[0], start, items, comparisons)
    if len(values) == 1:
        change = mean_interval(values[0] - start, items, comparisons)
    else:
        change = mean_over_seeds(values - start, items, comparisons)
    return Difference(change.mean, change.low, change.high)


def best_of_curve(start: Point, items: Ints | None = None) -> list[dict[str, Any]]:
    """Return what n answers of the start reach, for every n up to the number that was sampled.

    A line has `n`, `kl_at_most`, and for each of `best`, `score`, `pass` and `majority` its mean
    under that name and its interval over questions under `NAME_low` and `NAME_high`.
    """
    curve = []
    for n in range(1, len(start.answers[0].right)):
        values: dict[str, list[float]] = {"best": [], "score": [], "pass": [], "majority": []}
        for answers in start.answers:
            scores = answers.scores[1:]
            right = answers.right[1:]
            values["best"].append(best_of(scores, right, n))
            values["score"].append(best_score(scores, n))
            values["pass"].append(pass_at(right, n))
            values["majority"].append(majority(answers.majority_votes, right, n))
        line: dict[str, Any] = {"n": n, "kl_at_most": best_of_kl(n)}
        for name, by_question in values.items():
            mean = estimate(np.array([by_question]), items, name in SHARES)
            line |= {name: mean.mean, f"{name}_low": mean.low, f"{name}_high": mean.high}
        curve.append(line)
    return curve
