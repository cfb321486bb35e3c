"""The stress comparison: one recipe as StableReinforce and as plain Reinforce++."""

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
    newest,
    refuse_other_recipes,
)

ARMS = {
    "StableReinforce": (),
    "Reinforce++": ("method.pre_clip=null", "method.advantages.filter=null"),
}
"""The settings by which each arm differs from the recipe."""
DONE = "stress-outcome.json"
NOT_FINITE = "Not finite at step"
"""Words in the log of a run that stopped because of its numbers (train/supervised/optimizer.py)."""
PICTURE = "stress.png"
CURVES = ("reward", "entropy")


def run(options: argparse.Namespace) -> StudyResult:
    """Train the runs that are not complete, and return the outcome of every run.

    The outcomes are also written to stress.json and stress.png in the recipe's folder.

    Args:
        options: The `recipe`, its `overrides`, and the `seeds`.
    """
    folder = Path(recipe_of(options).output.folder)
    runs = []
    for arm, changes in ARMS.items():
        for seed in options.seeds:
            own = [f"output.folder={folder / arm / str(seed)}", f"seed={seed}"]
            recipe = recipe_of(options, [*changes, *own, "output.resume=auto"])
            runs.append(Run(arm, seed, recipe))
    refuse_other_recipes(runs)
    with locked_folder(folder) as lock:
        outcomes = {f"{run.variant}/{run.seed}": outcome(run, lock) for run in runs}
        result = study_result(outcomes, folder / PICTURE)
        write(result, folder)
    return result


def recipe_of(options: argparse.Namespace, changes: Sequence[str] = ()) -> Recipe:
    """Return the recipe of the command line, with `changes` laid over it (`section.key=value`)."""
    return read_recipe(options.recipe, [*options.overrides, *changes], entry="rl")


def study_result(outcomes: Mapping[str, Mapping[str, Any]], picture: Path) -> StudyResult:
    """Return the outcomes with their charts, and a line about each run.

    Args:
        outcomes: What `outcome` returned, by arm and seed ("StableReinforce/0").
        picture: The file of the charts.
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
    """Return a line about the outcome of one run: if it diverged, and its last reward."""
    last_reward = result["reward"][-1] if result["reward"] else float("nan")
    last_step = result["steps"][-1] if result["steps"] else 0
    end = f"diverged after step {last_step}" if result["diverged"] else "finished"
    return f"{name:<22}{end:<28}last reward {last_reward:.3f}"


def outcome(run: Run, lock: int) -> dict[str, Any]:
    """Return the reward and entropy curves of a run; train it first if it is not complete.

    Args:
        run: The run.
        lock: The file descriptor of the lock of the study's folder. The training process inherits
            it and keeps the folder locked if this process is killed.

    Raises:
        UserError: The training failed for another reason than a loss or weights that are not
            finite.
    """
    done = run.folder / DONE
    log = run.folder / LOG
    if not done.exists():
        print(f"{run}: {log}", flush=True)
        status = launch(run, [sys.executable], lock)
        if status and NOT_FINITE not in log.read_text(encoding="utf-8", errors="replace"):
            raise UserError(
                f"{last_words(run)}\n{run}: ended with status {status}, its numbers being finite; "
                f"see {log}"
            )
        write_json(done, {"diverged": bool(status)})
    return {**read_json(done), **curve(run.folder)}


def curve(folder: Path) -> dict[str, list[float]]:
    """Return the steps, rewards and entropies in the log of a run, up to its newest checkpoint."""
    state = newest(folder, "trainer_state.json")
    log = read_json(state)["log_history"] if state else []
    lines = [line for line in log if line.get("reward") is not None]
    curves = {"steps": [line["step"] for line in lines]}
    for name in CURVES:
        curves[name] = [line[name] for line in lines]
    return curves


def curve_chart(outcomes: Mapping[str, Mapping[str, Any]], name: str) -> Chart:
    """Return the chart of reward or entropy over steps.

    There is a line for each run, in the colour of its arm. A cross is where a run diverged.
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
        style = f"s{list(ARMS).index(arm)}"
        series.append(Series(style, arm, line=points))
        if result["diverged"]:
            last_step, last_value = points[-1]
            series.append(Series(style, dots=(Dot(last_step, last_value),), shape="cross"))
    x = Axis.numbers(steps or [0.0], "optimizer step")
    return Chart(name, x, Axis.numbers(values or [0.0]), tuple(series))
