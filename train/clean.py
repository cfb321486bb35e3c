r"""Find wrong labels in the preference data of a recipe.

python train/clean.py recipes/shapes/naive.yaml --steps 200 --dry-run      # prints the plan
python train/clean.py recipes/shapes/naive.yaml --steps 200
python train/clean.py RECIPE --steps 500 --seeds 0 1 --launcher "deepspeed --num_gpus 8"

The training records of RECIPE are divided into --folds parts that share no image, prompt or record.
For each part, the recipe's own model is trained for --steps steps without this part, and scores its
records. The margin of a record is the score of the response that its label prefers, minus that of
the other one. Margins of several --seeds are averaged, each divided by the root mean square of its
model's margins.

A label is wrong with a probability that depends on its margin and its source. A wrong label mirrors
the margin of the right one, from which the error rate of each source is estimated
(train/studies/cleaning/label_errors.py). Records whose preferences contradict others are found,
too: a is better than b, b than c, and c than a.

The folder cleaning/ in the recipe's output.folder gets:

    suspects.jsonl    the suspicious records, the most probably wrong first: key, place, margin,
                      probability and reasons
    flip.jsonl        those that are wrong with probability --flip-above or more
    leave_out.jsonl   those of the others with probability --leave-out-above or more
    labels.json, .md  a table by source: error rate with interval, suspects, contradictions
    suspects.html     a page on which you look at the suspects and decide by the keyboard. It saves
                      decisions.jsonl. With --blind it hides the labels, and shows as many other
                      records in between

To train without the suspects, name the lists in the recipe:

    data: {decisions: [RUN/cleaning/leave_out.jsonl, RUN/cleaning/flip.jsonl, decisions.jsonl]}

The decisions of a later file replace those of an earlier one.

If the command is interrupted, start it again to continue. Complete runs are not trained again.
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
from mmrm.data.display.option_numbers import COUNT
from mmrm.data.package import recipe_path
from mmrm.data.storage.files import write_whole
from mmrm.train.recipe.parsing import parse_options
from mmrm.train.studies.ablation.variants import end_runs_on_signals
from mmrm.train.studies.cleaning.fold_models import read_cleaned_recipe
from mmrm.train.studies.cleaning.fold_options import (
    add_fold_options,
    refuse_reversed_thresholds,
)
from mmrm.train.studies.cleaning.label_study import plan, run, study_result, write
from mmrm.train.studies.cleaning.suspects_page import suspects_page
from mmrm.train.studies.list_options import add_launcher_option, add_seeds_option

PAGE = "suspects.html"


def main(arguments: Sequence[str] | None = None) -> None:
    """Find wrong labels in the preference data of a recipe.

    The tables are printed and written. Errors that the user can correct end the command with a
    message, not a traceback.
    """
    options = parse(arguments)
    console = wide_console(120, highlight=False)
    with exit_on_user_error():
        cleaned = read_cleaned_recipe(options.recipe, options.overrides, options.steps)
        if options.dry_run:
            console.print(plan(cleaned, options).rich())
            return
        labels, data = run(cleaned, options)
        result = study_result(labels, cleaned)
        write(result, labels, cleaned.folder)
        html = suspects_page(
            labels, data.mixture, cleaned.path.stem, options.shown, is_blind=options.blind
        )
        write_whole(cleaned.folder / PAGE, html)
        result.show(console)
        names = f"suspects.jsonl, flip.jsonl, leave_out.jsonl, labels.json, labels.md and {PAGE}"
        console.print(f"written: {cleaned.folder}/{names}", soft_wrap=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line. A wrong one ends the process with status 2."""
    parser = CommandParser("train/clean.py", __doc__, allow_abbrev=False)
    parser.add_argument(
        "recipe",
        type=recipe_path,
        help="The YAML file of the recipe whose training data are looked at.",
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="Set a key of the recipe."
    )
    add_fold_options(parser)
    add_seeds_option(parser, "Train the model of each part once with each of these seeds.")
    parser.add_argument(
        "--shown",
        type=COUNT,
        default=200,
        help="The largest number of suspicious records on the page. The default is %(default)s.",
    )
    parser.add_argument(
        "--blind",
        action="store_true",
        help="Hide the labels on the page, and mix in as many pairs that are not suspicious.",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="Read the data, and print the runs without training any.",
    )
    add_launcher_option(parser, "step")
    options = parse_options(parser, arguments)
    options.seeds = list(dict.fromkeys(options.seeds))
    refuse_reversed_thresholds(parser, options)
    return options


if __name__ == "__main__":
    end_runs_on_signals()
    main()
