"""The study of which figures of reward models predict how much a policy gains from them.

The reward models of a list score the same answers of a policy, which are sampled once. A figure of
a model is a number such as its accuracy on a benchmark. A gain is what a policy wins by the model:
the accuracy of the best of N answers by its score, minus that of a sampled answer, or the accuracy
of a policy that is trained with the model as its reward, minus its accuracy before.
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from mmrm.data.arrays import Floats
from mmrm.data.display.chart import Chart, save_png
from mmrm.data.display.study_result import StudyResult
from mmrm.data.display.table import Table
from mmrm.data.errors import UserError
from mmrm.data.preparation.mixing import Mixture, MixtureConfig
from mmrm.data.storage.files import content_digest, digest, write_json, write_whole
from mmrm.data.storage.output_lock import locked_folder
from mmrm.eval.contamination.question_overlap import (
    Question,
    TrainingPrompts,
    questions_of_source,
    rows_of,
)
from mmrm.eval.policies.best_of import best_of, in_group_auc
from mmrm.eval.reporting.comparison_page import rows_by_benchmark, variants_table
from mmrm.eval.reporting.predictors_page import (
    COEFFICIENTS_NOTE,
    GAINS,
    coefficients_table,
    gain_charts,
    models_table,
    table_without_each,
)
from mmrm.eval.results.correlation import (
    LEAST_RECIPES,
    Correlation,
    correlation,
    correlation_of_halves,
)
from mmrm.eval.results.intervals import paired_difference
from mmrm.eval.results.predictions import item_codes
from mmrm.eval.results.result import read_result
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.studies.ablation.cached_steps import (
    checkpoint_of,
    keep_settings,
    model_digest,
    run_step,
    script_path,
    trained_checkpoint,
)
from mmrm.train.studies.ablation.comparison import (
    VariantLine,
    comparisons_in,
    flat_rows,
    lines_by_figure,
    statement,
)
from mmrm.train.studies.ablation.variants import (
    RECIPE,
    Ablation,
    Run,
    read_ablation,
    state,
)
from mmrm.train.studies.predictor_figures import (
    has_both_halves,
    items_of_rows,
    means_of_halves,
)

AUC = "AUC inside a question"
"""Figure of a question: the share of pairs of a right and a wrong answer in which the right answer
has the higher score."""
BEST = "best of N"
"""Figure of a question: the accuracy of the answer with the highest score."""
GAIN = "best of N minus a sampled one"
"""Figure of a question: the accuracy of the answer with the highest score, minus that of a sampled
answer."""
JUDGE = "judge"
"""The paradigm of models that compare two answers instead of scoring each."""

Gain = tuple[float, float | None, float | None]
"""A mean, and the lower and upper end of its 95 % interval over questions."""


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A reward model with its figures, such as accuracies, and what a policy gains from it."""

    run: Run
    """The training of the model."""
    questions: int
    """Number of questions that count."""
    figures: dict[str, float]
    """Figures by name, such as "AUC" or the accuracy on a benchmark."""
    gains: dict[str, Gain]
    """Gains by name: `best_of_gain`, `rl_greedy_gain` and `rl_sampled_gain`."""
    by_question: dict[str, dict[str, float]] = field(default_factory=dict)
    """AUC, BEST and GAIN of every question, by the name of the question (`unique_names`).

    A question has an AUC only if some of its answers are right and some are wrong.
    """
    unjudged: int = 0
    """Number of questions whose answers have no scores."""

    @property
    def stored(self) -> dict[str, Any]:
        """The model as it is written to predictors.json."""
        identification = {
            "variant": self.run.variant,
            "seed": self.run.seed,
            "paradigm": paradigm(self.run),
            "questions": self.questions,
        }
        return {**identification, **self.figures, **self.gains}


def paradigm(run: Run) -> str:
    """Return the kind of reward model that a run trains, such as "naive" or "critic"."""
    return run.recipe.method.paradigm


def read_list(options: argparse.Namespace) -> Ablation:
    """Read the list of reward models that the command line names.

    Raises:
        UserError: An argument of --pays, which names variants that train a policy, is no variant of
            the list.
    """
    ablation = read_ablation(options.list, options.overrides, list(dict.fromkeys(options.seeds)))
    unknown = set(options.pays) - ablation.changes.keys()
    if unknown:
        raise UserError(
            f"--pays {' '.join(sorted(unknown))}: the variants of {options.list} are "
            f"{', '.join(ablation.changes)}."
        )
    return ablation


def run(ablation: Ablation, options: argparse.Namespace) -> StudyResult:
    """Train and measure the models that are not complete, and return the results of all models.

    Args:
        ablation: The list of reward models.
        options: The options of train/predictors.py.
    """
    return study_result(measured_models(ablation, options), ablation)


def write(result: StudyResult, folder: Path) -> None:
    """Write predictors.json, predictors.md and, if there are charts, predictors.png."""
    write_json(folder / "predictors.json", result.figures)
    (folder / "predictors.md").write_text(result.document, encoding="utf-8")
    if result.charts:
        save_png(result.charts, folder / "predictors.png")


def measured_models(ablation: Ablation, options: argparse.Namespace) -> list[MeasuredModel]:
    """Train the reward models, let them score a policy's answers, and train policies by them.

    Args:
        ablation: The list of reward models.
        options: The options of train/predictors.py.

    Returns:
        The models whose training is complete, with their figures and gains.
    """
    folder = ablation.folder / "predictors"
    questions = questions_of_source(options.questions, "--questions")
    repeated_keys = keys_of_repeated_questions(questions, ablation)
    repeated_policy_questions = repeated_questions_of_policies(options)
    if any(state(run) != "complete" for run in ablation.runs):
        train_list(options)
    models = []
    with locked_folder(folder) as lock:
        keep_settings(
            folder / "settings.json",
            options,
            ("policy", "questions", "samples", "max_new_tokens", "policy_recipe"),
        )
        samples = sampled_answers(folder, questions, options)
        # A judge that compares two answers takes long, and gets the first questions only.
        samples_of_judges = folder / f"samples-{options.compared}.jsonl"
        with samples.open(encoding="utf-8") as lines:
            write_whole(samples_of_judges, "".join(islice(lines, options.compared)))
        first_seed = ablation.runs[0].seed
        for run in ablation.runs:
            if state(run) != "complete":
                continue
            samples_of_run = samples_of_judges if paradigm(run) == JUDGE else samples
            scored = scored_answers(run, samples_of_run, options)
            num_unjudged = num_rows(samples_of_run) - num_rows(scored)
            model = replace(model_of_answers(run, scored, repeated_keys), unjudged=num_unjudged)
            model.figures.update(benchmark_figures(run))
            if run.variant in options.pays and run.seed == first_seed:
                policy_folder = folder / "policies" / run.variant
                gains = policy_gains(run, policy_folder, options, lock, repeated_policy_questions)
                model.gains.update(gains)
            models.append(model)
    return models


def train_list(options: argparse.Namespace) -> None:
    """Train the incomplete runs of the list with train/ablate.py.

    It prints the runs that fail. They are left out of the study.
    """
    arguments = [str(options.list), *options.overrides]
    arguments += ["--seeds", *(str(seed) for seed in options.seeds)]
    arguments += ["--launcher", shlex.join(options.launcher)]
    script = script_path("train/ablate.py")
    subprocess.run([sys.executable, script, *arguments], check=False)


def sampled_answers(
    folder: Path, questions: Sequence[Question], options: argparse.Namespace
) -> Path:
    """Let the policy answer the questions, unless it has done so, and return the answers' file.

    Args:
        folder: The folder of the study.
        questions: The questions, whose digest shows if they have changed since the policy answered.
        options: The options of train/predictors.py.
    """
    samples = folder / "samples.jsonl"
    question_texts = [(question.key, question.rule) for question in questions]
    made_from = {
        "policy": model_digest(options.policy),
        "questions": digest(repr(question_texts)),
    }
    arguments = [options.policy, str(samples), "--source", options.questions]
    arguments += ["--samples", str(options.samples)]
    arguments += ["--max-new-tokens", str(options.max_new_tokens)]
    run_step(options.launcher, "eval/sample.py", arguments, samples, made_from)
    return samples


def scored_answers(run: Run, samples: Path, options: argparse.Namespace) -> Path:
    """Let a reward model score the answers of a file, unless it has, and return the scores' file.

    Args:
        run: The training of the model.
        samples: The file of the answers.
        options: The options of train/predictors.py.
    """
    scored = run.folder / f"scored-{samples.name}"
    checkpoint = str(checkpoint_of(run))
    made_from = {"samples": content_digest(samples), "judge": model_digest(checkpoint)}
    arguments = [checkpoint, str(samples), str(scored)]
    run_step(options.launcher, "eval/score.py", arguments, scored, made_from)
    return scored


def num_rows(file: Path) -> int:
    """Return the number of rows of a file of JSON lines."""
    return sum(1 for _ in rows_of(file))


def keys_of_repeated_questions(questions: Sequence[Question], ablation: Ablation) -> set[int]:
    """Return the keys of those questions that any reward model of the list is trained on.

    They are left out of the figures of all models. Their number is printed.

    Raises:
        UserError: If a quarter of the questions or more are trained on.
    """
    trained_on = TrainingPrompts()
    for run in ablation.runs:
        trained_on.add_recipe(run.recipe.data, run.variant, fetch=state(run) != "complete")
        trained_on.add_model(run.recipe.backbone.path)
    remedy = "Name other questions, which no variant of the list trains on."
    repeated = trained_on.questions_to_leave_out(questions, "--questions", remedy)
    show_left_out("--questions", len(repeated), len(questions), trained_on.notes)
    return {questions[index].key for index in repeated}


def repeated_questions_of_policies(options: argparse.Namespace) -> set[str]:
    """Return the identities of those questions of --policy-recipe that its policies are trained on.

    They are left out of the gains of policies. Their number is printed. The result is empty without
    --policy-recipe.

    Raises:
        UserError: If a quarter of the questions or more are trained on.
    """
    if options.policy_recipe is None:
        return set()
    recipe = read_recipe(options.policy_recipe)
    if not recipe.evaluation.questions:
        return set()  # the policy answers records that data.validation holds out
    # A gain is measured on the first set of questions. It is read as a mixture of one source.
    section = {"sources": [recipe.evaluation.questions[0]], "cache": recipe.data.cache}
    mixture = Mixture(MixtureConfig.model_validate(section))
    records = [mixture[index] for index in range(len(mixture))]
    trained_on = TrainingPrompts()
    trained_on.add_recipe(recipe.data, str(options.policy_recipe), fetch=True)
    trained_on.add_model(recipe.backbone.path)
    name = f"{options.policy_recipe}, evaluation.questions"
    remedy = "Evaluate the policy on questions that data.sources does not hold."
    questions = [Question.of_record(record) for record in records]
    repeated = trained_on.questions_to_leave_out(questions, name, remedy)
    show_left_out(name, len(repeated), len(records), trained_on.notes)
    return {records[index].identity for index in repeated}


def show_left_out(name: str, num_repeated: int, num_questions: int, notes: Iterable[str]) -> None:
    """Print how many questions are left out because a model is trained on them.

    Args:
        name: The name of the questions in messages.
        num_repeated: The number of questions that are left out.
        num_questions: The number of all questions.
        notes: Models and sources that could not be compared with the questions, and why. Each is
            printed.
    """
    if num_repeated:
        print(
            f"{name}: {num_repeated:,} of {num_questions:,} questions are trained on and left out",
            file=sys.stderr,
        )
    for note in notes:
        print(f"not compared with {name}: {note}", file=sys.stderr)


def model_of_answers(
    run: Run, scored: Path, repeated_keys: Set[int] = frozenset()
) -> MeasuredModel:
    """Return a model with the figures and the best-of-N gain of the answers that it scored.

    Args:
        run: The training of the model.
        scored: The file of the answers with the model's scores, a row for each question.
        repeated_keys: Keys of questions that a model of the list was trained on. They count for no
            figure.
    """
    rows = [row for row in rows_of(scored) if Question.of_row(row).key not in repeated_keys]
    best_accuracy: dict[str, float] = {}
    sampled_accuracy: dict[str, float] = {}
    auc_by_question: dict[str, float] = {}
    for name, row in zip(unique_names(rows), rows, strict=True):
        scores = row["scores"]
        is_right = row["right"]
        best_accuracy[name] = best_of(scores, is_right, len(is_right))
        sampled_accuracy[name] = sum(is_right) / len(is_right)
        auc = in_group_auc(scores, is_right)
        if auc is not None:  # None if all answers are right, or all are wrong
            auc_by_question[name] = auc
    figures = {}
    if auc_by_question:
        figures["AUC"] = float(np.mean(list(auc_by_question.values())))
    gain = paired_difference(
        np.array(list(best_accuracy.values())),
        np.array(list(sampled_accuracy.values())),
        items_of_rows(rows),
    )
    gain_by_question = {
        name: best_accuracy[name] - sampled_accuracy[name] for name in best_accuracy
    }
    return MeasuredModel(
        run,
        questions=len(rows),
        figures=figures,
        gains={"best_of_gain": (gain.mean, gain.low, gain.high)},
        by_question={AUC: auc_by_question, BEST: best_accuracy, GAIN: gain_by_question},
    )


def unique_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a name for the question of each row, by which the files of several models are paired.

    A name is a digest of the question and its answers. If several rows have the same question and
    answers, a number is appended. The index of a row would be no such name, because a file lacks
    the questions whose answers the model could not score.
    """
    names: list[str] = []
    count_by_content: Counter[str] = Counter()
    for row in rows:
        content = digest(json.dumps([Question.of_row(row).key, row["responses"]]))
        count_by_content[content] += 1
        names.append(f"{content}-{count_by_content[content]}")
    return names


def benchmark_figures(run: Run) -> dict[str, float]:
    """Return accuracy, calibration error and order consistency of a complete run, by name.

    They are measured on each benchmark. A figure that does not apply to the paradigm is missing.
    """
    figures: dict[str, float | None] = {}
    for benchmark in run.recipe.evaluation.benchmarks:
        result = read_result(run.folder / "eval" / f"{benchmark.name}.json")
        figures[f"{benchmark.name} accuracy"] = result.micro.half  # a tie counts half a point
        figures[f"{benchmark.name} ECE"] = result.calibration.ece if result.calibration else None
        order = result.votes.order if result.votes else None
        figures[f"{benchmark.name} order consistency"] = order.rate if order else None
    return {name: value for name, value in figures.items() if value is not None}


def policy_gains(
    run: Run,
    folder: Path,
    options: argparse.Namespace,
    lock: int,
    repeated_questions: Set[str],
) -> dict[str, Gain]:
    """Train a policy with a reward model, and return by how much its accuracy rose.

    Args:
        run: The training of the reward model.
        folder: The run folder of the policy.
        options: The options of train/predictors.py.
        lock: The file descriptor of the study's lock.
        repeated_questions: Identities of questions that the policy is trained on. They are left
            out.

    Returns:
        The gains of greedy and of sampled answers: `rl_greedy_gain` and `rl_sampled_gain`.

    Raises:
        UserError: If the policy answered other questions after the training than before.
    """
    checkpoint = checkpoint_of(run)
    # The policy is also evaluated at the start, before it has been trained.
    overrides = [f"method.rewards.0.path={checkpoint}", "evaluation.at_start=true"]
    made_from = {"reward model": model_digest(str(checkpoint))}
    trained_checkpoint(options.policy_recipe, overrides, folder, options.launcher, lock, made_from)
    question_set = read_recipe(folder / RECIPE).question_sets[0]
    file_before = folder / "start" / "answers" / f"{question_set}.jsonl"
    credits_before = credits_by_question(file_before)
    credits_after = credits_by_question(folder / "answers" / f"{question_set}.jsonl")
    if credits_after.keys() != credits_before.keys():
        num_common = len(credits_after.keys() & credits_before.keys())
        raise UserError(
            f"{folder}: the policy answered {len(credits_after):,} questions and its start "
            f"{len(credits_before):,}, {num_common:,} of them the same. A gain is paired by "
            "question. Remove that folder to train the policy again."
        )
    questions = [
        (identity, key) for identity, key in credits_before if identity not in repeated_questions
    ]
    # Intervals take into account that questions of one item, such as an image, are not independent.
    item_by_question = items_by_question(file_before)
    items = item_codes([item_by_question[question] for question in questions])
    gains: dict[str, Gain] = {}
    for sampling in ("greedy", "sampled"):
        before = np.array([credits_before[question][sampling] for question in questions])
        after = np.array([credits_after[question][sampling] for question in questions])
        difference = paired_difference(after, before, items)
        gains[f"rl_{sampling}_gain"] = (difference.mean, difference.low, difference.high)
    return gains


def credits_by_question(file: Path) -> dict[tuple[str, str], dict[str, float]]:
    """Read the points from 0 to 1 that a policy has on each question, from a file of its answers.

    They are by figure, such as `greedy` for its greedy answer. The key of a question is its
    identity and a digest of its content. Earlier versions did not store the digest, which is empty
    then.
    """
    return {(row["id"], row.get("key", "")): row["credits"] for row in rows_of(file)}


def items_by_question(file: Path) -> dict[tuple[str, str], str]:
    """Return the item of each question from a file of answers, by identity and digest of content.

    Questions of one item, such as questions about one image, are not independent.
    """
    items = {}
    for row in rows_of(file):
        # Earlier versions did not store items.
        items[row["id"], row.get("key", "")] = str(row.get("item", row["id"]))
    return items


def correlations(models: Sequence[MeasuredModel]) -> dict[str, dict[str, Correlation]]:
    """Return the correlation of each gain with each figure, over the models that have both.

    The result is by gain, then by figure. A figure that is known of too few variants is missing. If
    some of the models are judges that compare answers, there is also a correlation without them,
    named `FIGURE, without judges`, because judges are another kind of model.
    """
    correlations_by_gain: dict[str, dict[str, Correlation]] = {}
    for gain in GAINS:
        correlation_by_figure: dict[str, Correlation] = {}
        for figure in figure_names(models):
            measured = [
                model for model in models if figure in model.figures and gain in model.gains
            ]
            without_judges = [model for model in measured if paradigm(model.run) != JUDGE]
            models_by_name = {figure: measured}
            if len(without_judges) < len(measured):
                models_by_name[f"{figure}, without judges"] = without_judges
            for name, correlated_models in models_by_name.items():
                result = correlation_of(correlated_models, figure, gain)
                if result is not None:
                    correlation_by_figure[name] = result
        correlations_by_gain[gain] = correlation_by_figure
    return correlations_by_gain


def figure_names(models: Sequence[MeasuredModel]) -> list[str]:
    """Return the names of the figures that any of the models has."""
    names: dict[str, None] = {}
    for model in models:
        names |= dict.fromkeys(model.figures)
    return list(names)


def correlation_of(models: Sequence[MeasuredModel], figure: str, gain: str) -> Correlation | None:
    """Return the correlation of a figure with a gain.

    Returns None for too few variants, or if the figure or the gain does not vary.

    Args:
        models: The models, which all have the figure and the gain.
        figure: The name of the figure.
        gain: The name of the gain.
    """
    if figure == "AUC" and gain == "best_of_gain":
        # They come from the same answers, and would correlate by chance.
        return correlation_over_halves(models)
    values = np.array([model.figures[figure] for model in models])
    mean_gains = np.array([model.gains[gain][0] for model in models])
    return correlation(values, mean_gains, [model.run.variant for model in models])


def correlation_over_halves(models: Sequence[MeasuredModel]) -> Correlation | None:
    """Return the correlation of AUC on one half of the questions with the gain on the other half.

    The gain is the best-of-N gain. Models that lack one of the two on a half are left out. Returns
    None for too few variants, or if one of the two does not vary.
    """
    names: set[str] = set()
    for model in models:
        names |= model.by_question.get(GAIN, {}).keys()
    questions = sorted(names)
    usable_models = []
    for model in models:
        has_auc = has_both_halves(model.by_question.get(AUC, {}), questions)
        if has_auc and has_both_halves(model.by_question[GAIN], questions):
            usable_models.append(model)
    aucs = means_of_halves([model.by_question[AUC] for model in usable_models], questions)
    gains = means_of_halves([model.by_question[GAIN] for model in usable_models], questions)
    return correlation_of_halves(aucs, gains, [model.run.variant for model in usable_models])


def too_few(models: Sequence[MeasuredModel]) -> list[str]:
    """Return a sentence about every figure that is known of too few variants for a coefficient."""
    sentences = []
    for figure in figure_names(models):
        variants = {model.run.variant for model in models if figure in model.figures}
        if len(variants) < LEAST_RECIPES:
            sentences.append(
                f"{figure}: known of {len(variants)} variants, a coefficient needs {LEAST_RECIPES}"
            )
    return sentences


def variant_lines(models: Sequence[MeasuredModel], reference: str) -> dict[str, list[VariantLine]]:
    """Return a line for each variant, by AUC and by BEST.

    A line is over the seeds of a variant, and over the questions for which all models have the
    figure. A figure without such questions is missing.

    Args:
        models: The models.
        reference: The variant from which the others differ.
    """
    if not models:
        return {}
    credits_by_figure: dict[str, dict[str, dict[int, Floats]]] = {}
    for figure in (AUC, BEST):
        questions_by_model = [set(model.by_question[figure]) for model in models]
        common_questions = sorted(set.intersection(*questions_by_model))
        if not common_questions:
            continue
        credits_by_variant: dict[str, dict[int, Floats]] = {}
        for model in models:
            values = model.by_question[figure]
            credits = np.array([values[question] for question in common_questions])
            credits_by_variant.setdefault(model.run.variant, {})[model.run.seed] = credits
        credits_by_figure[figure] = credits_by_variant
    return lines_by_figure(credits_by_figure, reference, items_by_figure={})


def study_result(models: Sequence[MeasuredModel], ablation: Ablation) -> StudyResult:
    """Return the figures of all models, with their tables, charts and report."""
    lines = variant_lines(models, ablation.reference)
    variant_rows = flat_rows(ablation, lines)
    interval_note = statement(ablation.reference, comparisons_in(lines))
    stored_models = [model.stored for model in models]
    stored_correlations = {}
    for gain, correlation_by_figure in correlations(models).items():
        stored_correlations[gain] = {
            figure: asdict(result) for figure, result in correlation_by_figure.items()
        }
    missing = not_in_tables(models, ablation)

    variant_tables = {}
    for figure, rows_of_figure in rows_by_benchmark(variant_rows).items():
        num_questions = rows_of_figure[0]["n"]
        table = variants_table(
            figure, rows_of_figure, ablation.reference, "questions", interval_note
        )
        heading = f"{figure}, by variant ({num_questions:,} questions)"
        variant_tables[heading] = table.without("changes")
    coefficient_tables = [
        coefficients_table(gain, by_figure)
        for gain, by_figure in stored_correlations.items()
        if by_figure
    ]
    sentences = [f"not in the tables: {'; '.join(missing)}"] if missing else []
    return StudyResult(
        {
            "models": stored_models,
            "correlations": stored_correlations,
            "variants": variant_rows,
            "statement": interval_note,
            "missing": missing,
        },
        tables=(*coefficient_tables, *variant_tables.values()),
        charts=tuple(_charts(stored_models)),
        sentences=tuple(sentences),
        document=markdown(
            stored_models, stored_correlations, variant_tables, interval_note, missing
        ),
    )


def not_in_tables(models: Sequence[MeasuredModel], ablation: Ablation) -> list[str]:
    """Return texts about the runs, questions and figures that are in no table."""
    missing = [str(run) for run in ablation.runs if state(run) != "complete"]
    for model in models:
        if model.unjudged:
            missing.append(
                f"{model.run}: {model.unjudged:,} questions, whose answers have no scores"
            )
    return missing + too_few(models)


def _charts(stored_models: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Return the charts of the first of GAINS that a model has; none if no model has a gain."""
    for gain in GAINS:
        if any(gain in model for model in stored_models):
            return gain_charts(stored_models, gain)
    return []


def markdown(
    stored_models: Sequence[Mapping[str, Any]],
    correlations_by_gain: Mapping[str, Mapping[str, Mapping[str, Any]]],
    variant_tables: Mapping[str, Table],
    interval_note: str,
    missing: Sequence[str],
) -> str:
    """Return the report in Markdown.

    Args:
        stored_models: The models as they are written to predictors.json.
        correlations_by_gain: The correlations in the same form, by gain and figure.
        variant_tables: Tables of the variants by their headings.
        interval_note: A sentence on the intervals in these tables.
        missing: Texts about runs, questions and figures that are in no table.
    """
    sections = [
        "# What reward models are worth to a policy",
        "All in percent and percentage points.",
        models_table(stored_models).markdown(),
    ]
    for gain, by_figure in correlations_by_gain.items():
        if by_figure:
            table = coefficients_table(gain, by_figure)
            sections += [f"## {table.title}", COEFFICIENTS_NOTE, table.markdown()]
            sections.append("Pearson without each variant in turn:")
            sections.append(table_without_each(gain, by_figure).markdown())
    if variant_tables:
        sections.append(interval_note)
    for heading, table in variant_tables.items():
        sections += [f"## {heading}", table.markdown()]
    if missing:
        sections += ["## Not in the tables", "\n".join(f"- {text}" for text in missing)]
    return "\n\n".join(sections) + "\n"
