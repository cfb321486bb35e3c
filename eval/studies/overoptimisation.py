"""Over-optimisation: the reward model's scores and the accuracy of policies while they are trained.

A policy is the language model that reinforcement learning trains; its start is the model before
training. The policies at all checkpoints are compared by their KL divergence from the start. Every
policy answers the same questions, greedily and sampled. Its answers are verified, and scored by the
reward model. The start is also measured by the best of n of its answers, without training.
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
"""The values of each figure by question, arrays of shape (questions,)."""
SHARES = ("greedy", "sampled", *BEST_OF)
"""The figures from 0 to 1, such as accuracies. The others are scores and divergences."""


def run(options: argparse.Namespace, device: torch.device, output: Path) -> StudyResult | None:
    """Measure the policies of all runs and steps, and return the result.

    All ranks must call together. The first rank gets the result, the others None. The caller holds
    the lock of `output`.

    Args:
        options: `runs`, the folders of the runs; `judge`, the path of the reward model, or None for
            the judge of the first run; the numbers of `questions` and of `samples`; `steps`, the
            steps to measure, or None for all; `token_budget`, or None for the default.
        device: The device of this rank.
        output: The folder for the measurements. A policy whose measurement is there is not measured
            again.
    """
    runs = comparable_runs(options.runs)
    first_run = runs[0]
    judge_path = options.judge
    if judge_path is None and first_run.judge:
        judge_path = Path(first_run.judge)
    if judge_path is None:
        raise UserError(
            f"{first_run.folder} was trained without a judge: name the one that scores, --judge "
            "PATH."
        )
    console = plain_console()
    runtime = Runtime(device, options.token_budget)
    is_first_rank = rank() == 0

    all_questions = first_run.questions(options.questions)
    trained_on: dict[int, str] = {}
    if is_first_rank:
        trained_on = trained_questions(all_questions, runs, judge_path)
    trained_on = gather(trained_on)[0]
    questions = [
        question for index, question in enumerate(all_questions) if index not in trained_on
    ]

    judge_and_digest = (load_judge(judge_path, runtime).judge, shared_digest(judge_path))
    measurement = Measurement(
        first_run, questions, options.samples, judge_and_digest, output / "points", runtime
    )
    start = measurement.point(run=None, step=0, checkpoint=None, console=console)
    points = [start]
    for policy_run in runs:
        for step, checkpoint in checkpoints_of(policy_run, options.steps).items():
            points.append(measurement.point(policy_run, step, checkpoint, console))
    if not is_first_rank:
        return None
    title = f"{len(questions):,} questions, {options.samples} answers each, judge {judge_path}"
    if trained_on:
        title += f"; {len(trained_on):,} questions left out because they were trained on"
    return study_result(points, title, items_of_questions(questions))


def comparable_runs(folders: Sequence[Path]) -> list[PolicyRun]:
    """Return the policy runs in some folders, which can be compared with each other.

    Args:
        folders: Run folders, or folders in which `train/ablate.py` made several runs.

    Raises:
        UserError: If there is no complete run, or if two runs differ in the policy that training
            started from, their sampling or their source of questions.
    """
    runs: list[PolicyRun] = []
    for folder in folders:
        runs += PolicyRun.in_folder(folder)
    if not runs:
        raise UserError(f"{folders[0]}: no run of this list came to its end.")
    first_run = runs[0]
    for other_run in runs[1:]:
        differing = []
        if other_run.start != first_run.start:
            differing.append("start")
        if other_run.sampling != first_run.sampling:
            differing.append("sampling")
        if other_run.source != first_run.source:
            differing.append("source")
        if differing:
            raise UserError(
                f"{other_run.folder} and {first_run.folder} differ in their {differing[0]}, "
                "so that they cannot be compared."
            )
    return runs


def checkpoints_of(policy_run: PolicyRun, steps: Sequence[int] | None) -> dict[int, Path]:
    """Return the complete checkpoints of a run by step.

    Args:
        policy_run: The run.
        steps: The steps of the checkpoints to return; None for all.

    Raises:
        UserError: If the run has none of these checkpoints.
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
    """Return the questions that a run or the judge was trained on.

    They are returned by their index, each with the name of a source that contains it. Training data
    that cannot be read are listed on stderr.

    Raises:
        UserError: If too many of the questions were trained on to leave them out.
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
        points: The measurements. The first is that of the policy before training, and the others
            are those of every run at every step and seed.
        title: The title of the table: the numbers of questions and answers, and the judge.
        items: The code of each question's item, a set of questions about one image; None if every
            question is independent.
    """
    start = points[0]
    curve = best_of_curve(start, items)
    # The points of one run and step differ in their seed.
    points_by_policy: dict[tuple[str, int], list[Point]] = {}
    for point in points:
        points_by_policy.setdefault((point.run, point.step), []).append(point)
    num_trained_policies = max(1, len(points_by_policy) - 1)  # all except the start
    comparisons = len(JUDGED) * num_trained_policies
    rows = [
        policy_figures(points_of_policy, start.credits, items, comparisons)
        for points_of_policy in points_by_policy.values()
    ]
    figures = {"title": title, "comparisons": comparisons, "points": rows, "best_of_n": curve}
    tables = (policy_table(rows, title, comparisons), curve_table(curve))
    return StudyResult(figures, tables, tuple(kl_charts(rows, curve)), tuple(conclusions(rows)))


def write(result: StudyResult, folder: Path) -> None:
    """Write the figures to `figures.json` and the charts to `picture.png` in a folder."""
    write_json(folder / "figures.json", result.figures)
    save_png(result.charts, folder / "picture.png")


def policy_figures(
    points: Sequence[Point], start: Credits, items: Ints | None = None, comparisons: int = 1
) -> dict[str, Any]:
    """Return the figures of a run at one step as they are stored, each with its interval.

    After step 0, each figure also has its paired `difference` from the policy before training, with
    the interval.

    Args:
        points: The measurements of the run at this step, one for each seed.
        start: The values of the policy before training on the same questions.
        items: The code of each question's item, a set of questions about one image; None if every
            question is independent.
        comparisons: The number of differences in the study. The intervals are wider for more
            comparisons, so that all of them hold together with 95 %.
    """
    figures: dict[str, Any] = {
        "run": points[0].run,
        "step": points[0].step,
        "seeds": [point.seed for point in points],
    }
    credits_by_seed = [point.credits for point in points]
    for name in credits_by_seed[0]:
        # (seeds, questions)
        values = np.array([credits[name] for credits in credits_by_seed])
        is_share = name in SHARES
        figures[name] = estimate(values, items, is_share).plain
        is_start = points[0].step == 0
        if not is_start:
            change = change_from_start(values, start[name], items, comparisons, is_share)
            figures[name]["difference"] = [change.mean, change.low, change.high]
    return figures


def estimate(values: Floats, items: Ints | None, is_share: bool) -> Estimate:
    """Return the mean of a figure with its 95 % interval.

    With one seed, the interval is over questions. With several seeds, it is over trainings too.

    Args:
        values: The values of the figure, shape (seeds, questions).
        items: The code of each question's item, a set of questions about one image; None if every
            question is independent.
        is_share: True if the figure is a share, with values from 0 to 1.
    """
    has_one_seed = len(values) == 1
    if has_one_seed and is_share:
        return share_interval(values[0], items)
    if has_one_seed:
        return mean_interval(values[0], items)
    if is_share:
        return accuracy_over_seeds(values, items)
    return mean_over_seeds(values, items)


def change_from_start(
    values: Floats, start: Floats, items: Ints | None, comparisons: int, is_share: bool
) -> Difference:
    """Return the mean change of a figure since the start of training, with its interval.

    Args:
        values: The values of the figure after training, shape (seeds, questions).
        start: The values before training on the same questions, shape (questions,).
        items: The code of each question's item, a set of questions about one image; None if every
            question is independent.
        comparisons: The number of differences in the study, for which the interval is widened.
        is_share: True if the figure is a share, with values from 0 to 1.
    """
    has_one_seed = len(values) == 1
    if has_one_seed and is_share:
        return paired_difference(values[0], start, items, comparisons)
    if has_one_seed:
        change = mean_interval(values[0] - start, items, comparisons)
    else:
        change = mean_over_seeds(values - start, items, comparisons)
    return Difference(change.mean, change.low, change.high)


def best_of_curve(start: Point, items: Ints | None = None) -> list[dict[str, Any]]:
    """Return the figures of choosing among n answers, for n from 1 to the number of samples.

    An entry of the list has `n`; `kl_at_most`, the largest KL divergence that choosing the best of
    n can cause; and the means of `best`, `score`, `pass` and `majority` under these names, with
    their intervals over questions under `NAME_low` and `NAME_high`.

    Args:
        start: The measurement of the policy before training, whose answers are used.
        items: The code of each question's item, a set of questions about one image; None if every
            question is independent.
    """
    curve = []
    num_samples = len(start.answers[0].right) - 1  # without the greedy answer
    for n in range(1, num_samples + 1):
        values: dict[str, list[float]] = {"best": [], "score": [], "pass": [], "majority": []}
        for answers in start.answers:
            # The first answer is the greedy one, and the others are sampled.
            scores = answers.scores[1:]
            right = answers.right[1:]
            values["best"].append(best_of(scores, right, n))
            values["score"].append(best_score(scores, n))
            values["pass"].append(pass_at(right, n))
            values["majority"].append(majority(answers.majority_votes, right, n))
        entry: dict[str, Any] = {"n": n, "kl_at_most": best_of_kl(n)}
        for name, values_by_question in values.items():
            is_share = name in SHARES
            one_seed = np.array([values_by_question])  # (1, questions)
            mean = estimate(one_seed, items, is_share)
            entry |= {name: mean.mean, f"{name}_low": mean.low, f"{name}_high": mean.high}
        curve.append(entry)
    return curve
