"""Multimodal RewardBench 2 (MMRB2, arXiv 2512.16899): 4,000 pairs of text-and-image responses.

The four tasks have 1,000 pairs each: text to image, editing, interleaved texts and images, and
reasoning with images. Its figures are those of evaluate/compute_scores/compute_accuracy.py in
github.com/facebookresearch/MMRB2 at 7ff0552: a judge sees each pair in both orders, and each of the
two judgements counts one. A judgement that is missing or empty counts in no figure.

The data may not be used for training, and their licence is CC BY-NC 4.0: users fetch them. The
rows are on the hub, in a copy of the hub's repository (a folder of parquet files for each task), or
in the folder benchmark/ of the authors' repository after its build_from_hf.py has written t2i.json,
edit.json, interleaved.json and reasoning.json there. One of these files or folders alone is one
task. Before that the folder has the files `*_response_only.json`, whose pairs have no prompts. They
cannot be judged, but they hold the labels that `--score` needs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmrm.data.errors import PredictionsError, RecordError, UserError
from mmrm.data.preference import EncodedImage, Message, Response
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
    macro,
)
from mmrm.eval.benchmarks.prediction_records import (
    abbreviated,
    one_of,
    parse_records,
    predictions_format,
    predictions_group,
    predictions_row_name,
    text,
)
from mmrm.eval.benchmarks.rows import (
    content_key,
    fetching,
    find_files,
    limited_indices,
    loaded_benchmark,
    read_json_lines,
    read_json_value,
    read_rows,
    refuse_embedded,
    row_image,
)
from mmrm.eval.candidates import Example, Scores, Side

NAME = "mmrb2"
TITLE = "Multimodal RewardBench 2"
HUB = "rl-research/multimodal-rewardbench-2"
TASKS = {
    "t2i": "task1_image",
    "edit": "task2_edit",
    "interleaved": "task3_interleaved",
    "reasoning": "task4_reasoning",
}
"""The tasks by the names of their files, and the names under which the official script prints
them."""
KNOWN = (
    *(PublishedEdition(f"the released edition's {task}", 1000, {task: 1000}) for task in TASKS),
    PublishedEdition("the released edition", 4000, dict.fromkeys(TASKS, 1000)),
)
"""The tasks, each of which may be evaluated alone, and the whole edition."""
PARQUET = "test-*.parquet"
"""The files of a task in the hub's repository."""
PLACEHOLDER = re.compile(r"<image_\d+>")
"""The position of an image in the hub's texts."""
Part = tuple[str, object]
"""A part of a prompt or response: "text" and the text, or "image" and a path or a mapping with the
image's bytes."""


# Rows


def check_location(where: Location) -> None:
    """Raise UserError if a local location holds no file of the benchmark."""
    refuse_embedded(TITLE, where)
    if where.location != "hub":
        _files_of_tasks(where.location)


def load(where: Location) -> LoadedBenchmark:
    """Return the rows, after checking that every image can be decoded.

    A row whose prompt or images have not been fetched is unavailable.

    Raises:
        UserError: If files are missing, images are broken, or no row can be shown.
        RecordError: If a row cannot be used.
    """
    rows, origin = _rows_and_origin(where)
    return loaded_benchmark(NAME, rows, where, origin, editions_with_groups(KNOWN, rows))


def read(where: Location) -> list[Example]:
    """Return the rows without decoding their images.

    Raises:
        UserError: If files are missing.
        RecordError: If a row cannot be used.
    """
    rows, _ = _rows_and_origin(where)
    return rows


def _rows_and_origin(where: Location) -> tuple[list[Example], str]:
    """Return the rows, at most `where.limit`, and their origin: a path or a hub revision."""
    refuse_embedded(TITLE, where)
    origin = where.location
    image_root = Path()  # not used on the hub, whose rows hold the images themselves
    rows_of_tasks: list[tuple[str, Row]] = []
    if where.location == "hub":
        origin = f"{HUB}@{where.revision or 'main'}"
        for task in TASKS:
            rows_of_tasks += [(task, row) for row in _rows_on_hub(task, where.revision)]
    else:
        image_root = Path(where.image_root or where.location).expanduser()
        if image_root.is_file():
            image_root = image_root.parent
        for task, files in _files_of_tasks(where.location).items():
            rows_of_tasks += [(task, row) for row in _rows_of_files(files)]

    examples = []
    for index in limited_indices(len(rows_of_tasks), where.limit):
        task, row = rows_of_tasks[index]
        # The README calls the column pair_id, and the files of build_from_hf.py call it id.
        row_id = row.get("id", row.get("pair_id"))
        examples.append(_example(row, task, row_id, image_root, f"{NAME}:{index} ({row_id})"))
    return examples, origin


def _rows_on_hub(task: str, revision: str | None) -> list[Row]:
    """Return the rows of a task on the hub. Images are mappings of `bytes` and `path`."""
    import datasets

    with fetching(TITLE, HUB):
        table = datasets.load_dataset(HUB, task, split="test", revision=revision)
    rows: list[Row] = table.with_format("arrow")[:].to_pylist()
    return rows


def _files_of_tasks(location: str) -> dict[str, list[Path]]:
    """Return the files of each task at a location.

    The location is a folder with files of some tasks, or a file or a folder of one task.

    Raises:
        UserError: If there are no files, or a file is of no task by its name and folder.
    """
    path = Path(location).expanduser()
    if path.is_file():
        return {_task_of_file(path): find_files(location, (), TITLE)}
    if path.name in TASKS and any(path.glob(PARQUET)):
        return {path.name: find_files(location, (PARQUET,), TITLE)}
    files_by_task: dict[str, list[Path]] = {}
    all_patterns: list[str] = []
    for task in TASKS:
        # The files with prompts come before those without.
        patterns = (f"{task}.json", f"{task}/{PARQUET}", f"{task}_response_only.json")
        all_patterns += patterns
        if any(any(path.glob(pattern)) for pattern in patterns):
            files_by_task[task] = find_files(location, patterns, TITLE)
    if not files_by_task:
        find_files(location, all_patterns, TITLE)  # raises the error that names what is required
    return files_by_task


def _task_of_file(path: Path) -> str:
    """Return the task of a file: t2i.json, t2i_response_only.json or t2i/test-….parquet.

    Raises:
        UserError: If the file has another name and is in another folder.
    """
    for name in (path.stem.removesuffix("_response_only"), path.parent.name):
        if name in TASKS:
            return name
    raise UserError(
        f"{TITLE}: {path} is named for no task, nor is its folder. Required is one of "
        f"{', '.join(f'{task}.json' for task in TASKS)}."
    )


def _rows_of_files(files: Sequence[Path]) -> list[Row]:
    """Return the rows of a task's files: JSON with the key `pairs`, or parquet as on the hub.

    Raises:
        RecordError: If a JSON file has another form.
    """
    if files[0].suffix != ".json":
        return read_rows(files)
    content = read_json_value(files[0])
    pairs = content.get("pairs") if isinstance(content, dict) else None
    if not isinstance(pairs, list) or not all(isinstance(pair, dict) for pair in pairs):
        raise RecordError(
            f"{TITLE}: {files[0]} has no list of objects under `pairs`. Fetch the file again."
        )
    return pairs


@dataclass(frozen=True, slots=True)
class _Content:
    """The texts and images of a prompt or of a response, in their order."""

    parts: tuple[str | EncodedImage, ...]
    """The texts and the images that are there."""
    reference: str
    """A text for the row's key, with a name for each image."""
    missing: tuple[str, ...]
    """Names of the images that are not there."""


def _example(row: Row, task: str, row_id: object, root: Path, identity: str) -> Example:
    """Return a pair as a row.

    Args:
        row: The row of a JSON file, or of the hub.
        task: The task, a key of TASKS.
        row_id: The id of the pair.
        root: The folder that paths of images are relative to.
        identity: The benchmark and the row, for messages.

    Raises:
        RecordError: If the row lacks its id or label, or a response has another form.
    """
    chosen = str(row.get("chosen")).upper()  # build_from_hf.py also turns the hub's into capitals
    if not isinstance(row_id, str) or chosen not in ("A", "B"):
        raise RecordError(
            f"{identity}: id is {abbreviated(row_id)} and chosen is "
            f"{abbreviated(row.get('chosen'))}; required are a text, and A or B. Fetch the files "
            "again."
        )
    better: Side = 0 if chosen == "A" else 1
    prompt_parts = _prompt_parts(row, identity)
    prompt = _content(prompt_parts or [], root, identity)
    response_a = _content(_response_parts(row, "response_a", identity), root, identity)
    response_b = _content(_response_parts(row, "response_b", identity), root, identity)
    unavailable = ""
    missing = [*prompt.missing, *response_a.missing, *response_b.missing]
    if prompt_parts is None:
        unavailable = "its prompt has not been fetched: run build_from_hf.py of the authors"
    elif missing:
        unavailable = f"missing under {root}: {', '.join(missing)}"
    turn = _user_turn(prompt)
    references = [response_a.reference, response_b.reference]
    return Example(
        key=content_key([turn], references, [prompt.reference]),
        images=Response(prompt.parts).images,
        prompt=(turn,),
        responses=(Response(response_a.parts), Response(response_b.parts)),
        better=better,
        group=task,
        source=str(row.get("prompt_source") or task),
        identity=identity,
        row={"id": row_id, "task": task, "chosen": chosen},
        official_first=0,
        unavailable=unavailable,
    )


def _user_turn(prompt: _Content) -> Message:
    """Return the prompt as a turn of the user, with its images in their places."""
    return {"role": "user", "content": Response(prompt.parts).parts}


def _prompt_parts(row: Row, identity: str) -> list[Part] | None:
    """Return the parts of a row's prompt; None if the prompt has not been fetched."""
    if "prompt_text" in row:
        return parts_of_hub_text(row["prompt_text"], row.get("prompt_images"))
    if "prompt_content" not in row:
        return None
    return _checked_parts(row["prompt_content"], "prompt_content", identity)


def _response_parts(row: Row, name: str, identity: str) -> list[Part]:
    """Return the parts of a response.

    Args:
        row: The row.
        name: `response_a` or `response_b`.
        identity: The benchmark and the row, for messages.

    Raises:
        RecordError: If the response has another form.
    """
    if f"{name}_text" in row:
        return parts_of_hub_text(row[f"{name}_text"], row.get(f"{name}_images"))
    response = row.get(name)
    content = response.get("response_content") if isinstance(response, Mapping) else None
    return _checked_parts(content, f"{name}.response_content", identity)


def _checked_parts(content: object, name: str, identity: str) -> list[Part]:
    """Return `content` if it is a list of pairs of a type and a text.

    Raises:
        RecordError: If it is not. The message calls it `name`.
    """
    parts: list[Part] = []
    for part in content if isinstance(content, list) else [content]:
        kind, value = part if isinstance(part, list) and len(part) == 2 else (None, None)
        if kind not in ("text", "image") or not isinstance(value, str):
            raise RecordError(
                f"{identity}: {name} holds {abbreviated(part)}; required is a list of "
                '["text", TEXT] and ["image", PATH]. Fetch the files again.'
            )
        parts.append((kind, value))
    return parts


def parts_of_hub_text(content: str | None, images: Sequence[object] | None) -> list[Part]:
    """Return the parts of a text with placeholders such as <image_1>, as build_from_hf.py does.

    The placeholders take the images in their order, whatever their numbers are. Images beyond the
    last placeholder are left out, and so are placeholders beyond the last image. A text without
    placeholders comes before all images. Texts are stripped, and empty ones left out.
    """
    remaining_images = list(images or [])
    texts = PLACEHOLDER.split(content or "")
    parts: list[Part] = []
    for index, piece in enumerate(texts):
        if index > 0 and remaining_images:
            parts.append(("image", remaining_images.pop(0)))
        if piece.strip():
            parts.append(("text", piece.strip()))
    if len(texts) == 1:
        parts += [("image", image) for image in remaining_images]
    return parts


def _content(parts: Sequence[Part], root: Path, identity: str) -> _Content:
    """Return the texts and images of `parts`.

    Args:
        parts: The parts, whose images are paths or mappings with bytes.
        root: The folder that paths of images are relative to.
        identity: The benchmark and the row, for messages.
    """
    shown: list[str | EncodedImage] = []
    references: list[list[str]] = []
    missing: list[str] = []
    for kind, value in parts:
        if kind == "text":
            shown.append(str(value))
            references.append([kind, str(value)])
            continue
        image = row_image(value, root, identity)
        references.append([kind, image.reference])
        shown.extend(image.contents)
        if image.content is None:
            missing.append(image.reference)
    return _Content(tuple(shown), json.dumps(references), tuple(missing))


# Predictions files


def read_predictions(path: Path) -> PredictionRecords:
    """Return the predictions of a judge: one of the official files, a folder of them, or JSON lines.

    An official file is a JSON object with the prediction of each pair under its id. A line of the
    result has the id and the prediction.

    Raises:
        UserError: If a file has another form, or two files of a folder hold the same pair.
    """
    if path.is_file() and path.suffix != ".json":
        return read_json_lines(path)
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise PredictionsError(
            f"{path} holds no *.json. Required is a file of predictions, or the folder with the "
            "files of the four tasks."
        )
    file_by_id: dict[str, Path] = {}
    records: list[Record | None] = []
    for file in files:
        predictions = read_json_value(file)
        if not isinstance(predictions, dict):
            raise PredictionsError(
                f"{file} holds a JSON {type(predictions).__name__}; required is an object with the "
                "prediction of each pair under its id."
            )
        for row_id, prediction in predictions.items():
            if row_id in file_by_id:
                raise PredictionsError(
                    f"{row_id!a} is in {file_by_id[row_id]} and in {file}. Give a folder with the "
                    "files of one judge."
                )
            file_by_id[row_id] = file
            records.append({"id": row_id, "prediction": prediction})
    return records


def with_labels(records: PredictionRecords, rows: Sequence[Example]) -> list[Record]:
    """Return a line for each row of the benchmark, with its task, its label and the prediction.

    A row without a prediction has no `prediction`. Rows of tasks without any prediction are left
    out, and so are predictions of unknown rows, as in the official script.

    Raises:
        PredictionsError: If a line has no id or no prediction.
    """
    predictions = parse_records(
        records, lambda record: (text(record, "id"), record["prediction"]), "id and prediction"
    )
    prediction_by_id = dict(predictions)
    predicted_tasks = {row.row["task"] for row in rows if row.row["id"] in prediction_by_id}
    labelled = []
    for row in rows:
        if row.row["task"] not in predicted_tasks:
            continue
        line = dict(row.row)
        if line["id"] in prediction_by_id:
            line["prediction"] = prediction_by_id[line["id"]]
        labelled.append(line)
    return labelled


def official_records(rows: Sequence[Example], scores: Sequence[Scores]) -> list[Record]:
    """Return the predictions of each row, as the official script reads them, with task and label.

    `forward` has the judgements that showed A first, and `reverse` the others, in which the names
    are exchanged. A judge that scores has one of each, with the same winner. Equal scores are the
    judgement "tie", which counts as wrong. A judgement that cannot be read is null.
    """
    records = []
    for row, row_scores in zip(rows, scores, strict=True):
        votes = [(vote.shown[0], vote.named) for vote in row_scores.votes]
        prediction = _prediction(votes, row_scores.values)
        records.append({**row.row, "prediction": prediction})
    return records


def _prediction(votes: Sequence[tuple[int, int | None]], values: Sequence[float | None]) -> Record:
    """Return the judgements on a pair.

    Args:
        votes: The response that was shown first, and the one that was named, for each vote.
        values: The scores of A and B. They are used if there are no votes.
    """
    if not votes:
        return {
            "forward": [_judgement(_winner(values))],
            "reverse": [_judgement(_winner(values, 1))],
        }
    forward: list[Record] = []
    reverse: list[Record] = []
    for first, named in votes:
        name = None if named is None else "AB"[(named - first) % 2]
        (forward if first == 0 else reverse).append(_judgement(name))
    return {"forward": forward, "reverse": reverse}


def _winner(values: Sequence[float | None], first: int = 0) -> str | None:
    """Return the name of the response with the higher score, if response `first` is called A.

    Returns "tie" for equal scores, and None if a score is missing or not finite.
    """
    shown_first = values[first]
    shown_second = values[1 - first]
    if shown_first is None or shown_second is None:
        return None
    if shown_first > shown_second:
        return "A"
    if shown_second > shown_first:
        return "B"
    return "tie" if shown_first == shown_second else None


def _judgement(name: str | None) -> Record:
    """Return a judgement in the form of the official files."""
    return {"judgement": name}


def _official_record_of_prediction(record: Record) -> Record:
    """Return a line of `predictions.jsonl`, the project's own file, in the official format."""
    row_id, _ = predictions_row_name(record)
    better = one_of(record["better"], (0, 1), "better")
    votes = []
    for vote in record["votes"]:
        named = one_of(vote["names"], (0, 1, None), "a vote's names")
        votes.append((one_of(vote["first"], (0, 1), "a vote's first"), named))
    return {
        "id": row_id,
        "task": one_of(predictions_group(record), tuple(TASKS), "group"),
        "chosen": "AB"[better],
        "prediction": _prediction(votes, record["scores"] or ()),
    }


def script_files(records: Sequence[Record]) -> Mapping[str, object]:
    """Return the files that compute_accuracy.py reads as `--predictions`, one for each task."""
    predictions_by_file: dict[str, dict[str, Any]] = {}
    for record in records:
        file = f"{TASKS[record['task']]}.json"
        predictions_by_file.setdefault(file, {})[record["id"]] = record["prediction"]
    return predictions_by_file


# Official score


@dataclass(slots=True)
class TaskCounts:
    """The counts of compute_accuracy.py for one task."""

    total_pairs: int = 0
    missing_pairs: int = 0
    total_correct: int = 0
    """Number of right judgements."""
    total_evaluated: int = 0
    """Number of judgements that are not empty."""

    @property
    def accuracy(self) -> float:
        """The share of right judgements; 0 if there is none, as in the script."""
        return self.total_correct / self.total_evaluated if self.total_evaluated else 0.0


def official_score(records: PredictionRecords) -> dict[str, Any]:
    """Return the figures of compute_accuracy.py: by task (`groups`), and overall (`micro`).

    They count judgements, of which a pair has two. `macro` is the mean of the tasks, the column
    "Avg." of the published table. `detail` has the script's other counts of each task.

    Raises:
        PredictionsError: If the script could not read a line.
    """
    judged_rows = parse_records(records, _judged_row, REQUIRED)
    counts_by_task = {task: TaskCounts() for task in TASKS}
    for row in judged_rows:
        counts = counts_by_task[row.task]
        counts.total_pairs += 1
        counts.missing_pairs += row.is_missing
        counts.total_correct += sum(row.is_right)
        counts.total_evaluated += len(row.is_right)

    overall = TaskCounts()
    groups: dict[str, dict[str, Any]] = {}
    detail: dict[str, Any] = {}
    for task, counts in counts_by_task.items():
        if not counts.total_pairs:
            continue
        overall.total_correct += counts.total_correct
        overall.total_evaluated += counts.total_evaluated
        groups[task] = {
            "n": counts.total_evaluated,
            "right": counts.total_correct,
            "accuracy": counts.accuracy,
        }
        detail[task] = {
            "total_pairs": counts.total_pairs,
            "evaluated_pairs": counts.total_pairs - counts.missing_pairs,
            "missing_pairs": counts.missing_pairs,
        }
    return {
        "micro": overall.accuracy,
        "macro": macro([group["accuracy"] for group in groups.values()]),
        "groups": groups,
        "detail": detail,
    }


REQUIRED = (
    "task (t2i, edit, interleaved or reasoning), chosen (A or B) and prediction (an object with "
    "the lists forward and reverse of objects with a judgement)"
)


@dataclass(frozen=True, slots=True)
class JudgedRow:
    """A pair with its judgements, as the official script counts them."""

    task: str
    is_missing: bool
    """True if there is no prediction of the pair."""
    is_right: tuple[bool, ...]
    """For each judgement that is not empty, True if it names the better response."""


def _judged_row(record: Record) -> JudgedRow:
    """Return the content of a line with its label.

    Of `forward` and `reverse` the first judgement counts. Any value but A and B is wrong, and an
    empty one, such as null, does not count.

    Raises:
        KeyError, TypeError or AttributeError: If the prediction has another form.
        ValueError: If the task or the label has another value.
    """
    task = one_of(record["task"], tuple(TASKS), "task")
    chosen = one_of(record["chosen"], ("A", "B"), "chosen")
    if "prediction" not in record:
        return JudgedRow(task, is_missing=True, is_right=())
    prediction = record["prediction"]
    other = "B" if chosen == "A" else "A"
    is_right = []
    for order, right_name in (("forward", chosen), ("reverse", other)):
        if order in prediction and len(prediction[order]) > 0:
            judgement = prediction[order][0].get("judgement")
            if judgement:
                is_right.append(judgement == right_name)
    return JudgedRow(task, is_missing=False, is_right=tuple(is_right))


def _row_name(record: Record) -> RowName:
    """Return the name of the row that a line is about: its id."""
    return text(record, "id"), ()


FILES_SCORED = {
    "predictions": replace(
        predictions_format("official", "official"), convert=_official_record_of_prediction
    ),
    "official": FileFormat(
        about="JSON lines with id, task, chosen and prediction",
        marks=("id", "chosen", "prediction"),
        rules="official",
        row=_row_name,
        group=lambda record: text(record, "task"),
    ),
    "script": FileFormat(
        about="a JSON object with the prediction of each pair under its id, as in the authors' "
        "generate_judgements/outputs/, or a folder with those of several tasks; it has no labels",
        marks=("id", "prediction"),
        rules="official",
        becomes="official",
        row=_row_name,
        with_labels=with_labels,
    ),
}
RULES = {
    "official": ScoringRule(
        about="compute_accuracy.py: the share of right judgements, two for each pair",
        reads="official",
        score=official_score,
        differs="macro, the mean of the tasks, is added",
    ),
}


MMRB2 = Benchmark(
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
    official_note="The official script shows both orders. This evaluation showed response A first.",
)
