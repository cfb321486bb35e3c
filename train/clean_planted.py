r"""Measure what train/clean.py finds and regains on data whose wrong labels are known.

python train/clean_planted.py recipes/ablations/shapes_flipped.yaml --steps 120 --dry-run
python train/clean_planted.py recipes/ablations/shapes_flipped.yaml --steps 120 --seeds 0 1 2

LIST is a list of variants as for train/ablate.py, which trains it. The first variant has no wrong
labels. The others have the same records from sources of type `shapes`, some of whose labels are
wrong on purpose (`flipped`). For each of their runs, the command

- looks for wrong labels, as train/clean.py does with the recipe and the seed of the run, into the
  folder cleaning/ of the run,
- trains the recipe again without them (cleaned): some are left out, others flipped,
- trains it again without as many records, those on which the run's own model has the largest loss,
- trains it again without as many records that are drawn at random.

The tables have precision and recall of what is found, the accuracies on the benchmarks of the list,
what the wrong labels cost, and how much of it each way regains. They are written to planted.json
and planted.md in the folder planted/ of the list's folder. If the command is interrupted, start it
again to continue.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # started by its path: import the mmrm of its own clone
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmrm.data.display.command import exit_on_user_error
from mmrm.data.display.command_parser import CommandParser
from mmrm.data.display.console import wide_console
from mmrm.train.recipe.parsing import parse_options
from mmrm.train.studies.ablation.variants import end_runs_on_signals, read_ablation
from mmrm.train.studies.cleaning.fold_options import (
    add_fold_options,
    refuse_reversed_thresholds,
)
from mmrm.train.studies.cleaning.planted_study import FOLDER, plan, run, write
from mmrm.train.studies.list_options import add_list_options


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and clean the runs of a list that are not complete, and compare them.

    The tables are printed and written. Errors that the user can correct end the command with a
    message, not a traceback.
    """
    options = parse(arguments)
    console = wide_console(140, highlight=False)
    with exit_on_user_error():
        distinct_seeds = list(dict.fromkeys(options.seeds))
        ablation = read_ablation(options.list, options.overrides, distinct_seeds)
        if options.dry_run:
            console.print(plan(ablation, options).rich())
            return
        result = run(ablation, options)
        folder = ablation.folder / FOLDER
        write(result, folder)
        result.show(console)
        console.print(f"written: {folder}/planted.json and planted.md", soft_wrap=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line. A wrong one ends the process with status 2."""
    parser = CommandParser("train/clean_planted.py", __doc__, allow_abbrev=False)
    add_list_options(parser)
    add_fold_options(parser)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="Check every variant, and print the trainings without starting any.",
    )
    options = parse_options(parser, arguments)
    refuse_reversed_thresholds(parser, options)
    return options


if __name__ == "__main__":
    end_runs_on_signals()
    main()
