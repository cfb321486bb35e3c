"""Measure which source of a mixture hurts, by short runs without it and with twice as much of it.

python train/which_source.py recipes/shapes/two_sources.yaml --steps 15 --dry-run   # prints the plan
python train/which_source.py recipes/shapes/two_sources.yaml --steps 15 --seeds 0 1 2
python train/which_source.py mine.yaml --steps 150 --seeds 0 1 2 --launcher "deepspeed --num_gpus 8"

The recipe has two or more sources. For each of them, two mixtures are trained: one that draws no
pair from the source, and one that draws it twice as often relative to the other sources. All runs
have the same number of steps and pairs, and hold out the same records (`data.validation`). They are
compared with the whole mixture on each benchmark and on the held-out pairs, row by row and over
seeds. The first source of the table is the one that hurts most.

--influence PAIRS adds a cheap estimate at the last checkpoint of the whole mixture: the inner
products of the gradients of that many pairs of each source with those of the held-out pairs.

Every run is a process of its own, in OUTPUT/which_source/MIXTURE/SEED, where OUTPUT is the recipe's
`output.folder`. If you repeat the command, complete runs are not trained again, and interrupted
runs continue from their last checkpoint. If a run fails, the command reports it, trains the others,
and ends with status 1. The folder OUTPUT/which_source gets which_source.json, which_source.md and
which_source.png.
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
from mmrm.train.recipe.parsing import parse_options
from mmrm.train.studies.ablation.study import run_missing
from mmrm.train.studies.ablation.variants import LOG, end_runs_on_signals, refuse_other_recipes
from mmrm.train.studies.list_options import add_launcher_option, add_seeds_option
from mmrm.train.studies.source_variants import source_ablation
from mmrm.train.studies.which_source import influences, plan, refuse_influence, study_result, write


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the mixtures that are not complete, and print and write what each source does.

    Errors that the user can correct end the command with a message, not a traceback. If runs have
    failed, the exit status is 1.
    """
    options = parse(arguments)
    console = wide_console(120, highlight=False)
    with exit_on_user_error():
        distinct_seeds = list(dict.fromkeys(options.seeds))
        ablation = source_ablation(options.recipe, options.overrides, options.steps, distinct_seeds)
        refuse_other_recipes(ablation.runs)
        if options.influence is not None:
            refuse_influence(ablation.runs[0].recipe)
        if options.dry_run:
            tables, sentences = plan(ablation, options.influence)
            for table in tables:
                console.print(table.rich())
            for sentence in sentences:
                console.print(sentence, soft_wrap=True)
            return
        failed_runs = run_missing(ablation, options.launcher, console)
        products = []
        if options.influence is not None:
            products = influences(ablation, options.influence, console)
        result = study_result(ablation, products)
        write(result, ablation.folder)
        result.show(console)
        file_names = "which_source.json, which_source.md and which_source.png"
        console.print(f"written: {ablation.folder}/{file_names}", soft_wrap=True)
    if failed_runs:
        lines = [f"failed: {run}; see {run.folder / LOG}" for run in failed_runs]
        sys.exit("\n".join(lines))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = CommandParser("train/which_source.py", __doc__, allow_abbrev=False)
    parser.add_argument(
        "recipe",
        type=recipe_path,
        help="The YAML file of a recipe with two or more sources, for train/rm.py or train/sft.py.",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="Set a key of the recipe in every run, such as data.validation=500.",
    )
    parser.add_argument(
        "--steps",
        type=COUNT,
        required=True,
        help="The number of optimizer steps of every run. The learning rate has the recipe's "
        "schedule over these steps.",
    )
    add_seeds_option(
        parser, "Train every mixture once with each of these seeds. Intervals need three."
    )
    parser.add_argument(
        "--influence",
        type=COUNT,
        metavar="PAIRS",
        help="Also compute the influence of each source by the gradients of this many of its pairs.",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="Check the recipe, and print the runs and their cost without training any.",
    )
    add_launcher_option(parser, "run")
    return parse_options(parser, arguments)


if __name__ == "__main__":
    end_runs_on_signals()
    main()
