"""Train one recipe as StableReinforce and as plain Reinforce++, and plot the outcome.

python train/stress.py recipes/shapes/judge_stress.yaml --seeds 0 1 2
python train/stress.py recipes/shapes/judge_stress.yaml optim.max_steps=100 --seeds 0

A run that stops because its loss or weights are no longer finite counts as diverged. Complete runs
are not repeated. The output of each run is in log.txt in its folder. The curves are drawn to
stress.png, and their numbers are written to stress.json, both in the recipe's `output.folder`.
"""

import sys
from pathlib import Path

if not __package__:  # started by its path: import the mmrm of its own clone
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmrm.data.display.command import exit_on_user_error
from mmrm.data.display.command_parser import CommandParser
from mmrm.data.display.option_numbers import SEED
from mmrm.data.package import recipe_path
from mmrm.train.studies.ablation.variants import end_runs_on_signals
from mmrm.train.studies.stress import run


def main() -> None:
    """Train a recipe as StableReinforce and as plain Reinforce++, and compare the runs.

    Runs that are complete are not repeated. The outcome of every run is printed, and the curves are
    drawn to a file. Errors that the user can correct end the command with a message and exit
    status 1, or 2 if another process is writing the output, not a traceback.
    """
    parser = CommandParser("train/stress.py", __doc__)
    parser.add_argument("recipe", type=recipe_path, help="A recipe of train/rl.py.")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="Set a key of the recipe in every run."
    )
    parser.add_argument(
        "--seeds",
        type=SEED,
        nargs="+",
        default=[0, 1, 2],
        help="Train both algorithms once with each of these seeds.",
    )
    options = parser.parse_intermixed_args()
    with exit_on_user_error():
        result = run(options)
        for sentence in result.sentences:
            print(sentence)


if __name__ == "__main__":
    end_runs_on_signals()
    main()
