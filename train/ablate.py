"""Train every variant of a list with several seeds, and compare them in tables with intervals.

python train/ablate.py recipes/ablations/shapes_head.yaml --dry-run      # prints the plan
python train/ablate.py recipes/ablations/shapes_head.yaml --seeds 0 1 2  # on a CPU
python train/ablate.py recipes/ablations/head.yaml --launcher "deepspeed --num_gpus 8"

The list is a recipe with a further section `variants` (train/studies/ablation/variants.py). Every
variant is trained once for each seed. Each of these runs has its own process and its own folder,
FOLDER/VARIANT/SEED, where FOLDER is the list's `output.folder`. The output of the process is
written to log.txt in that folder.

If you repeat the command, complete runs are not trained again, and interrupted runs continue from
their last checkpoint. If a run fails, the command reports it, trains the others, and ends with
status 1. If the list cannot be run, the command ends with status 2. The tables are written to
ablation.md, ablation.csv and ablation.json in FOLDER, and the charts to ablation.png.
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
from mmrm.train.studies.ablation.study import plan, run_missing, study_result, write
from mmrm.train.studies.ablation.variants import (
    LOG,
    end_runs_on_signals,
    read_ablation,
    refuse_other_recipes,
)
from mmrm.train.studies.list_options import add_list_options


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the runs of a list of variants that are not complete, and compare all runs in tables.

    The tables are printed, and written into the folder of the list. Errors that the user can
    correct end the command with a message, not a traceback. If runs have failed, the exit status is
    1.
    """
    options = parse(arguments)
    console = wide_console(120, highlight=False)
    with exit_on_user_error():
        distinct_seeds = list(dict.fromkeys(options.seeds))
        ablation = read_ablation(options.list, options.overrides, distinct_seeds)
        refuse_other_recipes(ablation.runs)
        if options.dry_run:
            console.print(plan(ablation).rich())
            return
        failed_runs = run_missing(ablation, options.launcher, console)
        result = study_result(ablation)
        write(result, ablation.folder)
        result.show(console)
        file_names = "ablation.md, ablation.csv, ablation.json and ablation.png"
        console.print(f"written: {ablation.folder}/{file_names}", soft_wrap=True)
    if failed_runs:
        lines = [f"failed: {run}; see {run.folder / LOG}" for run in failed_runs]
        sys.exit("\n".join(lines))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = CommandParser("train/ablate.py", __doc__, allow_abbrev=False)
    add_list_options(parser)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="Check every variant and print the runs without training any.",
    )
    return parse_options(parser, arguments)


if __name__ == "__main__":
    end_runs_on_signals()
    main()
