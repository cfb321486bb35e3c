"""Ways to rank responses, compared on the same answers: judges, and schedules of comparisons."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from mmrm.data.arrays import Floats, Ints
from mmrm.data.display.format import interval, signed_points
from mmrm.data.display.study_result import StudyResult
from mmrm.data.display.table import Column, Table
from mmrm.data.errors import RecordError, UserError
from mmrm.data.preparation.row_index import normalised
from mmrm.data.storage.files import content_digest, digest, write_json, write_whole
from mmrm.eval.journal import progress_bar
from mmrm.eval.judges.pair_schedule import MergeSort, Schedule, Swiss
from mmrm.eval.judges.replayed_ranking import points_matrix, replayed, shares_of_points
from mmrm.eval.policies.best_of import best_of, in_group_auc
from mmrm.eval.results.intervals import (
    LEAST_SEEDS,
    Difference,
    Estimate,
    accuracy_over_seeds,
    cluster_codes,
    difference_over_seeds,
    paired_difference,
    paired_difference_over_seeds,
    share_interval,
)
from mmrm.eval.selection.candidate_records import RecordFile, open_records

SWISS_ROUNDS = (1, 2, 3, 5)
"""The numbers of rounds of the schedule `swiss` that are compared."""
ALL = "all"
SCORES = "scores"
"""The way to rank by a judge that scores single responses."""


@dataclass(frozen=True, slots=True)
class ScoredJudge:
    """A judge with its scored files, one for each of its trainings."""

    name: str
    files: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class RankedAnswers:
    """The scores of the answers to one question, by one way to rank them."""

    scores: tuple[float, ...]
    judgements: float
    """The number of comparisons, or of scores of single responses."""
    tokens: float
    """The number of tokens that were written for them."""


@dataclass(frozen=True, slots=True)
class RankedQuestion:
    """A question whose answers are right or wrong, with a ranking by each way of a judge."""

    right: tuple[bool, ...]
    media: tuple[str, ...]
    """Digests of its images and videos, or of the prompt if it has none. Questions that share one
    are not independent."""
    rankings: Mapping[str, RankedAnswers]
    """The rankings by the name of the way, such as `swiss 2, soft`."""


Questions = dict[str, RankedQuestion]
"""The questions of a file, by a digest of prompt, images and answers."""


@dataclass(frozen=True, slots=True)
class WayFigures:
    """The figures of one way to rank on each question and training, shape (trainings, questions)."""

    judge: str
    way: str
    auc: Floats
    """NaN for a question whose answers are all right or all wrong."""
    best: Floats
    """The accuracy of the best of N."""
    sampled: Floats
    """The accuracy of a sampled answer."""
    judgements: float
    """The mean number of judgements for a question."""
    tokens: float
    """The mean number of tokens that were written for a question."""


def run(judges: Sequence[ScoredJudge], image_root: Path | None, console: Console) -> StudyResult:
    """Compare all ways of all judges. The first judge after all comparisons is the reference.

    Args:
        judges: The judges with their scored files.
        image_root: The folder that paths of images are relative to. None is that of each file.
        console: Receives the progress.

    Raises:
        UserError: If a file cannot be used, or if no question is in all files.
    """
    files: dict[str, list[Questions]] = {}
    for judge in judges:
        files[judge.name] = [ranked_questions(path, image_root, console) for path in judge.files]
    everything: list[Questions] = []
    for of_judge in files.values():
        everything += of_judge
    in_all_files = set(everything[0]).intersection(*everything[1:])
    common = [key for key in everything[0] if key in in_all_files]  # in the order of the first file
    if not common:
        raise UserError(
            "no question with its answers is in all files. The files must be written by "
            "eval/score.py from the same answers"
        )
    num_questions = len(set().union(*everything))
    clusters = clusters_of_questions([everything[0][key] for key in common])
    figures: list[WayFigures] = []
    for name, of_judge in files.items():
        for way in of_judge[0][common[0]].rankings:
            figures.append(figures_of_way(name, way, of_judge, common))
    return study_result(figures, clusters, num_left_out=num_questions - len(common))


def ranked_questions(path: Path, image_root: Path | None, console: Console) -> Questions:
    """Return the questions of a scored file, with the rankings of their answers by every way.

    Args:
        path: The file.
        image_root: The folder that paths of images are relative to. None is that of the file.
        console: Receives the progress.

    Raises:
        UserError: If a record has no verdicts, or if a ranking needs comparisons that it lacks.
    """
    file = open_records(path, image_root)
    questions: Questions = {}
    counts: Counter[str] = Counter()
    num_rows = len(file.rows)
    with progress_bar(path.name, console, num_rows) as progress:
        for number in range(num_rows):
            try:
                key, question = _ranked_question(file, number)
            except RecordError as error:
                raise UserError(f"{path}: {error}") from error
            # Equal questions with equal answers are told apart by their number.
            counts[key] += 1
            questions[f"{key}/{counts[key]}"] = question
            progress.update(number + 1, number + 1)
    return questions


def _ranked_question(file: RecordFile, number: int) -> tuple[str, RankedQuestion]:
    """Return a question of a scored file and its key, a digest of prompt, images and answers.

    The key does not depend on the paths of the images, so that files in several folders are paired.
    """
    row = file.row(number)
    answered = file.answered_prompt(row)
    columns = row.columns
    for name, source in (("right", "eval/sample.py"), ("scores", "eval/score.py")):
        if columns.get(name) is None:
            raise RecordError(
                f"{row.identity}: there is no column `{name}`, which {source} writes. It is "
                "required, to know which answers are right and how they were scored"
            )
    media = [content_digest(image) for image in answered.images]
    media += [content_digest(video.content) for video in answered.videos]
    for response in answered.responses:
        media += [content_digest(image) for image in response.images]
        media += [content_digest(video.content) for video in response.videos]
    try:
        rankings = dict(ways_to_rank(columns))
    except RecordError as error:
        raise RecordError(f"{row.identity}: {error}") from error
    question = RankedQuestion(
        right=tuple(columns["right"]),
        media=tuple(media) or (digest(normalised(answered.prompt_text)),),
        rankings=rankings,
    )
    return digest(json.dumps([answered.prompt_text, media, answered.response_texts])), question


def ways_to_rank(columns: Mapping[str, Any]) -> Iterator[tuple[str, RankedAnswers]]:
    """Yield the ways to rank the answers of a scored record, each with its name.

    A judge that scores single responses has one way. A judge that compares has its tournament and
    every schedule, by soft verdicts if it has them, and by hard ones.

    Args:
        columns: The columns of the record, with those of eval/score.py.

    Raises:
        RecordError: If not every two responses were compared.
    """
    num_responses = len(columns["scores"])
    tokens = columns.get("tokens") or 0
    comparisons = columns.get("comparisons")
    if comparisons is None:
        yield SCORES, RankedAnswers(tuple(columns["scores"]), num_responses, tokens)
        return
    has_soft = all(comparison["probability"] is not None for comparison in comparisons)
    tokens_per_comparison = tokens / len(comparisons)
    for is_soft in (True, False) if has_soft else (False,):
        points = points_matrix(num_responses, comparisons, is_soft)
        verdicts = "soft" if is_soft else "hard"
        shares = tuple(shares_of_points(points).tolist())
        yield f"{ALL}, {verdicts}", RankedAnswers(shares, len(comparisons), tokens)
        for name, schedule in schedules(num_responses):
            ranking = replayed(points, schedule)
            yield (
                f"{name}, {verdicts}",
                RankedAnswers(
                    tuple(ranking.scores.tolist()),
                    ranking.num_comparisons,
                    tokens_per_comparison * ranking.num_comparisons,
                ),
            )


def schedules(num_responses: int) -> Iterator[tuple[str, Schedule]]:
    """Yield the schedules that are compared, each with its name."""
    yield "sorted", MergeSort(num_responses)
    for num_rounds in SWISS_ROUNDS:
        yield f"swiss {num_rounds}", Swiss(num_responses, num_rounds)


def clusters_of_questions(questions: Sequence[RankedQuestion]) -> Ints:
    """Return the index of the cluster of each question; questions of one image share a cluster."""
    return cluster_codes([question.media for question in questions])


def figures_of_way(
    judge: str, way: str, trainings: Sequence[Questions], keys: Sequence[str]
) -> WayFigures:
    """Return the figures of one way of a judge on the questions `keys`, for each training.

    Raises:
        UserError: If a question was not ranked in this way, as when the files of one judge were
            scored with different settings.
    """
    shape = (len(trainings), len(keys))
    auc = np.full(shape, np.nan)
    best = np.zeros(shape)
    sampled = np.zeros(shape)
    judgements = np.zeros(shape)
    tokens = np.zeros(shape)
    for training, questions in enumerate(trainings):
        for column, key in enumerate(keys):
            question = questions[key]
            if way not in question.rankings:
                raise UserError(
                    f"{judge}: a question was not ranked by `{way}`. The files of one judge must "
                    "be scored with the same settings"
                )
            ranking = question.rankings[way]
            share = in_group_auc(ranking.scores, question.right)
            if share is not None:
                auc[training, column] = share
            best[training, column] = best_of(ranking.scores, question.right, len(question.right))
            sampled[training, column] = np.mean(question.right)
            judgements[training, column] = ranking.judgements
            tokens[training, column] = ranking.tokens
    return WayFigures(
        judge, way, auc, best, sampled, float(judgements.mean()), float(tokens.mean())
    )


def estimate(values: Floats, clusters: Ints) -> Estimate:
    """Return the mean of shares with an interval.

    It is over trainings and questions from `LEAST_SEEDS` trainings on, and over questions for
    fewer.

    Args:
        values: Shares from 0 to 1 of shape (trainings, questions).
        clusters: Index of each question's cluster.
    """
    if len(values) >= LEAST_SEEDS:
        return accuracy_over_seeds(values, clusters)
    return share_interval(values.mean(axis=0), clusters)


def gain(figures: WayFigures, clusters: Ints) -> Difference:
    """Return the accuracy of the best of N minus that of a sampled answer, with its interval.

    Both are of the same questions and trainings. The interval is that of `estimate`.
    """
    return _paired(figures.best, figures.sampled, clusters, num_compared=1)


def loss(
    reference: WayFigures, figures: WayFigures, clusters: Ints, num_compared: int
) -> Difference:
    """Return the accuracy of the reference's best of N minus that of another way.

    Ways of one judge are paired by training and question, those of two judges by question alone.

    Args:
        reference: The figures of the reference.
        figures: The figures of the other way.
        clusters: Index of each question's cluster.
        num_compared: The number of losses that are read together.
    """
    is_same_judge = reference.judge == figures.judge
    too_few = min(len(reference.best), len(figures.best)) < LEAST_SEEDS
    if is_same_judge or too_few:
        return _paired(reference.best, figures.best, clusters, num_compared)
    return difference_over_seeds(reference.best, figures.best, clusters, num_compared)


def _paired(first: Floats, second: Floats, clusters: Ints, num_compared: int) -> Difference:
    """Return mean(first) - mean(second) of the same questions, and of the same trainings if equal.

    Args:
        first: Shares of shape (trainings, questions).
        second: Shares of the same questions.
        clusters: Index of each question's cluster.
        num_compared: The number of differences that are read together.
    """
    if len(first) == len(second) >= LEAST_SEEDS:
        return paired_difference_over_seeds(first, second, clusters, num_compared)
    return paired_difference(first.mean(axis=0), second.mean(axis=0), clusters, num_compared)


def study_result(
    all_figures: Sequence[WayFigures], clusters: Ints, num_left_out: int
) -> StudyResult:
    """Return the table of all ways, with its figures and its notes.

    Args:
        all_figures: The figures of every way; the first one is the reference.
        clusters: Index of each question's cluster.
        num_left_out: The number of questions that are not in all files.
    """
    reference = all_figures[0]
    num_compared = len(all_figures) - 1
    lines: list[dict[str, Any]] = []
    rows: list[tuple[str, ...]] = []
    # Every file has the same answers, so a question is mixed for all ways or for none.
    mixed = np.isfinite(reference.auc[0])
    for figures in all_figures:
        line: dict[str, Any] = {
            "judge": figures.judge,
            "way": figures.way,
            "trainings": len(figures.best),
            "judgements": figures.judgements,
            "tokens": figures.tokens,
        }
        auc_text = "–"
        if mixed.any():
            auc = estimate(figures.auc[:, mixed], clusters[mixed])
            line["auc"] = auc.plain
            auc_text = auc.percent
        best = estimate(figures.best, clusters)
        way_gain = gain(figures, clusters)
        line["best"] = best.plain
        line["gain"] = _plain(way_gain)
        loss_text = ""
        if figures is not reference:
            way_loss = loss(reference, figures, clusters, num_compared)
            line["loss"] = _plain(way_loss)
            loss_text = _points(way_loss)
        lines.append(line)
        rows.append(
            (
                figures.judge,
                figures.way,
                f"{figures.judgements:.1f}",
                f"{figures.tokens:,.0f}",
                auc_text,
                best.percent,
                _points(way_gain),
                loss_text,
            )
        )
    columns = (
        Column("judge"),
        Column("way"),
        *(Column(name, is_number=True) for name in ("judgements", "tokens", "AUC", "best of N")),
        *(Column(name, is_number=True) for name in ("gain", "loss")),
    )
    num_questions = reference.best.shape[1]
    notes = (
        f"{num_questions:,} questions, {int(mixed.sum()):,} of them with right and wrong answers "
        f"(AUC). A sampled answer is right in {100 * reference.sampled.mean():.1f} %. Losses are "
        f"those of {reference.judge} ({reference.way}).",
        f"{num_left_out:,} questions are left out, because not all files have them.",
    )
    table = Table("ways to rank", columns, tuple(rows), notes)
    figures_for_json = {
        "reference": {"judge": reference.judge, "way": reference.way},
        "questions": num_questions,
        "mixed_questions": int(mixed.sum()),
        "left_out": num_left_out,
        "sampled": float(reference.sampled.mean()),
        "ways": lines,
    }
    document = "\n\n".join(["# Ways to rank", table.markdown(), *notes]) + "\n"
    return StudyResult(figures_for_json, (table,), document=document)


def _points(difference: Difference) -> str:
    """Return a difference and its interval in points, such as "+3.4 [+1.0, +5.8]"."""
    return interval(difference.mean, difference.low, difference.high, signed_points)


def _plain(difference: Difference) -> dict[str, float | None]:
    """Return a difference in the form that is written to JSON."""
    return {"mean": difference.mean, "low": difference.low, "high": difference.high}


def write(result: StudyResult, folder: Path) -> None:
    """Write the figures and the table of a comparison to a folder."""
    write_json(folder / "rankings.json", result.figures)
    write_whole(folder / "rankings.md", result.document)
