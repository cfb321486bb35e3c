"""The comparison of reward models by answers whose true scores are known.

The models are those of a list of runs, such as one that learns a score and one that learns named
attributes. All of them score the same answers of the generated source `shapes_rated`
(data/synthetic/rated_world.py).
"""

import argparse
import base64
import json
from collections.abc import Sequence, Set
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from mmrm.data.arrays import Floats, Ints
from mmrm.data.config.layers import option_value
from mmrm.data.config.validation import format_validation_error
from mmrm.data.display.format import interval, percent
from mmrm.data.display.study_result import StudyResult
from mmrm.data.display.table import Column, Table
from mmrm.data.errors import UserError
from mmrm.data.preference import Preference
from mmrm.data.preparation.mixing import Mixture, MixtureConfig
from mmrm.data.storage.files import write_json, write_whole
from mmrm.data.storage.output_lock import locked_folder
from mmrm.data.synthetic.rng import Rng, stable_hash
from mmrm.eval.contamination.question_overlap import Question, rows_of
from mmrm.eval.reporting.comparison_page import (
    cost_table,
    rows_by_benchmark,
    variants_table,
)
from mmrm.eval.results.uncertainty import ShareWithin, TrueScoreCoverage, coverage
from mmrm.train.studies.ablation.cached_steps import keep_settings
from mmrm.train.studies.ablation.comparison import (
    VariantLine,
    comparisons_in,
    flat_rows,
    lines_by_figure,
    statement,
)
from mmrm.train.studies.ablation.run_costs import costs
from mmrm.train.studies.ablation.variants import Ablation, Run, state
from mmrm.train.studies.predictor_steps import scored_answers, train_list
from mmrm.train.studies.predictors import keys_of_repeated_questions

FOLDER = "objectives"
"""The folder of the study, in the folder of the list of runs."""
OPTION = "--questions"
ATTRIBUTES = ("quality", "rating", "wording")
"""The attributes of the answers that the figures are computed from."""
ACCURACY = "accuracy"
"""Figure of a question: 1 if the better of its first two different answers has the higher score."""
AUC = "AUC inside a question"
"""Figure of a question: the share of pairs of answers in which the better one scores higher."""
BEST = "best of N"
"""Figure of a question: the true score of the answer with the highest score, as a share of 1."""
FIGURES = (ACCURACY, AUC, BEST)


@dataclass(frozen=True, slots=True)
class ScoredQuestion:
    """The answers to one question, with what is known of them and with a model's scores.

    All arrays have the shape (answers,).
    """

    quality: Floats
    """The true scores, as shares of the highest true score in the study, from 0 to 1."""
    ratings: Floats
    is_courteous: Floats
    """1 for a courteous answer, else 0."""
    scores: Floats
    stds: Floats | None
    """The standard deviations that the model states for its scores; None if it states none."""

    def accuracy(self) -> float | None:
        """Return ACCURACY, or None if all answers have equal true scores."""
        for first, second in combinations(range(len(self.quality)), 2):
            if self.quality[first] != self.quality[second]:
                return self._points_of_pair(self.quality, first, second)
        return None

    def auc(self) -> float | None:
        """Return AUC, or None if all answers have equal true scores."""
        points = []
        for first, second in combinations(range(len(self.quality)), 2):
            if self.quality[first] != self.quality[second]:
                points.append(self._points_of_pair(self.quality, first, second))
        return float(np.mean(points)) if points else None

    def best(self) -> float:
        """Return BEST: the mean over the answers that share the highest score."""
        is_highest = self.scores == self.scores.max()
        return float(self.quality[is_highest].mean())

    def courtesy_points(self) -> list[float]:
        """Return 1 for each pair of equally good answers whose courteous one scores higher.

        The points are 0 if the other answer scores higher, and 0.5 for equal scores.
        """
        points = []
        for first, second in combinations(range(len(self.quality)), 2):
            is_equally_good = self.quality[first] == self.quality[second]
            if is_equally_good and self.is_courteous[first] != self.is_courteous[second]:
                points.append(self._points_of_pair(self.is_courteous, first, second))
        return points

    def _points_of_pair(self, better_by: Floats, first: int, second: int) -> float:
        """Return 1 if the scores order two answers as other numbers do, 0.5 for equal scores.

        Args:
            better_by: Numbers of the answers, which differ between the two.
            first: Index of one answer.
            second: Index of the other answer.
        """
        if self.scores[first] == self.scores[second]:
            return 0.5
        is_first_better = better_by[first] > better_by[second]
        is_first_higher = self.scores[first] > self.scores[second]
        return float(is_first_better == is_first_higher)


@dataclass(frozen=True, slots=True)
class ComparedModel:
    """A trained reward model with its figures."""

    run: Run
    by_question: dict[str, dict[str, float]]
    """The FIGURES by the identity of the question. ACCURACY and AUC lack the questions whose
    answers have equal true scores."""
    gain: float
    """The mean of BEST minus the mean true score of a random answer."""
    courtesy: float
    """The share of pairs of equally good answers whose courteous one has the higher score."""
    coverage: TrueScoreCoverage | None
    """The coverage of the ratings by stated deviations; None if the model states none."""


def run(ablation: Ablation, options: argparse.Namespace) -> StudyResult:
    """Train the models that are not complete, let all of them score, and return the comparison.

    Args:
        ablation: The list of reward models.
        options: The options of train/compare_objectives.py.

    Raises:
        UserError: The questions have no known true scores, or a quarter of them are trained on.
    """
    records = records_of_source(options.questions, ATTRIBUTES, "shapes_rated")
    questions = [Question.of_record(record) for record in records]
    repeated_keys = keys_of_repeated_questions(questions, ablation)
    if any(state(run) != "complete" for run in ablation.runs):
        train_list(options)
    folder = ablation.folder / FOLDER
    models = []
    with locked_folder(folder):
        keep_settings(folder / "settings.json", options, ("questions",))
        questions_file = folder / "questions.jsonl"
        rows = [row_of_record(record) for record in records]
        write_whole(questions_file, "".join(f"{json.dumps(row)}\n" for row in rows))
        for run in ablation.runs:
            if state(run) == "complete":
                scored = scored_answers(run, questions_file, options)
                models.append(measured_model(run, scored, repeated_keys))
    return study_result(models, ablation)


def write(result: StudyResult, folder: Path) -> None:
    """Write objectives.json and objectives.md."""
    write_json(folder / "objectives.json", result.figures)
    write_whole(folder / "objectives.md", result.document)


def mixture_of_option(source: str) -> MixtureConfig:
    """Return the source of the command line as a mixture of this source alone.

    Args:
        source: The source in YAML, as in `data.sources` of a recipe.

    Raises:
        UserError: The text describes no source.
    """
    try:
        return MixtureConfig.model_validate({"sources": [option_value(OPTION, source)]})
    except ValidationError as error:
        raise UserError(f"{OPTION}: {format_validation_error(error)}") from error


def records_of_source(
    source: str, attributes: Sequence[str], source_types: str
) -> list[Preference]:
    """Return all records of the source of the command line.

    Args:
        source: The source in YAML, as in `data.sources` of a recipe.
        attributes: The attributes that every record must have.
        source_types: The types of sources that have them, for the message.

    Raises:
        UserError: If the text describes no source, or a record lacks an attribute.
    """
    mixture = Mixture(mixture_of_option(source))
    records = [mixture[index] for index in range(len(mixture))]
    for record in records:
        missing = [name for name in attributes if name not in record.attributes]
        if missing:
            raise UserError(
                f"{OPTION}: {record.identity} has no attribute {missing[0]!r}. The figures of this "
                "study need answers whose true scores are known; required is a source of type "
                f"{source_types}."
            )
    return records


def row_of_record(record: Preference) -> dict[str, Any]:
    """Return a record as a row for eval/score.py, with the answers in a random order.

    A record has its best answer first. A model that reads all answers of a row together would see
    it from their order.
    """
    num_responses = len(record.responses)
    rng = Rng(stable_hash(record.identity))
    order = rng.sample(range(num_responses), num_responses)
    row: dict[str, Any] = {
        "id": record.identity,
        "key": f"{Question.of_record(record).key:016x}",
        "prompt": list(record.prompt),
        "images": [_data_uri(image) for image in record.images if isinstance(image, bytes)],
        "responses": [record.responses[index].text for index in order],
    }
    for name in ATTRIBUTES:
        values = record.attributes[name]
        row[name] = [values[index] for index in order]
    return row


def _data_uri(png: bytes) -> str:
    """Return a PNG file as a data URI."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def measured_model(run: Run, scored: Path, repeated_keys: Set[int]) -> ComparedModel:
    """Return the figures of a model.

    Args:
        run: The training of the model.
        scored: The file of the questions with the model's scores, a row for each question.
        repeated_keys: Keys of questions that a model of the list was trained on. They count for no
            figure.
    """
    rows = [row for row in rows_of(scored) if Question.of_row(row).key not in repeated_keys]
    highest_quality = max(max(row["quality"]) for row in rows)
    by_question: dict[str, dict[str, float]] = {figure: {} for figure in FIGURES}
    courtesy_points: list[float] = []
    mean_qualities: list[float] = []
    questions: list[ScoredQuestion] = []
    for row in rows:
        question = ScoredQuestion(
            quality=np.array(row["quality"]) / highest_quality,
            ratings=np.array(row["rating"]),
            is_courteous=np.array(row["wording"]),
            scores=np.array(row["scores"]),
            stds=np.array(row["score_std"]) if "score_std" in row else None,
        )
        questions.append(question)
        accuracy = question.accuracy()
        auc = question.auc()
        if accuracy is not None and auc is not None:
            by_question[ACCURACY][row["id"]] = accuracy
            by_question[AUC][row["id"]] = auc
        by_question[BEST][row["id"]] = question.best()
        courtesy_points += question.courtesy_points()
        mean_qualities.append(float(question.quality.mean()))
    mean_best = float(np.mean(list(by_question[BEST].values())))
    return ComparedModel(
        run=run,
        by_question=by_question,
        gain=mean_best - float(np.mean(mean_qualities)),
        courtesy=float(np.mean(courtesy_points)) if courtesy_points else float("nan"),
        coverage=coverage_of_ratings(questions),
    )


def coverage_of_ratings(questions: Sequence[ScoredQuestion]) -> TrueScoreCoverage | None:
    """Return how many ratings are within the deviations that a model states; None without any.

    Answers to one question are not independent, which the intervals take into account.
    """
    means: list[Floats] = []
    stds: list[Floats] = []
    ratings: list[Floats] = []
    question_indices: list[Ints] = []
    for index, question in enumerate(questions):
        if question.stds is None:
            return None
        means.append(question.scores)
        stds.append(question.stds)
        ratings.append(question.ratings)
        question_indices.append(np.full(len(question.scores), index))
    indices = np.concatenate(question_indices)
    return coverage(
        np.concatenate(means),
        np.concatenate(stds),
        np.concatenate(ratings),
        clusters=indices,
        prompts=indices,
    )


def variant_lines(models: Sequence[ComparedModel], reference: str) -> dict[str, list[VariantLine]]:
    """Return a line for each variant, by figure, over the seeds of the variant.

    Args:
        models: The models, which all scored the same questions.
        reference: The variant from which the others differ.
    """
    if not models:
        return {}
    credits_by_figure: dict[str, dict[str, dict[int, Floats]]] = {}
    for figure in FIGURES:
        questions_by_model = [set(model.by_question[figure]) for model in models]
        questions = sorted(set.intersection(*questions_by_model))
        credits_by_variant: dict[str, dict[int, Floats]] = {}
        for model in models:
            values = model.by_question[figure]
            credits = np.array([values[question] for question in questions])
            credits_by_variant.setdefault(model.run.variant, {})[model.run.seed] = credits
        credits_by_figure[figure] = credits_by_variant
    return lines_by_figure(credits_by_figure, reference, items_by_figure={})


def study_result(models: Sequence[ComparedModel], ablation: Ablation) -> StudyResult:
    """Return the figures of all models, with their tables and the report."""
    # The runs of a list are in the order of their seeds. Tables are in the order of the variants.
    variants = list(ablation.changes)
    ordered_models = sorted(models, key=lambda model: variants.index(model.run.variant))
    lines = variant_lines(ordered_models, ablation.reference)
    rows = flat_rows(ablation, lines)
    interval_note = statement(ablation.reference, comparisons_in(lines))
    complete_runs = [model.run for model in ordered_models]
    stored_costs = {name: asdict(cost) for name, cost in costs(complete_runs).items()}
    missing = [str(run) for run in ablation.runs if state(run) != "complete"]

    sections = [f"# {ablation.path.stem}", interval_note]
    tables = []
    for figure, rows_of_figure in rows_by_benchmark(rows).items():
        table = variants_table(
            figure, rows_of_figure, ablation.reference, "questions", interval_note
        )
        sections += [f"## {table.title}", table.markdown()]
        tables.append(table.without("changes"))
    further_tables = [models_table(ordered_models)]
    if any(model.coverage is not None for model in ordered_models):
        further_tables.append(coverage_table(ordered_models))
    if stored_costs:
        further_tables.append(cost_table(stored_costs))
    for table in further_tables:
        sections += [f"## {table.title}", table.markdown(), *table.notes]
    if missing:
        sections += ["## Not in the tables", "\n".join(f"- {name}" for name in missing)]
    return StudyResult(
        {
            "list": str(ablation.path),
            "reference": ablation.reference,
            "statement": interval_note,
            "results": rows,
            "models": [stored_model(model) for model in ordered_models],
            "costs": stored_costs,
            "missing": missing,
        },
        tables=(*tables, *further_tables),
        sentences=(f"not in the tables: {', '.join(missing)}",) if missing else (),
        document="\n\n".join(sections) + "\n",
    )


def stored_model(model: ComparedModel) -> dict[str, Any]:
    """Return the figures of a model as they are written to objectives.json."""
    stored: dict[str, Any] = {"variant": model.run.variant, "seed": model.run.seed}
    for figure in FIGURES:
        stored[figure] = float(np.mean(list(model.by_question[figure].values())))
    stored["gain"] = model.gain
    stored["courteous_of_equals"] = model.courtesy
    stored["coverage"] = None if model.coverage is None else asdict(model.coverage)
    return stored


def models_table(models: Sequence[ComparedModel]) -> Table:
    """Return the table of each model's gain and of its taste for courteous answers, in percent."""
    columns = (
        Column("variant"),
        Column("seed", is_number=True),
        Column("best of N minus a random answer", is_number=True),
        Column("courteous of equals", is_number=True),
    )
    rows = []
    for model in models:
        cells = (percent(model.gain), percent(model.courtesy))
        rows.append((model.run.variant, str(model.run.seed), *cells))
    return Table("gain and wording", columns, tuple(rows))


def coverage_table(models: Sequence[ComparedModel]) -> Table:
    """Return the table of rating differences within one and two stated deviations, in percent.

    A difference is that between two answers to one question.
    """
    columns = (
        Column("variant"),
        Column("seed", is_number=True),
        Column("within 1 [95 %]", is_number=True),
        Column("within 2 [95 %]", is_number=True),
        Column("rating for 1 point of score", is_number=True),
    )
    rows = []
    for model in models:
        if model.coverage is None or model.coverage.slope_of_differences is None:
            continue
        shares = [_share_in_words(share) for share in model.coverage.of_differences]
        slope = f"{model.coverage.slope_of_differences:.2f}"
        rows.append((model.run.variant, str(model.run.seed), *shares, slope))
    note = (
        "The differences between the ratings of two answers to a question. A right deviation has "
        "68.3 % of them within 1 and 95.4 % within 2."
    )
    return Table("coverage of the stated deviation", columns, tuple(rows), (note,))


def _share_in_words(share: ShareWithin) -> str:
    """Return a share with its interval, in percent."""
    return interval(share.share, share.low, share.high)
