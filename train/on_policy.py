r"""Rounds of on-policy pairs: a policy answers, its answers are labelled and become pairs, the reward model goes on learning.

python train/on_policy.py recipes/shapes/naive_on_policy.yaml --policy embedded --rounds 1 --max-new-tokens 48 \
    --questions '{type: shapes, level: demo, split: train, rows: 500, seed: 4{round}, text_only: 0.0}'

RECIPE trains a reward model (train/rm.py) from the one that its `backbone.path` names, with a source `name: on_policy` whose path
this command fills in. Of a round, FOLDER/round-N has samples.jsonl (eval/sample.py), scored.jsonl (eval/score.py, by the reward
model as it stands), pairs.jsonl (eval/select_responses.py) and reward_model/. Right answers are preferred to wrong ones, by the
known answer of each question, or with --judge the best to the worst by that judge's scores. With --policy-recipe each round then
trains the policy by its new reward model (train/rl.py; the reward's first term gets its path), and the next round asks this
policy. `{round}` in --questions stands for the number of the round, so that each asks new ones.

After the last round the policy answers once more, so that every reward model is measured on answers that it did not learn from:
AUC is how often a right answer has a higher score than a wrong one to the same question. rounds.json has the table. A killed
command is continued by the same command.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from data.console import plain_console
from data.errors import UserError
from data.storage.files import write_json
from eval.protocol import Floats
from eval.results.best_of import best_of, in_group_auc
from eval.results.intervals import share_interval
from eval.results.predictions import credits_by, predictions_in, read_predictions
from train.ablation.steps import keep_settings, run_step, trained
from train.ablation.variants import alone, end_runs_on_signals
from train.recipe.parsing import parse_options, read_recipe

SOURCE = "on_policy"
"""The name of the recipe's source whose path is a round's pairs."""


@dataclass(frozen=True, slots=True)
class Models:
    """What a round begins with, checkpoints or run folders; the policy may also be a hub id or `embedded`."""

    reward_model: str
    policy: str


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing of the rounds and write the table; what a user can put right ends with a message and status 2."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "train/on_policy.py", description=__doc__, formatter_class=form, allow_abbrev=False
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
    parser.add_argument(
        "--verifier", default="exact", help="of eval/select_responses.py; reads the known answers"
    )
    parser.add_argument(
        "--judge", help="labels in place of the verifier: a checkpoint or the YAML file of a judge"
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
    options = parse_options(parser, arguments)
    try:
        lines = run_rounds(options)
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    plain_console(width=None if sys.stdout.isatty() else 120).print(table(lines))


def run_rounds(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the rounds that are missing, and return a line for each."""
    recipe = read_recipe(options.recipe, options.overrides, entry="rm")
    names = [source.label for source in recipe.data.sources]
    if SOURCE not in names:
        raise UserError(
            f"{options.recipe}: its sources are {', '.join(names)}; required is one with `name: {SOURCE}`, such as "
            f"{{type: project, name: {SOURCE}, path: pairs.jsonl}}, which gets the path of each round's pairs. Add it."
        )
    place = names.index(SOURCE)
    kept = (
        "policy",
        "questions",
        "samples",
        "max_new_tokens",
        "verifier",
        "judge",
        "policy_recipe",
    )
    keep_settings(
        options.folder / "settings.json", options, kept, reward_model=recipe.backbone.path
    )
    models, lines = Models(recipe.backbone.path, options.policy), []
    with alone(options.folder) as lock:
        for number in range(options.rounds + 1):
            folder = options.folder / f"round-{number + 1}"
            folder.mkdir(exist_ok=True)
            ask(models, folder, number + 1, options)
            trained_before = (
                accuracies(options.folder / f"round-{number}" / "reward_model") if number else {}
            )
            lines.append({"round": number, **measured(folder / "scored.jsonl"), **trained_before})
            write_json(options.folder / "rounds.json", lines)
            if number == options.rounds:
                break
            models = learn(models, folder, place, options, lock)
    return lines


def ask(models: Models, folder: Path, number: int, options: argparse.Namespace) -> None:
    """Have the policy answer new questions and the reward model score the answers, and make the pairs of a round."""
    samples, scored, pairs = (folder / f"{name}.jsonl" for name in ("samples", "scored", "pairs"))
    questions = options.questions.replace("{round}", str(number))
    more = [
        "--source",
        questions,
        "--samples",
        str(options.samples),
        "--max-new-tokens",
        str(options.max_new_tokens),
    ]
    run_step(options.launcher, "eval/sample.py", [models.policy, str(samples), *more], samples)
    run_step(
        options.launcher, "eval/score.py", [models.reward_model, str(samples), str(scored)], scored
    )
    if number > options.rounds:
        return
    labelled, label = scored, ["--verifier", options.verifier, "--all"]
    if options.judge is not None:
        labelled, label = folder / "judged.jsonl", []
        run_step(
            options.launcher,
            "eval/score.py",
            [options.judge, str(samples), str(labelled)],
            labelled,
        )
    run_step(
        [sys.executable],
        "eval/select_responses.py",
        ["pairs", str(labelled), str(pairs), *label],
        pairs,
    )


def learn(
    models: Models, folder: Path, place: int, options: argparse.Namespace, lock: int
) -> Models:
    """Train the reward model on a round's pairs, and the policy by it where that is asked for."""
    over = [
        f"data.sources.{place}.path={folder / 'pairs.jsonl'}",
        f"backbone.path={models.reward_model}",
    ]
    reward_model = trained(
        options.recipe, [*options.overrides, *over], folder / "reward_model", options.launcher, lock
    )
    if options.policy_recipe is None:
        return Models(reward_model, models.policy)
    over = [f"backbone.path={models.policy}", f"method.rewards.0.path={reward_model}"]
    return Models(
        reward_model,
        trained(options.policy_recipe, over, folder / "policy", options.launcher, lock),
    )


def measured(file: Path) -> dict[str, Any]:
    """Return what a scored file says of a policy, and of the reward model that scored its answers, as means with 95 % intervals.

    `asked` of them have right and wrong answers: those count for `auc`. `best` is the accuracy of the best answer by score.
    """
    with file.open(encoding="utf-8") as lines:
        rows = [(row["scores"], row["right"]) for row in map(json.loads, lines)]
    auc = [found for row in rows if (found := in_group_auc(*row)) is not None]
    right = [sum(right) / len(right) for _, right in rows]
    best = [best_of(scores, right, len(right)) for scores, right in rows]
    means = {
        name: interval(np.array(values))
        for name, values in {"right": right, "best": best, "auc": auc}.items()
        if values
    }
    return {"questions": len(rows), "asked": len(auc), **means}


def interval(values: Floats) -> list[float | None]:
    """Return a mean of values from 0 to 1 over questions with its 95 % interval."""
    found = share_interval(values)
    return [found.mean, found.low, found.high]


def accuracies(run: Path) -> dict[str, float]:
    """Return the accuracies of a trained reward model on the benchmarks of its recipe."""
    return {
        name: float(np.mean(list(credits_by(read_predictions(file)).values())))
        for name, file in predictions_in(run).items()
    }


def table(lines: Sequence[dict[str, Any]]) -> Table:
    """Return the table of the rounds, in percent; AUC is a share."""
    known = ("round", "questions", "asked", "right", "best", "auc")
    benchmarks = list(dict.fromkeys(name for line in lines for name in line if name not in known))
    title, caption = (
        "answers that the reward model has not learned from",
        "AUC inside a question, (questions with both)",
    )
    found = Table(
        "round",
        "questions",
        "right [95 %]",
        "best [95 %]",
        "AUC [95 %]",
        *benchmarks,
        title=title,
        caption=caption,
    )
    for line in lines:
        shares = [
            "{:.1f} [{:.1f}, {:.1f}]".format(*(100 * value for value in line[name]))
            for name in ("right", "best")
        ]
        auc = (
            "{:.3f} [{:.3f}, {:.3f}]".format(*line["auc"]) + f" ({line['asked']})"
            if "auc" in line
            else "–"
        )
        own = [f"{100 * line[name]:.1f}" if name in line else "–" for name in benchmarks]
        found.add_row(str(line["round"]), f"{line['questions']:,}", *shares, auc, *own)
    return found


if __name__ == "__main__":
    end_runs_on_signals()
    main()
