"""Training of a reward model in rounds on the answers of a policy.

In each round the policy answers questions, preference pairs are made of the answers, and the reward
model is trained on the pairs.

Each step of a round is a command of this project in its own process, and is not repeated once done.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmrm.data.arrays import Floats, Ints
from mmrm.data.display.format import MISSING, interval, percent
from mmrm.data.display.study_result import StudyResult
from mmrm.data.display.table import Column, Table
from mmrm.data.errors import UserError
from mmrm.data.storage.files import content_digest, write_json
from mmrm.data.storage.output_lock import locked_folder
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
from mmrm.eval.verifiers import RECORDED
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.recipe.recipe import Recipe
from mmrm.train.studies.ablation.cached_steps import keep_settings, model_digest, run_step, trained
from mmrm.train.studies.predictor_figures import items_of_rows

SOURCE = "on_policy"
"""Name of the source in the recipe whose path is that of a round's pairs."""
REMEDY = (
    "Let every round ask other questions, for example by `{round}` in the seed or the path of "
    "--questions, and none that a recipe trains on."
)


FIGURES = ("round", "questions", "repeated", "unjudged", "asked", "right", "best", "auc")
"""Keys of a line; all others are benchmarks."""
LEFT_OUT = {"repeated": "they were trained on", "unjudged": "they have no scores"}
"""Reasons why questions are in no figure, by the key of their number."""


@dataclass(frozen=True, slots=True)
class RoundModels:
    """The models with which a round begins: checkpoints or run folders.

    The policy may also be a hub id or `embedded`.
    """

    reward_model: str
    policy: str


def run(options: argparse.Namespace) -> StudyResult:
    """Run the rounds that are not complete, and return the figures of all rounds.

    They are written to rounds.json after every round, so that an interrupted command leaves them.

    Args:
        options: The options of train/on_policy.py.
    """
    return study_result(run_rounds(options))


def study_result(lines: list[dict[str, Any]]) -> StudyResult:
    """Return the figures of all rounds with their table."""
    return StudyResult(lines, (rounds_table(lines),))


def write(result: StudyResult, folder: Path) -> None:
    """Write the figures of the rounds to rounds.json."""
    write_json(folder / "rounds.json", result.figures)


def run_rounds(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the rounds that are not complete, and return the figures of each round.

    Raises:
        UserError: If the recipe has no source for the pairs, if the questions cannot be measured or
            labelled, or if the folder was begun with other settings.
    """
    recipe = read_recipe(options.recipe, options.overrides, entry="rm")
    names = [source.label for source in recipe.data.sources]
    if SOURCE not in names:
        raise UserError(
            f"{options.recipe}: its sources are {', '.join(names)}; required is one with "
            f"`name: {SOURCE}`, such as {{type: project, name: {SOURCE}, path: pairs.jsonl}}, "
            "which gets the path of each round's pairs. Add it."
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
    models = RoundModels(recipe.backbone.path, options.policy)
    lines: list[dict[str, Any]] = []
    with locked_folder(options.folder) as lock:
        trained_on = TrainingPrompts()
        trained_on.add_model(recipe.backbone.path)
        for number in range(1, options.rounds + 2):
            folder = round_folder(options, number)
            folder.mkdir(exist_ok=True)
            answer_and_score(models, folder, number, options)
            figures = round_figures(folder, trained_on)
            benchmarks = accuracies(round_folder(options, number - 1) / "reward_model")
            lines.append({"round": number - 1, **figures, **benchmarks})
            write(study_result(lines), options.folder)
            if number <= options.rounds:
                make_pairs(folder, options)
                models = learn(models, folder, source_index, options, lock)
                add_round(trained_on, recipe, folder)
    return lines


def round_folder(options: argparse.Namespace, number: int) -> Path:
    """Return the folder of a round. Rounds count from 1, and the last one trains no model."""
    folder: Path = options.folder / f"round-{number}"
    return folder


def refuse_known_questions(recipe: Recipe, options: argparse.Namespace) -> None:
    """Read the questions of all rounds at once, and refuse those that cannot be used.

    Raises:
        UserError: If the source of a round cannot be read, if its answers are verified by another
            rule than --verifier, or if too many of its questions have been trained on when the
            reward model is measured on them.
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
    """Return the questions of a round.

    If the policy has answered them already, they are read from the file of its answers, because
    their source may have changed since. Otherwise they are read from the source.
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
    """Raise UserError if --verifier is not the rule that all questions declare."""
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
    """Add the questions that the reward model of a round was trained on."""
    if folder.name == "round-1":
        add_sources(trained_on, recipe)
    questions = read_questions(folder / "samples.jsonl")
    trained_on.add(folder.name, [question.key for question in questions])


def answer_and_score(
    models: RoundModels, folder: Path, number: int, options: argparse.Namespace
) -> None:
    """Let the policy answer the questions of a round, and the reward model score the answers."""
    samples = folder / "samples.jsonl"
    scored = folder / "scored.jsonl"
    arguments = [models.policy, str(samples), "--source", source_of_round(options, number)]
    arguments += ["--samples", str(options.samples)]
    arguments += ["--max-new-tokens", str(options.max_new_tokens)]
    made_from = {"policy": model_digest(models.policy)}
    run_step(options.launcher, "eval/sample.py", arguments, samples, made_from)
    score(models.reward_model, samples, scored, options)


def score(judge: str, samples: Path, scored: Path, options: argparse.Namespace) -> None:
    """Let a reward model or another judge score the answers."""
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
    models: RoundModels, folder: Path, source_index: int, options: argparse.Namespace, lock: int
) -> RoundModels:
    """Train the reward model on the pairs of a round, and with --policy-recipe the policy by it."""
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
        return RoundModels(reward_model, models.policy)
    over = [f"backbone.path={models.policy}", f"method.rewards.0.path={reward_model}"]
    made_from = {"policy": model_digest(models.policy), "reward model": model_digest(reward_model)}
    policy = trained(
        options.policy_recipe, over, folder / "policy", options.launcher, lock, made_from
    )
    return RoundModels(reward_model, policy)


def round_figures(folder: Path, trained_on: TrainingPrompts) -> dict[str, Any]:
    """Return the figures of a policy and of the reward model that scored its answers.

    Questions that the reward model was trained on are left out. `repeated` is their number,
    `unjudged` that of questions without scores, and `questions` that of the remaining ones. `asked`
    of these have right and wrong answers, and count for `auc`. `right` is the accuracy of a sampled
    answer, and `best` that of the best answer by score. Both are means with 95 % intervals, as is
    `auc`.

    Args:
        folder: The folder of the round.
        trained_on: The questions that the reward model was trained on.

    Raises:
        UserError: If so many questions were trained on that they are refused.
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
        means["right"] = mean_with_interval(np.array(right), items)
        means["best"] = mean_with_interval(np.array(best), items)
    if auc_by_index:
        aucs = np.array(list(auc_by_index.values()))
        means["auc"] = mean_with_interval(aucs, items[list(auc_by_index)])
    return {**counts, **means}


def mean_with_interval(values: Floats, items: Ints) -> list[float | None]:
    """Return a mean of values from 0 to 1 over questions with its 95 % interval.

    Args:
        values: A value of each question, shape (questions,).
        items: The number of each question's item, shape (questions,).
    """
    estimate = share_interval(values, items)
    return [estimate.mean, estimate.low, estimate.high]


def accuracies(run: Path) -> dict[str, float]:
    """Return the accuracies of a trained reward model on the benchmarks of its recipe."""
    return {
        name: float(np.mean(list(credits_by(read_predictions(file)).values())))
        for name, file in predictions_in(run).items()
    }


def rounds_table(lines: Sequence[dict[str, Any]]) -> Table:
    """Return the table of the rounds, in percent; AUC is a share."""
    benchmarks: dict[str, None] = {}
    for line in lines:
        benchmarks |= dict.fromkeys(name for name in line if name not in FIGURES)
    heads = ["round", "questions", "right [95 %]", "best [95 %]", "AUC [95 %]", *benchmarks]
    rows = []
    for line in lines:
        cells = [str(line["round"]), f"{line['questions']:,}"]
        cells += [interval(*line[name]) for name in ("right", "best")]
        cells.append(_auc_text(line))
        cells += [percent(line.get(name)) for name in benchmarks]
        rows.append(tuple(cells))
    columns = tuple(Column(head, is_number=True) for head in heads)
    title = "questions that the reward model was not trained on"
    return Table(title, columns, tuple(rows), (_rounds_note(lines),))


def _auc_text(line: dict[str, Any]) -> str:
    """Return the AUC of a round, with the number of questions that have right and wrong answers."""
    if "auc" not in line:
        return MISSING
    mean, low, high = line["auc"]
    auc = interval(mean, low, high, format_number=lambda share: f"{share:.3f}")
    return f"{auc} ({line['asked']})"


def _rounds_note(lines: Sequence[dict[str, Any]]) -> str:
    """Return a note on the AUC, and on the number of questions that are in no figure."""
    note = "AUC inside a question, (questions with both)"
    for name, words in LEFT_OUT.items():
        if sum(line[name] for line in lines):
            counts = ", ".join(f"{line[name]:,} in round {line['round']}" for line in lines)
            note += f"; left out because {words}: {counts}"
    return note
