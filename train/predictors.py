r"""Measure the gain of reward models for a policy, and the figures that go with it.

python train/predictors.py recipes/ablations/shapes_reward_models.yaml --seeds 0 1 \
    --policy embedded --max-new-tokens 48 --questions \
    '{type: shapes, level: demo, split: benchmark, rows: 1000, seed: 2, text_only: 0.0}' \
    --policy-recipe recipes/shapes/policy_short.yaml \
    --pays naive-5 naive-20 naive-60 naive-200 naive-200-few naive-200-grey critic-20 critic-60

LIST is one of train/ablate.py, which trains its reward models and evaluates them on the benchmarks.
Each then scores the same answers of the policy, sampled once (eval/sample.py, eval/score.py). A
judge that compares takes N (N - 1) judgements a question for its tournament, so that it scores
those to the first --compared questions. What a model is worth is

    best-of-N gain   accuracy of its best of N answers minus that of a sampled one
    RL gain          of --pays, first seed: accuracy of the policy after --policy-recipe with this
                     model in its reward (the first term's path) minus the start's, on the recipe's
                     first questions, greedy and sampled

and its figures are accuracy and calibration (ECE) on each benchmark, order consistency of a judge,
and AUC: how often a right answer has the higher score of a right and a wrong one to the same
question. Accuracies count half a point for a tie, or for two orders of a judge that disagree, so
that guessing is 50 % for every kind of model. Pearson's and Spearman's coefficients are over the
means of at least six variants, with Fisher's 95 % intervals, and stand also without each variant in
turn. AUC and best-of-N gain come from the same answers, so AUC of one half of the questions
predicts the gain on the other half.

Into predictors/ of the list's folder go samples and policies, predictors.json, .md and .png. A
killed command is continued by the same command; scores of answers that have changed since, or of a
model that has, are computed again.

Questions are compared by content, text and images, with the records that the list's models are
trained on, and those of --policy-recipe with its own. Questions that are trained on are left out of
all figures and counted. If a quarter are, the command ends before any work is done.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.display.command import command
from mmrm.data.display.console import wide_console
from mmrm.train.recipe.parsing import parse_options
from mmrm.train.studies.ablation.variants import end_runs_on_signals
from mmrm.train.studies.predictors import read_list, run, write


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and measure what is missing, and write the tables; a refusal ends with status 2."""
    options = parse(arguments)
    with command(refusal=2):
        ablation = read_list(options)
        folder = ablation.folder / "predictors"
        result = run(ablation, options)
        write(result, folder)
        console = wide_console(120, highlight=False)
        result.show(console)
        written = f"written: {folder}/predictors.json, predictors.md and predictors.png"
        console.print(written, soft_wrap=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        "train/predictors.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("list", type=Path, help="a list of reward models")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="lays a value over every variant"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="SEED")
    parser.add_argument(
        "--policy", required=True, help="what answers: a checkpoint, a hub id or `embedded`"
    )
    parser.add_argument(
        "--questions", required=True, help="a source of type questions or shapes, in YAML"
    )
    parser.add_argument("--samples", type=int, default=8, help="answers to each question")
    parser.add_argument("--max-new-tokens", type=int, default=1024)
    parser.add_argument(
        "--compared", type=int, default=250, help="questions for a judge that compares"
    )
    parser.add_argument(
        "--policy-recipe", type=Path, help="trains a policy by a model; it must evaluate questions"
    )
    parser.add_argument(
        "--pays",
        nargs="+",
        default=[],
        metavar="VARIANT",
        help="variants by which a policy is trained",
    )
    parser.add_argument(
        "--launcher",
        type=shlex.split,
        default=[sys.executable],
        metavar="COMMAND",
        help="starts each step",
    )
    options = parse_options(parser, arguments)
    if bool(options.pays) != bool(options.policy_recipe):
        parser.error("--pays and --policy-recipe go together")
    return options


if __name__ == "__main__":
    end_runs_on_signals()
    main()
