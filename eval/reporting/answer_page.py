"""A policy's answers as a page shows them: accuracies and scores by step, and some questions."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from mmrm.data.display.axis import Axis
from mmrm.data.display.chart import Chart
from mmrm.data.display.format import short_number
from mmrm.data.display.html import TINY, thumbnail
from mmrm.data.errors import ImageError, UserError
from mmrm.data.film_strip import film_strip
from mmrm.data.images import decode
from mmrm.data.preference import Preference, texts
from mmrm.data.preparation.mixing import Mixture, MixtureConfig
from mmrm.data.sources.registry import AnySource
from mmrm.data.storage.content import question_key
from mmrm.eval.reporting.run_charts import TICKS, Score, score_lines, score_text
from mmrm.eval.reporting.run_content import FIGURES, JsonRow, QuestionSet, evenly_spaced
from mmrm.eval.results.intervals import Difference, paired_difference
from mmrm.eval.results.predictions import item_codes

SHOWN = 6
"""Questions shown of a set.

These are the first one, and those with right and wrong answers of which the score prefers a wrong
one most.
"""
SAMPLED = 3
"""Different sampled answers shown of a question, from the highest score to the lowest."""
THUMBNAIL = 280
"""Longest side in pixels of an image."""
CHARTS = {
    "one answer": ("greedy", "sampled"),
    "{} answers": ("best", "pass", "majority"),
    "score": ("sampled score", "greedy score"),
}
"""Names of the lines of each chart by its title."""
SCORES = {"sampled score": "score", "greedy score": "greedy_score"}
"""Keys of the stored means of the scores by their names on the page."""
CHANGED = ("greedy", "sampled")
"""Figures whose difference from the first step is shown."""


@dataclass(slots=True)
class ShownQuestions:
    """The figures of a policy's answers to a set of questions, and some questions, for the page."""

    name: str
    step: int
    """The step whose answers and figures are shown."""
    heads: dict[str, str]
    """Column heads of the accuracies by their keys."""
    steps: Mapping[int, JsonRow]
    """The figures by step."""
    charts: list[Chart]
    changes: dict[int, dict[str, Difference]]
    """Differences from the first step with answers, by step and figure."""
    comparisons: int = 1
    """Number of differences in `changes`, whose intervals hold together."""
    asked: list[JsonRow] = field(default_factory=list)
    """The questions that are shown with their answers, as `_question_with_answers` returns them."""
    notes: list[str] = field(default_factory=list)

    @property
    def figures(self) -> JsonRow:
        """The figures of the step that is shown."""
        return self.steps[self.step]


def shown_questions(question_set: QuestionSet, best: int | None) -> ShownQuestions:
    """Return the figures and some questions of a question set for the page.

    Args:
        question_set: The set with its figures and answers.
        best: The run's best step, or None. Its answers are shown if they are there, else those of
            the last step with answers.
    """
    # The step that is shown: the best one, else the last one with answers, else the last one.
    step = max(question_set.files, default=max(question_set.steps))
    if best is not None and best in question_set.files:
        step = best
    num_samples = _num_samples(question_set)
    heads = {}
    for name, head in FIGURES.items():
        if any(name in figures for figures in question_set.steps.values()):
            heads[name] = head.format(num_samples)
    rows_by_step: dict[int, list[JsonRow]] = {}
    for answered_step, file in sorted(question_set.files.items()):
        rows_by_step[answered_step] = _lines(file)
    changes = _changes(rows_by_step)
    shown = ShownQuestions(
        question_set.name,
        step,
        heads,
        question_set.steps,
        _charts(question_set, heads, num_samples),
        changes,
        comparisons=sum(len(changes_of_step) for changes_of_step in changes.values()),
    )
    if rows_by_step.get(step):
        _show_questions(shown, question_set, rows_by_step[step])
    return shown


def _num_samples(question_set: QuestionSet) -> int | str:
    """Return the number of sampled answers to each question; "N" if it is not known."""
    for figures in reversed(question_set.steps.values()):
        if "samples" in figures:
            return int(figures["samples"])
    return "N"


def _show_questions(
    shown: ShownQuestions, question_set: QuestionSet, rows: Sequence[JsonRow]
) -> None:
    """Add up to SHOWN questions, and notes about them, to `shown`.

    Args:
        shown: Gets the questions and the notes.
        question_set: The set, with the source of its questions.
        rows: All questions with the answers of a step, from a file of answers.
    """
    # The first question is always shown. The others are those in which a wrong answer has the
    # largest lead over the right ones.
    margins: dict[int, float] = {}
    for index, row in enumerate(rows[1:], start=1):
        margin = _margin_of_wrong_answer(row)
        if margin is not None:
            margins[index] = margin
    most_misleading = sorted(margins, key=lambda index: -margins[index])
    indices = sorted([0, *most_misleading[: SHOWN - 1]])
    records = _records(question_set, {index: rows[index] for index in indices}, shown.notes)
    for index in indices:
        question = _question_with_answers(rows[index], records.get(index), shown.notes)
        shown.asked.append(question)
    shown.notes.insert(0, f"{len(indices)} of {len(rows):,} questions at step {shown.step}.")


def _lines(file: Path) -> list[JsonRow]:
    """Return the rows of a file of JSON lines."""
    with file.open(encoding="utf-8") as text_lines:
        return [json.loads(line) for line in text_lines]


def _changes(
    rows_by_step: Mapping[int, Sequence[JsonRow]],
) -> dict[int, dict[str, Difference]]:
    """Return the differences of the figures CHANGED from the first step, by step and figure.

    Differences are paired by question. A step with other questions than the first has none.

    Args:
        rows_by_step: The questions with the answers of each step, in the order of the steps.
    """
    if not rows_by_step:
        return {}
    (_, first_rows), *later_steps = rows_by_step.items()
    first_row_by_id = {row["id"]: row for row in first_rows}
    # Questions about the same item are not independent, which widens the intervals.
    items = item_codes([str(row.get("item", row["id"])) for row in first_rows])
    credits_by_step: dict[int, dict[str, JsonRow]] = {}
    for step, rows in later_steps:
        row_by_id = {row["id"]: row for row in rows}
        if row_by_id.keys() != first_row_by_id.keys():
            continue
        pairs = [(row, first_row_by_id[row_id]) for row_id, row in row_by_id.items()]
        if all(_is_same_question(row, first_row) for row, first_row in pairs):
            credits_by_step[step] = {row["id"]: row["credits"] for row in rows}
    comparisons = len(CHANGED) * len(credits_by_step)
    changes: dict[int, dict[str, Difference]] = {}
    for step, credits_by_id in credits_by_step.items():
        changes[step] = {}
        for figure in CHANGED:
            after = np.array([credits_by_id[row_id][figure] for row_id in first_row_by_id])
            before = np.array([row["credits"][figure] for row in first_row_by_id.values()])
            changes[step][figure] = paired_difference(after, before, items, comparisons)
    return changes


def _is_same_question(row: JsonRow, other: JsonRow) -> bool:
    """Return False if the questions of two rows with the same id have different content keys.

    Rows of earlier versions have no key. They count as the same question.
    """
    if "key" not in row or "key" not in other:
        return True
    return bool(row["key"] == other["key"])


def _charts(
    question_set: QuestionSet, heads: Mapping[str, str], num_samples: int | str
) -> list[Chart]:
    """Return charts of the figures over the steps; an empty list if there is a single step.

    Args:
        question_set: The set with its figures.
        heads: The names of the accuracies on the page by their keys.
        num_samples: The number of sampled answers to each question, for titles.
    """
    steps = list(question_set.steps)
    if len(steps) < 2:
        return []
    x = Axis.numbers(steps, "step", steps if len(steps) <= TICKS else None)
    charts = []
    for title, names in CHARTS.items():
        scores_by_name: dict[str, list[tuple[float, Score]]] = {}
        heights: list[float] = []
        for name in names:
            scores = _scores_by_step(question_set, SCORES.get(name, name))
            if scores:
                scores_by_name[heads.get(name, name)] = scores
            for _, score in scores:
                heights += score
        if not heights:
            continue
        is_score = names[0] in SCORES
        y = Axis.numbers(heights) if is_score else Axis.shares(heights)
        form = _mean_text if is_score else score_text
        full_title = f"{question_set.name}: {title.format(num_samples)}"
        charts.append(Chart(full_title, x, y, tuple(score_lines(x, scores_by_name, form))))
    return charts


def _scores_by_step(question_set: QuestionSet, key: str) -> list[tuple[float, Score]]:
    """Return the steps at which the figure `key` is stored, each with the figure's value."""
    points: list[tuple[float, Score]] = []
    for step, figures in question_set.steps.items():
        if key in figures:
            points.append((step, _score(figures[key])))
    return points


def _score(stored: Any) -> Score:
    """Return a stored figure, with its interval if it was stored with one.

    `stored` is a number, or a mapping with `mean` and perhaps `low` and `high`.
    """
    if not isinstance(stored, Mapping):
        return (stored,)
    numbers = [stored.get(name) for name in ("mean", "low", "high")]
    return tuple(number for number in numbers if number is not None)


def _mean_text(score: Score) -> str:
    """Return the text of a mean score."""
    return short_number(score[0])


def _margin_of_wrong_answer(row: JsonRow) -> float | None:
    """Return the highest score of a wrong sampled answer minus the highest of a right one.

    Returns None if there are no right answers or no wrong ones. Answers without scores count as 0.
    """
    # The first answer of a row is the greedy one, and the others are sampled.
    is_right = row["right"][1:]
    scores = row["scores"][1:] or [0.0] * len(is_right)
    right_scores = [score for score, right in zip(scores, is_right, strict=True) if right]
    wrong_scores = [score for score, right in zip(scores, is_right, strict=True) if not right]
    if not right_scores or not wrong_scores:
        return None
    return float(max(wrong_scores) - max(right_scores))


def _records(
    question_set: QuestionSet, row_by_index: Mapping[int, JsonRow], notes: list[str]
) -> dict[int, Preference]:
    """Return the records of some questions by index, with their texts and images.

    A question is missing from the result if its source cannot be read, or now holds another
    question at its index.

    Args:
        question_set: The set, with the source of its questions.
        row_by_index: The rows of the questions in the file of answers, by index in the source.
        notes: Gets a sentence for every reason why questions are missing.
    """
    if question_set.source is None:
        notes.append("Without a recipe the questions and their images cannot be shown.")
        return {}
    try:
        source = TypeAdapter(AnySource).validate_python(question_set.source)
        mixture = Mixture(MixtureConfig(sources=[source]))
        records = {index: mixture[index] for index in row_by_index if index < len(mixture)}
        keys = {index: question_key(record) for index, record in records.items()}
    except (ValueError, OSError) as error:  # data that were moved, no network, other settings
        notes.append(
            f"The questions could not be loaded, so their texts and images are missing: {error}"
        )
        return {}
    unchanged: dict[int, Preference] = {}
    for index, record in records.items():
        row = row_by_index[index]
        if record.identity == row["id"] and _is_same_question(row, {"key": keys[index]}):
            unchanged[index] = record
    num_missing = len(row_by_index) - len(unchanged)
    if num_missing:
        notes.append(
            f"{num_missing} of them are not in the source as it was loaded here: "
            "they have no texts and images."
        )
    return unchanged


def _question_with_answers(
    row: JsonRow, record: Preference | None, notes: list[str]
) -> dict[str, Any]:
    """Return a question with its greedy answer and up to SAMPLED sampled ones, for the template.

    Equal sampled answers are one answer with a number of `times`.

    Args:
        row: The question's row in the file of answers.
        record: The question with its texts and images; None if it is missing from its source.
        notes: Gets a sentence for every image and video that cannot be decoded and is left out.
    """
    scores = row["scores"] or [None] * len(row["texts"])
    columns = zip(row["texts"], row["right"], row["cut_off"], scores, strict=True)
    greedy, *sampled = [
        {"text": text, "right": right, "cut_off": cut_off, "score": score}
        for text, right, cut_off, score in columns
    ]
    times = Counter(answer["text"] for answer in sampled)
    different = {answer["text"]: answer | {"times": times[answer["text"]]} for answer in sampled}
    ordered = sorted(different.values(), key=lambda answer: -(answer["score"] or 0.0))
    question: dict[str, Any] = {
        "id": row["id"],
        "category": row["category"],
        "samples": len(sampled),
        "different": len(different),
        "right": sum(row["right"][1:]),
        "greedy": greedy,
        "sampled": evenly_spaced(ordered, SAMPLED),
        "turns": [],
        "images": [],
        "videos": [],
        "truth": (),
    }
    if record is None:
        return question
    for image in record.images:
        try:
            decoded = decode(image, record.identity)
        except ImageError as error:
            notes.append(f"An image cannot be shown: {error}")
            continue
        is_tiny = max(decoded.size) <= TINY
        question["images"].append((is_tiny, thumbnail(decoded, THUMBNAIL)))
    for video in record.videos:
        try:
            question["videos"].append(film_strip(video, record.identity))
        except UserError as error:  # a damaged video, or no PyAV
            notes.append(f"A video cannot be shown: {error}")
    question["turns"] = ["\n".join(texts([turn])) for turn in record.prompt]
    question["truth"] = record.truth.answers if record.truth else ()
    return question
