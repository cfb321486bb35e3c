"""The stress comparison: one recipe is trained as StableReinforce and as plain Reinforce++."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmrm.data.display.axis import Axis
from mmrm.data.display.chart import Chart, Dot, Series, save_png
from mmrm.data.display.study_result import StudyResult
from mmrm.data.errors import UserError
from mmrm.data.storage.files import read_json, write_json
from mmrm.data.storage.output_lock import locked_folder
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.recipe.recipe import Recipe
from mmrm.train.studies.ablation.variants import (
    LOG,
    Run,
    last_words,
    launch,
    newest_checkpoint_file,
    refuse_other_recipes,
)

ARMS = {
    "StableReinforce": (),
    "Reinforce++": ("method.pre_clip=null", "method.advantages.filter=null"),
}
"""The two arms of the comparison, and the settings by which each differs from the recipe."""
DONE = "stress-outcome.json"
"""File of a run folder that tells if the run diverged. It is written when the run has ended."""
NOT_FINITE = "Not finite at step"
"""Words in the log of a run that ended because its loss, gradients or weights were not finite
(train/supervised/optimizer.py)."""
PICTURE = "stress.png"
CURVES = ("reward", "entropy")
"""Logged figures that are drawn over the steps."""


def run(options: argparse.Namespace) -> StudyResult:
    """Train both arms with every seed, unless they are complete, and return their outcomes.

    The outcomes are also written to stress.json and stress.png in the recipe's folder.

    Args:
        options: The options of train/stress.py: `recipe`, its `overrides`, and `seeds`.
    """
    folder = Path(recipe_of(options).output.folder)
    runs = []
    for arm, changes in ARMS.items():
        for seed in options.seeds:
            run_folder = folder / arm / str(seed)
            settings_of_run = [f"output.folder={run_folder}", f"seed={seed}", "output.resume=auto"]
            recipe = recipe_of(options, [*changes, *settings_of_run])
            runs.append(Run(arm, seed, recipe))
    refuse_other_recipes(runs)
    with locked_folder(folder) as lock:
        outcomes = {}
        for run in runs:
            outcomes[f"{run.variant}/{run.seed}"] = trained_outcome(run, lock)
        result = study_result(outcomes, folder / PICTURE)
        write(result, folder)
    return result


def recipe_of(options: argparse.Namespace, changes: Sequence[str] = ()) -> Recipe:
    """Return the recipe of the command line.

    Args:
        options: The options of train/stress.py.
        changes: Settings that replace those of the recipe (`section.key=value`).
    """
    return read_recipe(options.recipe, [*options.overrides, *changes], entry="rl")


def study_result(outcomes: Mapping[str, Mapping[str, Any]], picture: Path) -> StudyResult:
    """Return the outcomes with their charts, and a line of text about each run.

    Args:
        outcomes: The results of `trained_outcome` by arm and seed, such as "StableReinforce/0".
        picture: The file into which the charts are drawn.
    """
    lines = [_line(name, result) for name, result in outcomes.items()]
    lines.append(f"drawn in {picture}")
    charts = [curve_chart(outcomes, name) for name in CURVES]
    return StudyResult(dict(outcomes), charts=tuple(charts), sentences=tuple(lines))


def write(result: StudyResult, folder: Path) -> None:
    """Write stress.json and stress.png."""
    write_json(folder / "stress.json", result.figures)
    save_png(result.charts, folder / PICTURE)


def _line(name: str, result: Mapping[str, Any]) -> str:
    """Return a line of text about one run: if it diverged, and its last reward.

    Args:
        name: Arm and seed of the run, such as "StableReinforce/0".
        result: The result of `trained_outcome`.
    """
    last_reward = result["reward"][-1] if result["reward"] else float("nan")
    last_step = result["steps"][-1] if result["steps"] else 0
    end = f"diverged after step {last_step}" if result["diverged"] else "finished"
    return f"{name:<22}{end:<28}last reward {last_reward:.3f}"


def trained_outcome(run: Run, lock: int) -> dict[str, Any]:
    """Train a run, unless it has ended, and return its outcome.

    The outcome is `diverged`, True if the run ended because its numbers were not finite, and the
    `steps`, `reward` and `entropy` of `curve`.

    Args:
        run: The run.
        lock: The file descriptor of the lock of the study's folder. The training process inherits
            it and keeps the folder locked if this process is killed.

    Raises:
        UserError: The training failed for another reason than a loss or weights that are not
            finite.
    """
    outcome_file = run.folder / DONE
    log = run.folder / LOG
    if not outcome_file.exists():
        print(f"{run}: {log}", flush=True)
        status = launch(run, [sys.executable], lock)
        if status and NOT_FINITE not in log.read_text(encoding="utf-8", errors="replace"):
            raise UserError(
                f"{last_words(run)}\n{run}: ended with status {status}, its numbers being finite; "
                f"see {log}"
            )
        write_json(outcome_file, {"diverged": bool(status)})
    return {**read_json(outcome_file), **curve(run.folder)}


def curve(folder: Path) -> dict[str, list[float]]:
    """Return the logged `steps`, `reward` and `entropy` of a run, up to its newest checkpoint.

    The lists have a value for each line of the log. They are empty without a checkpoint.
    """
    state_file = newest_checkpoint_file(folder, "trainer_state.json")
    log = read_json(state_file)["log_history"] if state_file else []
    lines = [line for line in log if line.get("reward") is not None]
    curves = {"steps": [line["step"] for line in lines]}
    for name in CURVES:
        curves[name] = [line[name] for line in lines]
    return curves


def curve_chart(outcomes: Mapping[str, Mapping[str, Any]], name: str) -> Chart:
    """Return the chart of one of CURVES over optimizer steps.

    There is a line for each run, in the colour of its arm. A cross is where a run diverged.

    Args:
        outcomes: The results of `trained_outcome` by arm and seed, such as "StableReinforce/0".
        name: The name of the curve.
    """
    steps: list[float] = []
    values: list[float] = []
    series = []
    for run_name, result in outcomes.items():
        arm = run_name.partition("/")[0]
        points = tuple(zip(result["steps"], result[name], strict=True))
        if not points:
            continue
        steps += result["steps"]
        values += result[name]
        style = f"s{list(ARMS).index(arm)}"  # s0, s1: the colours of a chart
        series.append(Series(style, arm, line=points))
        if result["diverged"]:
            last_step, last_value = points[-1]
            series.append(Series(style, dots=(Dot(last_step, last_value),), shape="cross"))
    x = Axis.numbers(steps or [0.0], "optimizer step")
    return Chart(name, x, Axis.numbers(values or [0.0]), tuple(series))
