r"""Measure whether reward models read the order of a video's frames.

python train/frame_order.py recipes/ablations/shapes_motion.yaml --seeds 0 1 \
    --questions '{type: shapes_motion, level: demo, split: benchmark, rows: 800}'

LIST is a list of variants as for train/ablate.py, which trains the reward models. Each model then
answers the questions of --questions, a source of type `shapes_motion`, whose films are played in
five ways:

    forwards    the films as they are
    shuffled    the frames of each film in a random order
    reversed    each film from its end
    first       the first frame of each film, repeated
    grey        grey frames

The questions of the category `order` have the opposite answer for the reversed film. So the
accuracy on shuffled films is 50 % for every model, up to chance, and a model that reads the order
is wrong about reversed films as often as it is right about the others. Any single frame answers the
questions of the category `frame`, and neither shuffling nor reversing a film changes their answer.

The table has the accuracy by category and by question type. Equal scores count half, and chance is
50 %. It is written to frame_order.json and frame_order.md in the folder frame_order/ of the list's
folder. If the command is interrupted, start it again to continue.
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
from mmrm.train.studies.frame_order import FOLDER, run, write
from mmrm.train.studies.list_options import add_list_options


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the reward models of a list that are not complete, and measure all of them.

    The table is printed and written. Errors that the user can correct end the command with a
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
        console.print(f"written: {folder}/frame_order.json and frame_order.md", soft_wrap=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = CommandParser("train/frame_order.py", __doc__, allow_abbrev=False)
    add_list_options(parser)
    parser.add_argument(
        "--questions",
        required=True,
        help="The source of the questions in YAML, of type `shapes_motion`.",
    )
    return parse_options(parser, arguments)


if __name__ == "__main__":
    end_runs_on_signals()
    main()
