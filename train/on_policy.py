r"""Rounds of on-policy pairs: a policy answers, and the reward model learns from its answers.

python train/on_policy.py recipes/shapes/naive_on_policy.yaml --policy embedded --rounds 1 \
    --max-new-tokens 48 --questions \
    '{type: shapes, level: demo, split: train, rows: 500, seed: 4{round}, text_only: 0.0}'

RECIPE trains a reward model (train/rm.py) from the one that its `backbone.path` names, with a
source `name: on_policy` whose path this command fills in. Of a round, FOLDER/round-N has
samples.jsonl (eval/sample.py), scored.jsonl (eval/score.py, by the reward model as it stands),
pairs.jsonl (eval/select_responses.py) and reward_model/. Right answers are preferred to wrong ones,
by the verdicts of eval/sample.py: the source of the questions declares how each answer is verified,
and a --verifier that contradicts it is refused. With --judge the best answer is preferred to the
worst by that judge's scores. With --policy-recipe each round then trains the policy by its new
reward model (train/rl.py; the reward's first term gets its path), and the next round asks this
policy. `{round}` in --questions stands for the number of the round, so that each asks new ones.

After the last round the policy answers once more, so that every reward model is measured on
questions that it was not trained on. AUC is how often a right answer has a higher score than a
wrong one to the same question. Questions are compared by content, text and images, with those of
earlier rounds and with the records of RECIPE and of the recipes behind its reward model. Those that
repeat are left out of the figures and counted. If a quarter of a round's repeat, the command ends
before any work is done. rounds.json has the table. A killed command is continued by the same
command.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.display.command import command
from mmrm.data.display.console import wide_console
from mmrm.eval.verifiers import VERIFIERS
from mmrm.train.recipe.parsing import parse_options
from mmrm.train.studies.ablation.variants import end_runs_on_signals
from mmrm.train.studies.on_policy import run


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the rounds that are missing, and print the table; a refusal ends with status 2."""
    options = parse(arguments)
    with command(refusal=2):
        run(options).show(wide_console(120))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        "train/on_policy.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "recipe", type=Path, help="trains the reward model, with a source `name: on_policy`"
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="lays a value over RECIPE"
    )
    parser.add_argument(
        "--policy",
        required=True,
        help="what answers in the first round: a checkpoint, a hub id or `embedded`",
    )
    parser.add_argument(
        "--questions", required=True, help="a source of type questions or shapes, in YAML"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--samples", type=int, default=8, help="answers to each question")
    parser.add_argument("--max-new-tokens", type=int, default=1024)
    labels = parser.add_mutually_exclusive_group()
    labels.add_argument(
        "--verifier",
        choices=VERIFIERS,
        help="the rule that the questions' source must declare; default: whichever it declares",
    )
    labels.add_argument(
        "--judge", help="labels in place of the verdicts: a checkpoint or the YAML file of a judge"
    )
    parser.add_argument("--policy-recipe", type=Path, help="trains the policy in each round")
    parser.add_argument("--folder", type=Path, default=Path("runs/on_policy"))
    parser.add_argument(
        "--launcher",
        type=shlex.split,
        default=[sys.executable],
        metavar="COMMAND",
        help="starts each step; else python",
    )
    return parse_options(parser, arguments)


if __name__ == "__main__":
    end_runs_on_signals()
    main()
