"""What a policy answered, as a page shows it: accuracies and scores by step, and some questions with their answers."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from mmrm.data.display.chart import Axis, Chart, plain
from mmrm.data.display.html import TINY, thumbnail
from mmrm.data.errors import ImageError
from mmrm.data.images import decode
from mmrm.data.preference import Preference, texts
from mmrm.data.preparation.mixing import Mixture, MixtureConfig
from mmrm.data.sources.registry import AnySource
from mmrm.data.storage.content import question_key
from mmrm.eval.reporting.run_charts import TICKS, Score, lines, words_of
from mmrm.eval.reporting.run_content import FIGURES, QuestionSet, Row, spread
from mmrm.eval.results.intervals import Difference, paired_difference
from mmrm.eval.results.predictions import item_codes

SHOWN = 6
"""Questions shown: the first one, then those with right and wrong answers of which the score prefers the wrong ones most."""
SAMPLED = 3
"""Different sampled answers shown of a question, from the highest score to the lowest."""
THUMBNAIL = 280
"""Longest side in pixels of an image."""
CHARTS = {
    "one answer": ("greedy", "sampled"),
    "{} answers": ("best", "pass", "majority"),
    "score": ("sampled score", "greedy score"),
}
"""Title of a chart to its lines."""
SCORES = {"sampled score": "score", "greedy score": "greedy_score"}
"""How a page calls the means of the scores, and where they are stored."""


@dataclass(slots=True)
class ShownQuestions:
    """A set of questions on the page."""

    name: str
    step: int
    """The one whose answers are shown, and which stands above the table."""
    heads: dict[str, str]
    """The accuracies, and how each is called."""
    steps: Mapping[int, Row]
    charts: list[Chart]
    changes: dict[int, dict[str, Difference]]
    """By step what it has more than the first one with answers."""
    comparisons: int = 1
    """Differences for which the intervals of `changes` hold together."""
    asked: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def figures(self) -> Row:
        """The figures of the step that is shown."""
        return self.steps[self.step]


def shown_questions(found: QuestionSet, best: int | None) -> ShownQuestions:
    """Return a set for the page: of the best step, if it is known and its answers are there, else of the last with answers."""
    step = best if best in found.files else max(found.files, default=max(found.steps))
    samples = next(
        (figures["samples"] for figures in reversed(found.steps.values()) if "samples" in figures),
        "N",
    )
    heads = {
        name: words.format(samples)
        for name, words in FIGURES.items()
        if any(name in one for one in found.steps.values())
    }
    answers = {step: _lines(file) for step, file in sorted(found.files.items())}
    changes = _changes(answers)
    comparisons = sum(map(len, changes.values()))
    charts = _charts(found, heads, samples)
    shown = ShownQuestions(found.name, step, heads, found.steps, charts, changes, comparisons)
    if rows := answers.get(step, []):
        misled = {
            place: how_far
            for place in range(1, len(rows))
            if (how_far := _misled(rows[place])) is not None
        }
        telling = sorted(misled, key=lambda place: -misled[place])
        places = sorted([0, *telling[: SHOWN - 1]])
        records = _records(found, {place: rows[place] for place in places}, shown.notes)
        shown.asked = [_asked(rows[place], records.get(place), shown.notes) for place in places]
        shown.notes.insert(0, f"{len(places)} of {len(rows):,} questions at step {step}.")
    return shown


def _lines(file: Path) -> list[Row]:
    with file.open(encoding="utf-8") as found:
        return [json.loads(line) for line in found]


def _changes(answers: Mapping[int, Sequence[Row]]) -> dict[int, dict[str, Difference]]:
    """Return the paired differences of the steps with answers to the same questions as the first."""
    if not answers:
        return {}
    (_, first_rows), *others = answers.items()
    start = {row["id"]: row for row in first_rows}
    items = item_codes([str(row.get("item", row["id"])) for row in first_rows])
    credits_by_step: dict[int, dict[str, Row]] = {}
    for step, rows in others:
        row_by_id = {row["id"]: row for row in rows}
        if row_by_id.keys() != start.keys():
            continue
        if all(_is_same_question(row_by_id[name], start[name]) for name in start):
            credits_by_step[step] = {name: row["credits"] for name, row in row_by_id.items()}
    figures = ("greedy", "sampled")
    comparisons = len(figures) * len(credits_by_step)
    changes: dict[int, dict[str, Difference]] = {}
    for step, credits_by_id in credits_by_step.items():
        changes[step] = {}
        for figure in figures:
            after = np.array([credits_by_id[name][figure] for name in start])
            before = np.array([start[name]["credits"][figure] for name in start])
            changes[step][figure] = paired_difference(after, before, items, comparisons)
    return changes


def _is_same_question(row: Row, other: Row) -> bool:
    """Return False if both rows of one identity hold the content of their question, and it differs."""
    keys = {one["key"] for one in (row, other) if "key" in one}
    return len(keys) < 2


def _charts(found: QuestionSet, heads: Mapping[str, str], samples: object) -> list[Chart]:
    """Return the figures over the steps, if there are several."""
    at, charts = list(found.steps), []
    for title, names in CHARTS.items() if len(at) > 1 else ():
        series: dict[str, list[tuple[float, Score]]] = {}
        for name in names:
            known = {
                step: figures[SCORES.get(name, name)]
                for step, figures in found.steps.items()
                if SCORES.get(name, name) in figures
            }
            if known:
                series[heads.get(name, name)] = [
                    (step, _score(value)) for step, value in known.items()
                ]
        heights = [height for points in series.values() for _, score in points for height in score]
        if heights:
            is_score = names[0] in SCORES
            y = Axis.numbers(heights) if is_score else Axis.shares(heights)
            chart = Chart(
                f"{found.name}: {title.format(samples)}",
                Axis.numbers(at, "step", at if len(at) <= TICKS else None),
                y,
            )
            lines(chart, series, (lambda score: plain(score[0])) if is_score else words_of)
            charts.append(chart)
    return charts


def _score(value: Any) -> Score:
    """Return a figure with its interval, if it was stored with one."""
    return (
        tuple(value[name] for name in ("mean", "low", "high") if value.get(name) is not None)
        if isinstance(value, Mapping)
        else (value,)
    )


def _misled(row: Row) -> float | None:
    """Return by how much the score prefers the best wrong sampled answer to the best right one; None without one of them."""
    scores = row["scores"][1:] or [0.0] * (len(row["right"]) - 1)
    by_right = {
        kind: [
            score for score, right in zip(scores, row["right"][1:], strict=True) if right == kind
        ]
        for kind in (True, False)
    }
    return max(by_right[False]) - max(by_right[True]) if all(by_right.values()) else None


def _records(
    found: QuestionSet, wanted: Mapping[int, Row], notes: list[str]
) -> dict[int, Preference]:
    """Return the questions at some places of their source, as far as they are there; the notes say what is not."""
    if found.source is None:
        notes.append("Without a recipe the questions and their images cannot be shown.")
        return {}
    try:
        mixture = Mixture(
            MixtureConfig(sources=[TypeAdapter(AnySource).validate_python(found.source)])
        )
        records = {place: mixture[place] for place in wanted if place < len(mixture)}
        keys = {place: question_key(record) for place, record in records.items()}
    except (ValueError, OSError) as error:  # not in the place any more, no network, other settings
        notes.append(
            f"The questions could not be loaded, so their texts and images are missing: {error}"
        )
        return {}
    same: dict[int, Preference] = {}
    for place, record in records.items():
        is_same = _is_same_question(wanted[place], {"key": keys[place]})
        if record.identity == wanted[place]["id"] and is_same:
            same[place] = record
    if len(same) < len(wanted):
        notes.append(
            f"{len(wanted) - len(same)} of them are not in the source as it was loaded here: they have no texts and images."
        )
    return same


def _asked(row: Row, record: Preference | None, notes: list[str]) -> dict[str, Any]:
    """Return a question with its greedy answer and different sampled ones, each with its score and how many times it came."""
    answers = [
        {"text": text, "right": right, "cut_off": cut_off, "score": score}
        for text, right, cut_off, score in zip(
            row["texts"],
            row["right"],
            row["cut_off"],
            row["scores"] or [None] * len(row["texts"]),
            strict=True,
        )
    ]
    times = Counter(answer["text"] for answer in answers[1:])
    different = {
        answer["text"]: answer | {"times": times[answer["text"]]} for answer in answers[1:]
    }
    ordered = sorted(different.values(), key=lambda answer: -(answer["score"] or 0.0))
    asked = {
        "id": row["id"],
        "category": row["category"],
        "samples": len(answers) - 1,
        "different": len(different),
    }
    asked |= {
        "right": sum(row["right"][1:]),
        "greedy": answers[0],
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
        asked["images"].append((max(decoded.size) <= TINY, thumbnail(decoded, THUMBNAIL)))
    asked["turns"] = ["\n".join(texts([turn])) for turn in record.prompt]
    return asked | {"truth": record.truth.answers if record.truth else ()}
