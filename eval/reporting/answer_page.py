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
from mmrm.data.errors import ImageError
from mmrm.data.images import decode
from mmrm.data.preference import Preference, texts
from mmrm.data.preparation.mixing import Mixture, MixtureConfig
from mmrm.data.sources.registry import AnySource
from mmrm.data.storage.content import question_key
from mmrm.eval.reporting.run_charts import TICKS, Score, lines, score_text
from mmrm.eval.reporting.run_content import FIGURES, JsonRow, QuestionSet, spread
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
    """A set of questions on the page."""

    name: str
    step: int
    """The step whose answers and figures are shown."""
    heads: dict[str, str]
    """Names of the accuracies on the page by their keys."""
    steps: Mapping[int, JsonRow]
    """The figures by step."""
    charts: list[Chart]
    changes: dict[int, dict[str, Difference]]
    """Differences from the first step with answers, by step and figure."""
    comparisons: int = 1
    """Number of differences in `changes`, whose intervals hold together."""
    asked: list[JsonRow] = field(default_factory=list)
    """The questions that are shown with their answers."""
    notes: list[str] = field(default_factory=list)

    @property
    def figures(self) -> JsonRow:
        """The figures of the step that is shown."""
        return self.steps[self.step]


def shown_questions(found: QuestionSet, best: int | None) -> ShownQuestions:
    """Return a set of questions for the page.

    Args:
        found: The set with its figures and answers.
        best: The run's best step, or None. Its answers are shown if they are there, else those of
            the last step with answers.
    """
    last_step = max(found.files, default=max(found.steps))
    step = best if best is not None and best in found.files else last_step
    num_samples = _num_samples(found)
    heads = {}
    for name, words in FIGURES.items():
        if any(name in figures for figures in found.steps.values()):
            heads[name] = words.format(num_samples)
    answers = {step: _lines(file) for step, file in sorted(found.files.items())}
    changes = _changes(answers)
    comparisons = sum(len(of_step) for of_step in changes.values())
    charts = _charts(found, heads, num_samples)
    shown = ShownQuestions(found.name, step, heads, found.steps, charts, changes, comparisons)
    if answers.get(step):
        _show_questions(shown, found, answers[step])
    return shown


def _num_samples(found: QuestionSet) -> int | str:
    """Return the number of sampled answers to each question, "N" if no figures contain it."""
    for figures in reversed(found.steps.values()):
        if "samples" in figures:
            return int(figures["samples"])
    return "N"


def _show_questions(shown: ShownQuestions, found: QuestionSet, rows: Sequence[JsonRow]) -> None:
    """Add questions of `rows`, and notes about them, to `shown`."""
    margins: dict[int, float] = {}
    for index, row in enumerate(rows):
        margin = _margin_of_wrong_answer(row)
        if index > 0 and margin is not None:
            margins[index] = margin
    misleading = sorted(margins, key=lambda index: -margins[index])
    indices = sorted([0, *misleading[: SHOWN - 1]])
    records = _records(found, {index: rows[index] for index in indices}, shown.notes)
    for index in indices:
        shown.asked.append(_asked(rows[index], records.get(index), shown.notes))
    shown.notes.insert(0, f"{len(indices)} of {len(rows):,} questions at step {shown.step}.")


def _lines(file: Path) -> list[JsonRow]:
    """Return the rows of a file of JSON lines."""
    with file.open(encoding="utf-8") as text_lines:
        return [json.loads(line) for line in text_lines]


def _changes(answers: Mapping[int, Sequence[JsonRow]]) -> dict[int, dict[str, Difference]]:
    """Return the paired differences of steps that answered the same questions as the first."""
    if not answers:
        return {}
    (_, first_rows), *others = answers.items()
    start = {row["id"]: row for row in first_rows}
    items = item_codes([str(row.get("item", row["id"])) for row in first_rows])
    credits_by_step: dict[int, dict[str, JsonRow]] = {}
    for step, rows in others:
        row_by_id = {row["id"]: row for row in rows}
        if row_by_id.keys() != start.keys():
            continue
        if all(_is_same_question(row_by_id[name], start[name]) for name in start):
            credits_by_step[step] = {name: row["credits"] for name, row in row_by_id.items()}
    comparisons = len(CHANGED) * len(credits_by_step)
    changes: dict[int, dict[str, Difference]] = {}
    for step, credits_by_id in credits_by_step.items():
        changes[step] = {}
        for figure in CHANGED:
            after = np.array([credits_by_id[name][figure] for name in start])
            before = np.array([start[name]["credits"][figure] for name in start])
            changes[step][figure] = paired_difference(after, before, items, comparisons)
    return changes


def _is_same_question(row: JsonRow, other: JsonRow) -> bool:
    """Return False if two rows of one identity have different contents of their question."""
    keys = {one["key"] for one in (row, other) if "key" in one}
    return len(keys) < 2


def _charts(found: QuestionSet, heads: Mapping[str, str], num_samples: int | str) -> list[Chart]:
    """Return charts of the figures over the steps, if there are several steps."""
    steps = list(found.steps)
    if len(steps) < 2:
        return []
    x = Axis.numbers(steps, "step", steps if len(steps) <= TICKS else None)
    charts = []
    for title, names in CHARTS.items():
        scores_by_name: dict[str, list[tuple[float, Score]]] = {}
        heights: list[float] = []
        for name in names:
            scores = _scores_by_step(found, SCORES.get(name, name))
            if scores:
                scores_by_name[heads.get(name, name)] = scores
            for _, score in scores:
                heights += score
        if not heights:
            continue
        is_score = names[0] in SCORES
        y = Axis.numbers(heights) if is_score else Axis.shares(heights)
        form = _mean_text if is_score else score_text
        full_title = f"{found.name}: {title.format(num_samples)}"
        charts.append(Chart(full_title, x, y, tuple(lines(x, scores_by_name, form))))
    return charts


def _scores_by_step(found: QuestionSet, key: str) -> list[tuple[float, Score]]:
    """Return the steps at which a figure is stored, each with the figure and its interval."""
    return [(step, _score(figures[key])) for step, figures in found.steps.items() if key in figures]


def _score(value: Any) -> Score:
    """Return a figure, with its interval if it was stored with one."""
    if not isinstance(value, Mapping):
        return (value,)
    numbers = [value.get(name) for name in ("mean", "low", "high")]
    return tuple(number for number in numbers if number is not None)


def _mean_text(score: Score) -> str:
    """Return the text of a mean score."""
    return short_number(score[0])


def _margin_of_wrong_answer(row: JsonRow) -> float | None:
    """Return by how much the score prefers the best wrong sampled answer to the best right one.

    Returns None if there are no right answers or no wrong ones. Without scores all of them are 0.
    """
    is_right = row["right"][1:]
    scores = row["scores"][1:] or [0.0] * len(is_right)
    scores_of_right = [score for score, right in zip(scores, is_right, strict=True) if right]
    scores_of_wrong = [score for score, right in zip(scores, is_right, strict=True) if not right]
    if not scores_of_right or not scores_of_wrong:
        return None
    return float(max(scores_of_wrong) - max(scores_of_right))


def _records(
    found: QuestionSet, row_by_index: Mapping[int, JsonRow], notes: list[str]
) -> dict[int, Preference]:
    """Return the questions at some indices of their source, as far as they are there.

    A note about every reason why questions are missing is added to `notes`.
    """
    if found.source is None:
        notes.append("Without a recipe the questions and their images cannot be shown.")
        return {}
    try:
        source = TypeAdapter(AnySource).validate_python(found.source)
        mixture = Mixture(MixtureConfig(sources=[source]))
        records = {index: mixture[index] for index in row_by_index if index < len(mixture)}
        keys = {index: question_key(record) for index, record in records.items()}
    except (ValueError, OSError) as error:  # data that were moved, no network, other settings
        notes.append(
            f"The questions could not be loaded, so their texts and images are missing: {error}"
        )
        return {}
    same: dict[int, Preference] = {}
    for index, record in records.items():
        row = row_by_index[index]
        if record.identity == row["id"] and _is_same_question(row, {"key": keys[index]}):
            same[index] = record
    num_missing = len(row_by_index) - len(same)
    if num_missing:
        notes.append(
            f"{num_missing} of them are not in the source as it was loaded here: "
            "they have no texts and images."
        )
    return same


def _asked(row: JsonRow, record: Preference | None, notes: list[str]) -> dict[str, Any]:
    """Return a question with its greedy answer and different sampled ones, for the template.

    Each sampled answer has its score and how many times it was given. Images that cannot be decoded
    are left out, and a note is added to `notes`.
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
    asked: dict[str, Any] = {
        "id": row["id"],
        "category": row["category"],
        "samples": len(sampled),
        "different": len(different),
        "right": sum(row["right"][1:]),
        "greedy": greedy,
        "sampled": spread(ordered, SAMPLED),
        "turns": [],
        "images": [],
        "truth": (),
    }
    if record is None:
        return asked
    for image in record.images:
        try:
            decoded = decode(image, record.identity)
        except ImageError as error:
            notes.append(f"An image cannot be shown: {error}")
            continue
        is_tiny = max(decoded.size) <= TINY
        asked["images"].append((is_tiny, thumbnail(decoded, THUMBNAIL)))
    asked["turns"] = ["\n".join(texts([turn])) for turn in record.prompt]
    asked["truth"] = record.truth.answers if record.truth else ()
    return asked
