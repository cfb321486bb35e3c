"""Training of a reward model in rounds on the answers of a policy.

In each round the policy answers questions, preference pairs are made of the answers, and the reward
model is trained on the pairs.

Each step of a round is a command of this project in its own process. It is not repeated if its
output exists and was made from the same files.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from mmrm.data.arrays import Floats, Ints
from mmrm.data.display.format import MISSING, interval, percent
from mmrm.data.display.study_result import StudyResult
from mmrm.data.display.table import Column, Table
from mmrm.data.errors import UserError
from mmrm.data.preference import text_responses
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
from mmrm.eval.selection.pair_choice import (
    CERTAINTY_EDGES,
    counts_by_certainty,
    possible_pairs,
)
from mmrm.eval.selection.selection import read_scored_responses, states_deviations
from mmrm.eval.verifiers import RECORDED
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.recipe.recipe import Recipe
from mmrm.train.studies.ablation.cached_steps import (
    keep_settings,
    model_digest,
    run_step,
    trained_checkpoint,
)
from mmrm.train.studies.predictor_figures import items_of_rows

SOURCE = "on_policy"
"""Name of the source of the recipe that reads the pairs of a round."""
REMEDY = (
    "Let every round ask other questions, for example by `{round}` in the seed or the path of "
    "--questions, and none that a recipe trains on."
)


LABELLED = "labelled_pairs"
"""Key of the counts of a round's labelled pairs (`labelled_pairs`) in its figures."""
FIGURES = ("round", "questions", "repeated", "unjudged", "asked", "right", "best", "auc", LABELLED)
"""Keys of a round's figures (`round_figures`). All other keys are names of benchmarks."""
LABEL_COUNTS = ("possible", "labelled", "preferences")
"""Keys of the numbers of pairs in a range of certainty."""
ASKED = "asked.jsonl"
"""Name of the file with the pairs of a round's answers that are labelled."""
LEFT_OUT = {"repeated": "they were trained on", "unjudged": "they have no scores"}
"""Reasons why questions are in no figure, by the key under which their number is stored."""


@dataclass(frozen=True, slots=True)
class RoundModels:
    """The reward model and the policy with which a round begins, each a checkpoint or run folder.

    The policy may also be a hub id or `embedded`.
    """

    reward_model: str
    policy: str


def run(options: argparse.Namespace) -> StudyResult:
    """Train a reward model in rounds on the answers of a policy.

    Complete rounds are not run again. The figures are written to rounds.json after every round, in
    case the command is interrupted.

    Args:
        options: The options of train/on_policy.py.

    Returns:
        The figures of all rounds with their table.
    """
    return study_result(run_rounds(options))


def study_result(rounds: list[dict[str, Any]]) -> StudyResult:
    """Return the figures of all rounds, as `run_rounds` returns them, with their tables."""
    tables = [rounds_table(rounds)]
    if any(LABELLED in figures for figures in rounds):
        tables.append(labelled_table(rounds))
    return StudyResult(rounds, tuple(tables))


def write(result: StudyResult, folder: Path) -> None:
    """Write the figures of the rounds to rounds.json."""
    write_json(folder / "rounds.json", result.figures)


def run_rounds(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the rounds that are not complete, and return the figures of each round.

    The first figures are those of the models before the first round, with `round` 0.

    Args:
        options: The options of train/on_policy.py.

    Raises:
        UserError: If the recipe has no source for the pairs, if the questions cannot be used, or if
            the folder was begun with other settings.
    """
    recipe = read_recipe(options.recipe, options.overrides, entry="rm")
    source_names = [source.label for source in recipe.data.sources]
    if SOURCE not in source_names:
        raise UserError(
            f"{options.recipe}: its sources are {', '.join(source_names)}; required is one with "
            f"`name: {SOURCE}`, such as {{type: project, name: {SOURCE}, path: pairs.jsonl}}, "
            "which gets the path of each round's pairs. Add it."
        )
    source_index = source_names.index(SOURCE)
    kept_options: tuple[str, ...] = (
        "policy",
        "questions",
        "samples",
        "max_new_tokens",
        "verifier",
        "judge",
        "policy_recipe",
    )
    if options.label_pairs is not None:
        # Folders that were begun without this option have no such settings.
        kept_options += ("label_pairs", "choose_pairs")
    refuse_unusable_questions(recipe, options)
    keep_settings(
        options.folder / "settings.json", options, kept_options, reward_model=recipe.backbone.path
    )
    models = RoundModels(recipe.backbone.path, options.policy)
    rounds: list[dict[str, Any]] = []
    with locked_folder(options.folder) as lock:
        trained_on = TrainingPrompts()
        trained_on.add_model(recipe.backbone.path)
        # One more round of questions measures the models of the last round.
        for number in range(1, options.rounds + 2):
            folder = round_folder(options, number)
            folder.mkdir(exist_ok=True)
            answer_and_score(models, folder, number, options)
            # The answers of a round measure the models of the round before.
            figures = round_figures(folder, trained_on)
            folder_before = round_folder(options, number - 1)
            accuracies = benchmark_accuracies(folder_before / "reward_model")
            counts = labelled_pairs(folder_before, options)
            rounds.append({"round": number - 1, **figures, **counts, **accuracies})
            write(study_result(rounds), options.folder)
            if number <= options.rounds:
                make_pairs(folder, number, options)
                models = train_models(models, folder, source_index, options, lock)
                add_round(trained_on, recipe, folder)
    return rounds


def round_folder(options: argparse.Namespace, number: int) -> Path:
    """Return the folder of a round; the first round has number 1."""
    folder: Path = options.folder / f"round-{number}"
    return folder


def refuse_unusable_questions(recipe: Recipe, options: argparse.Namespace) -> None:
    """Read the questions of all rounds before any model is trained, and check them.

    Args:
        recipe: The recipe of the reward model.
        options: The options of train/on_policy.py.

    Raises:
        UserError: If the questions of a round cannot be read, if their answers are verified by
            another rule than --verifier, or if the reward model is trained on a quarter of them or
            more before it is measured on them.
    """
    trained_on = TrainingPrompts()
    trained_on.add_model(recipe.backbone.path)
    for number in range(1, options.rounds + 2):
        questions = questions_of_round(options, number)
        refuse_other_verifier(questions, number, options)
        trained_on.questions_to_leave_out(questions, f"--questions, round {number}", REMEDY)
        # The first round trains the reward model on the sources of the recipe and on its questions.
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
    """Return the source of a round's questions in YAML: --questions with the number filled in."""
    source: str = options.questions.replace("{round}", str(number))
    return source


def refuse_other_verifier(
    questions: Sequence[Question], number: int, options: argparse.Namespace
) -> None:
    """Raise UserError if --verifier is not the rule by which the answers are verified.

    A question without a rule fits every verifier, and without --verifier every question fits.

    Args:
        questions: The questions of a round.
        number: The number of the round.
        options: The options of train/on_policy.py.
    """
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
    """Add the records of the recipe to the known ones, except for the pairs of the rounds.

    Args:
        trained_on: The questions that a reward model was trained on.
        recipe: The recipe of the reward model.
    """
    others = [source for source in recipe.data.sources if source.label != SOURCE]
    data = recipe.data.model_copy(update={"sources": others})
    trained_on.add_recipe(data, "this recipe", fetch=True)


def add_round(trained_on: TrainingPrompts, recipe: Recipe, folder: Path) -> None:
    """Add the questions that the reward model of a round was trained on to the known ones.

    Args:
        trained_on: The questions that the reward models of earlier rounds were trained on.
        recipe: The recipe of the reward model, whose other sources the first round adds.
        folder: The folder of the round.
    """
    if folder.name == "round-1":
        add_sources(trained_on, recipe)
    questions = read_questions(folder / "samples.jsonl")
    trained_on.add(folder.name, [question.key for question in questions])


def answer_and_score(
    models: RoundModels, folder: Path, number: int, options: argparse.Namespace
) -> None:
    """Let the policy answer the questions of a round, and the reward model score the answers.

    Args:
        models: The models with which the round begins.
        folder: The folder of the round, which gets samples.jsonl and scored.jsonl.
        number: The number of the round.
        options: The options of train/on_policy.py.
    """
    samples = folder / "samples.jsonl"
    scored = folder / "scored.jsonl"
    arguments = [models.policy, str(samples), "--source", source_of_round(options, number)]
    arguments += ["--samples", str(options.samples)]
    arguments += ["--max-new-tokens", str(options.max_new_tokens)]
    made_from = {"policy": model_digest(models.policy)}
    run_step(options.launcher, "eval/sample.py", arguments, samples, made_from)
    score_answers(models.reward_model, samples, scored, options)


def score_answers(judge: str, samples: Path, scored: Path, options: argparse.Namespace) -> None:
    """Let a reward model or another judge score answers, unless it has done so.

    Args:
        judge: A checkpoint, or the YAML file of a judge.
        samples: The file of the answers.
        scored: The file that gets the answers with their scores.
        options: The options of train/on_policy.py.
    """
    made_from = {"samples": content_digest(samples), "judge": model_digest(judge)}
    arguments = [judge, str(samples), str(scored)]
    run_step(options.launcher, "eval/score.py", arguments, scored, made_from)


def make_pairs(folder: Path, number: int, options: argparse.Namespace) -> None:
    """Make preference pairs of the answers of a round, and write them to pairs.jsonl.

    The pairs are made by the scores of --judge. Without a judge they are made by the verdicts that
    were recorded when the answers were sampled. With --label-pairs they are made of those pairs of
    answers only that `choose_pairs` writes.

    Args:
        folder: The folder of the round.
        number: The number of the round.
        options: The options of train/on_policy.py.
    """
    pairs = folder / "pairs.jsonl"
    to_judge = folder / "samples.jsonl"
    labelled = folder / "scored.jsonl"
    if options.label_pairs is not None:
        choose_pairs(folder, number, options)
        to_judge = folder / ASKED
        labelled = to_judge
    if options.judge is not None:
        labelled = folder / "judged.jsonl"
        labels = []
        score_answers(options.judge, to_judge, labelled, options)
    else:
        labels = ["--verifier", options.verifier or RECORDED, "--all"]
    arguments = ["pairs", str(labelled), str(pairs), *labels]
    made_from = {"labelled answers": content_digest(labelled)}
    run_step([sys.executable], "eval/select_responses.py", arguments, pairs, made_from)


def choose_pairs(folder: Path, number: int, options: argparse.Namespace) -> None:
    """Choose the pairs of a round's answers that are labelled, and write them to asked.jsonl.

    The arguments are those of `make_pairs`. The number of the round is the seed of the draw.
    """
    scored = folder / "scored.jsonl"
    asked = folder / ASKED
    arguments = ["ask", str(scored), str(asked), "--pairs", str(options.label_pairs)]
    arguments += ["--by", options.choose_pairs, "--seed", str(number)]
    made_from = {"scored answers": content_digest(scored)}
    run_step([sys.executable], "eval/select_responses.py", arguments, asked, made_from)


def labelled_pairs(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return how many pairs of a round's answers were labelled, by the reward model's certainty.

    The only key is `labelled_pairs`. It has a list with the ranges of certainty. Each has its
    edges `low` and `high`, and the numbers of pairs that could be labelled (`possible`), that were
    labelled (`labelled`), and whose label is a preference (`preferences`). The result is empty for
    a round whose pairs were all labelled, and before the first round.

    Args:
        folder: The folder of the round.
        options: The options of train/on_policy.py.
    """
    asked = folder / ASKED
    if options.label_pairs is None or not asked.is_file():
        return {}
    possible: list[float] = []
    for number, row in enumerate(rows_of(folder / "scored.jsonl")):
        responses = text_responses(*row["responses"])
        scored = read_scored_responses(row, responses, None, states_deviations(row))
        possible += [pair.certainty for pair in possible_pairs(number, scored)]
    labelled = [row["certainty"] for row in rows_of(asked)]
    preferred: list[float] = []
    if options.judge is not None:
        for row in rows_of(folder / "judged.jsonl"):
            if row["scores"][0] != row["scores"][1]:
                preferred.append(row["certainty"])
    else:
        for row in rows_of(asked):
            if row["right"][0] != row["right"][1]:
                preferred.append(row["certainty"])
    ranges: list[dict[str, float]] = []
    counts = zip(
        pairwise(CERTAINTY_EDGES),
        counts_by_certainty(possible),
        counts_by_certainty(labelled),
        counts_by_certainty(preferred),
        strict=True,
    )
    for (low, high), num_possible, num_labelled, num_preferred in counts:
        ranges.append(
            {
                "low": low,
                "high": high,
                "possible": num_possible,
                "labelled": num_labelled,
                "preferences": num_preferred,
            }
        )
    return {LABELLED: ranges}


def train_models(
    models: RoundModels, folder: Path, source_index: int, options: argparse.Namespace, lock: int
) -> RoundModels:
    """Train the reward model on the pairs of a round, and with --policy-recipe also the policy.

    Args:
        models: The models with which the round begins.
        folder: The folder of the round.
        source_index: The index of the source of the recipe that reads the pairs.
        options: The options of train/on_policy.py.
        lock: The file descriptor of the lock of the study's folder, which the trainings inherit.

    Returns:
        The models with which the next round begins.
    """
    pairs = folder / "pairs.jsonl"
    overrides = [
        *options.overrides,
        f"data.sources.{source_index}.path={pairs}",
        f"backbone.path={models.reward_model}",
    ]
    made_from = {"pairs": content_digest(pairs), "reward model": model_digest(models.reward_model)}
    reward_model = trained_checkpoint(
        options.recipe,
        overrides,
        folder / "reward_model",
        options.launcher,
        lock,
        made_from,
    )
    if options.policy_recipe is None:
        return RoundModels(reward_model, models.policy)
    overrides = [f"backbone.path={models.policy}", f"method.rewards.0.path={reward_model}"]
    made_from = {"policy": model_digest(models.policy), "reward model": model_digest(reward_model)}
    policy = trained_checkpoint(
        options.policy_recipe, overrides, folder / "policy", options.launcher, lock, made_from
    )
    return RoundModels(reward_model, policy)


def round_figures(folder: Path, trained_on: TrainingPrompts) -> dict[str, Any]:
    """Return the figures of a policy and of the reward model that scored its answers.

    Questions that the reward model was trained on are left out.

    Args:
        folder: The folder of the round.
        trained_on: The questions that the reward model was trained on.

    Returns:
        Four numbers of questions: `questions` count, `repeated` are left out because they were
        trained on, `unjudged` have no scores, and `asked` have both right and wrong answers. Three
        means with the ends of their 95 % intervals, each only if there are such questions: `right`,
        the accuracy of a sampled answer; `best`, the accuracy of the answer with the highest score;
        and `auc`, over the questions of `asked`.

    Raises:
        UserError: If a quarter of the questions or more were trained on.
    """
    rows = list(rows_of(folder / "scored.jsonl"))
    num_sampled = sum(1 for _ in rows_of(folder / "samples.jsonl"))
    repeated = trained_on.questions_to_leave_out(
        [Question.of_row(row) for row in rows], folder.name, REMEDY
    )
    unseen_rows = [row for index, row in enumerate(rows) if index not in repeated]
    sampled_accuracies = []
    best_accuracies = []
    auc_by_index: dict[int, float] = {}
    for index, row in enumerate(unseen_rows):
        scores = row["scores"]
        is_right = row["right"]
        sampled_accuracies.append(sum(is_right) / len(is_right))
        best_accuracies.append(best_of(scores, is_right, len(is_right)))
        auc = in_group_auc(scores, is_right)
        if auc is not None:  # None if all answers are right, or all are wrong
            auc_by_index[index] = auc
    items = items_of_rows(unseen_rows)
    counts = {
        "questions": len(unseen_rows),
        "repeated": len(repeated),
        "unjudged": num_sampled - len(rows),
        "asked": len(auc_by_index),
    }
    means: dict[str, list[float | None]] = {}
    if unseen_rows:
        means["right"] = mean_with_interval(np.array(sampled_accuracies), items)
        means["best"] = mean_with_interval(np.array(best_accuracies), items)
    if auc_by_index:
        aucs = np.array(list(auc_by_index.values()))
        means["auc"] = mean_with_interval(aucs, items[list(auc_by_index)])
    return {**counts, **means}


def mean_with_interval(values: Floats, items: Ints) -> list[float | None]:
    """Return a mean over questions, and the lower and upper end of its 95 % interval.

    Args:
        values: A value from 0 to 1 of each question, shape (questions,).
        items: The number of the item to which each question belongs, shape (questions,). Questions
            of one item, such as questions about one image, are not independent.
    """
    estimate = share_interval(values, items)
    return [estimate.mean, estimate.low, estimate.high]


def benchmark_accuracies(run_folder: Path) -> dict[str, float]:
    """Return the accuracies of a trained reward model on the benchmarks of its recipe.

    The result is empty if the folder has no evaluation, as before the first round.
    """
    accuracies = {}
    for benchmark, file in predictions_in(run_folder).items():
        credits = list(credits_by(read_predictions(file)).values())
        accuracies[benchmark] = float(np.mean(credits))
    return accuracies


def rounds_table(rounds: Sequence[dict[str, Any]]) -> Table:
    """Return the table of the rounds. Accuracies are in percent, and AUC is a share.

    Args:
        rounds: The figures of each round, as `run_rounds` returns them.
    """
    # A dictionary, as a set in the order of the first occurrence.
    benchmarks: dict[str, None] = {}
    for figures in rounds:
        benchmarks |= dict.fromkeys(name for name in figures if name not in FIGURES)
    heads = ["round", "questions", "right [95 %]", "best [95 %]", "AUC [95 %]", *benchmarks]
    rows = []
    for figures in rounds:
        cells = [str(figures["round"]), f"{figures['questions']:,}"]
        cells += [interval(*figures[name]) for name in ("right", "best")]
        cells.append(_auc_text(figures))
        cells += [percent(figures.get(name)) for name in benchmarks]
        rows.append(tuple(cells))
    columns = tuple(Column(head, is_number=True) for head in heads)
    title = "questions that the reward model was not trained on"
    return Table(title, columns, tuple(rows), (_rounds_note(rounds),))


def labelled_table(rounds: Sequence[dict[str, Any]]) -> Table:
    """Return the table of the labelled pairs by the certainty of the reward model before the round.

    Args:
        rounds: The figures of each round, as `run_rounds` returns them.
    """
    columns = [Column("round", is_number=True)]
    for low, high in pairwise(CERTAINTY_EDGES):
        columns.append(Column(f"{100 * low:.0f}–{100 * high:.0f} %", is_number=True))
    columns.append(Column("all", is_number=True))
    rows = []
    for figures in rounds:
        if LABELLED not in figures:
            continue
        ranges = figures[LABELLED]
        total = dict.fromkeys(LABEL_COUNTS, 0)
        for counts in ranges:
            for key in LABEL_COUNTS:
                total[key] += counts[key]
        cells = [_label_counts_text(counts) for counts in (*ranges, total)]
        rows.append((str(figures["round"]), *cells))
    note = (
        "pairs of answers that were labelled / that could be (with a preference), by the certainty "
        "of the reward model before the round that the answer with the higher score is better"
    )
    return Table("pairs that were labelled", tuple(columns), tuple(rows), (note,))


def _label_counts_text(counts: Mapping[str, float]) -> str:
    """Return the text of the numbers of pairs in a range of certainty, such as "12 / 90 (7)"."""
    return f"{counts['labelled']:,} / {counts['possible']:,} ({counts['preferences']:,})"


def _auc_text(figures: dict[str, Any]) -> str:
    """Return the AUC of a round, with the number of questions that have right and wrong answers.

    Returns the mark for a missing value if there are no such questions.
    """
    if "auc" not in figures:
        return MISSING
    mean, low, high = figures["auc"]
    auc = interval(mean, low, high, format_number=lambda share: f"{share:.3f}")
    return f"{auc} ({figures['asked']})"


def _rounds_note(rounds: Sequence[dict[str, Any]]) -> str:
    """Return the note below the table: what AUC is, and how many questions are in no figure."""
    note = "AUC inside a question, (questions with both)"
    for name, reason in LEFT_OUT.items():
        if any(figures[name] for figures in rounds):
            counts = ", ".join(
                f"{figures[name]:,} in round {figures['round']}" for figures in rounds
            )
            note += f"; left out because {reason}: {counts}"
    return note
