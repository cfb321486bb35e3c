r"""Rounds of on-policy pairs: a policy answers, its answers are labelled and become pairs, the reward model goes on learning.

python train/on_policy.py recipes/shapes/naive_on_policy.yaml --policy embedded --rounds 1 --max-new-tokens 48 \
    --questions '{type: shapes, level: demo, split: train, rows: 500, seed: 4{round}, text_only: 0.0}'

RECIPE trains a reward model (train/rm.py) from the one that its `backbone.path` names, with a source `name: on_policy` whose path
this command fills in. Of a round, FOLDER/round-N has samples.jsonl (eval/sample.py), scored.jsonl (eval/score.py, by the reward
model as it stands), pairs.jsonl (eval/select_responses.py) and reward_model/. Right answers are preferred to wrong ones, by the
verdicts of eval/sample.py: the source of the questions declares how each answer is verified, and a --verifier that contradicts it
is refused. With --judge the best answer is preferred to the worst by that judge's scores. With --policy-recipe each round then
trains the policy by its new reward model (train/rl.py; the reward's first term gets its path), and the next round asks this
policy. `{round}` in --questions stands for the number of the round, so that each asks new ones.

After the last round the policy answers once more, so that every reward model is measured on questions that it was not trained on:
AUC is how often a right answer has a higher score than a wrong one to the same question. Questions are compared by content, text
and images, with those of earlier rounds and with the records of RECIPE and of the recipes behind its reward model. Those that
repeat are left out of the figures and counted; if a quarter of a round's repeat, the command ends before any work is done.
rounds.json has the table. A killed command is continued by the same command.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.arrays import Floats, Ints
from mmrm.data.display.console import plain_console
from mmrm.data.errors import UserError
from mmrm.data.storage.files import content_digest, write_json
from mmrm.eval.contamination.question_overlap import (
    Question,
    TrainingPrompts,
    questions_of_source,
    read_questions,
    rows_of,
)
from mmrm.eval.policies.best_of import best_of, in_group_auc
from mmrm.eval.results.intervals import share_interval
from mmrm.eval.results.predictions import credits_by, predictions_in, read_predictions
from mmrm.eval.verifiers import RECORDED, VERIFIERS
from mmrm.train.recipe.parsing import parse_options, read_recipe
from mmrm.train.recipe.recipe import Recipe
from mmrm.train.studies.ablation.cached_steps import keep_settings, model_digest, run_step, trained
from mmrm.train.studies.ablation.variants import alone, end_runs_on_signals
from mmrm.train.studies.predictor_figures import items_of_rows

SOURCE = "on_policy"
"""The name of the recipe's source whose path is a round's pairs."""
REMEDY = (
    "Let every round ask other questions, for example by `{round}` in the seed or the path of "
    "--questions, and none that a recipe trains on."
)


LEFT_OUT = {"repeated": "they were trained on", "unjudged": "they have no scores"}
"""Counts of questions that are in no figure, and the reason in words."""


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
    source_index = names.index(SOURCE)
    kept = (
        "policy",
        "questions",
        "samples",
        "max_new_tokens",
        "verifier",
        "judge",
        "policy_recipe",
    )
    refuse_known_questions(recipe, options)
    keep_settings(
        options.folder / "settings.json", options, kept, reward_model=recipe.backbone.path
    )
    models = Models(recipe.backbone.path, options.policy)
    lines: list[dict[str, Any]] = []
    with alone(options.folder) as lock:
        trained_on = TrainingPrompts()
        trained_on.add_model(recipe.backbone.path)
        for number in range(1, options.rounds + 2):
            folder = round_folder(options, number)
            folder.mkdir(exist_ok=True)
            answer_and_score(models, folder, number, options)
            figures = measured(folder, trained_on)
            benchmarks = accuracies(round_folder(options, number - 1) / "reward_model")
            lines.append({"round": number - 1, **figures, **benchmarks})
            write_json(options.folder / "rounds.json", lines)
            if number <= options.rounds:
                make_pairs(folder, options)
                models = learn(models, folder, source_index, options, lock)
                add_round(trained_on, recipe, folder)
    return lines


def round_folder(options: argparse.Namespace, number: int) -> Path:
    """Return the folder of a round; rounds count from 1, and the last one only measures."""
    folder: Path = options.folder / f"round-{number}"
    return folder


def refuse_known_questions(recipe: Recipe, options: argparse.Namespace) -> None:
    """Read the questions of all rounds before any work is done, and refuse those that cannot be measured or labelled.

    Raises: UserError if the source of a round cannot be read, if its answers are verified by another
        rule than --verifier, or if too many of its questions have been trained on when the reward
        model is measured on them.
    """
    trained_on = TrainingPrompts()
    trained_on.add_model(recipe.backbone.path)
    for number in range(1, options.rounds + 2):
        questions = questions_of_round(options, number)
        refuse_other_verifier(questions, number, options)
        trained_on.questions_to_leave_out(questions, f"--questions, round {number}", REMEDY)
        if number == 1:
            add_sources(trained_on, recipe)
        trained_on.add(f"round {number}", [question.key for question in questions])
    for note in trained_on.notes:
        print(f"not compared with --questions: {note}", file=sys.stderr)


def questions_of_round(options: argparse.Namespace, number: int) -> list[Question]:
    """Return the questions that a round asked, or will ask.

    A round that has been sampled asked the questions in its file, whatever their source holds now.
    """
    samples = round_folder(options, number) / "samples.jsonl"
    if samples.is_file():
        return read_questions(samples)
    return questions_of_source(source_of_round(options, number), f"--questions, round {number}")


def source_of_round(options: argparse.Namespace, number: int) -> str:
    """Return the source of a round's questions, in YAML."""
    source: str = options.questions.replace("{round}", str(number))
    return source


def refuse_other_verifier(
    questions: Sequence[Question], number: int, options: argparse.Namespace
) -> None:
    """Raise UserError if --verifier is not the rule by which the answers to all questions are verified."""
    if options.verifier is None:
        return
    others = [question for question in questions if question.rule not in (None, options.verifier)]
    if others:
        raise UserError(
            f"--verifier {options.verifier} contradicts --questions: their source declares another "
            f"rule for {len(others):,} of {len(questions):,} questions of round {number}, such as "
            f"`{others[0].rule}` for {others[0].text!r:.80}. Answers are sampled, measured and "
            "labelled by the rule that the source declares; pairs by another rule would reject "
            "right answers. Leave --verifier out, or declare `verifier` in --questions."
        )


def add_sources(trained_on: TrainingPrompts, recipe: Recipe) -> None:
    """Add the sources of the recipe other than the pairs of the rounds."""
    others = [source for source in recipe.data.sources if source.label != SOURCE]
    data = recipe.data.model_copy(update={"sources": others})
    trained_on.add_recipe(data, "this recipe", fetch=True)


def add_round(trained_on: TrainingPrompts, recipe: Recipe, folder: Path) -> None:
    """Add what the reward model of a round was trained on."""
    if folder.name == "round-1":
        add_sources(trained_on, recipe)
    questions = read_questions(folder / "samples.jsonl")
    trained_on.add(folder.name, [question.key for question in questions])


def answer_and_score(
    models: Models, folder: Path, number: int, options: argparse.Namespace
) -> None:
    """Have the policy answer the questions of a round, and the reward model score the answers."""
    samples = folder / "samples.jsonl"
    scored = folder / "scored.jsonl"
    arguments = [models.policy, str(samples), "--source", source_of_round(options, number)]
    arguments += ["--samples", str(options.samples)]
    arguments += ["--max-new-tokens", str(options.max_new_tokens)]
    made_from = {"policy": model_digest(models.policy)}
    run_step(options.launcher, "eval/sample.py", arguments, samples, made_from)
    score(models.reward_model, samples, scored, options)


def score(judge: str, samples: Path, scored: Path, options: argparse.Namespace) -> None:
    """Have a reward model or another judge score the answers."""
    made_from = {"samples": content_digest(samples), "judge": model_digest(judge)}
    arguments = [judge, str(samples), str(scored)]
    run_step(options.launcher, "eval/score.py", arguments, scored, made_from)


def make_pairs(folder: Path, options: argparse.Namespace) -> None:
    """Make the pairs of a round, by the recorded verdicts or by the scores of --judge."""
    labelled = folder / "scored.jsonl"
    pairs = folder / "pairs.jsonl"
    labels = ["--verifier", options.verifier or RECORDED, "--all"]
    if options.judge is not None:
        labelled = folder / "judged.jsonl"
        labels = []
        score(options.judge, folder / "samples.jsonl", labelled, options)
    arguments = ["pairs", str(labelled), str(pairs), *labels]
    made_from = {"labelled answers": content_digest(labelled)}
    run_step([sys.executable], "eval/select_responses.py", arguments, pairs, made_from)


def learn(
    models: Models, folder: Path, source_index: int, options: argparse.Namespace, lock: int
) -> Models:
    """Train the reward model on a round's pairs, and the policy by it if there is a --policy-recipe."""
    pairs = folder / "pairs.jsonl"
    over = [f"data.sources.{source_index}.path={pairs}", f"backbone.path={models.reward_model}"]
    made_from = {"pairs": content_digest(pairs), "reward model": model_digest(models.reward_model)}
    reward_model = trained(
        options.recipe,
        [*options.overrides, *over],
        folder / "reward_model",
        options.launcher,
        lock,
        made_from,
    )
    if options.policy_recipe is None:
        return Models(reward_model, models.policy)
    over = [f"backbone.path={models.policy}", f"method.rewards.0.path={reward_model}"]
    made_from = {"policy": model_digest(models.policy), "reward model": model_digest(reward_model)}
    policy = trained(
        options.policy_recipe, over, folder / "policy", options.launcher, lock, made_from
    )
    return Models(reward_model, policy)


def measured(folder: Path, trained_on: TrainingPrompts) -> dict[str, Any]:
    """Return the figures of a policy and of the reward model that scored its answers, as means with 95 % intervals.

    Questions that the reward model was trained on are left out: `repeated` counts them, `unjudged`
    those that have no scores, `questions` those that remain. `asked` of them have right and wrong
    answers and count for `auc`. `best` is the accuracy of the best answer by score.

    Raises: UserError if so many questions were trained on that they are refused.
    """
    rows = list(rows_of(folder / "scored.jsonl"))
    num_asked = sum(1 for _ in rows_of(folder / "samples.jsonl"))
    repeated = trained_on.questions_to_leave_out(
        [Question.of_row(row) for row in rows], folder.name, REMEDY
    )
    unseen = [row for index, row in enumerate(rows) if index not in repeated]
    right = [sum(row["right"]) / len(row["right"]) for row in unseen]
    best = [best_of(row["scores"], row["right"], len(row["right"])) for row in unseen]
    auc_by_index: dict[int, float] = {}
    for index, row in enumerate(unseen):
        auc = in_group_auc(row["scores"], row["right"])
        if auc is not None:
            auc_by_index[index] = auc
    items = items_of_rows(unseen)
    counts = {
        "questions": len(unseen),
        "repeated": len(repeated),
        "unjudged": num_asked - len(rows),
        "asked": len(auc_by_index),
    }
    means: dict[str, list[float | None]] = {}
    if unseen:
        means["right"] = interval(np.array(right), items)
        means["best"] = interval(np.array(best), items)
    if auc_by_index:
        means["auc"] = interval(np.array(list(auc_by_index.values())), items[list(auc_by_index)])
    return {**counts, **means}


def interval(values: Floats, items: Ints) -> list[float | None]:
    """Return a mean of values from 0 to 1 over questions with its 95 % interval.

    Args:
        values: a value of each question, shape (questions,).
        items: the number of each question's item, shape (questions,).
    """
    found = share_interval(values, items)
    return [found.mean, found.low, found.high]


def accuracies(run: Path) -> dict[str, float]:
    """Return the accuracies of a trained reward model on the benchmarks of its recipe."""
    return {
        name: float(np.mean(list(credits_by(read_predictions(file)).values())))
        for name, file in predictions_in(run).items()
    }


def table(lines: Sequence[dict[str, Any]]) -> Table:
    """Return the table of the rounds, in percent; AUC is a share."""
    known = ("round", "questions", "repeated", "unjudged", "asked", "right", "best", "auc")
    benchmarks = list(dict.fromkeys(name for line in lines for name in line if name not in known))
    title = "questions that the reward model was not trained on"
    caption = "AUC inside a question, (questions with both)"
    for name, words in LEFT_OUT.items():
        if sum(line[name] for line in lines):
            counts = ", ".join(f"{line[name]:,} in round {line['round']}" for line in lines)
            caption += f"; left out because {words}: {counts}"
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
