"""What RL by a reward model makes of a policy, checkpoint by checkpoint: true accuracy and score against the KL from its start.

python eval/overoptimisation.py runs/shapes/policy                                         # start, every checkpoint, best-of-n
python eval/overoptimisation.py runs/shapes/policy runs/shapes/policy_shuffled --questions 1000 --samples 8
python eval/overoptimisation.py runs/shapes/ablations/rewards --samples 8           # a list of train/ablate.py: all its runs

All RUNs start from the same policy and are measured on the same questions (the first of their evaluation.questions) by one judge
(the reward's first, or --judge). Beside the checkpoints stands what the start reaches without training: best of n by the judge,
pass@n and the majority of n, for every n up to --samples, each estimated without bias from the same answers. Of a list, the seeds
of a variant are one line. Answers that a run gave to the same questions at its saves are not asked for again. Questions are
compared by content with what the runs, their start and the judge were trained on: those that were trained on are left out and
counted; if a quarter were, the command ends before any work is done.

A difference is paired: the same questions. Its interval is over questions for a run with one seed, and then speaks of this policy
alone; over questions and trainings for three seeds or more; two seeds have none. Intervals of differences hold at 95 % for all of
them together. "Sharpening" is what a run's last line says where sampled answers became better, and the greedy one did not.

Into --output (default RUN/overoptimisation) go figures.json, picture.png and points/, a file for each checkpoint, which a second
call does not repeat.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.arrays import Floats, Ints
from mmrm.data.display.console import plain_console
from mmrm.data.display.png import colours, panels
from mmrm.data.errors import UserError
from mmrm.data.preference import Preference
from mmrm.data.storage.files import write_json
from mmrm.data.storage.output_lock import locked_folder
from mmrm.eval.cli import add_ranks, command, processes
from mmrm.eval.contamination.question_overlap import Question, TrainingPrompts
from mmrm.eval.policies.best_of import best_of, best_of_kl, best_score, majority, pass_at
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

if TYPE_CHECKING:
    from mmrm.eval.policies.divergence import Point
    from mmrm.eval.policies.policy_runs import PolicyRun

Credits = Mapping[str, Floats]
"""The value of each figure for every question, (questions,)."""
ACCURACIES = ("greedy", "sampled", "best", "pass", "majority")
JUDGED = ("greedy", "sampled", "pass", "score")
"""Figures whose difference from the start is called better or worse."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, measure, print and write."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "eval/overoptimisation.py", description=__doc__, formatter_class=form
    )
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="a run folder of `method: policy`"
    )
    parser.add_argument(
        "--judge",
        type=Path,
        help="a checkpoint or YAML file; default: the first judge of the first RUN's reward",
    )
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=16, help="sampled answers to each question")
    parser.add_argument(
        "--steps",
        type=int,
        nargs="+",
        help="the checkpoints to measure; default: all that are whole",
    )
    parser.add_argument("--output", type=Path)
    add_ranks(parser)
    options = parser.parse_args(arguments)
    if options.samples < 2 or options.questions < 2:
        parser.error("--samples and --questions must be at least 2")
    with command():
        measure(options)


def measure(options: argparse.Namespace) -> None:
    """Measure every point on all ranks; the first one writes, and holds the lock of the output."""
    with processes() as device, ExitStack() as stack:
        from mmrm.eval.judges.checkpoint import Runtime
        from mmrm.eval.judges.loading import load_judge
        from mmrm.eval.policies.answering import items_of_questions
        from mmrm.eval.policies.divergence import Measurement
        from mmrm.eval.policies.policy_runs import PolicyRun
        from mmrm.eval.suite.fingerprint import shared_digest
        from mmrm.models.distributed import gather, locked_by_first_rank, rank

        output = options.output or options.runs[0] / "overoptimisation"
        stack.enter_context(locked_by_first_rank(locked_folder(output)))
        runs = [run for folder in options.runs for run in PolicyRun.all_in(folder)]
        if not runs:
            raise UserError(f"{options.runs[0]}: no run of this list came to its end.")
        first = runs[0]
        for run in runs[1:]:
            for what in ("start", "sampling", "source"):
                if getattr(run, what) != getattr(first, what):
                    raise UserError(
                        f"{run.folder} and {first.folder} differ in their {what}, so that they cannot be compared."
                    )
        judge = options.judge or (Path(first.judge) if first.judge else None)
        if judge is None:
            raise UserError(
                f"{first.folder} was trained without a judge: name the one that scores, --judge PATH."
            )
        console = plain_console()
        runtime = Runtime(device, options.token_budget)
        asked = first.questions(options.questions)
        repeated = gather({} if rank() else trained_questions(asked, runs, judge))[0]
        questions = [one for index, one in enumerate(asked) if index not in repeated]
        scoring = load_judge(judge, runtime).judge, shared_digest(judge)
        measurement = Measurement(
            first, questions, options.samples, scoring, output / "points", runtime
        )
        points = [measurement.point(None, 0, None, console)]
        for run in runs:
            found = {
                step: path
                for step, path in run.checkpoints().items()
                if not options.steps or step in options.steps
            }
            if not found:
                raise UserError(
                    f"{run.folder} holds no whole checkpoint{' of these steps' if options.steps else ''}."
                )
            points += [measurement.point(run, step, path, console) for step, path in found.items()]
        if rank():
            return
        title = f"{len(questions):,} questions, {options.samples} answers each, judge {judge}"
        if repeated:
            title += f"; {len(repeated):,} questions left out because they were trained on"
        report(points, output, title, items_of_questions(questions))


def trained_questions(
    questions: Sequence[Preference], runs: Sequence[PolicyRun], judge: Path
) -> dict[int, str]:
    """Return the indices of the questions that a run or the judge was trained on, each with a source.

    Raises: UserError if so many were trained on that they are refused.
    """
    trained_on = TrainingPrompts()
    for run in runs:
        trained_on.add_run(run.folder / RECIPE)
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


def report(points: Sequence[Point], output: Path, title: str, items: Ints | None = None) -> None:
    """Print the tables and write the figures and the picture; `items` is the number of each question's item."""
    curve = best_of_curve(points[0], items)
    start = points[0].credits
    seeds: dict[tuple[str, int], list[Point]] = {}
    for point in points:
        seeds.setdefault((point.run, point.step), []).append(point)
    comparisons = len(JUDGED) * max(1, len(seeds) - 1)
    rows = [row(same, start, items, comparisons) for same in seeds.values()]
    console = plain_console(width=max(plain_console().width, 150))
    console.print(policy_table(rows, title, comparisons), curve_table(curve))
    for line in (conclusion(one) for one in rows if is_last(one, rows)):
        console.print(line, highlight=False, soft_wrap=True)
    figures = {"title": title, "comparisons": comparisons, "points": rows, "best_of_n": curve}
    write_json(output / "figures.json", figures)
    draw(rows, curve, output / "picture.png")
    console.print(f"saved in {output}", soft_wrap=True)


def row(
    points: Sequence[Point], start: Credits, items: Ints | None = None, comparisons: int = 1
) -> dict[str, Any]:
    """Return the figures of a run's step, of all its seeds, with their intervals, and the paired differences from the start.

    Args:
        points: The seeds of one run at one step.
        start: What the start reaches on the same questions.
        items: The number of each question's item; None if every question is independent.
        comparisons: Differences from the start that are read together.
    """
    found: dict[str, Any] = {
        "run": points[0].run,
        "step": points[0].step,
        "seeds": [point.seed for point in points],
    }
    by_seed = [point.credits for point in points]
    for name in by_seed[0]:
        values = np.array([credits[name] for credits in by_seed])
        is_share = name in ACCURACIES
        found[name] = estimate(values, items, is_share).plain
        if points[0].step:
            change = change_from_start(values, start[name], items, comparisons, is_share)
            found[name]["difference"] = [change.mean, change.low, change.high]
    return found


def estimate(values: Floats, items: Ints | None, is_share: bool) -> Estimate:
    """Return the mean of values of shape (seeds, questions), over questions alone if there is one seed."""
    if len(values) == 1:
        return share_interval(values[0], items) if is_share else mean_interval(values[0], items)
    return accuracy_over_seeds(values, items) if is_share else mean_over_seeds(values, items)


def change_from_start(
    values: Floats, start: Floats, items: Ints | None, comparisons: int, is_share: bool
) -> Difference:
    """Return the mean of values of shape (seeds, questions) minus the start's, of shape (questions,)."""
    if len(values) == 1 and is_share:
        return paired_difference(values[0], start, items, comparisons)
    if len(values) == 1:
        change = mean_interval(values[0] - start, items, comparisons)
    else:
        change = mean_over_seeds(values - start, items, comparisons)
    return Difference(change.mean, change.low, change.high)


def best_of_curve(start: Point, items: Ints | None = None) -> list[dict[str, Any]]:
    """Return what n answers of the start reach, for every n up to the number that was sampled.

    A line has `n`, `kl_at_most`, and for each of `best`, `score`, `pass` and `majority` its mean under that name and its
    interval over questions under `NAME_low` and `NAME_high`.
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
            values["majority"].append(majority(answers.said, right, n))
        line: dict[str, Any] = {"n": n, "kl_at_most": best_of_kl(n)}
        for name, by_question in values.items():
            found = estimate(np.array([by_question]), items, name in ACCURACIES)
            line |= {name: found.mean, f"{name}_low": found.low, f"{name}_high": found.high}
        curve.append(line)
    return curve


def difference(row: Mapping[str, Any], name: str) -> Difference | None:
    """Return how far a figure is from the start's; None for the start."""
    found = row[name].get("difference")
    return Difference(*found) if found else None


def is_last(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> bool:
    """Say whether a row is the last of a run."""
    return bool(row["step"]) and row["step"] == max(
        other["step"] for other in rows if other["run"] == row["run"]
    )


def conclusion(row: Mapping[str, Any]) -> str:
    """Return what became of a policy, in words that the intervals allow."""
    changes = {name: difference(row, name) for name in JUDGED}
    said = {name: found.words for name, found in changes.items() if found}
    shown = ", ".join(
        f"{name} {found.points if name != 'score' else f'{found.mean:+.2f}'}"
        for name, found in changes.items()
        if found
    )
    if said["greedy"] == "too few seeds":
        words = "two trainings are too few to tell"
    elif said["greedy"] == "better":
        words = "the policy became better"
    elif "worse" in (said["greedy"], said["sampled"]):
        words = (
            "over-optimised: the score rose and answers became worse"
            if said["score"] == "better"
            else "answers became worse"
        )
    elif said["sampled"] == "better":
        words = "sharpening: sampled answers became better, the greedy one did not"
    else:
        words = "no difference from the start can be told"
    return f"{row['run']}, step {row['step']}: {words} ({shown})"


def policy_table(rows: Sequence[Mapping[str, Any]], title: str, comparisons: int) -> Table:
    """Return the table of start and checkpoints: accuracies in percent, differences from the start in points."""
    heads = (
        "run",
        "seeds",
        "step",
        "KL",
        "score",
        *(f"{name} [95 %]" for name in ("greedy", "sampled")),
        "best",
        "pass",
        "majority",
    )
    caption = (
        f"intervals of differences: 95 % for all {comparisons} together, over questions; over trainings too with "
        "three seeds or more; none with two"
    )
    table = Table(*heads, "greedy - start", "sampled - start", title=title, caption=caption)
    for one in rows:
        own = [estimate_of(one[name]).percent for name in ACCURACIES[:2]]
        beside = [f"{100 * one[name]['mean']:.1f}" for name in ACCURACIES[2:]]
        changes = [difference(one, name) for name in ACCURACIES[:2]]
        paired = ["–" if change is None else change.points for change in changes]
        kl, score = one["kl"]["mean"], one["score"]["mean"]
        seeds = str(len(one["seeds"])) if one["step"] else ""
        table.add_row(
            one["run"],
            seeds,
            str(one["step"]),
            f"{kl:.2f}",
            f"{score:+.2f}",
            *own,
            *beside,
            *paired,
        )
    return table


def estimate_of(stored: Mapping[str, Any]) -> Estimate:
    """Return a stored figure."""
    return Estimate(stored["mean"], stored["low"], stored["high"])


def curve_table(curve: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of what n answers of the start reach; of many n those that double."""
    table = Table(
        "n",
        "KL at most",
        "score",
        "best of n [95 %]",
        "pass@n [95 %]",
        "majority of n [95 %]",
        title="the start without training",
        caption="95 % intervals over questions",
    )
    for line in curve:
        if int(line["n"]).bit_count() == 1 or line["n"] == len(curve):
            shares = [
                Estimate(line[name], line[f"{name}_low"], line[f"{name}_high"]).percent
                for name in ("best", "pass", "majority")
            ]
            table.add_row(
                f"{line['n']:.0f}", f"{line['kl_at_most']:.2f}", f"{line['score']:+.2f}", *shares
            )
    return table


def draw(rows: Sequence[Mapping[str, Any]], curve: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw true accuracy and score against KL: each run from the start on, and best-of-n with a band for its interval."""
    start, runs = rows[0], list(dict.fromkeys(one["run"] for one in rows[1:]))
    with panels(path, ("true accuracy", "score of the reward model")) as (accuracy, score):
        for run, colour in zip(runs, colours(len(runs)), strict=True):
            own = [start, *(one for one in rows if one["run"] == run)]
            kl = [max(one["kl"]["mean"], 0.0) for one in own]
            for name, style in (("greedy", "--"), ("sampled", "-")):
                means = np.array([one[name]["mean"] for one in own])
                # As floats: None, for two seeds, becomes nan, which is not drawn.
                ends = np.array([[one[name]["low"], one[name]["high"]] for one in own], float).T
                bars = np.abs(ends - means)
                accuracy.errorbar(
                    kl,
                    means,
                    bars,
                    fmt=f"o{style}",
                    color=colour,
                    capsize=2,
                    label=f"{run}, {name}",
                )
            score.plot(
                kl,
                [one["score"]["mean"] for one in own],
                "o-",
                color=colour,
                label=f"{run}, sampled",
            )
        kl = [line["kl_at_most"] for line in curve]
        for axes, names in ((accuracy, ("best", "pass", "majority")), (score, ("score",))):
            for name, style in zip(names, ("-", ":", "-."), strict=False):
                label = {
                    "best": "best of n",
                    "pass": "pass@n",
                    "majority": "majority of n",
                    "score": "best of n",
                }[name]
                axes.plot(
                    kl,
                    [line[name] for line in curve],
                    style,
                    color="#000000",
                    alpha=0.7,
                    label=f"start, {label}",
                )
                bounds = [(line[f"{name}_low"], line[f"{name}_high"]) for line in curve]
                low, high = np.array(bounds, dtype=float).T
                axes.fill_between(kl, low, high, color="#000000", alpha=0.08, linewidth=0)
        for axes in (accuracy, score):
            axes.set_xlabel("KL from the start, nats an answer")


if __name__ == "__main__":
    main()
