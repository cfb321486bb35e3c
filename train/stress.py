"""Train one recipe as StableReinforce and as plain Reinforce++, and plot the outcome.

python train/stress.py recipes/shapes/judge_stress.yaml --seeds 0 1 2
python train/stress.py recipes/shapes/judge_stress.yaml optim.max_steps=100 --seeds 0

A run that stops because its numbers are not finite any more counts as diverged. Runs that are there
already are not repeated; each has its console in log.txt. The picture and its numbers go into the
recipe's folder: stress.png and stress.json.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.display.command import command
from mmrm.train.studies.ablation.variants import end_runs_on_signals
from mmrm.train.studies.stress import run


def main() -> None:
    """Run what is missing, print and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_intermixed_args()
    with command():
        for sentence in run(options).sentences:
            print(sentence)


if __name__ == "__main__":
    end_runs_on_signals()
    main()
