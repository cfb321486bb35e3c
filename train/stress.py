"""Train one recipe as StableReinforce and as plain Reinforce++, several seeds each, and plot what became of them.

python train/stress.py recipes/shapes/judge_stress.yaml --seeds 0 1 2
python train/stress.py recipes/shapes/judge_stress.yaml optim.max_steps=100 --seeds 0

A run that stops because its numbers are not finite any more counts as diverged. Runs that are there already are not repeated;
each has its console in log.txt. The figure and its numbers go into the recipe's folder: stress.png and stress.json.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.display.png import COLOURS, panels
from mmrm.data.errors import InUseError, UserError
from mmrm.data.storage.files import read_json, write_json
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.studies.ablation.variants import (
    LOG,
    Run,
    alone,
    end_runs_on_signals,
    last_words,
    launch,
    newest,
    refuse_other_recipes,
)

ARMS = {
    "StableReinforce": (),
    "Reinforce++": ("method.pre_clip=null", "method.advantages.filter=null"),
}
"""Name to what is laid over the recipe."""
DONE = "stress-outcome.json"
NOT_FINITE = "Not finite at step"
"""What the last words of a run hold that stopped because of its numbers (train/supervised/optimizer.py)."""


def main() -> None:
    """Run what is missing, then plot."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_intermixed_args()
    try:
        folder = Path(read_recipe(options.recipe, options.overrides, entry="rl").output.folder)
        runs = []
        for arm, changes in ARMS.items():
            for seed in options.seeds:
                own = [
                    f"output.folder={folder / arm / str(seed)}",
                    f"seed={seed}",
                    "output.resume=auto",
                ]
                runs.append(
                    Run(
                        arm,
                        seed,
                        read_recipe(
                            options.recipe, [*options.overrides, *changes, *own], entry="rl"
                        ),
                    )
                )
        refuse_other_recipes(runs)
        with alone(folder) as lock:
            found = {f"{run.variant}/{run.seed}": outcome(run, lock) for run in runs}
            write_json(folder / "stress.json", found)
            draw(found, folder / "stress.png")
    except InUseError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except UserError as error:
        sys.exit(str(error))
    for name, run in found.items():
        state = (
            f"diverged after step {run['steps'][-1] if run['steps'] else 0}"
            if run["diverged"]
            else "finished"
        )
        print(
            f"{name:<22}{state:<28}last reward {run['reward'][-1] if run['reward'] else float('nan'):.3f}"
        )
    print(f"drawn in {folder / 'stress.png'}")


def outcome(run: Run, lock: int) -> dict[str, Any]:
    """Return the reward and entropy curves of a run, training it first unless its outcome is there."""
    done, log = run.folder / DONE, run.folder / LOG
    if not done.exists():
        print(f"{run}: {log}", flush=True)
        status = launch(run, [sys.executable], lock)
        if status and NOT_FINITE not in log.read_text(encoding="utf-8", errors="replace"):
            raise UserError(
                f"{last_words(run)}\n{run}: ended with status {status}, its numbers being finite; see {log}"
            )
        write_json(done, {"diverged": bool(status)})
    return {**read_json(done), **curve(run.folder)}


def curve(folder: Path) -> dict[str, list[float]]:
    """Return step, reward and entropy of every log line up to the newest checkpoint."""
    state = newest(folder, "trainer_state.json")
    log = read_json(state)["log_history"] if state else []
    lines = [line for line in log if line.get("reward") is not None]
    return {
        "steps": [line["step"] for line in lines],
        **{key: [line[key] for line in lines] for key in ("reward", "entropy")},
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
    end_runs_on_signals()
    main()
