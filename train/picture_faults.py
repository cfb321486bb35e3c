r"""Measure whether reward models find the known faults of generated pictures.

python train/picture_faults.py recipes/ablations/shapes_drawn.yaml --seeds 0 1 2 \
    --questions '{type: shapes_drawn, level: demo, split: benchmark, rows: 400}'

LIST is a list of variants as for train/ablate.py, which trains the reward models. Their heads have
the attributes `content` and `quality`, and they learn ties. Each model then judges the pictures of
the source of --questions, of type `shapes_drawn` or `shapes_edited`.

The first table has the accuracy on pairs of pictures that differ in one attribute alone, by the
number that the model states for this attribute. Equal numbers count half, and chance is 50 %.

    pictures                    the questions as they are
    grey pictures               every picture is replaced by a grey one
    pictures of other prompts   the pictures are exchanged between prompts
    grey picture before         for edits, the picture before the edit is replaced by a grey one

The second table has the share of all pairs whose result is predicted, which is better, worse or
tied. A tie is predicted if it is the most probable result by the model's objective. Without ties,
every pair that is tied in the data is wrong.

The tables are written to picture_faults.json and picture_faults.md in the folder picture_faults/ of
the list's folder. If the command is interrupted, start it again to continue.
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
from mmrm.train.studies.list_options import add_list_options
from mmrm.train.studies.picture_faults import FOLDER, run, write


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the reward models of a list that are not complete, and measure all of them.

    The tables are printed and written. Errors that the user can correct end the command with a
    message, not a traceback.
    """
    options = parse(arguments)
    with exit_on_user_error():
        distinct_seeds = list(dict.fromkeys(options.seeds))
        ablation = read_ablation(options.list, options.overrides, distinct_seeds)
        result = run(ablation, options)
        folder = ablation.folder / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        write(result, folder)
        console = wide_console(120, highlight=False)
        result.show(console)
        console.print(
            f"written: {folder}/picture_faults.json and picture_faults.md", soft_wrap=True
        )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = CommandParser("train/picture_faults.py", __doc__, allow_abbrev=False)
    add_list_options(parser)
    parser.add_argument(
        "--questions",
        required=True,
        help="The source of the questions in YAML, of type `shapes_drawn` or `shapes_edited`.",
    )
    return parse_options(parser, arguments)


if __name__ == "__main__":
    end_runs_on_signals()
    main()
