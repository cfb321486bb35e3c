"""Train one recipe as StableReinforce and as plain Reinforce++, several seeds each, and draw what became of them.

python train/stress.py recipes/shapes/judge_stress.yaml --seeds 0 1 2
python train/stress.py recipes/shapes/judge_stress.yaml --seeds 0 optim.max_steps=100

A run that stops because its numbers are not finite any more counts as diverged. Runs that are there already are not repeated.
The figure and its numbers go into the recipe's folder: stress.png and stress.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from data.errors import RecipeError
from eval.reporting.charts import COLOURS, panels
from train.recipe.parsing import read_recipe

ARMS = {
    "StableReinforce": (),
    "Reinforce++": ("method.pre_clip=null", "method.advantages.filter=null"),
}
"""Name to what is laid over the recipe."""
DONE = "stress-outcome.json"
NOT_FINITE = "Not finite at step"
"""What the last words of a run hold that stopped because of its numbers (train/supervised/non_finite.py)."""


def main() -> None:
    """Run what is missing, then draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_intermixed_args()
    try:
        folder = Path(read_recipe(options.recipe, options.overrides, entry="rl").output.folder)
    except RecipeError as error:
        sys.exit(str(error))
    runs = {
        f"{arm}/{seed}": outcome(options.recipe, [*options.overrides, *changes], folder / arm / str(seed), seed)
        for arm, changes in ARMS.items()
        for seed in options.seeds
    }
    (folder / "stress.json").write_text(json.dumps(runs, indent=1), encoding="utf-8")
    draw(runs, folder / "stress.png")
    for name, run in runs.items():
        state = f"diverged after step {run['steps'][-1] if run['steps'] else 0}" if run["diverged"] else "finished"
        print(f"{name:<22}{state:<28}last reward {run['reward'][-1] if run['reward'] else float('nan'):.3f}")
    print(f"drawn in {folder / 'stress.png'}")


def outcome(recipe: Path, overrides: Sequence[str], folder: Path, seed: int) -> dict[str, Any]:
    """Return the reward and entropy curves of a run, training it first unless its outcome is there."""
    done = folder / DONE
    if not done.exists():
        script = str(Path(__file__).with_name("rl.py"))
        command = [sys.executable, script, str(recipe), *overrides, f"output.folder={folder}", f"seed={seed}", "--resume"]
        ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        diverged = NOT_FINITE in ended.stderr
        if ended.returncode and not diverged:
            sys.exit(f"{ended.stderr}\n{' '.join(command)}\nended with status {ended.returncode}, its numbers being finite")
        done.write_text(json.dumps({"diverged": diverged}), encoding="utf-8")
    return {**json.loads(done.read_text(encoding="utf-8")), **curve(folder)}


def curve(folder: Path) -> dict[str, list[float]]:
    """Return step, reward and entropy of every log line up to the newest checkpoint."""
    states = sorted(folder.glob("checkpoint-*/trainer_state.json"), key=lambda path: int(path.parent.name.split("-")[1]))
    log = json.loads(states[-1].read_text(encoding="utf-8"))["log_history"] if states else []
    lines = [line for line in log if line.get("reward") is not None]
    return {
        "steps": [line["step"] for line in lines],
        "reward": [line["reward"] for line in lines],
        "entropy": [line["entropy"] for line in lines],
    }


def draw(runs: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw reward and entropy over steps, a line for each run; a cross is where one diverged."""
    with panels(path, ["reward", "entropy"]) as found:
        for axes in found:
            axes.set_xlabel("optimizer step")
            for name, run in runs.items():
                arm, values = name.partition("/")[0], run[axes.get_title()]
                colour = COLOURS[list(ARMS).index(arm)]
                axes.plot(run["steps"], values, color=colour, alpha=0.8, label=arm)
                if run["diverged"]:
                    axes.plot(run["steps"][-1:], values[-1:], "x", color=colour, markersize=10)


if __name__ == "__main__":
    main()
