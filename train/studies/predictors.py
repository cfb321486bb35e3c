"""The study of which figures of reward models predict how much a policy gains from them.

The reward models of a list score the same answers of a policy, which are sampled once. A gain is
measured by choosing the best of N answers by score, or by training a policy with the model as its
reward.
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
    CLONE,
    checkpoint_of,
    keep_settings,
    model_digest,
    run_step,
    trained,
)
from mmrm.train.studies.ablation.comparison import (
    VariantLine,
    comparisons_in,
    lines_by_figure,
    rows,
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
BEST = "best of N"
GAIN = "best of N minus a sampled one"
JUDGE = "judge"

Gain = tuple[float, float | None, float | None]
"""A mean and the ends of its 95 % interval over questions."""


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A reward model with its figures, which are single numbers, and its gains."""

    run: Run
    questions: int
    figures: dict[str, float]
    gains: dict[str, Gain]
    by_question: dict[str, dict[str, float]] = field(default_factory=dict)
    """Figures of the answers to each question, by the content of question and answers (`contents`).

    A question has an AUC only if some of its answers are right and some are wrong.
    """
    unjudged: int = 0
    """Questions whose answers have no scores."""

    @property
    def stored(self) -> dict[str, Any]:
        """The model as it is written to predictors.json."""
        about = {
            "variant": self.run.variant,
            "seed": self.run.seed,
            "paradigm": paradigm(self.run),
            "questions": self.questions,
        }
        return {**about, **self.figures, **self.gains}


def paradigm(run: Run) -> str:
    """Return the kind of reward model that a run trains, such as "naive" or "critic"."""
    return run.recipe.method.paradigm


def read_list(options: argparse.Namespace) -> Ablation:
    """Return the list of reward models that the command line names.

    Raises:
        UserError: An argument of --pays is no variant of the list.
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
    """Train and measure the models that are not complete, and return figures and gains of all.

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
    """Train the reward models, let them score the answers, and train the policies.

    Returns the models whose training is complete.
    """
    folder = ablation.folder / "predictors"
    questions = questions_of_source(options.questions, "--questions")
    repeated_keys = known_questions(questions, ablation)
    repeated_policy_questions = known_policy_questions(options)
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
        fewer = folder / f"samples-{options.compared}.jsonl"
        with samples.open(encoding="utf-8") as lines:
            write_whole(fewer, "".join(islice(lines, options.compared)))
        for run in ablation.runs:
            if state(run) != "complete":
                continue
            given = fewer if paradigm(run) == JUDGE else samples
            scored = scored_answers(run, given, options)
            num_unjudged = num_rows(given) - num_rows(scored)
            model = replace(model_of_answers(run, scored, repeated_keys), unjudged=num_unjudged)
            model.figures.update(benchmark_figures(run))
            if run.variant in options.pays and run.seed == ablation.runs[0].seed:
                policy = folder / "policies" / run.variant
                gains = policy_gains(run, policy, options, lock, repeated_policy_questions)
                model.gains.update(gains)
            models.append(model)
    return models


def train_list(options: argparse.Namespace) -> None:
    """Train the incomplete runs of the list by train/ablate.py, which prints failures."""
    arguments = [str(options.list), *options.overrides]
    arguments += ["--seeds", *(str(seed) for seed in options.seeds)]
    arguments += ["--launcher", shlex.join(options.launcher)]
    script = str(CLONE / "train" / "ablate.py")
    subprocess.run([sys.executable, script, *arguments], check=False)


def sampled_answers(
    folder: Path, questions: Sequence[Question], options: argparse.Namespace
) -> Path:
    """Return the file of the policy's answers, and let the policy answer if there is none."""
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
    """Return the file of a reward model's scores of answers, and compute them if there is none."""
    scored = run.folder / f"scored-{samples.name}"
    checkpoint = str(checkpoint_of(run))
    made_from = {"samples": content_digest(samples), "judge": model_digest(checkpoint)}
    arguments = [checkpoint, str(samples), str(scored)]
    run_step(options.launcher, "eval/score.py", arguments, scored, made_from)
    return scored


def num_rows(file: Path) -> int:
    """Return the number of rows of a file of JSON lines."""
    return sum(1 for _ in rows_of(file))


def known_questions(questions: Sequence[Question], ablation: Ablation) -> set[int]:
    """Return the keys of the questions that a reward model of the list was trained on.

    They are left out for all models.

    Raises:
        UserError: If so many were trained on that they are refused. Nothing has been trained then.
    """
    trained_on = TrainingPrompts()
    for run in ablation.runs:
        trained_on.add_recipe(run.recipe.data, run.variant, fetch=state(run) != "complete")
        trained_on.add_model(run.recipe.backbone.path)
    remedy = "Name other questions, which no variant of the list trains on."
    repeated = trained_on.questions_to_leave_out(questions, "--questions", remedy)
    show_left_out("--questions", len(repeated), len(questions), trained_on.notes)
    return {questions[index].key for index in repeated}


def known_policy_questions(options: argparse.Namespace) -> set[str]:
    """Return the identities of the questions of --policy-recipe that its policies are trained on.

    Raises:
        UserError: If so many are trained on that they are refused. Nothing has been trained then.
    """
    if options.policy_recipe is None:
        return set()
    recipe = read_recipe(options.policy_recipe)
    if not recipe.evaluation.questions:
        return set()  # the policy answers records that data.validation holds out
    section = {"sources": [recipe.evaluation.questions[0]], "cache": recipe.data.cache}
    mixture = Mixture(MixtureConfig.model_validate(section))
    records = [mixture[index] for index in range(len(mixture))]
    trained_on = TrainingPrompts()
    trained_on.add_recipe(recipe.data, str(options.policy_recipe), fetch=True)
    trained_on.add_model(recipe.backbone.path)
    name = f"{options.policy_recipe}, evaluation.questions"
    remedy = "Evaluate the policy on questions that data.sources does not hold."
    repeated = trained_on.questions_to_leave_out([*map(Question.of_record, records)], name, remedy)
    show_left_out(name, len(repeated), len(records), trained_on.notes)
    return {records[index].identity for index in repeated}


def show_left_out(name: str, num_repeated: int, num_questions: int, notes: Iterable[str]) -> None:
    """Print how many questions are left out, and the records that could not be compared with them."""
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
    """Return the figures of a model by the policy's answers.

    Args:
        run: The training of the model.
        scored: The file of the answers with the model's scores.
        repeated_keys: Keys of questions that a model of the list was trained on. They count for no
            figure.
    """
    scored_rows = [row for row in rows_of(scored) if Question.of_row(row).key not in repeated_keys]
    best: dict[str, float] = {}
    sampled: dict[str, float] = {}
    auc: dict[str, float] = {}
    for name, row in zip(contents(scored_rows), scored_rows, strict=True):
        scores = row["scores"]
        right = row["right"]
        best[name] = best_of(scores, right, len(right))
        sampled[name] = sum(right) / len(right)
        in_group = in_group_auc(scores, right)
        if in_group is not None:
            auc[name] = in_group
    figures = {"AUC": float(np.mean(list(auc.values())))} if auc else {}
    gain = paired_difference(
        np.array(list(best.values())), np.array(list(sampled.values())), items_of_rows(scored_rows)
    )
    return MeasuredModel(
        run,
        len(scored_rows),
        figures,
        {"best_of_gain": (gain.mean, gain.low, gain.high)},
        {AUC: auc, BEST: best, GAIN: {name: best[name] - sampled[name] for name in best}},
    )


def contents(scored_rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a unique name for each row: a digest of its question and answers.

    An index into a file is no name: files of several models lack different rows, those that could
    not be judged. Rows of equal content are numbered.
    """
    names: list[str] = []
    times: Counter[str] = Counter()
    for row in scored_rows:
        content = digest(json.dumps([Question.of_row(row).key, row["responses"]]))
        times[content] += 1
        names.append(f"{content}-{times[content]}")
    return names


def benchmark_figures(run: Run) -> dict[str, float]:
    """Return accuracy, calibration and order consistency of a run's last checkpoint.

    A figure is missing if it does not apply to the paradigm.
    """
    figures: dict[str, float | None] = {}
    for benchmark in run.recipe.evaluation.benchmarks:
        result = read_result(run.folder / "eval" / f"{benchmark.name}.json")
        order = result.votes.order if result.votes else None
        figures[f"{benchmark.name} accuracy"] = result.micro.half
        figures[f"{benchmark.name} ECE"] = result.calibration.ece if result.calibration else None
        figures[f"{benchmark.name} order consistency"] = order.rate if order else None
    return {name: value for name, value in figures.items() if value is not None}


def policy_gains(
    run: Run,
    folder: Path,
    options: argparse.Namespace,
    lock: int,
    repeated_questions: Set[str],
) -> dict[str, Gain]:
    """Train a policy by a model, and return what it gained, paired with its start.

    Args:
        run: The training of the model.
        folder: The run folder of the policy.
        options: The options of train/predictors.py.
        lock: The file descriptor of the study's lock.
        repeated_questions: Identities of questions that the policy is trained on. They are left
            out.
    """
    checkpoint = checkpoint_of(run)
    overrides = [f"method.rewards.0.path={checkpoint}", "evaluation.at_start=true"]
    made_from = {"reward model": model_digest(str(checkpoint))}
    trained(options.policy_recipe, overrides, folder, options.launcher, lock, made_from)
    name = read_recipe(folder / RECIPE).question_sets[0]
    start_file = folder / "start" / "answers" / f"{name}.jsonl"
    after = credits_by_question(folder / "answers" / f"{name}.jsonl")
    start = credits_by_question(start_file)
    if after.keys() != start.keys():
        raise UserError(
            f"{folder}: the policy answered {len(after):,} questions and its start {len(start):,}, "
            f"{len(after.keys() & start.keys()):,} of them the same. A gain is paired by question. "
            "Remove that folder to train the policy again."
        )
    questions = [question for question in start if question[0] not in repeated_questions]
    item_by_question = items_by_question(start_file)
    items = item_codes([item_by_question[question] for question in questions])
    gains: dict[str, Gain] = {}
    for figure in ("greedy", "sampled"):
        before = np.array([start[question][figure] for question in questions])
        now = np.array([after[question][figure] for question in questions])
        difference = paired_difference(now, before, items)
        gains[f"rl_{figure}_gain"] = (difference.mean, difference.low, difference.high)
    return gains


def credits_by_question(file: Path) -> dict[tuple[str, str], dict[str, float]]:
    """Return the credits of a policy's answers by identity and content of the question."""
    return {(row["id"], row.get("key", "")): row["credits"] for row in rows_of(file)}


def items_by_question(file: Path) -> dict[tuple[str, str], str]:
    """Return the item of each question, by its identity and content."""
    return {
        (row["id"], row.get("key", "")): str(row.get("item", row["id"])) for row in rows_of(file)
    }


def correlations(models: Sequence[MeasuredModel]) -> dict[str, dict[str, Correlation]]:
    """Return for every gain how each figure goes with it, over the models that have both.

    A figure that is known of too few variants is missing. If judges that compare are among the
    models, there is also `FIGURE, without judges`, since they are another kind of model.
    """
    correlations_by_gain: dict[str, dict[str, Correlation]] = {}
    for gain in GAINS:
        by_figure: dict[str, Correlation] = {}
        for figure in figure_names(models):
            both = [model for model in models if figure in model.figures and gain in model.gains]
            scoring = [model for model in both if paradigm(model.run) != JUDGE]
            groups = {figure: both}
            if len(scoring) < len(both):
                groups[f"{figure}, without judges"] = scoring
            for name, members in groups.items():
                together = correlation_of(members, figure, gain)
                if together is not None:
                    by_figure[name] = together
        correlations_by_gain[gain] = by_figure
    return correlations_by_gain


def figure_names(models: Sequence[MeasuredModel]) -> list[str]:
    """Return the names of the figures that any of the models has."""
    names: dict[str, None] = {}
    for model in models:
        names |= dict.fromkeys(model.figures)
    return list(names)


def correlation_of(models: Sequence[MeasuredModel], figure: str, gain: str) -> Correlation | None:
    """Return the correlation of a figure with a gain.

    Returns None for too few variants, or if one of the two does not vary. AUC and the best-of-N
    gain come from the same answers, so that AUC of one half of the questions predicts the gain on
    the other half.
    """
    if figure == "AUC" and gain == "best_of_gain":
        return correlation_over_halves(models)
    x = np.array([model.figures[figure] for model in models])
    y = np.array([model.gains[gain][0] for model in models])
    return correlation(x, y, [model.run.variant for model in models])


def correlation_over_halves(models: Sequence[MeasuredModel]) -> Correlation | None:
    """Return the correlation of AUC with the best-of-N gain, each on one half of the questions."""
    names: set[str] = set()
    for model in models:
        names |= model.by_question.get(GAIN, {}).keys()
    questions = sorted(names)
    halved = [
        model
        for model in models
        if has_both_halves(model.by_question.get(AUC, {}), questions)
        and has_both_halves(model.by_question[GAIN], questions)
    ]
    aucs = means_of_halves([model.by_question[AUC] for model in halved], questions)
    gains = means_of_halves([model.by_question[GAIN] for model in halved], questions)
    return correlation_of_halves(aucs, gains, [model.run.variant for model in halved])


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
    """Return the variants by each figure of the answers.

    A line is over the seeds of a variant, and over the questions that all models scored.
    """
    if not models:
        return {}
    credits_by_figure: dict[str, dict[str, dict[int, Floats]]] = {}
    for figure in (AUC, BEST):
        of_each_model = [set(model.by_question[figure]) for model in models]
        names = sorted(set.intersection(*of_each_model))
        if not names:
            continue
        seeds: dict[str, dict[int, Floats]] = {}
        for model in models:
            credits = np.array([model.by_question[figure][name] for name in names])
            seeds.setdefault(model.run.variant, {})[model.run.seed] = credits
        credits_by_figure[figure] = seeds
    return lines_by_figure(credits_by_figure, reference, {})


def study_result(models: Sequence[MeasuredModel], ablation: Ablation) -> StudyResult:
    """Return the figures of all models, with their tables, charts and report."""
    lines = variant_lines(models, ablation.reference)
    variant_rows = rows(ablation, lines)
    intervals = statement(ablation.reference, comparisons_in(lines))
    stored_models = [model.stored for model in models]
    stored_correlations = {}
    for gain, by_figure in correlations(models).items():
        stored_correlations[gain] = {name: asdict(one) for name, one in by_figure.items()}
    missing = not_in_tables(models, ablation)

    variant_tables = {
        f"{name}, by variant ({own_rows[0]['n']:,} questions)": variants_table(
            name, own_rows, ablation.reference, "questions", intervals
        ).without("changes")
        for name, own_rows in rows_by_benchmark(variant_rows).items()
    }
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
            "statement": intervals,
            "missing": missing,
        },
        tables=(*coefficient_tables, *variant_tables.values()),
        charts=tuple(_charts(stored_models)),
        sentences=tuple(sentences),
        document=markdown(stored_models, stored_correlations, variant_tables, intervals, missing),
    )


def not_in_tables(models: Sequence[MeasuredModel], ablation: Ablation) -> list[str]:
    """Return a text about every run, question and figure that is in no table."""
    missing = [str(run) for run in ablation.runs if state(run) != "complete"]
    for model in models:
        if model.unjudged:
            missing.append(
                f"{model.run}: {model.unjudged:,} questions, whose answers have no scores"
            )
    return missing + too_few(models)


def _charts(stored_models: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Return the charts of the first gain that any model has."""
    for gain in GAINS:
        if any(gain in model for model in stored_models):
            return gain_charts(stored_models, gain)
    return []


def markdown(
    stored_models: Sequence[Mapping[str, Any]],
    correlations_by_gain: Mapping[str, Mapping[str, Mapping[str, Any]]],
    variant_tables: Mapping[str, Table],
    intervals: str,
    missing: Sequence[str],
) -> str:
    """Return the report in Markdown.

    Args:
        stored_models: The models as they are stored.
        correlations_by_gain: The stored correlations by gain and figure.
        variant_tables: The table of the variants for each figure of the answers, by heading.
        intervals: A sentence on the intervals in these tables.
        missing: Texts about what is in no table.
    """
    parts = [
        "# What reward models are worth to a policy",
        "All in percent and percentage points.",
        models_table(stored_models).markdown(),
    ]
    for gain, by_figure in correlations_by_gain.items():
        if by_figure:
            table = coefficients_table(gain, by_figure)
            parts += [f"## {table.title}", COEFFICIENTS_NOTE, table.markdown()]
            parts.append("Pearson without each variant in turn:")
            parts.append(table_without_each(gain, by_figure).markdown())
    if variant_tables:
        parts.append(intervals)
    for heading, table in variant_tables.items():
        parts += [f"## {heading}", table.markdown()]
    if missing:
        parts += ["## Not in the tables", "\n".join(f"- {text}" for text in missing)]
    return "\n\n".join(parts) + "\n"
