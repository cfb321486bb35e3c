"""GenAI-Bench (arXiv 2406.04485): 3,723 votes of people on generated images, edits and videos.

A row has two generated images, edited images or videos, and one of four votes: the left one is
better, the right one is better, both are equally good, both are bad. Its figures are those of
show_results.py in github.com/TIGER-AI-Lab/GenAI-Bench at f0b0334: in each of the three tasks the
share of rows whose vote the judge gives. `[[A=B]]` is right for both kinds of ties.

The rows are on the hub (the split `test_v1`, as in the official script), or in a copy of the hub's
repository: a folder with a subfolder of parquet files for each task, or the folder or a file of one
task. Videos are shown as frames, which `python data/frames.py VIDEOS OUT` cuts, or themselves if
the location has `videos: video`. The official script
shows 8 frames. Its configuration names 16, under a key that the script does not read.

A row of a tie has no better response. A judge is right on it if it scores both responses equally,
and a judge that compares is right if it prefers neither over the two orders. For judges that
score, other authors count a tie where the scores differ by less than a threshold: the rules
`with_ties` and `without_ties`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mmrm.data.errors import PredictionsError, RecordError
from mmrm.data.preference import Response
from mmrm.data.storage.row_files import Row
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
    editions_with_groups,
    figures_by_group,
    macro,
)
from mmrm.eval.benchmarks.prediction_records import (
    abbreviated,
    is_number,
    one_of,
    parse_records,
    predictions_row_name,
    text,
)
from mmrm.eval.benchmarks.ranked_predictions import finite_scores, ranked_predictions_format
from mmrm.eval.benchmarks.rows import (
    content_key,
    fetching,
    find_files,
    limited_indices,
    loaded_benchmark,
    path_below,
    read_json_lines,
    read_json_value,
    read_rows,
    refuse_embedded,
    require_texts,
    row_image,
    user_turn,
)
from mmrm.eval.benchmarks.tie_calibration import (
    PairLabel,
    accuracy_with_ties_one_by_one,
    accuracy_without_ties,
)
from mmrm.eval.benchmarks.video_frames import (
    frames_from_the_first,
    video_at,
    with_note_on_videos,
)
from mmrm.eval.candidates import RankedExample, Scores

NAME = "genai_bench"
TITLE = "GenAI-Bench"
HUB = "TIGER-Lab/GenAI-Bench"
SPLIT = "test_v1"
"""The split of the official script. The split `test` has other rows."""
FILES = (f"{SPLIT}-*.parquet", f"{SPLIT}.jsonl")
TASKS = ("image_generation", "image_edition", "video_generation")
"""The tasks by their official names, in the order of the published table."""
UNKNOWN_TASK = "unknown task"
"""The task of a line that does not state it, in a file that is not in a folder of a task."""
NUM_ROWS = {"image_generation": 1735, "image_edition": 919, "video_generation": 1069}
KNOWN = (
    *(
        PublishedEdition(f"the released edition's {task}", num_rows, {task: num_rows})
        for task, num_rows in NUM_ROWS.items()
    ),
    PublishedEdition("the released edition (test_v1)", sum(NUM_ROWS.values()), NUM_ROWS),
)
"""The tasks, each of which may be evaluated alone, and the whole edition."""
NUM_FRAMES = 8
"""The number of frames of a video that the official script shows."""
RIGHT_VERDICTS = {
    "leftvote": ("[[A>>B]]", "[[A>B]]"),
    "rightvote": ("[[B>>A]]", "[[B>A]]"),
    "tievote": ("[[A=B]]", "[[A=B=Good]]"),
    "bothbad_vote": ("[[A=B]]", "[[A=B=Bad]]"),
}
"""The verdicts that inference.py counts as right, by the vote of people. A is the left response."""
RANKS = {"leftvote": (0, 1), "rightvote": (1, 0), "tievote": (0, 0), "bothbad_vote": (0, 0)}
"""The ranks of the left and the right response, by the vote of people."""


# Rows


@dataclass(frozen=True, slots=True)
class TaskColumns:
    """The columns of a task's rows."""

    texts: tuple[str, ...]
    """The columns of texts. The last one is the request, which judges are shown."""
    source: str | None
    """The column of the image before an edit."""
    responses: tuple[str, str]
    """The columns of the left and the right response."""


COLUMNS = {
    "image_generation": TaskColumns(("prompt",), None, ("left_image", "right_image")),
    "image_edition": TaskColumns(
        ("source_prompt", "target_prompt", "instruct_prompt"),
        "source_image",
        ("left_output_image", "right_output_image"),
    ),
    "video_generation": TaskColumns(("prompt",), None, ("left_video", "right_video")),
}


def check_location(where: Location) -> None:
    """Raise UserError if a local location holds no file of the benchmark."""
    refuse_embedded(TITLE, where)
    if where.location != "hub":
        _files_of_tasks(where.location)


def load(where: Location) -> LoadedBenchmark:
    """Return the rows, after checking that every image can be decoded.

    A row without its images, its videos or their frames is unavailable.

    Raises:
        UserError: If files are missing, images are broken, or no row can be shown.
        RecordError: If a row cannot be used.
    """
    rows, origin = _rows_and_origin(where)
    loaded = loaded_benchmark(NAME, rows, where, origin, editions_with_groups(KNOWN, rows))
    return with_note_on_videos(loaded, where, f"{NUM_FRAMES} frames")


def read(where: Location) -> list[RankedExample]:
    """Return the rows without decoding their images.

    Raises:
        UserError: If files are missing.
        RecordError: If a row cannot be used.
    """
    rows, _ = _rows_and_origin(where)
    return rows


def _rows_and_origin(where: Location) -> tuple[list[RankedExample], str]:
    """Return the rows, at most `where.limit`, and their origin: a path or a hub revision."""
    refuse_embedded(TITLE, where)
    origin = where.location
    image_root = Path()  # not used on the hub, whose rows hold the images themselves
    rows_of_tasks: list[list[Row]] = []
    if where.location == "hub":
        origin = f"{HUB}@{where.revision or 'main'}"
        rows_of_tasks = [_rows_on_hub(task, where.revision) for task in TASKS]
    else:
        image_root = Path(where.image_root or where.location).expanduser()
        if image_root.is_file():
            image_root = image_root.parent
        for files in _files_of_tasks(where.location):
            rows_of_tasks.append(read_rows(files))

    numbered_rows: list[tuple[int, Row]] = []
    for rows_of_task in rows_of_tasks:
        numbered_rows += enumerate(rows_of_task)
    examples = []
    for index in limited_indices(len(numbered_rows), where.limit):
        number, row = numbered_rows[index]
        identity = f"{NAME}:{index} ({row_id(_task_of_row(row, index), number)})"
        examples.append(_example(row, number, image_root, identity, where))
    return examples, origin


def _rows_on_hub(task: str, revision: str | None) -> list[Row]:
    """Return the rows of a task on the hub. Images are mappings of `bytes` and `path`."""
    import datasets

    with fetching(TITLE, HUB):
        table = datasets.load_dataset(HUB, task, split=SPLIT, revision=revision)
    rows: list[Row] = table.with_format("arrow")[:].to_pylist()
    return rows


def _files_of_tasks(location: str) -> list[list[Path]]:
    """Return the files of each task that a folder has, or of the one task at `location`.

    Raises:
        UserError: If there are no files.
    """
    folder = Path(location).expanduser()
    task_folders = [folder / task for task in TASKS if (folder / task).is_dir()]
    return [find_files(str(path), FILES, TITLE) for path in task_folders or [folder]]


def _task_of_row(row: Row, index: int) -> str:
    """Return the task whose columns a row has.

    Raises:
        RecordError: If it has those of no task.
    """
    for task, columns in COLUMNS.items():
        if row.keys() >= set(columns.responses):
            return task
    pairs = " or ".join(" and ".join(columns.responses) for columns in COLUMNS.values())
    raise RecordError(
        f"{NAME}, row {index}: the columns are {', '.join(sorted(row))}; required are {pairs}. "
        "Fetch the files again."
    )


def _example(row: Row, number: int, root: Path, identity: str, where: Location) -> RankedExample:
    """Return a row of the hub's files as a row with a ranking of two responses.

    Args:
        row: The row.
        number: The number of the row in its task.
        root: The folder that paths of images and frames are relative to.
        identity: The benchmark and the row, for messages.
        where: The location, which says if a video or its frames are shown.

    Raises:
        RecordError: If texts are missing, or the vote is none of the four.
    """
    task = _task_of_row(row, number)
    columns = COLUMNS[task]
    require_texts(row, (*columns.texts, "vote_type"), identity)
    if row["vote_type"] not in RANKS:
        raise RecordError(
            f"{identity}: vote_type is {abbreviated(row['vote_type'])}; required is one of "
            f"{', '.join(RANKS)}. Correct the row, or fetch the files again."
        )
    sources = []
    if columns.source is not None:
        sources.append(row_image(row.get(columns.source), root, identity))
    left, right = (
        _response(row.get(column), task, root, identity, where) for column in columns.responses
    )
    missing = [image.reference for image in sources if image.content is None]
    missing += [response.reference for response in (left, right) if not response.content.content]
    unavailable = f"missing under {root}: {', '.join(missing)}" if missing else ""

    prompt = user_turn(row[columns.texts[-1]], num_images=len(sources))
    references = [left.reference, right.reference]
    texts = {column: row[column] for column in columns.texts}
    return RankedExample(
        key=content_key(prompt, references, [image.reference for image in sources]),
        images=tuple(content for image in sources for content in image.contents),
        prompt=prompt,
        responses=(left.content, right.content),
        ranks=RANKS[row["vote_type"]],
        group=task,
        source=task,
        identity=identity,
        row={
            "id": row_id(task, number),
            "task": task,
            "idx": number,
            **texts,
            "human_vote": row["vote_type"],
        },
        unavailable=unavailable,
    )


@dataclass(frozen=True, slots=True)
class _ShownResponse:
    """A response of a row, and a text that stands for it in the row's key."""

    content: Response
    """The image, the frames of the video, or the video. Empty if they are missing."""
    reference: str


def _response(
    value: object, task: str, root: Path, identity: str, where: Location
) -> _ShownResponse:
    """Return a response: an image, the frames of a video, or a video.

    Args:
        value: The image, or the address of the video.
        task: The task.
        root: The folder that paths of images and frames are relative to.
        identity: The benchmark and the row, for messages.
        where: The location, which says if a video or its frames are shown.

    Raises:
        RecordError: If the value is neither an image nor a text.
    """
    if task != "video_generation":
        image = row_image(value, root, identity)
        return _ShownResponse(Response(image.contents), image.reference)
    if not isinstance(value, str):
        raise RecordError(
            f"{identity}: a video is {abbreviated(value)}; required is its address. Fetch the "
            "files again."
        )
    if where.videos == "video":
        videos = video_at(root, path_of_video(value), identity)
        return _ShownResponse(Response(videos), value)
    num_frames = where.frames or NUM_FRAMES
    for folder_name in frame_folders(value):
        frames = frames_from_the_first(path_below(root, folder_name, identity), num_frames)
        if frames:
            return _ShownResponse(Response(frames), value)
    return _ShownResponse(Response(()), value)


def path_of_video(address: str) -> str:
    """Return the path of a video in a copy of the repository that its address names.

    Example: https://huggingface.co/datasets/tianleliphoebe/genai-arena-video-mp4/blob/main/dir/a.mp4
    gives dir/a.mp4.
    """
    return address.partition("/blob/main/")[2] or Path(address).name


def frame_folders(address: str) -> list[str]:
    """Return the folders, relative to the image root, where the frames of a video may be.

    Example: https://huggingface.co/datasets/tianleliphoebe/genai-arena-video-mp4/blob/main/dir/a.mp4
    gives dir/a, where data/frames.py writes the frames of a copy of that repository, and a.
    """
    path = Path(path_of_video(address)).with_suffix("")
    return list(dict.fromkeys([str(path), path.name]))


# Predictions files


def official_records(rows: Sequence[RankedExample], scores: Sequence[Scores]) -> list[Record]:
    """Return the predictions as inference.py writes them, with the task and both scores.

    The verdict is `[[A>B]]` or `[[B>A]]` for the response of the higher score, and `[[A=B]]` for
    equal scores. The scores of a judge that compares are the shares of comparisons that the
    responses won. If nothing can be read, the verdict is null.
    """
    records = []
    for row, row_scores in zip(rows, scores, strict=True):
        columns = dict(row.row)
        del columns["id"]
        are_read = not row_scores.votes or any(vote.named is not None for vote in row_scores.votes)
        records.append(_official_record(columns, row_scores.values, are_read))
    return records


def _official_record(columns: Record, values: Sequence[float | None], are_read: bool) -> Record:
    """Return a record of the official format.

    Args:
        columns: The columns of the row, with `human_vote`.
        values: The scores of the left and the right response.
        are_read: False if no judgement can be read.
    """
    left, right = finite_scores([math.nan if value is None else value for value in values])
    verdict = None
    if are_read and left is not None and right is not None:
        if left > right:
            verdict = "[[A>B]]"
        elif right > left:
            verdict = "[[B>A]]"
        else:
            verdict = "[[A=B]]"
    return {
        **columns,
        "response": verdict or "",
        "model_vote": verdict,
        "correct": verdict in RIGHT_VERDICTS[columns["human_vote"]],
        "scores": [left, right],
    }


def _official_record_of_prediction(record: Record) -> Record:
    """Return a line of `predictions.jsonl`, the project's own file, in the official format.

    The line does not tell which kind of tie people voted for. The verdict `[[A=B]]`, the only tie
    of our judges, is right for both kinds.
    """
    identity, _ = predictions_row_name(record)
    task, _, number = identity.rpartition("/")
    ranks = tuple(record["ranks"])
    human_vote = next(vote for vote, ranks_of_vote in RANKS.items() if ranks_of_vote == ranks)
    columns = {"task": task, "idx": int(number), "human_vote": human_vote}
    names = [one_of(vote["names"], (0, 1, None), "a vote's names") for vote in record["votes"]]
    are_read = not names or any(name is not None for name in names)
    return _official_record(columns, record["scores"], are_read)


def script_files(records: Sequence[Record]) -> Mapping[str, object]:
    """Return the files that show_results.py reads from results/TASK/JUDGE/, one for each task."""
    records_by_task: dict[str, list[Record]] = {}
    for record in records:
        records_by_task.setdefault(record["task"], []).append(record)
    return {f"{task}.json": records_of_task for task, records_of_task in records_by_task.items()}


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
    """Return the verdict in a judge's text, such as `[[A>B]]`; None if there is none.

    It is in the first line with `[[` and a later `]]`, from the first `[[` to the last `]]`. That is
    what the pattern of inference.py finds, which takes quadratic time for a line of many brackets.
    """
    for line in response.split("\n"):
        start = line.find("[[")
        end = line.rfind("]]")
        if start >= 0 and end >= start + 2:
            return line[start : end + 2]
    return None


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


# Score of judges that score


@dataclass(frozen=True, slots=True)
class ScoredPair:
    """A line with the scores of both responses."""

    task: str
    label: PairLabel
    """1 if people preferred the left response, -1 for the right one, 0 for both kinds of ties."""
    difference: float
    """The score of the left response minus the score of the right one; NaN if one is missing."""


def scored_pair(record: Record) -> ScoredPair:
    """Return the content of a line with scores.

    Raises:
        ValueError: If the vote is none of the four, or the scores are not two numbers or null.
    """
    human_vote = one_of(record["human_vote"], tuple(RANKS), "human_vote")
    scores = record["scores"]
    if not isinstance(scores, list) or len(scores) != 2:
        raise ValueError(f"scores are {abbreviated(scores)}")
    if not all(score is None or is_number(score) for score in scores):
        raise ValueError(f"scores are {abbreviated(scores)}")
    left, right = (math.nan if score is None else score for score in scores)
    left_rank, right_rank = RANKS[human_vote]
    labels: dict[int, PairLabel] = {-1: -1, 0: 0, 1: 1}
    return ScoredPair(task_of_record(record), labels[right_rank - left_rank], left - right)


def tie_score(
    records: PredictionRecords,
    accuracy: Callable[[Sequence[PairLabel], Sequence[float]], float | None],
) -> dict[str, Any]:
    """Return an accuracy of score differences, by task (`groups`) and of all rows (`micro`).

    Args:
        records: The lines of a file.
        accuracy: Computes the accuracy of labels and differences.

    Raises:
        PredictionsError: If a line cannot be read.
    """
    required = "human_vote and scores (the left and the right response's; null if unreadable)"
    pairs = parse_records(records, scored_pair, required)
    pairs_by_task: dict[str, list[ScoredPair]] = {}
    for pair in pairs:
        pairs_by_task.setdefault(pair.task, []).append(pair)
    groups: dict[str, dict[str, Any]] = {}
    for task, pairs_of_task in pairs_by_task.items():
        groups[task] = {
            "n": len(pairs_of_task),
            "right": None,  # a share at a threshold, or of some of the rows
            "accuracy": _accuracy_of_pairs(pairs_of_task, accuracy),
        }
    return {
        "micro": _accuracy_of_pairs(pairs, accuracy),
        "macro": macro([group["accuracy"] for group in groups.values()]),
        "groups": groups,
    }


def _accuracy_of_pairs(
    pairs: Sequence[ScoredPair],
    accuracy: Callable[[Sequence[PairLabel], Sequence[float]], float | None],
) -> float | None:
    """Return an accuracy of the labels and differences of pairs."""
    return accuracy([pair.label for pair in pairs], [pair.difference for pair in pairs])


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
    "with_ties": ScoringRule(
        about="calc_accuracy.py of VideoAlign and EditReward, for judges that score: rows whose "
        "scores differ by at most a threshold are ties, at the threshold that is best for them",
        reads="official",
        score=partial(tie_score, accuracy=accuracy_with_ties_one_by_one),
        differs="each task has its own threshold; micro has one for all rows",
    ),
    "without_ties": ScoringRule(
        about="calc_accuracy.py of VideoAlign and EditReward, for judges that score: the share of "
        "the rows without a tie vote in which the better response scores higher",
        reads="official",
        score=partial(tie_score, accuracy=accuracy_without_ties),
        differs="nothing",
    ),
}
FILES_SCORED = {
    "predictions": ranked_predictions_format(
        "official", "official", _official_record_of_prediction
    ),
    "official": FileFormat(
        about="pairwise.json or pairwise.jsonl of inference.py: idx, response, model_vote, "
        "human_vote and correct; with_ties and without_ties also read scores",
        marks=("human_vote", "correct"),
        rules="official",
        row=row_name,
        group=task_of_record,
    ),
}


GENAI_BENCH = Benchmark(
    name=NAME,
    load=load,
    check_location=check_location,
    read=read,
    read_predictions=read_predictions,
    files=FILES_SCORED,
    formats={"official": official_records},
    script_files=script_files,
    rules=RULES,
    known=KNOWN,
    ranked=True,
)
