"""VideoGen-RewardBench (VideoAlign, arXiv 2501.13918): pairs of videos generated from one prompt.

People compared the two videos of a row in visual quality (VQ), motion quality (MQ), text alignment
(TA) and overall, each with the outcome A, B or "same". The label of a row is the overall one; a row
may be a tie. The other labels are used by the official rule alone.

The table videogen-rewardbench.csv names videos. Judges see the frames that data/frames.py cuts of
them, or the videos themselves with `videos: video`. A row without them is unavailable.

The rule `official` is `main` of eval_videogen_rewardbench.py with calc_accuracy.py, in
github.com/KwaiVGI/VideoAlign at 219ab9d.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mmrm.data.errors import UserError
from mmrm.data.preference import Response
from mmrm.data.storage.row_files import Row
from mmrm.eval.benchmarks.benchmark import (
    Benchmark,
    FileFormat,
    LoadedBenchmark,
    Location,
    PredictionRecords,
    Record,
    RowName,
    ScoringRule,
    macro,
)
from mmrm.eval.benchmarks.prediction_records import abbreviated, is_number, parse_records, text
from mmrm.eval.benchmarks.ranked_predictions import (
    finite_scores,
    ranked_predictions_format,
    score_record_of_prediction,
)
from mmrm.eval.benchmarks.rows import (
    BenchmarkFiles,
    content_key,
    limited_indices,
    loaded_benchmark,
    read_csv,
    read_json_lines,
    refuse_embedded,
    require_texts,
    user_turn,
)
from mmrm.eval.benchmarks.tie_calibration import (
    PairLabel,
    accuracy_with_ties_one_by_one,
    accuracy_without_ties,
    best_tie_threshold,
)
from mmrm.eval.benchmarks.video_frames import frames_of_video, video_at, with_note_on_videos
from mmrm.eval.candidates import RankedExample, Scores

NAME = "videogen_rewardbench"
HUB = "KwaiVGI/VideoGen-RewardBench"
FILES = ("videogen-rewardbench.csv",)
BENCHMARK_FILES = BenchmarkFiles(NAME, "VideoGen-RewardBench", HUB, FILES)
OVERALL = "Overall"
ATTRIBUTES = ("VQ", "MQ", "TA", OVERALL)
"""The attributes in the order in which the official script prints them."""
LABELS: dict[str, PairLabel] = {"A": 1, "B": -1, "same": 0}
"""The labels of pairs. The official script counts a pair with another label as wrong."""
RANKS = {"A": (0, 1), "B": (1, 0), "same": (0, 0)}
KEPT = ("path_A", "path_B", "prompt", *ATTRIBUTES)
"""Columns that the official predictions file repeats."""
FRAMES_PER_SECOND = 2.0
"""Frames of a second of video that the authors' model sees (`fps` in data.py and train.sh)."""
MIN_FRAMES = 4
MAX_FRAMES = 768
FRAMES = 32
"""The most frames of a video whose length the table does not state."""


# Rows


def check_location(where: Location) -> None:
    """Raise UserError if the location does not hold the table."""
    if where.location == "hub":
        cut = ""
        if where.videos == "frames":
            cut = ", cut the frames with `python data/frames.py VIDEOS VIDEOS --frames 32`"
        raise UserError(
            "VideoGen-RewardBench: the hub has the videos in one archive. Download the data set "
            f"{HUB}, unpack its videos{cut}, and set the location to the folder."
        )
    refuse_embedded("VideoGen-RewardBench", where)
    BENCHMARK_FILES.check_location(where)


def load(where: Location) -> LoadedBenchmark:
    """Return the rows, after checking that every frame can be decoded.

    A note states how many rows show other numbers of frames than the authors' model sees, or that
    the videos themselves are shown.

    Raises:
        UserError: If the table is missing, frames are broken, or no row can be shown.
        RecordError: If a row cannot be used.
    """
    rows, origin = _rows_and_origin(where)
    loaded = loaded_benchmark(NAME, rows, where, origin)
    if where.videos == "video":
        return with_note_on_videos(loaded, where, f"{FRAMES_PER_SECOND:g} frames a second")
    shown = loaded.examples
    num_different = sum(not row.row["has_official_frames"] for row in shown)
    if not num_different:
        return loaded
    note = (
        f"{num_different} of {len(shown)} rows show other numbers of frames than the authors' "
        f"model sees, which are {FRAMES_PER_SECOND:g} a second."
    )
    notes = (*loaded.origin.notes, note)
    return replace(loaded, origin=replace(loaded.origin, notes=notes))


def read(where: Location) -> list[RankedExample]:
    """Return the rows without decoding their frames.

    Raises:
        UserError: If the table is missing.
        RecordError: If a row cannot be used.
    """
    rows, _ = _rows_and_origin(where)
    return rows


def _rows_and_origin(where: Location) -> tuple[list[RankedExample], str]:
    """Return the rows, at most `where.limit`, and their origin, a path."""
    check_location(where)
    table = BENCHMARK_FILES.read(where)
    rows = []
    for index in limited_indices(len(table.rows), where.limit):
        rows.append(_example(table.rows[index], index, table.image_root, where))
    return rows, table.origin


def _example(row: Row, index: int, root: Path, where: Location) -> RankedExample:
    """Return a row of the table.

    Args:
        row: The row.
        index: The number of the row in the table.
        root: The folder that the paths of videos are relative to.
        where: The location, which says if videos or their frames are shown. Without a number of
            frames, as many are shown as the authors' model sees.

    Raises:
        RecordError: If a column is missing.
    """
    require_texts(row, KEPT, f"{NAME}:{index}")
    row_id = _row_id(row)
    identity = f"{NAME}:{index} ({row_id})"
    unavailable = ""
    if row[OVERALL] not in RANKS:
        unavailable = f"{OVERALL} is {row[OVERALL]!r}, not A, B or same"
    has_official_frames = True
    responses = []
    for side in ("A", "B"):
        video = row[f"path_{side}"]
        if where.videos == "video":
            shown_videos = video_at(root, video, identity)
            if not shown_videos:
                unavailable = unavailable or f"no video {video} under {root}"
            has_official_frames = False
            responses.append(Response(shown_videos))
            continue
        num_official = _official_number(row, side)
        num_frames = where.frames or num_official or FRAMES
        frames = frames_of_video(root, video, identity, num_frames)
        if not frames:
            unavailable = (
                unavailable or f"no frames of {video} under {root}: cut them by data/frames.py"
            )
        has_official_frames = has_official_frames and len(frames) == num_official
        responses.append(Response(frames))
    prompt = user_turn(row["prompt"], num_images=0)
    return RankedExample(
        key=content_key(prompt, [row["path_A"], row["path_B"]], []),
        images=(),
        prompt=prompt,
        responses=tuple(responses),
        ranks=RANKS.get(row[OVERALL], (0, 0)),
        group=OVERALL,
        source=NAME,
        identity=identity,
        row={
            "id": row_id,
            "has_official_frames": has_official_frames,
            **{name: row[name] for name in KEPT},
        },
        unavailable=unavailable,
    )


def _row_id(row: Row) -> str:
    """Return the id of a row: the paths of its videos. The table has no ids."""
    return f"{row['path_A']} {row['path_B']}"


def _official_number(row: Row, side: str) -> int | None:
    """Return the number of frames that the authors' model sees of a video.

    Returns None if the row does not state the video's frames and frames per second.
    """
    try:
        total = int(float(row[f"num_frames_{side}"]))
        fps = float(row[f"fps_{side}"])
    except (KeyError, ValueError):
        return None
    return num_frames_of_video(total, fps) if total > 0 and fps > 0 else None


def num_frames_of_video(total: int, fps: float) -> int:
    """Return the number of frames that `smart_nframes` of vision_process.py takes of a video.

    Args:
        total: The number of frames of the video.
        fps: The video's frames per second.
    """
    most = min(MAX_FRAMES, total) // 2 * 2
    num_frames = min(max(total / fps * FRAMES_PER_SECOND, MIN_FRAMES), most)
    return min(round(num_frames / 2) * 2, total)


# Predictions files


def official_records(rows: Sequence[RankedExample], scores: Sequence[Scores]) -> list[Record]:
    """Return the predictions with the columns of the official script's out_pair.csv.

    The reward Overall is the judge's score. The other rewards are the judge's attributes of these
    names, or null if it has no such attribute. A score that cannot be read is null too.
    """
    records = []
    for row, row_scores in zip(rows, scores, strict=True):
        record: Record = {name: row.row[name] for name in KEPT}
        for attribute in ATTRIBUTES:
            values: Sequence[float | None] = (None, None)
            if attribute == OVERALL:
                values = finite_scores(row_scores.values)
            elif attribute in row_scores.attributes:
                values = finite_scores(row_scores.attributes[attribute])
            record[f"reward_{attribute}_A"], record[f"reward_{attribute}_B"] = values
        records.append(record)
    return records


def read_predictions(path: Path) -> PredictionRecords:
    """Return the lines of a predictions file: JSON lines, or the official script's out_pair.csv.

    In a CSV file, a reward that is no finite number becomes null, as an unreadable one.

    Raises:
        UserError: If the file is neither.
    """
    if path.suffix != ".csv":
        return read_json_lines(path)
    records: list[Record | None] = []
    for row in read_csv(path):
        record: Record = dict(row)
        for name in row:
            if name.startswith("reward_"):
                record[name] = _finite_number(row[name])
        records.append(record)
    return records


def _finite_number(content: str) -> float | None:
    """Return the number that a text holds; None if it holds no finite number."""
    try:
        number = float(content)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _official_record_of_prediction(record: Record) -> Record:
    """Return a line of `predictions.jsonl`, the project's own file, in the official format.

    It has the overall label and score alone.
    """
    line = score_record_of_prediction(record)
    label_by_ranks = {ranks: label for label, ranks in RANKS.items()}
    first, second = line["scores"]
    return {
        "path_A": line["id"],
        "path_B": "",
        OVERALL: label_by_ranks[tuple(line["ranks"])],
        f"reward_{OVERALL}_A": first,
        f"reward_{OVERALL}_B": second,
    }


# Official score


def official_score(records: PredictionRecords) -> dict[str, Any]:
    """Return the figures of eval_videogen_rewardbench.py.

    `groups` has the accuracy with ties of each attribute, and `micro` is that of Overall. `detail`
    has for each attribute:

    - `with_ties` and `without_ties`, the figures of the script. The script's accuracy with ties
      depends on the order of pairs with equal differences, and these are in file order.
    - `best_threshold`, the highest accuracy with ties at any threshold, which does not depend on
      the order, and `threshold`, at which it is reached.
    - `tied` and `unlabelled`, the numbers of pairs with the label "same", and without a label.

    An attribute without any reward in the file has no figures.

    Raises:
        PredictionsError: If a line has another form, or there are no rewards of Overall.
    """
    pairs_by_attribute = {
        attribute: parse_records(records, partial(_pair, attribute), REQUIRED)
        for attribute in ATTRIBUTES
        if attribute == OVERALL or _has_rewards(records, attribute)
    }
    groups: dict[str, dict[str, Any]] = {}
    detail: dict[str, Any] = {}
    lines = []
    for attribute, pairs in pairs_by_attribute.items():
        labels = [label for label, _ in pairs]
        differences = [difference for _, difference in pairs]
        with_ties = accuracy_with_ties_one_by_one(labels, differences)
        without_ties = accuracy_without_ties(labels, differences)
        best = best_tie_threshold(labels, differences)
        groups[attribute] = {"n": len(pairs), "right": None, "accuracy": with_ties}
        detail[attribute] = {
            "with_ties": with_ties,
            "without_ties": without_ties,
            "best_threshold": best.accuracy,
            "threshold": best.threshold,
            "tied": labels.count(0),
            "unlabelled": labels.count(None),
        }
        lines.append(f"{attribute} Accuracy: With ties: {with_ties}, Without ties: {without_ties}")
    return {
        "micro": groups[OVERALL]["accuracy"],
        "macro": macro([group["accuracy"] for group in groups.values()]),
        "groups": groups,
        "detail": detail,
        "lines": lines,
    }


REQUIRED = (
    "path_A and path_B (texts), and for Overall and any of VQ, MQ and TA the label of people (A, B "
    "or same) and reward_NAME_A and reward_NAME_B (numbers; null for one that cannot be read)"
)


def _has_rewards(records: PredictionRecords, attribute: str) -> bool:
    """Return True if any line has a reward of an attribute."""
    for record in records:
        for side in ("A", "B"):
            if record is not None and record.get(f"reward_{attribute}_{side}") is not None:
                return True
    return False


def _pair(attribute: str, record: Record) -> tuple[PairLabel, float]:
    """Return the label of a line in an attribute, and the difference of its two rewards.

    The difference is NaN if a reward cannot be read.

    Raises:
        ValueError: If a value is missing or has the wrong type.
    """
    label = record[attribute]
    if label is not None and not isinstance(label, str):
        raise ValueError(f"{attribute} is {abbreviated(label)}; required is A, B or same")
    rewards = []
    for side in ("A", "B"):
        name = f"reward_{attribute}_{side}"
        reward = record[name]
        if reward is not None and not is_number(reward):
            raise ValueError(f"{name} is {abbreviated(reward)}; required is a number or null")
        rewards.append(math.nan if reward is None else float(reward))
    return LABELS.get(label or ""), rewards[0] - rewards[1]


def _official_row_name(record: Record) -> RowName:
    """Return the name of the row that a line is about."""
    return f"{text(record, 'path_A')} {text(record, 'path_B')}", ()


FILES_SCORED = {
    "predictions": ranked_predictions_format(
        "official", "official", _official_record_of_prediction
    ),
    "official": FileFormat(
        about="the columns of out_pair.csv, one line for each pair of videos: path_A, path_B, the "
        "labels VQ, MQ, TA and Overall, and reward_NAME_A and reward_NAME_B of each",
        marks=("path_A", "path_B", f"reward_{OVERALL}_A"),
        rules="official",
        row=_official_row_name,
    ),
}
RULES = {
    "official": ScoringRule(
        about="calc_accuracy.py of VideoAlign: accuracy with ties of Overall and each attribute; "
        "without ties, and the accuracy at the best threshold, under detail",
        reads="official",
        score=official_score,
        differs="attributes that the judge does not state have no figures",
    ),
}
VIDEOGEN_REWARDBENCH = Benchmark(
    name=NAME,
    load=load,
    check_location=check_location,
    read=read,
    read_predictions=read_predictions,
    files=FILES_SCORED,
    formats={"official": official_records},
    rules=RULES,
    ranked=True,
)
