"""The study of which figures of reward models predict how much a policy gains from them.

The reward models of a list score the same answers of a policy, which are sampled once. A figure of
a model is a number such as its accuracy on a benchmark. A gain is what a policy wins by the model:
the accuracy of the best of N answers by its score, minus that of a sampled answer, or the accuracy
of policies that are trained with the model as their reward, minus their accuracy before.

A judge that compares two answers is measured twice: by hard verdicts, of which a disagreement of
the two orders is a tie, and by soft ones. A judge that writes nothing has soft verdicts alone.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from mmrm.data.arrays import Floats, Ints
from mmrm.data.display.chart import Chart, save_png
from mmrm.data.display.study_result import StudyResult
from mmrm.data.display.table import Table
from mmrm.data.errors import UserError
from mmrm.data.preference import Preference
from mmrm.data.preparation.mixing import Mixture, MixtureConfig
from mmrm.data.storage.files import digest, write_json, write_whole
from mmrm.data.storage.output_lock import locked_folder
from mmrm.eval.benchmarks.registry import load
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
from mmrm.eval.results.correlation import LEAST_RECIPES
from mmrm.eval.results.intervals import paired_difference, spread
from mmrm.eval.results.predictions import OWN, read_predictions
from mmrm.eval.results.split_correlation import RowValues, SplitCorrelation, split_correlation
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.studies.ablation.cached_steps import keep_settings
from mmrm.train.studies.ablation.comparison import (
    VariantLine,
    comparisons_in,
    flat_rows,
    lines_by_figure,
    statement,
)
from mmrm.train.studies.ablation.variants import (
    Ablation,
    Run,
    read_ablation,
    refuse_other_recipes,
    state,
)
from mmrm.train.studies.predictor_figures import (
    Names,
    QuestionClusters,
    names_of_question,
    names_of_row,
    values_of_benchmark,
)
from mmrm.train.studies.predictor_plan import plan as plan_of_study
from mmrm.train.studies.predictor_steps import (
    SAMPLINGS,
    PolicyChanges,
    compares,
    folder_of_results,
    policy_changes,
    readings_of_verdicts,
    sampled_answers,
    scored_answers,
    train_list,
)

AUC = "AUC inside a question"
"""Figure of a question: the share of pairs of a right and a wrong answer in which the right answer
has the higher score."""
BEST = "best of N"
"""Figure of a question: the accuracy of the answer with the highest score."""
SCORE_COLUMNS = {"": "scores", "hard": "score_hard", "soft": "scores"}
"""The column of a file of scored answers by the verdicts of the model."""

Gain = tuple[float, float | None, float | None]
"""A mean, and the lower and upper end of its 95 % interval over questions."""


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A reward model with its figures, such as accuracies, and what a policy gains from it."""

    run: Run
    """The training of the model."""
    verdicts: str
    """How the verdicts of a judge that compares are read, `hard` or `soft`. Empty for a model that
    scores each response."""
    questions: int
    """Number of questions that count."""
    values: dict[str, RowValues]
    """Figures and gains by name, as values of rows. Figures are for example "AUC" or the accuracy
    on a benchmark. Gains are `best_of_gain`, `rl_greedy_gain` and `rl_sampled_gain`."""
    gains: dict[str, Gain]
    """Gains by name, on all questions."""
    by_question: dict[str, dict[str, float]] = field(default_factory=dict)
    """AUC and BEST of every question, by the name of the question (`unique_names`).

    A question has an AUC only if some of its answers are right and some are wrong.
    """
    cluster_by_question: dict[str, int] = field(default_factory=dict)
    """The cluster of every question (`QuestionClusters`), by the name of the question."""
    unjudged: int = 0
    """Number of questions whose answers have no scores."""
    gains_by_policy_seed: dict[str, dict[int, float]] = field(default_factory=dict)
    """The gain of each policy by its seed, by the name of the gain."""

    @property
    def figures(self) -> dict[str, float]:
        """Figures by name, on all rows."""
        figures: dict[str, float] = {}
        for name, values in self.values.items():
            if name not in GAINS:
                all_clusters = np.ones((1, int(values.clusters.max()) + 1))
                figures[name] = float(values.figures(all_clusters)[0])
        return figures

    @property
    def paradigm(self) -> str:
        """The kind of reward model, such as "critic" or "judge, soft verdicts"."""
        method = self.run.recipe.method
        name = method.paradigm if method.point_prompt is None else "points judge"
        return f"{name}, {self.verdicts} verdicts" if self.verdicts else name

    @property
    def label(self) -> str:
        """The name of the variant, which tells the readings of one judge apart."""
        return f"{self.run.variant} ({self.verdicts})" if self.verdicts else self.run.variant

    @property
    def stored(self) -> dict[str, Any]:
        """The model as it is written to predictors.json."""
        spreads: dict[str, float | None] = {}
        for gain, by_seed in self.gains_by_policy_seed.items():
            spreads[gain] = spread(np.array(list(by_seed.values())))
        identification = {
            "variant": self.run.variant,
            "seed": self.run.seed,
            "paradigm": self.paradigm,
            "questions": self.questions,
        }
        policies = {"gains_by_policy_seed": self.gains_by_policy_seed, "policy_spreads": spreads}
        return {**identification, **self.figures, **self.gains, **policies}


def read_list(options: argparse.Namespace) -> Ablation:
    """Read the list of reward models that the command line names.

    Raises:
        UserError: An argument of --pays, which names variants that train a policy, is no variant of
            the list, or the folder of a run holds a run with another recipe.
    """
    ablation = read_ablation(options.list, options.overrides, list(dict.fromkeys(options.seeds)))
    unknown = set(options.pays) - ablation.changes.keys()
    if unknown:
        raise UserError(
            f"--pays {' '.join(sorted(unknown))}: the variants of {options.list} are "
            f"{', '.join(ablation.changes)}."
        )
    refuse_other_recipes(ablation.runs)
    return ablation


def run(ablation: Ablation, options: argparse.Namespace) -> StudyResult:
    """Train and measure the models that are not complete, and return the results of all models.

    Args:
        ablation: The list of reward models.
        options: The options of train/predictors.py.
    """
    models, halves = measured_models(ablation, options)
    return study_result(models, halves, ablation)


def plan(ablation: Ablation, options: argparse.Namespace) -> tuple[Table, Table]:
    """Return a table of the reward models, and a table of the work after their training.

    Args:
        ablation: The list of reward models.
        options: The options of train/predictors.py.
    """
    num_questions = len(questions_of_source(options.questions, "--questions"))
    return plan_of_study(ablation, options, num_questions, questions_of_policies(options))


def write(result: StudyResult, folder: Path) -> None:
    """Write predictors.json, predictors.md and, if there are charts, predictors.png."""
    write_json(folder / "predictors.json", result.figures)
    (folder / "predictors.md").write_text(result.document, encoding="utf-8")
    if result.charts:
        save_png(result.charts, folder / "predictors.png")


@dataclass(frozen=True, slots=True)
class StudyQuestions:
    """The questions of a study: of the scored answers, of the benchmarks, and of the policies."""

    clusters: QuestionClusters
    cluster_by_key: dict[str, dict[str, int]]
    """The cluster of each row of a benchmark by the row's key, by the name of the benchmark."""
    names_of_policy: dict[str, Names]
    """The names of each question of the policies by its identity."""
    repeated_keys: frozenset[int]
    """Keys of the questions of --questions that a model of the list is trained on."""
    repeated_policy_questions: frozenset[str]
    """Identities of the questions of policies that the policies are trained on."""


def measured_models(
    ablation: Ablation, options: argparse.Namespace
) -> tuple[list[MeasuredModel], Ints]:
    """Train the reward models, let them score a policy's answers, and train policies by them.

    Args:
        ablation: The list of reward models.
        options: The options of train/predictors.py.

    Returns:
        The models whose training is complete, with their figures and gains, and the half of each
        cluster of questions.
    """
    folder = ablation.folder / "predictors"
    questions = questions_of_source(options.questions, "--questions")
    repeated_keys = keys_of_repeated_questions(questions, ablation)
    policy_questions = questions_of_policies(options)
    repeated_policy_questions = repeated_questions_of_policies(policy_questions, options)
    if any(state(run) != "complete" for run in ablation.runs):
        train_list(options)
    models = []
    with locked_folder(folder) as lock:
        # The recipe of the policies is none of them: their folders refuse another recipe.
        settings = ("policy", "questions", "samples", "max_new_tokens")
        keep_settings(folder / "settings.json", options, settings)
        samples = sampled_answers(folder, questions, options)
        # A judge that compares two answers takes long, and gets the first questions only.
        samples_of_judges = folder / f"samples-{options.compared}.jsonl"
        with samples.open(encoding="utf-8") as lines:
            write_whole(samples_of_judges, "".join(islice(lines, options.compared)))
        study_questions = questions_of_study(
            ablation, samples, policy_questions, repeated_keys, repeated_policy_questions
        )
        first_seed = ablation.runs[0].seed
        for run in ablation.runs:
            if state(run) != "complete":
                continue
            samples_of_run = samples_of_judges if compares(run) else samples
            scored = scored_answers(run, samples_of_run, options)
            num_unjudged = num_rows(samples_of_run) - num_rows(scored)
            models_of_run = []
            for verdicts in readings_of_verdicts(run):
                model = model_of_answers(run, scored, study_questions, verdicts)
                results = folder_of_results(run, verdicts, options.launcher)
                model.values.update(benchmark_values(run, results, study_questions))
                models_of_run.append(replace(model, unjudged=num_unjudged))
            if run.variant in options.pays and run.seed == first_seed:
                changes = policy_changes(run, folder / "policies" / run.variant, options, lock)
                # A judge that compares pays by its soft verdicts, the last of its two readings.
                models_of_run[-1] = with_policies(models_of_run[-1], changes, study_questions)
            models += models_of_run
    return models, study_questions.clusters.halves


def questions_of_study(
    ablation: Ablation,
    samples: Path,
    policy_questions: Sequence[Preference],
    repeated_keys: Iterable[int],
    repeated_policy_questions: Iterable[str],
) -> StudyQuestions:
    """Return the questions of a study, whose clusters are in two halves.

    Args:
        ablation: The list, whose runs share their benchmarks.
        samples: The file of the policy's answers.
        policy_questions: The questions that are asked to trained policies.
        repeated_keys: Keys of questions in `samples` that are trained on.
        repeated_policy_questions: Identities of the policies' questions that are trained on.
    """
    names_by_key: dict[str, dict[str, Names]] = {}
    for config in ablation.runs[0].recipe.evaluation.benchmarks:
        examples = load(config).examples
        names_by_key[config.name] = {row.key: names_of_question(row) for row in examples}
    names_of_policy = {record.identity: names_of_question(record) for record in policy_questions}
    all_names = [names_of_row(row) for row in rows_of(samples)]
    for names in (*names_by_key.values(), names_of_policy):
        all_names += names.values()
    clusters = QuestionClusters.of_questions(all_names)
    cluster_by_key: dict[str, dict[str, int]] = {}
    for benchmark, names in names_by_key.items():
        codes = clusters.clusters_of(names.values()).tolist()
        cluster_by_key[benchmark] = dict(zip(names, codes, strict=True))
    return StudyQuestions(
        clusters,
        cluster_by_key,
        names_of_policy,
        frozenset(repeated_keys),
        frozenset(repeated_policy_questions),
    )


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


def questions_of_policies(options: argparse.Namespace) -> list[Preference]:
    """Return the questions on which the gains of policies are measured: the recipe's first set.

    The result is empty without --policy-recipe.

    Raises:
        UserError: If the recipe evaluates no questions.
    """
    if options.policy_recipe is None:
        return []
    recipe = read_recipe(options.policy_recipe)
    if not recipe.evaluation.questions:
        raise UserError(
            f"{options.policy_recipe}: evaluation.questions is empty. The gain of a policy is "
            "measured on the first set of questions, which a figure of its reward model must not "
            "come from. Name questions that the policy is not trained on."
        )
    # It is read as a mixture of one source.
    section = {"sources": [recipe.evaluation.questions[0]], "cache": recipe.data.cache}
    mixture = Mixture(MixtureConfig.model_validate(section))
    return [mixture[index] for index in range(len(mixture))]


def repeated_questions_of_policies(
    records: Sequence[Preference], options: argparse.Namespace
) -> set[str]:
    """Return the identities of those questions of policies that the policies are trained on.

    They are left out of the gains of policies. Their number is printed.

    Args:
        records: The questions, from `questions_of_policies`.
        options: The options of train/predictors.py.

    Raises:
        UserError: If a quarter of the questions or more are trained on.
    """
    if not records:
        return set()
    recipe = read_recipe(options.policy_recipe)
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
    run: Run, scored: Path, questions: StudyQuestions, verdicts: str = ""
) -> MeasuredModel:
    """Return a model with the figures and the best-of-N gain of the answers that it scored.

    Args:
        run: The training of the model.
        scored: The file of the answers with the model's scores, a row for each question.
        questions: The questions of the study. Those that a model of the list was trained on count
            for no figure.
        verdicts: How the verdicts of a judge that compares are read; empty for other models.
    """
    rows = [
        row for row in rows_of(scored) if Question.of_row(row).key not in questions.repeated_keys
    ]
    clusters = questions.clusters.clusters_of(map(names_of_row, rows))
    best_accuracy: dict[str, float] = {}
    sampled_accuracy: dict[str, float] = {}
    auc_by_question: dict[str, float] = {}
    clusters_with_auc: list[int] = []
    cluster_by_question: dict[str, int] = {}
    for name, row, cluster in zip(unique_names(rows), rows, clusters.tolist(), strict=True):
        cluster_by_question[name] = cluster
        scores = row[SCORE_COLUMNS[verdicts]]
        is_right = row["right"]
        best_accuracy[name] = best_of(scores, is_right, len(is_right))
        sampled_accuracy[name] = sum(is_right) / len(is_right)
        auc = in_group_auc(scores, is_right)
        if auc is not None:  # None if all answers are right, or all are wrong
            auc_by_question[name] = auc
            clusters_with_auc.append(cluster)
    best = np.array(list(best_accuracy.values()))
    sampled = np.array(list(sampled_accuracy.values()))
    gain = paired_difference(best, sampled, clusters)
    values = {"best_of_gain": RowValues(best - sampled, clusters)}
    if auc_by_question:
        aucs = np.array(list(auc_by_question.values()))
        values["AUC"] = RowValues(aucs, np.array(clusters_with_auc, dtype=np.int64))
    return MeasuredModel(
        run,
        verdicts,
        questions=len(rows),
        values=values,
        gains={"best_of_gain": (gain.mean, gain.low, gain.high)},
        by_question={AUC: auc_by_question, BEST: best_accuracy},
        cluster_by_question=cluster_by_question,
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


def benchmark_values(run: Run, results: Path, questions: StudyQuestions) -> dict[str, RowValues]:
    """Return accuracy, calibration error and order consistency on each benchmark, by name.

    Args:
        run: The training of the model, which is complete.
        results: The folder of its results.
        questions: The questions of the study.
    """
    values: dict[str, RowValues] = {}
    for benchmark in run.recipe.evaluation.benchmarks:
        records = read_predictions(results / benchmark.name / OWN)
        cluster_by_key = questions.cluster_by_key[benchmark.name]
        for figure, values_of_figure in values_of_benchmark(records, cluster_by_key).items():
            values[f"{benchmark.name} {figure}"] = values_of_figure
    return values


def with_policies(
    model: MeasuredModel, changes: PolicyChanges, questions: StudyQuestions
) -> MeasuredModel:
    """Return a model with the gains of the policies that it trained.

    A gain is the mean over the policies' seeds, with an interval over questions.

    Args:
        model: The reward model.
        changes: The accuracies of its policies before and after the training. Questions that
            policies are trained on are left out.
        questions: The questions of the study.
    """
    repeated = questions.repeated_policy_questions
    is_counted = np.array([question.identity not in repeated for question in changes.questions])
    counted = [question for question in changes.questions if question.identity not in repeated]
    names = [questions.names_of_policy[question.identity] for question in counted]
    clusters = questions.clusters.clusters_of(names)
    values = dict(model.values)
    gains = dict(model.gains)
    gains_by_seed: dict[str, dict[int, float]] = {}
    for sampling in SAMPLINGS:
        name = f"rl_{sampling}_gain"
        before = changes.before[sampling][:, is_counted]
        after = changes.after[sampling][:, is_counted]
        mean_before = before.mean(axis=0)
        mean_after = after.mean(axis=0)
        difference = paired_difference(mean_after, mean_before, clusters)
        values[name] = RowValues(mean_after - mean_before, clusters)
        gains[name] = (difference.mean, difference.low, difference.high)
        gain_of_seeds = (after - before).mean(axis=1).tolist()
        gains_by_seed[name] = dict(zip(changes.seeds, gain_of_seeds, strict=True))
    return replace(model, values=values, gains=gains, gains_by_policy_seed=gains_by_seed)


def correlations(
    models: Sequence[MeasuredModel], halves: Ints
) -> dict[str, dict[str, SplitCorrelation]]:
    """Return the correlation of each gain with each figure, over the models that have both.

    The figure and the gain come from different halves of the questions. The result is by gain,
    then by figure. A figure that is known of too few variants is missing. If some of the models are
    judges that compare answers, there are correlations with their hard verdicts, with their soft
    ones, and without them (`groups_of_models`).

    Args:
        models: The models.
        halves: The half of each cluster of questions, 0 or 1, shape (clusters,).
    """
    correlations_by_gain: dict[str, dict[str, SplitCorrelation]] = {}
    for gain in GAINS:
        correlation_by_figure: dict[str, SplitCorrelation] = {}
        for figure in figure_names(models):
            for group, models_of_group in groups_of_models(models).items():
                result = correlation_of(models_of_group, figure, gain, halves)
                if result is not None:
                    correlation_by_figure[figure + group] = result
        correlations_by_gain[gain] = correlation_by_figure
    return correlations_by_gain


def groups_of_models(models: Sequence[MeasuredModel]) -> dict[str, list[MeasuredModel]]:
    """Return the models over which correlations are computed, by the end of the figure's name.

    No group has two readings of one judge. A judge that writes nothing has no hard verdicts, and is
    missing from their group.
    """
    scoring = [model for model in models if not model.verdicts]
    if len(scoring) == len(models):
        return {"": scoring}
    groups = {}
    if any(model.verdicts == "hard" for model in models):
        without_soft = [model for model in models if model.verdicts != "soft"]
        groups[", judges by hard verdicts"] = without_soft
    groups[", judges by soft verdicts"] = [model for model in models if model.verdicts != "hard"]
    groups[", without judges that compare"] = scoring
    return groups


def figure_names(models: Sequence[MeasuredModel]) -> list[str]:
    """Return the names of the figures that any of the models has."""
    names: dict[str, None] = {}
    for model in models:
        names |= dict.fromkeys(name for name in model.values if name not in GAINS)
    return list(names)


def correlation_of(
    models: Sequence[MeasuredModel], figure: str, gain: str, halves: Ints
) -> SplitCorrelation | None:
    """Return the correlation of a figure with a gain on the other half of the questions.

    Models that lack one of the two on a half are left out. Returns None for too few variants, or
    if one of the two does not vary.

    Args:
        models: The models.
        figure: The name of the figure.
        gain: The name of the gain.
        halves: The half of each cluster of questions, shape (clusters,).
    """
    usable_models = models_with_both(models, figure, gain, halves)
    return split_correlation(
        [model.values[figure] for model in usable_models],
        [model.values[gain] for model in usable_models],
        halves,
        [model.run.variant for model in usable_models],
    )


def models_with_both(
    models: Sequence[MeasuredModel], figure: str, gain: str, halves: Ints
) -> list[MeasuredModel]:
    """Return the models of which a figure and a gain are known on both halves of the questions."""
    clusters = QuestionClusters({}, halves)
    usable_models = []
    for model in models:
        both = [model.values[name] for name in (figure, gain) if name in model.values]
        if len(both) == 2 and all(map(clusters.has_both_halves, both)):
            usable_models.append(model)
    return usable_models


def too_few(models: Sequence[MeasuredModel], halves: Ints) -> list[str]:
    """Return a sentence about every coefficient that is missing for want of variants.

    If a gain is known of too few variants, there is one sentence in place of one for each figure.

    Args:
        models: The models.
        halves: The half of each cluster of questions, shape (clusters,).
    """
    sentences = []
    needed = f"variants, a coefficient needs {LEAST_RECIPES}"
    for gain, title in GAINS.items():
        for group, models_of_group in groups_of_models(models).items():
            with_gain = {model.run.variant for model in models_of_group if gain in model.values}
            if not with_gain:
                continue
            if len(with_gain) < LEAST_RECIPES:
                sentences.append(f"{title}{group}: known of {len(with_gain)} {needed}")
                continue
            for figure in figure_names(models_of_group):
                usable_models = models_with_both(models_of_group, figure, gain, halves)
                variants = {model.run.variant for model in usable_models}
                if len(variants) < LEAST_RECIPES:
                    sentences.append(
                        f"{title} and {figure}{group}: known of {len(variants)} {needed}"
                    )
    return sentences


def variant_lines(models: Sequence[MeasuredModel], reference: str) -> dict[str, list[VariantLine]]:
    """Return a line for each variant, by AUC and by BEST.

    A line is over the seeds of a variant, and over the questions for which all models have the
    figure. A figure without such questions is missing. The two readings of a judge have a line
    each. Intervals are over the clusters of the questions.

    Args:
        models: The models.
        reference: The label of the models from which the others differ.
    """
    if not models:
        return {}
    credits_by_figure: dict[str, dict[str, dict[int, Floats]]] = {}
    items_by_figure: dict[str, Ints] = {}
    for figure in (AUC, BEST):
        questions_by_model = [set(model.by_question[figure]) for model in models]
        common_questions = sorted(set.intersection(*questions_by_model))
        if not common_questions:
            continue
        clusters = [models[0].cluster_by_question[question] for question in common_questions]
        items_by_figure[figure] = np.array(clusters, dtype=np.int64)
        credits_by_variant: dict[str, dict[int, Floats]] = {}
        for model in models:
            values = model.by_question[figure]
            credits = np.array([values[question] for question in common_questions])
            credits_by_variant.setdefault(model.label, {})[model.run.seed] = credits
        credits_by_figure[figure] = credits_by_variant
    return lines_by_figure(credits_by_figure, reference, items_by_figure)


def study_result(models: Sequence[MeasuredModel], halves: Ints, ablation: Ablation) -> StudyResult:
    """Return the figures of all models, with their tables, charts and report.

    Args:
        models: The models.
        halves: The half of each cluster of questions, 0 or 1, shape (clusters,).
        ablation: The list.
    """
    labels = {model.label: model.run.variant for model in models}
    reference = ablation.reference
    # If the first variant is a judge, its first reading is the one that others differ from.
    reference = next((label for label, name in labels.items() if name == reference), reference)
    changes = {label: ablation.changes[variant] for label, variant in labels.items()}
    lines = variant_lines(models, reference)
    variant_rows = flat_rows(replace(ablation, changes=changes), lines)
    interval_note = statement(reference, comparisons_in(lines))
    stored_models = [model.stored for model in models]
    stored_correlations = {}
    for gain, correlation_by_figure in correlations(models, halves).items():
        stored_correlations[gain] = {
            figure: asdict(result) for figure, result in correlation_by_figure.items()
        }
    missing = not_in_tables(models, halves, ablation)

    variant_tables = {}
    for figure, rows_of_figure in rows_by_benchmark(variant_rows).items():
        num_questions = rows_of_figure[0]["n"]
        table = variants_table(figure, rows_of_figure, reference, "questions", interval_note)
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
            "reference": reference,
        },
        tables=(*coefficient_tables, *variant_tables.values()),
        charts=tuple(_charts(stored_models)),
        sentences=tuple(sentences),
        document=markdown(
            stored_models, stored_correlations, variant_tables, interval_note, missing
        ),
    )


def not_in_tables(models: Sequence[MeasuredModel], halves: Ints, ablation: Ablation) -> list[str]:
    """Return texts about the runs, questions and coefficients that are in no table."""
    missing = [str(run) for run in ablation.runs if state(run) != "complete"]
    # Both readings of a judge are of the same answers, and count once.
    unjudged_by_run = {str(model.run): model.unjudged for model in models}
    for run, num_unjudged in unjudged_by_run.items():
        if num_unjudged:
            missing.append(f"{run}: {num_unjudged:,} questions, whose answers have no scores")
    return missing + too_few(models, halves)


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
