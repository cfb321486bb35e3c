r"""Compare reward models that learn from attributes, ties, rankings or noisy ratings.

python train/compare_objectives.py recipes/ablations/shapes_attributes.yaml --seeds 0 1 2 \
    --questions '{type: shapes_rated, level: demo, split: benchmark, rows: 400, responses: 8}'

LIST is a list of variants as for train/ablate.py. That command trains the reward models. Each of
them then scores the same answers to the same questions (eval/score.py). The source of --questions
is of type `shapes_rated`, so that the true score of every answer is known: its number of right
claims (attribute `quality`).

    accuracy            the share of questions in which the model scores the better of two answers
                        higher. The two are the first answers that differ in their true score
    AUC                 the share of all pairs of answers to a question that differ in their true
                        score, in which the better answer has the higher score
    best of N           the true score of the answer with the highest score, as a share of the
                        highest true score. The gain is this share minus that of a random answer
    courteous of equals the share of pairs of answers with equal true scores in which the courteous
                        answer has the higher score; 50 % for a model that ignores the wording
    coverage            the shares of differences between the ratings of two answers to a question
                        that are within one and within two of the standard deviations that a model
                        with the head `gaussian` states for the difference of its scores, after the
                        scores have been brought into the unit of the ratings

In accuracy, AUC and courteous of equals, equal scores count half. Seconds are those of the
training. Questions that a model is trained on are left out and counted.

The tables are written to objectives.json and objectives.md in the folder objectives/ of the list's
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
from mmrm.train.studies.compare_objectives import FOLDER, run, write
from mmrm.train.studies.list_options import add_list_options


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the reward models of a list that are not complete, and compare all of them.

    The tables are printed and written. Errors that the user can correct end the command with a
    message, not a traceback.
    """
    options = parse(arguments)
    with exit_on_user_error():
        distinct_seeds = list(dict.fromkeys(options.seeds))
        ablation = read_ablation(options.list, options.overrides, distinct_seeds)
        result = run(ablation, options)
        folder = ablation.folder / FOLDER
        write(result, folder)
        console = wide_console(120, highlight=False)
        result.show(console)
        console.print(f"written: {folder}/objectives.json and objectives.md", soft_wrap=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = CommandParser("train/compare_objectives.py", __doc__, allow_abbrev=False)
    add_list_options(parser)
    parser.add_argument(
        "--questions",
        required=True,
        help="The source of the questions in YAML, of type `shapes_rated`.",
    )
    return parse_options(parser, arguments)


if __name__ == "__main__":
    end_runs_on_signals()
    main()
