"""The study of whether reward models read the order of a video's frames.

The videos are the films of the source `shapes_motion` (data/synthetic/motion_world.py), which can
be played in several ways.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmrm.data.display.format import interval, percent
from mmrm.data.display.study_result import StudyResult
from mmrm.data.display.table import Column, Table
from mmrm.data.errors import UserError
from mmrm.data.preference import Preference
from mmrm.data.storage.files import write_json, write_whole
from mmrm.data.synthetic.film_questions import FILM_QUESTION_TYPES
from mmrm.data.synthetic.films import WAYS_TO_PLAY, Played
from mmrm.data.synthetic.motion_source import MotionConfig
from mmrm.data.synthetic.rng import Rng, stable_hash
from mmrm.eval.candidates import RankedExample
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.judge import Judge
from mmrm.eval.judges.loading import load_judge
from mmrm.eval.results.intervals import share_interval
from mmrm.train.studies.ablation.cached_steps import checkpoint_of
from mmrm.train.studies.ablation.variants import Ablation, Run, state
from mmrm.train.studies.compare_objectives import OPTION, mixture_of_option
from mmrm.train.studies.predictor_steps import train_list

FOLDER = "frame_order"
"""The folder of the study, in the folder of the list of runs."""
CATEGORIES = ("order", "frame")
"""The categories of questions, in the order of the table."""

RecordsByPlayed = Mapping[Played, Sequence[Preference]]
"""The same questions with films that are played in each way."""


@dataclass(frozen=True, slots=True)
class VideoModel:
    """A trained reward model, with its points on every question."""

    run: Run
    points: dict[Played, list[float]]
    """By the way in which films are played, 1 for each question whose right answer has the higher
    score, 0.5 for equal scores, and else 0."""


def run(ablation: Ablation, options: argparse.Namespace) -> StudyResult:
    """Train the models of a list that are not complete, and measure all of them.

    Args:
        ablation: The list of reward models.
        options: The options of train/frame_order.py.

    Raises:
        UserError: The questions are not about films that are played forwards, or a model is trained
            on their split.
    """
    questions = source_of_questions(options.questions)
    for trained in ablation.runs:
        refuse_split_of_training(trained, questions)
    records = records_by_way_to_play(questions)
    if any(state(trained) != "complete" for trained in ablation.runs):
        train_list(options)
    models = []
    for trained in ablation.runs:
        if state(trained) == "complete":
            judge = load_judge(checkpoint_of(trained), Runtime(torch.device("cpu"))).judge
            models.append(measured_model(trained, judge, records))
    return study_result(models, records["forwards"], ablation)


def write(result: StudyResult, folder: Path) -> None:
    """Write frame_order.json and frame_order.md."""
    write_json(folder / "frame_order.json", result.figures)
    write_whole(folder / "frame_order.md", result.document)


def source_of_questions(option: str) -> MotionConfig:
    """Return the source of the command line.

    Raises:
        UserError: It is of another type than `shapes_motion`, or its films are not played forwards.
    """
    source = mixture_of_option(option).sources[0]
    if not isinstance(source, MotionConfig):
        raise UserError(
            f"{OPTION}: the type is {source.type}, and this study needs films that can be played in "
            "several ways. Required is a source of type shapes_motion."
        )
    if source.played != "forwards":
        raise UserError(
            f"{OPTION}: played is {source.played}. The study plays films in every way by itself. "
            "Remove the key."
        )
    return source


def refuse_split_of_training(trained: Run, questions: MotionConfig) -> None:
    """Raise UserError if a model is trained on the split of the questions."""
    for source in trained.recipe.data.sources:
        if isinstance(source, MotionConfig) and source.split == questions.split:
            raise UserError(
                f"{OPTION}: {trained} is trained on the split {source.split} of {source.label}, "
                "and the questions are of the same split. Splits share no film, so name another "
                "split, such as benchmark."
            )


def records_by_way_to_play(questions: MotionConfig) -> RecordsByPlayed:
    """Return the records of a source, with films that are played in each way."""
    records: dict[Played, Sequence[Preference]] = {}
    for played in WAYS_TO_PLAY:
        config = questions.model_copy(update={"played": played})
        source = config.open(Path())
        records[played] = [source.record(index) for index in range(len(source))]
    return records


def row_in_random_order(record: Preference) -> RankedExample:
    """Return a record as a row of a benchmark, with its two answers in a random order.

    A model that reads both answers together would otherwise find the right one by its place. The
    order depends on the identity of the record alone, so that it is the same for all ways to play.
    """
    order = Rng(stable_hash(record.identity)).sample((0, 1), 2)
    return RankedExample(
        key=record.identity,
        images=record.images,
        videos=record.videos,
        prompt=record.prompt,
        responses=tuple(record.responses[index] for index in order),
        identity=record.identity,
        ranks=tuple(record.ranks[index] for index in order),
        group=record.category,
        source=record.source,
        row={},
    )


def measured_model(trained: Run, judge: Judge, records: RecordsByPlayed) -> VideoModel:
    """Return the points of a trained model on the records."""
    points: dict[Played, list[float]] = {}
    for played, records_played in records.items():
        rows = [row_in_random_order(record) for record in records_played]
        points[played] = []
        for row, scored in zip(rows, judge.score_batch(rows), strict=True):
            points[played].append(point(row.ranks, scored.values))
    return VideoModel(trained, points)


def point(ranks: Sequence[int], scores: Sequence[float]) -> float:
    """Return 1 if the better one of two responses has the higher score, 0.5 for equal scores.

    Args:
        ranks: The ranks of both responses; the lower one is that of the better response.
        scores: Their scores.
    """
    if scores[0] == scores[1]:
        return 0.5
    is_first_better = ranks[0] < ranks[1]
    is_first_higher = scores[0] > scores[1]
    return float(is_first_better == is_first_higher)


def study_result(
    models: Sequence[VideoModel], records: Sequence[Preference], ablation: Ablation
) -> StudyResult:
    """Return the figures of all models, with their tables and the report.

    Args:
        models: The models.
        records: The questions.
        ablation: The list of reward models.
    """
    missing = [str(trained) for trained in ablation.runs if state(trained) != "complete"]
    by_model = []
    by_variant = []
    for variant in ablation.changes:
        of_variant = [model for model in models if model.run.variant == variant]
        for model in of_variant:
            by_model.append(figures_of_model(model, records))
        if of_variant:
            by_variant.append(figures_of_variant(variant, of_variant, records))
    tables = (category_table(by_model), kind_table(by_variant)) if by_model else ()
    sections = [f"# {ablation.path.stem}"]
    for table in tables:
        sections += [f"## {table.title}", table.markdown(), *table.notes]
    sentences: tuple[str, ...] = ()
    if missing:
        sentences = (f"not in the tables: {', '.join(missing)}",)
        sections += ["## Not in the tables", "\n".join(f"- {name}" for name in missing)]
    return StudyResult(
        {
            "list": str(ablation.path),
            "models": by_model,
            "variants": by_variant,
            "missing": missing,
        },
        tables=tables,
        sentences=sentences,
        document="\n\n".join(sections) + "\n",
    )


def figures_of_model(model: VideoModel, records: Sequence[Preference]) -> dict[str, Any]:
    """Return the accuracies of one model by category, with intervals over questions."""
    figures: dict[str, Any] = {"variant": model.run.variant, "seed": model.run.seed}
    categories = [FILM_QUESTION_TYPES[record.category].category for record in records]
    for category in CATEGORIES:
        indices = [index for index, found in enumerate(categories) if found == category]
        if not indices:
            continue
        accuracy = {}
        for played, points in model.points.items():
            credits = np.array([points[index] for index in indices])
            accuracy[played] = share_interval(credits).plain
        figures[category] = {"questions": len(indices), "accuracy": accuracy}
    return figures


def figures_of_variant(
    variant: str, models: Sequence[VideoModel], records: Sequence[Preference]
) -> dict[str, Any]:
    """Return the accuracies of a variant by question type, the means over its seeds."""
    figures: dict[str, Any] = {"variant": variant}
    for kind in FILM_QUESTION_TYPES:
        indices = [index for index, record in enumerate(records) if record.category == kind]
        if not indices:
            continue
        accuracy = {}
        for played in WAYS_TO_PLAY:
            points = [[model.points[played][index] for index in indices] for model in models]
            accuracy[played] = float(np.mean(points))
        figures[kind] = {"questions": len(indices), "accuracy": accuracy}
    return figures


def category_table(results: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of each model's accuracies by category, in percent."""
    columns = (
        Column("variant"),
        Column("seed", is_number=True),
        Column("questions"),
        Column("n", is_number=True),
        *(Column(played, is_number=True) for played in WAYS_TO_PLAY),
    )
    rows = []
    for result in results:
        for category in CATEGORIES:
            if category not in result:
                continue
            estimates = [result[category]["accuracy"][played] for played in WAYS_TO_PLAY]
            cells = [interval(found["mean"], found["low"], found["high"]) for found in estimates]
            num_questions = str(result[category]["questions"])
            rows.append((result["variant"], str(result["seed"]), category, num_questions, *cells))
    note = "Chance is 50. Equal scores count half. 95 % intervals over questions."
    return Table("accuracy by the way in which films are played", columns, tuple(rows), (note,))


def kind_table(results: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of each variant's accuracies by question type, in percent."""
    columns = (
        Column("variant"),
        Column("questions"),
        Column("n", is_number=True),
        *(Column(played, is_number=True) for played in WAYS_TO_PLAY),
    )
    rows = []
    for result in results:
        for kind in FILM_QUESTION_TYPES:
            if kind not in result:
                continue
            cells = [percent(result[kind]["accuracy"][played]) for played in WAYS_TO_PLAY]
            rows.append((result["variant"], kind, str(result[kind]["questions"]), *cells))
    note = "The means over the seeds. Chance is 50. Equal scores count half."
    return Table("accuracy by question type", columns, tuple(rows), (note,))
