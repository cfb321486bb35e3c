"""GenAI-Bench (arXiv 2406.04485): 3,723 votes of people on generated images, edits and videos.

A row has two generated images, edited images or videos, and one of four votes: the left one is
better, the right one is better, both are equally good, both are bad. Its figures are those of
show_results.py in github.com/TIGER-AI-Lab/GenAI-Bench at f0b0334: in each of the three tasks the
share of rows whose vote the judge gives. `[[A=B]]` is right for both kinds of ties.

The rows are on the hub (the split `test_v1`, as in the official script), or in a copy of the hub's
repository: a folder with a subfolder of parquet files for each task, or the folder or a file of one
task. Videos are shown as frames, which `python data/frames.py VIDEOS OUT` cuts. The official script
shows 8 frames. Its configuration names 16, under a key that the script does not read.

A row of a tie has no better response. A judge is right on it if it scores both responses equally,
and a judge that compares is right if it prefers neither over the two orders. For judges that
score, other authors count a tie where the scores differ by less than a threshold: the rules
`with_ties` and `without_ties`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mmrm.data.errors import PredictionsError
from mmrm.eval.benchmarks.benchmark import (
    Benchmark,
    FileFormat,
    LoadedBenchmark,
    Location,
    PredictionRecords,
    PublishedEdition,
    Record,
    RowName,
    ScoringRule,
    figures_by_group,
)
from mmrm.eval.benchmarks.prediction_records import (
    abbreviated,
    one_of,
    parse_records,
    text,
)
from mmrm.eval.benchmarks.rows import read_json_lines, read_json_value

NAME = "genai_bench"
TASKS = ("image_generation", "image_edition", "video_generation")
"""The tasks by their official names, in the order of the published table."""
UNKNOWN_TASK = "unknown task"
"""The task of a line that does not state it, in a file that is not in a folder of a task."""
KNOWN = (
    PublishedEdition(
        "the released edition (test_v1)",
        3723,
        {"image_generation": 1735, "image_edition": 919, "video_generation": 1069},
    ),
)
RIGHT_VERDICTS = {
    "leftvote": ("[[A>>B]]", "[[A>B]]"),
    "rightvote": ("[[B>>A]]", "[[B>A]]"),
    "tievote": ("[[A=B]]", "[[A=B=Good]]"),
    "bothbad_vote": ("[[A=B]]", "[[A=B=Bad]]"),
}
"""The verdicts that inference.py counts as right, by the vote of people. A is the left response."""
VERDICT = re.compile(r"\[\[.*\]\]")
"""The verdict in a judge's text: from the first `[[` of a line to its last `]]`."""


# Official score


def read_predictions(path: Path) -> PredictionRecords:
    """Return the lines of a predictions file: a JSON list (`pairwise.json`) or JSON lines.

    The official files do not state their task. They are in the folder TASK/JUDGE, and the lines get
    the name of this task.

    Raises:
        UserError: If the file is neither.
    """
    records: list[Record | None] = []
    if path.suffix == ".json":
        content = read_json_value(path)
        if not isinstance(content, list) or not all(isinstance(item, dict) for item in content):
            raise PredictionsError(
                f"{path} holds a JSON {type(content).__name__}; required is a list of objects, as "
                "inference.py writes it."
            )
        records.extend(content)
    else:
        records = read_json_lines(path)
    task = path.resolve().parent.parent.name
    if task not in TASKS:
        return records
    return [None if record is None else {"task": task, **record} for record in records]


def task_of_record(record: Record) -> str:
    """Return the task of a line of a predictions file, or UNKNOWN_TASK.

    Lines about images and about videos have the same columns.
    """
    if "task" in record:
        task: str = one_of(record["task"], TASKS, "task")
        return task
    return "image_edition" if "source_prompt" in record else UNKNOWN_TASK


def row_name(record: Record) -> RowName:
    """Return the name of the row that a line is about: its task and its number in the task."""
    number = record["idx"]
    if type(number) is not int:
        raise ValueError(f"idx is {abbreviated(number)}; required is a whole number")
    return row_id(task_of_record(record), number), ()


def row_id(task: str, number: int) -> str:
    """Return the id of a row, such as `image_edition/12`."""
    return f"{task}/{number}"


def verdict_in(response: str) -> str | None:
    """Return the verdict in a judge's text, such as `[[A>B]]`; None if there is none."""
    match = VERDICT.search(response)
    return None if match is None else match.group()


def stated_outcome(record: Record) -> tuple[str, bool]:
    """Return the task of a line, and its column `correct`."""
    is_right: bool = one_of(record["correct"], (True, False), "correct")
    return task_of_record(record), is_right


def outcome_of_response(record: Record) -> tuple[str, bool]:
    """Return the task of a line, and True if the verdict in its `response` is right."""
    human_vote = one_of(record["human_vote"], tuple(RIGHT_VERDICTS), "human_vote")
    verdict = verdict_in(text(record, "response"))
    return task_of_record(record), verdict in RIGHT_VERDICTS[human_vote]


def official_score(
    records: PredictionRecords, outcome: Callable[[Record], tuple[str, bool]] = stated_outcome
) -> dict[str, Any]:
    """Return the accuracies of show_results.py: by task (`groups`), and of all rows (`micro`).

    `macro` is the mean of the tasks. `detail` holds the figures of the printed table, in percent
    and rounded twice: each task, and under `average` the mean of the three rounded ones. It has no
    average if the file does not hold all tasks.

    Args:
        records: The lines of a file.
        outcome: Returns the task of a line, and True if the line is right.

    Raises:
        PredictionsError: If a line cannot be read.
    """
    required = "correct (true or false) and human_vote"
    figures = figures_by_group(parse_records(records, outcome, required))
    printed: dict[str, float] = {}
    for task, group in figures["groups"].items():
        # numpy rounds as the script does. Python's own rounding may differ in the last digit.
        printed[task] = float(np.round(group["accuracy"] * 100, 2))
    if printed.keys() == set(TASKS):
        printed["average"] = float(np.round(np.mean(list(printed.values())), 2))
    return {**figures, "detail": printed}


RULES = {
    "official": ScoringRule(
        about="show_results.py: the share of rows whose vote of four the judge gives",
        reads="official",
        score=official_score,
        differs="it prints percentages with two decimals; micro over all tasks is added",
    ),
    "responses": ScoringRule(
        about="inference.py: the verdict is read in `response` again, and `correct` is not used",
        reads="official",
        score=partial(official_score, outcome=outcome_of_response),
        differs="nothing: it computes the column `correct`, which show_results.py reads",
    ),
}
FILES_SCORED = {
    "official": FileFormat(
        about="pairwise.json or pairwise.jsonl of inference.py: idx, response, model_vote, "
        "human_vote and correct",
        marks=("human_vote", "correct"),
        rules="official",
        row=row_name,
        group=task_of_record,
    ),
}


def load(where: Location) -> LoadedBenchmark:
    raise NotImplementedError


GENAI_BENCH = Benchmark(
    name=NAME,
    load=load,
    check_location=load,
    read_predictions=read_predictions,
    files=FILES_SCORED,
    formats={},
    rules=RULES,
    known=KNOWN,
    ranked=True,
)
