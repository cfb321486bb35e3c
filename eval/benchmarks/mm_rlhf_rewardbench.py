"""MM-RLHF-RewardBench (arXiv 2502.10391): 170 pairs of 46 items.

Its figures are Acc over pairs, and Acc+ over items with every pair right.

The rows are in a local `mm_reward_bench.jsonl`, or else train-*.parquet, with the images next to it
(also in the embedded edition), or on the hub. Items about videos need folders of frames. The hub's
repository has them, and `python data/frames.py VIDEOS OUT --frames 32` cuts them. If a folder holds
more frames than the location's `frames` (32 by default), this number is taken, evenly spaced. Items
without frames are counted as unavailable. With `videos: video` of the location, judges see the
videos themselves, whose files are looked for where the frames are.

The benchmark publishes no prompt that shows both responses. Its authors' critic scores each
response alone, and the pairwise script of R1-Reward shows the winner first.
"""

import json
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from mmrm.data.encoded_video import Video
from mmrm.data.preference import EncodedImage, text_pair
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
    group_figures,
    in_drawn_order,
    macro,
    reward_records,
)
from mmrm.eval.benchmarks.prediction_records import (
    abbreviated,
    parse_rewards,
    predictions_format,
    row_name,
    text,
)
from mmrm.eval.benchmarks.rows import (
    PublishedBenchmark,
    content_key,
    image_of_row,
    require_texts,
    user_turn,
)
from mmrm.eval.benchmarks.video_frames import frames_of_video, video_at, with_note_on_videos
from mmrm.eval.candidates import Example

NAME = "mm_rlhf_rewardbench"
HUB = "yifanzhang114/MM-RLHF-RewardBench"
FILES = ("mm_reward_bench.jsonl", "data/train-*.parquet", "train-*.parquet")
KEYWORDS = ("mcq", "long", "short", "safety", "video")
"""The categories, in the order in which the official scorer looks for them within a path."""
KNOWN = (
    PublishedEdition(
        "the released edition",
        170,
        {"mcq": 42, "long": 37, "short": 34, "safety": 32, "video": 25},
        items=46,
        ids="mm_rlhf_rewardbench.txt",
    ),
)
FRAMES = 32
"""The number of frames of a video that the official script shows."""


# Rows


def load(where: Location) -> LoadedBenchmark:
    """Return the rows as `PublishedBenchmark.load` does.

    A note states the number of frames if a video is shown with more or fewer frames than FRAMES, or
    that the videos themselves are shown.
    """
    benchmark = published(where).load(where)
    if where.videos == "video":
        return with_note_on_videos(benchmark, where, f"{FRAMES} frames")
    num_frames = []
    for example in benchmark.examples:
        if example.source == "video":
            num_frames.append(len(example.images))
    if not num_frames or min(num_frames) == max(num_frames) == FRAMES:
        return benchmark
    note = (
        f"Videos are shown as {min(num_frames)} to {max(num_frames)} frames; the official script "
        f"takes {FRAMES}."
    )
    origin = replace(benchmark.origin, notes=(*benchmark.origin.notes, note))
    return replace(benchmark, origin=origin)


def published(where: Location) -> PublishedBenchmark:
    """Return the published benchmark, whose videos are shown as `where` says."""
    return PublishedBenchmark(
        name=NAME,
        title="MM-RLHF-RewardBench",
        hub=HUB,
        files=FILES,
        image=None,
        known=KNOWN,
        convert=partial(_example, where),
        videos=True,
    )


def _example(where: Location, row: Row, root: Path, identity: str) -> Example:
    """Return a row of the official file as an example.

    Args:
        where: The location, which says if a video or its frames are shown.
        row: The row.
        root: The folder that the paths of images and videos are relative to.
        identity: The benchmark and the row, for messages.
    """
    require_texts(row, ("id", "prompt", "chosen", "rejected"), identity)
    # An image that is stored in the row itself is a mapping, of which predictions keep the path.
    columns = {}
    for name, value in row.items():
        if value is not None:
            columns[name] = value.get("path") if isinstance(value, dict) else value

    video = row.get("video")
    unavailable = ""
    images: tuple[EncodedImage, ...] = ()
    videos: tuple[Video, ...] = ()
    if video:
        reference = video
        group = "video"
        source = "video"
        if where.videos == "video":
            videos = video_at(root, video, identity)
            if not videos:
                unavailable = f"no video {video} under {root}"
        else:
            images = frames_of_video(root, video, identity, where.frames or FRAMES)
            if not images:
                unavailable = f"no frames of {video} under {root}: cut them by data/frames.py"
    else:
        images, reference = image_of_row(row.get("image"), root, identity)
        group = _group(str(columns.get("image") or ""))
        source = "image"

    prompt = user_turn(row["prompt"], len(images), num_videos=len(videos))
    responses, better = in_drawn_order(row["prompt"], row["chosen"], row["rejected"])
    return Example(
        key=content_key(prompt, sorted(responses), [reference]),
        images=images,
        videos=videos,
        prompt=prompt,
        responses=text_pair(*responses),
        better=better,
        group=group,
        source=source,
        identity=identity,
        row=columns,
        official_first=better,  # the only published pairwise script shows the winner first
        unavailable=unavailable,
    )


def _group(path: str) -> str:
    """Return the category of an image with this path.

    It is the first of KEYWORDS that is a folder of the path, else the first one that the path
    contains anywhere, else `other`. Folders come first because a file name may contain a keyword by
    chance. The official scorer does not look for folders, so an image root such as `/data/long/`
    makes every row `long` there.
    """
    folders = Path(path).parts
    for keyword in KEYWORDS:
        if keyword in folders:
            return keyword
    return _keyword(path) or "other"


# Official score


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """A line of a predictions file, as the official scorer reads it."""

    identity: Hashable
    """The id; several rows of one item share it."""
    image: str
    """The path of the image; an empty text if the row has none."""
    video: str
    """The path of the video; an empty text if the row has none."""
    is_right: bool

    @property
    def keyword(self) -> str | None:
        """The category that the scorer counts the row under; None if its path has no keyword."""
        return _keyword(self.image or self.video)


def official_score(records: PredictionRecords, ties_right: bool = False) -> dict[str, Any]:
    """Return the figures of the official scorer, with equal rewards right if `ties_right` is True.

    The scorer is Kwai's cal_performance_mmreweard_bench.py at 7c8af1d. R1-Reward's is the same. An
    item is all rows with the same id. Acc+ is the share of items with all rows right.

    The category of a row is the first keyword that its path contains. Rows without a keyword count
    in the overall figures only. An item with all rows right is credited to the first keyword that
    any of its paths contains, but it counts in the denominator of every keyword that they contain.
    All rows without an id are one item. `detail` holds everything that the script computes.

    Raises:
        PredictionsError: If the script could not read a line.
    """
    rows = _scored_rows(records, ties_right)
    rows_by_item: dict[Hashable, list[ScoredRow]] = {}
    for row in rows:
        rows_by_item.setdefault(row.identity, []).append(row)
    items = list(rows_by_item.values())
    right_items = []
    for item in items:
        if all(row.is_right for row in item):
            right_items.append(item)

    total = Counter(row.keyword for row in rows)
    # The script looks for the keyword of a right row in both of its paths. Rows without a keyword
    # are counted under an empty text.
    right = Counter(_keyword(row.image, row.video) or "" for row in rows if row.is_right)
    credited = Counter(_credited_keyword(item) for item in right_items)
    num_items = {}
    stats = {}
    for keyword in KEYWORDS:
        num_items[keyword] = sum(_mentions(item, keyword) for item in items)
        # The script does not divide the counts of a keyword without rows.
        row_divisor = total[keyword] or 1
        item_divisor = num_items[keyword] if total[keyword] else 1
        stats[keyword] = {
            "accuracy": right[keyword] / row_divisor,
            "acc_plus": credited[keyword] / item_divisor,
            "total": total[keyword],
        }
    num_right = sum(row.is_right for row in rows)
    overall = {
        "accuracy": num_right / len(rows),
        "acc_plus": len(right_items) / len(items),
        "total": len(rows),
    }
    total_by_group = {keyword: total[keyword] for keyword in KEYWORDS if total[keyword]}
    groups = group_figures(right, total_by_group)
    for keyword, figures in groups.items():
        figures["acc_plus"] = stats[keyword]["acc_plus"]
        figures["items"] = num_items[keyword]
    return {
        "micro": overall["accuracy"],
        "macro": macro([stats[keyword]["accuracy"] for keyword in total_by_group]),
        "acc_plus": overall["acc_plus"],
        "groups": groups,
        "detail": {"category_stats": stats, "groups": len(items), "overall_stats": overall},
    }


def _scored_rows(records: PredictionRecords, ties_right: bool) -> list[ScoredRow]:
    """Return the lines of a predictions file, with equal rewards right if `ties_right` is True."""
    columns = "image or video (a path; leave the other one out, null stops the official script)"
    parsed = parse_rewards(records, _id_and_paths, columns, ties_right)
    rows = []
    for (identity, image, video), is_right in parsed:
        rows.append(ScoredRow(identity, image, video, is_right))
    return rows


def _keyword(*paths: str) -> str | None:
    """Return the first keyword that any of the paths contains."""
    for keyword in KEYWORDS:
        if any(keyword in path for path in paths):
            return keyword
    return None


def _credited_keyword(item: Sequence[ScoredRow]) -> str | None:
    """Return the keyword that an item with all rows right is credited to."""
    paths = []
    for row in item:
        paths += [row.image, row.video]
    return _keyword(*paths)


def _mentions(item: Sequence[ScoredRow], keyword: str) -> bool:
    """Return True if any row's image path followed by its video path contains the keyword."""
    return any(keyword in row.image + row.video for row in item)


def _id_and_paths(record: Record) -> tuple[Hashable, str, str]:
    """Return the id, the path of the image and the path of the video of a line.

    A path that is left out is an empty text.
    """
    # `text` refuses a path that is null, as the official scorer does. Only a missing one is empty.
    image = text({"image": "", **record}, "image")
    video = text({"video": "", **record}, "video")
    identity = record.get("id", "")
    if isinstance(identity, list | dict):
        raise ValueError(f"id is {abbreviated(identity)}; required is a text or a number")
    return identity, image, video


def _row_name(record: Record) -> RowName:
    """Return the name (id and texts) of the row that a line of a predictions file is about.

    If the line's id is missing or not a text, the result is a name that no row has.
    """
    identity = record.get("id", "")
    if not isinstance(identity, str):
        identity = json.dumps(identity)
    return row_name({**record, "id": identity})


def _path_group(record: Record) -> str:
    """Return the category under which the official script counts a line."""
    _, image, video = _id_and_paths(record)
    return _keyword(image or video) or "no category"


FILES_SCORED = {
    "predictions": predictions_format("official", "official"),
    "official": FileFormat(
        about="id, image or video (a path) and rewards, [of the better response, of the other]",
        marks=("rewards",),
        rules="official",
        row=_row_name,
        group=_path_group,
    ),
}
RULES = {
    "official": ScoringRule(
        about="Kwai's and R1-Reward's scorer: Acc and Acc+, ties wrong",
        reads="official",
        score=official_score,
        differs="it prints two decimals; macro, the mean of the categories, is added",
    ),
    "ties_right": ScoringRule(
        about="the official scorer with ties right",
        reads="official",
        score=partial(official_score, ties_right=True),
        differs="a tie counts as right",
    ),
}
MM_RLHF_REWARDBENCH = Benchmark(
    name=NAME,
    load=load,
    check_location=lambda where: published(where).check_location(where),
    read=lambda where: published(where).read(where),
    files=FILES_SCORED,
    formats={"official": reward_records},
    rules=RULES,
    known=KNOWN,
    item=lambda example: str(example.row["id"]),
    official_note="The only released pairwise script for this benchmark shows the winner first: "
    "official order does too.",
)
