"""The study of how well reward models find the known faults of generated pictures.

The pictures are those of the sources `shapes_drawn` and `shapes_edited`
(data/synthetic/rated_pictures.py). Each has a content and a quality, which are known, and a reward
model with a head of type `attributes` states a number for both.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmrm.data.arrays import Floats
from mmrm.data.display.format import interval, percent
from mmrm.data.display.study_result import StudyResult
from mmrm.data.display.table import Column, Table
from mmrm.data.errors import UserError
from mmrm.data.images import grey_like
from mmrm.data.preference import Preference
from mmrm.data.storage.files import write_json, write_whole
from mmrm.data.synthetic.drawn_source import PicturesConfig
from mmrm.data.synthetic.rated_pictures import ATTRIBUTES
from mmrm.data.synthetic.rng import Rng, stable_hash
from mmrm.eval.candidates import BenchmarkRow, RankedExample
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.judge import Judge
from mmrm.eval.judges.loading import load_judge
from mmrm.eval.results.intervals import Estimate, accuracy_over_seeds
from mmrm.eval.suite.image_ablation import with_ablated_images
from mmrm.train.methods.naive.config import NaiveConfig
from mmrm.train.objectives.ties.config import BradleyTerryWithTiesConfig
from mmrm.train.studies.ablation.cached_steps import checkpoint_of
from mmrm.train.studies.ablation.variants import Ablation, Run, state
from mmrm.train.studies.compare_objectives import (
    OPTION,
    mixture_of_option,
    records_of_source,
)
from mmrm.train.studies.predictor_steps import train_list

FOLDER = "picture_faults"
"""The folder of the study, in the folder of the list of runs."""
REAL = "pictures"
GREY = "grey pictures"
SHUFFLED = "pictures of other prompts"
GREY_BEFORE = "grey picture before"
CONDITIONS = (REAL, GREY, SHUFFLED, GREY_BEFORE)
"""What a model is shown. All but the first are controls, and GREY_BEFORE is for edits only."""

INTERVALS = "95 % intervals over trainings and questions, none below three seeds."

AttributeNumbers = Mapping[str, Sequence[float]]
"""By the name of an attribute, a number for each response."""


@dataclass(frozen=True, slots=True)
class PictureModel:
    """A trained reward model, with its points on every question."""

    run: Run
    alone: dict[tuple[str, str], list[float | None]]
    """By attribute and condition, the points of each question on pairs of responses that differ in
    this attribute alone; None for a question without such a pair."""
    with_ties: dict[str, list[float]]
    """By attribute, the share of right results of each question's pairs: better, worse or tied."""
    without_ties: dict[str, list[float]]
    """The same, if the model never predicts a tie."""


def run(ablation: Ablation, options: argparse.Namespace) -> StudyResult:
    """Train the models of a list that are not complete, and measure all of them.

    Args:
        ablation: The list of reward models.
        options: The options of train/picture_faults.py.

    Raises:
        UserError: The questions have no pictures with known faults, a model was trained on their
            split, or a model cannot state ties or the two attributes.
    """
    for trained in ablation.runs:
        refuse_unsuited_recipe(trained, options.questions)
    records = records_of_source(options.questions, ATTRIBUTES, "shapes_drawn or shapes_edited")
    if any(state(trained) != "complete" for trained in ablation.runs):
        train_list(options)
    models = []
    for trained in ablation.runs:
        if state(trained) == "complete":
            judge = load_judge(checkpoint_of(trained), Runtime(torch.device("cpu"))).judge
            models.append(measured_model(trained, judge, records))
    return study_result(models, records, ablation)


def write(result: StudyResult, folder: Path) -> None:
    """Write picture_faults.json and picture_faults.md."""
    write_json(folder / "picture_faults.json", result.figures)
    write_whole(folder / "picture_faults.md", result.document)


def refuse_unsuited_recipe(trained: Run, questions: str) -> None:
    """Raise UserError if a run cannot be measured on the questions of the command line."""
    head_attributes = trained.recipe.head.attribute_names
    missing = [name for name in ATTRIBUTES if name not in head_attributes]
    if missing:
        raise UserError(
            f"{trained}: head.names lacks {', '.join(missing)}. The study measures the attributes "
            f"{' and '.join(ATTRIBUTES)}, so the recipe needs a head of type attributes with both."
        )
    tie_threshold(trained)
    question_source = mixture_of_option(questions).sources[0]
    for source in trained.recipe.data.sources:
        if not isinstance(source, PicturesConfig):
            continue
        if not isinstance(question_source, type(source)):
            continue
        if source.split == question_source.split:
            raise UserError(
                f"{OPTION}: {trained} is trained on the split {source.split} of {source.label}, "
                "and the questions are of the same split. Splits share no scene, so name another "
                "split, such as benchmark."
            )


def tie_threshold(trained: Run) -> float:
    """Return the difference of two scores below which a tie is the most probable result.

    With the tie factor f, a tie is more probable than either other result if and only if the
    difference is below log((f^2 - 2) / f); see train/objectives/ties/tie_losses.py. The result is 0
    or below if a tie is never the most probable.

    Raises:
        UserError: If the objective of the run knows no ties.
    """
    method = trained.recipe.method
    if not isinstance(method, NaiveConfig) or not isinstance(
        method.objective, BradleyTerryWithTiesConfig
    ):
        raise UserError(
            f"{trained}: the study measures predicted ties, which need the probability of a tie. "
            "Set method.type to naive and method.objective.type to ties."
        )
    factor = method.objective.tie_factor
    odds = (factor**2 - 2) / factor
    return log(odds) if odds > 1 else 0.0


def shuffled_row(record: Preference) -> RankedExample:
    """Return a record as a row of a benchmark, with its responses in a random order.

    The responses of a record are ordered by their ranks. If pictures were exchanged between such
    records, the best picture of one would take the place of the best picture of the other, and the
    control would not be at chance. The column `ratings` of the row has the attributes in its order.
    """
    num_responses = len(record.responses)
    order = Rng(stable_hash(record.identity)).sample(range(num_responses), num_responses)
    ratings = {}
    for name in ATTRIBUTES:
        ratings[name] = [record.attributes[name][index] for index in order]
    return RankedExample(
        key=record.identity,
        images=record.images,
        prompt=record.prompt,
        responses=tuple(record.responses[index] for index in order),
        identity=record.identity,
        ranks=tuple(record.ranks[index] for index in order),
        group=record.category,
        source=record.source,
        row={"ratings": ratings},
    )


def rows_under(condition: str, rows: Sequence[BenchmarkRow]) -> Sequence[BenchmarkRow]:
    """Return rows as a model is shown them in one of the CONDITIONS."""
    if condition == GREY:
        return with_ablated_images(rows, "grey")
    if condition == SHUFFLED:
        return with_ablated_images(rows, "shuffled")
    if condition == GREY_BEFORE:
        return [with_grey_prompt_images(row) for row in rows]
    return rows


def with_grey_prompt_images(row: BenchmarkRow) -> BenchmarkRow:
    """Return a row with a grey image of the same size for each image of the prompt."""
    images = tuple(grey_like(image, row.identity) for image in row.images)
    return replace(row, images=images)


def measured_model(trained: Run, judge: Judge, records: Sequence[Preference]) -> PictureModel:
    """Return the points of a trained model on the records."""
    threshold = tie_threshold(trained)
    alone: dict[tuple[str, str], list[float | None]] = {}
    with_ties: dict[str, list[float]] = {}
    without_ties: dict[str, list[float]] = {}
    rows = [shuffled_row(record) for record in records]
    for condition in conditions_of(records):
        scored = judge.score_batch(rows_under(condition, rows))
        for attribute in ATTRIBUTES:
            points = []
            for row, scores in zip(rows, scored, strict=True):
                points.append(points_alone(row.row["ratings"], scores.attributes, attribute))
            alone[attribute, condition] = points
        if condition != REAL:
            continue
        for attribute in ATTRIBUTES:
            with_ties[attribute] = []
            without_ties[attribute] = []
            for row, scores in zip(rows, scored, strict=True):
                ratings = row.row["ratings"][attribute]
                numbers = scores.attributes[attribute]
                with_ties[attribute].append(share_of_right_results(ratings, numbers, threshold))
                without_ties[attribute].append(share_of_right_results(ratings, numbers, None))
    return PictureModel(trained, alone, with_ties, without_ties)


def conditions_of(records: Sequence[Preference]) -> tuple[str, ...]:
    """Return the CONDITIONS that make sense for the records: GREY_BEFORE needs prompt images."""
    if any(record.images for record in records):
        return CONDITIONS
    return tuple(condition for condition in CONDITIONS if condition != GREY_BEFORE)


def points_alone(
    ratings: AttributeNumbers, numbers: AttributeNumbers, attribute: str
) -> float | None:
    """Return the share of pairs that differ in one attribute alone and are ordered rightly.

    Args:
        ratings: The known ratings of the responses to a question.
        numbers: The numbers that a model states for them. Equal numbers of a pair count half.
        attribute: The attribute in which the responses of a pair differ, and by which the model
            orders them.

    Returns:
        The share, or None if there is no such pair.
    """
    others = [name for name in ATTRIBUTES if name != attribute]
    points = []
    for first, second in combinations(range(len(ratings[attribute])), 2):
        is_alone = all(ratings[name][first] == ratings[name][second] for name in others)
        difference = ratings[attribute][first] - ratings[attribute][second]
        if difference == 0 or not is_alone:
            continue
        stated_difference = numbers[attribute][first] - numbers[attribute][second]
        agreement = np.sign(difference) * np.sign(stated_difference)
        points.append((1 + agreement) / 2)
    return float(np.mean(points)) if points else None


def share_of_right_results(
    ratings: Sequence[float], numbers: Sequence[float], threshold: float | None
) -> float:
    """Return the share of all pairs whose result is predicted: first, second, or tied.

    Args:
        ratings: The known ratings of the responses to a question. Equal ratings are a tie.
        numbers: The numbers that a model states for them.
        threshold: A pair whose numbers differ by less is predicted to be tied; None predicts no
            ties, and a pair that is tied in the data is then always wrong.
    """
    points = []
    for first, second in combinations(range(len(ratings)), 2):
        right_result = np.sign(ratings[first] - ratings[second])
        difference = numbers[first] - numbers[second]
        if threshold is None:
            points.append(right_result != 0 and right_result == np.sign(difference))
            continue
        predicted_result = 0 if abs(difference) < threshold else np.sign(difference)
        points.append(right_result == predicted_result)
    return float(np.mean(points))


def share_untied(records: Sequence[Preference], attribute: str) -> float:
    """Return the share of pairs that are not tied: the best figure without predicted ties.

    It is the mean over the records, as that of a model.
    """
    perfect = [record.attributes[attribute] for record in records]
    return float(np.mean([share_of_right_results(ratings, ratings, None) for ratings in perfect]))


def estimate_over_seeds(points_of_models: Sequence[Sequence[float | None]]) -> Estimate:
    """Return the mean of points with its interval over seeds and questions.

    Args:
        points_of_models: The points of each model on each question. None is no point, which is then
            None in all models.
    """
    credits: list[Floats] = []
    for points in points_of_models:
        credits.append(np.array([value for value in points if value is not None]))
    return accuracy_over_seeds(np.stack(credits))


def study_result(
    models: Sequence[PictureModel], records: Sequence[Preference], ablation: Ablation
) -> StudyResult:
    """Return the figures of all models, with their tables and the report."""
    missing = [str(trained) for trained in ablation.runs if state(trained) != "complete"]
    tables = []
    results = []
    for variant in ablation.changes:
        of_variant = [model for model in models if model.run.variant == variant]
        if of_variant:
            results.append(figures_of_variant(variant, of_variant, records))
    if results:
        tables = [alone_table(results), ties_table(results)]
    sections = [f"# {ablation.path.stem}"]
    for table in tables:
        sections += [f"## {table.title}", table.markdown(), *table.notes]
    sentences: tuple[str, ...] = ()
    if missing:
        sentences = (f"not in the tables: {', '.join(missing)}",)
        sections += ["## Not in the tables", "\n".join(f"- {name}" for name in missing)]
    return StudyResult(
        {"list": str(ablation.path), "results": results, "missing": missing},
        tables=tuple(tables),
        sentences=sentences,
        document="\n\n".join(sections) + "\n",
    )


def figures_of_variant(
    variant: str, models: Sequence[PictureModel], records: Sequence[Preference]
) -> dict[str, Any]:
    """Return the figures of a variant over its seeds, as they are written to picture_faults.json."""
    alone: dict[str, dict[str, dict[str, float | None]]] = {}
    ties: dict[str, dict[str, Any]] = {}
    for attribute in ATTRIBUTES:
        alone[attribute] = {}
        for condition in conditions_of(records):
            points = [model.alone[attribute, condition] for model in models]
            alone[attribute][condition] = estimate_over_seeds(points).plain
        with_ties = [model.with_ties[attribute] for model in models]
        without_ties = [model.without_ties[attribute] for model in models]
        ties[attribute] = {
            "predicted": estimate_over_seeds(with_ties).plain,
            "not_predicted": estimate_over_seeds(without_ties).plain,
            "best_without": share_untied(records, attribute),
        }
    return {
        "variant": variant,
        "seeds": [model.run.seed for model in models],
        "questions": len(records),
        "alone": alone,
        "ties": ties,
    }


def alone_table(results: Sequence[dict[str, Any]]) -> Table:
    """Return the table of accuracies on pairs that differ in one attribute alone, in percent."""
    conditions = list(results[0]["alone"][ATTRIBUTES[0]])
    condition_columns = [Column(name, is_number=True) for name in conditions]
    columns = (Column("variant"), Column("attribute"), *condition_columns)
    rows = []
    for result in results:
        for attribute in ATTRIBUTES:
            estimates = result["alone"][attribute]
            cells = [_cell(estimates[condition]) for condition in conditions]
            rows.append((result["variant"], attribute, *cells))
    return Table(
        "pairs that differ in one attribute alone",
        columns,
        tuple(rows),
        (f"Chance is 50. Equal numbers count half. {INTERVALS}",),
    )


def ties_table(results: Sequence[dict[str, Any]]) -> Table:
    """Return the table of the accuracies with ties on all pairs, in percent."""
    columns = (
        Column("variant"),
        Column("attribute"),
        Column("ties predicted", is_number=True),
        Column("no ties predicted", is_number=True),
        Column("best without ties", is_number=True),
    )
    rows = []
    for result in results:
        for attribute in ATTRIBUTES:
            figures = result["ties"][attribute]
            cells = (_cell(figures["predicted"]), _cell(figures["not_predicted"]))
            rows.append((result["variant"], attribute, *cells, percent(figures["best_without"])))
    note = (
        "The share of all pairs whose result (better, worse, tied) is predicted. `best without "
        f"ties` is reached by a model that orders every pair rightly. {INTERVALS}"
    )
    return Table("accuracy with ties", columns, tuple(rows), (note,))


def _cell(estimate: Mapping[str, Any]) -> str:
    """Return an estimate, as it is written to JSON, in percent with its interval."""
    return interval(estimate["mean"], estimate["low"], estimate["high"])
