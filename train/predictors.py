r"""Measure which figures of reward models predict how much a policy gains from them.

python train/predictors.py recipes/ablations/shapes_reward_models.yaml --seeds 0 1 \
    --policy embedded --max-new-tokens 48 --questions \
    '{type: shapes, level: demo, split: benchmark, rows: 1000, seed: 2, text_only: 0.0}' \
    --policy-recipe recipes/shapes/policy_short.yaml \
    --pays naive-5 naive-20 naive-60 naive-200 naive-200-few naive-200-grey critic-20 critic-60 \
    --policy-seeds 0 1 2

LIST is a list of variants as for train/ablate.py. That command trains its reward models and
evaluates them on the benchmarks. The policy then answers the questions once (eval/sample.py), and
every reward model scores the same answers (eval/score.py). --dry-run prints the work and does none.

A judge that compares two answers needs N (N - 1) judgements for the N answers to a question. It
therefore scores only the answers to the first --compared questions. It is measured twice, by hard
verdicts and by soft ones, and its benchmarks are judged once more for the other of the two. A judge
that writes nothing has soft verdicts alone. Judges of single answers score all of them.

The gain of a policy from a reward model is measured in two ways:

    best-of-N gain   the accuracy of the answer that the model scores highest among N, minus the
                     accuracy of a sampled answer
    RL gain          the accuracy of policies after training by --policy-recipe, minus their
                     accuracy before. The model is the first term of the reward. The accuracy is
                     that of greedy and of sampled answers to the recipe's first set of questions.
                     Only the variants of --pays are measured in this way, with the first of the
                     --seeds. A policy is trained with each of the --policy-seeds. The interval of
                     the mean gain is over questions; the spread over seeds has its own column.

The figures that may predict a gain are accuracy and calibration (ECE) on each benchmark, the order
consistency of a judge, and AUC: the share of pairs of a right and a wrong answer to the same
question in which the right answer has the higher score. An accuracy counts half a point for a tie,
and for a judge whose judgements in the two orders disagree, so that guessing is 50 % for every kind
of model.

A figure predicts the gain on other questions. All questions and benchmark rows are split into two
halves by their content. No question, and no image, is in both. The figure on one half is correlated
with the gain on the other half, and the other way round, and both are printed. Spearman's and
Pearson's coefficients are computed over the means of at least six variants, with 95 % intervals of
a bootstrap over questions and over variants. They are also computed without each variant in turn.

The folder predictors/ in the list's folder gets the answers, the policies, predictors.json,
predictors.md and predictors.png. If the command is interrupted, start it again to continue. Scores
are computed again if the answers or the model have changed since.

Questions are compared by text and images with the records that the models of the list are trained
on. The questions of --policy-recipe are compared with the records of that recipe. Questions that
are trained on are left out of all figures and counted. If a quarter of them are, the command ends
before any work is done.
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
from mmrm.data.display.option_numbers import COUNT, SEED
from mmrm.data.package import recipe_path
from mmrm.train.recipe.parsing import parse_options
from mmrm.train.studies.ablation.variants import end_runs_on_signals
from mmrm.train.studies.list_options import add_launcher_option, add_seeds_option
from mmrm.train.studies.predictors import plan, read_list, run, write


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure which figures of reward models predict what a policy gains from them.

    Reward models that are not complete are trained and measured first. The tables of all models are
    printed and written. Errors that the user can correct end the command with a message, not a
    traceback.
    """
    options = parse(arguments)
    with exit_on_user_error():
        ablation = read_list(options)
        console = wide_console(120, highlight=False)
        if options.dry_run:
            for table in plan(ablation, options):
                console.print(table.rich())
            return
        folder = ablation.folder / "predictors"
        result = run(ablation, options)
        write(result, folder)
        result.show(console)
        message = f"written: {folder}/predictors.json, predictors.md and predictors.png"
        console.print(message, soft_wrap=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line.

    The process ends with a message if only one of --pays and --policy-recipe is given.
    """
    parser = CommandParser("train/predictors.py", __doc__, allow_abbrev=False)
    parser.add_argument("list", type=recipe_path, help="The YAML file of a list of reward models.")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="Set a key of the recipe in every variant.",
    )
    add_seeds_option(parser, "Train every reward model once with each of these seeds.")
    parser.add_argument(
        "--policy", required=True, help="The policy: a checkpoint, a hub id or `embedded`."
    )
    parser.add_argument(
        "--questions",
        required=True,
        help="The source of the questions in YAML, of type `questions` or `shapes`.",
    )
    parser.add_argument(
        "--samples", type=COUNT, default=8, help="The number of answers to each question."
    )
    parser.add_argument(
        "--max-new-tokens",
        type=COUNT,
        default=1024,
        help="The maximum length of an answer in tokens.",
    )
    parser.add_argument(
        "--compared",
        type=COUNT,
        default=250,
        help="The number of questions for judges that compare two answers.",
    )
    parser.add_argument(
        "--policy-recipe",
        type=Path,
        help="The recipe that trains a policy by a reward model. It must evaluate questions.",
    )
    parser.add_argument(
        "--pays",
        nargs="+",
        default=[],
        metavar="VARIANT",
        help="The variants of the list with which, as reward models, a policy is trained.",
    )
    parser.add_argument(
        "--policy-seeds",
        type=SEED,
        nargs="+",
        default=[0],
        metavar="SEED",
        help="Train a policy with each of these seeds, for each variant of --pays. The default is "
        "%(default)s.",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="Check every variant and print the work, without training or sampling any.",
    )
    add_launcher_option(parser, "step")
    options = parse_options(parser, arguments)
    options.policy_seeds = list(dict.fromkeys(options.policy_seeds))
    if bool(options.pays) != bool(options.policy_recipe):
        parser.error("--pays and --policy-recipe go together")
    return options


if __name__ == "__main__":
    end_runs_on_signals()
    main()
