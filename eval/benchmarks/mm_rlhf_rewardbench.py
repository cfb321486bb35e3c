"""MM-RLHF-RewardBench (arXiv 2502.10391): 170 pairs of 46 items.

Its figures are Acc over pairs, and Acc+ over items with every pair right.

The rows are in a local `mm_reward_bench.jsonl`, or else train-*.parquet, with the images next to it
(also in the embedded edition), or on the hub. Items about videos need folders of frames. The hub's
repository has them, and `python data/frames.py VIDEOS OUT --frames 32` cuts them. If a folder holds
more than `frames` (32) frames, this number is taken, evenly spaced. Items without frames are counted
as unavailable.

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

import numpy as np

from mmrm.data.preference import EncodedImage
from mmrm.data.storage.row_files import Row
from mmrm.data.video import is_video_name
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
from mmrm.eval.benchmarks.prediction_records import own_format, parse_rewards, row_name, shown, text
from mmrm.eval.benchmarks.rows import (
    Published,
    content_key,
    encoded,
    require_texts,
    under,
    user_turn,
)
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
FRAME_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")


# Rows


def load(where: Location) -> LoadedBenchmark:
    """Return the rows as `Published.load` does.

    A note states the number of frames if videos are not shown as the official 32.
    """
    benchmark = _published(where).load(where)
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


def _published(where: Location) -> Published:
    """Return the published benchmark, whose videos have the location's number of frames."""
    return Published(
        name=NAME,
        title="MM-RLHF-RewardBench",
        hub=HUB,
        files=FILES,
        image=None,
        known=KNOWN,
        convert=partial(_example, where.frames or FRAMES),
        videos=True,
    )


def _example(num_frames: int, row: Row, root: Path, identity: str) -> Example:
    """Return a row of the official file as an example, with at most `num_frames` of its video."""
    require_texts(row, ("id", "prompt", "chosen", "rejected"), identity)
    columns = {}
    for name, value in row.items():
        if value is not None:
            columns[name] = value.get("path") if isinstance(value, dict) else value

    video = row.get("video")
    unavailable = ""
    if video:
        images = _frames(root, video, identity, num_frames)
        reference = video
        group = "video"
        source = "video"
        if not images:
            unavailable = f"no frames of {video} under {root}: cut them by data/frames.py"
    else:
        images, reference = encoded(row.get("image"), root, identity)
        group = _group(str(columns.get("image") or ""))
        source = "image"

    prompt = user_turn(row["prompt"], len(images))
    responses, better = in_drawn_order(row["prompt"], row["chosen"], row["rejected"])
    return Example(
        key=content_key(prompt, sorted(responses), [reference]),
        images=images,
        prompt=prompt,
        responses=responses,
        better=better,
        group=group,
        source=source,
        identity=identity,
        row=columns,
        official_first=better,
        unavailable=unavailable,
    )


def _group(path: str) -> str:
    """Return the category of an image: a folder of that name, else the first keyword in its path.

    Without either it is `other`. The official scorer takes the first keyword within the path alone,
    so an image root such as `/data/long/` makes every row `long` there.
    """
    folders = Path(path).parts
    for keyword in KEYWORDS:
        if keyword in folders:
            return keyword
    return _keyword(path) or "other"


def _frames(root: Path, reference: str, record: str, count: int) -> tuple[EncodedImage, ...]:
    """Return at most `count` evenly spaced frames of a video by name; none if they are missing.

    A row names video/<name>, and the repository on the hub keeps the frames under images/<name>.
    The frames of a file <name>.mp4 are in the folder <name>.
    """
    path = Path(reference)
    if is_video_name(reference):
        path = path.with_suffix("")
    for name in (path, path.name):
        folder = under(root, str(name), record)
        if folder.is_dir():
            files = [file for file in folder.iterdir() if file.suffix.lower() in FRAME_SUFFIXES]
            files.sort()
            indices = np.linspace(0, len(files) - 1, min(count, len(files)), dtype=int)
            return tuple(files[index] for index in indices)
    return ()


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
        """The category that the scorer counts the row under."""
        return _keyword(self.image or self.video)


def official_score(records: PredictionRecords, ties_right: bool = False) -> dict[str, Any]:
    """Return the figures of the official scorer.

    The scorer is Kwai's cal_performance_mmreweard_bench.py at 7c8af1d, which R1-Reward's equals. A
    row's category is the first keyword that its path contains. An item is credited to the first
    keyword that any of its paths contains, but counts in the denominator of every keyword that they
    contain. Rows without a keyword count overall only, and a keyword without rows keeps its counts
    undivided. All rows without an id are one item, as the script's `item.get("id", "")` makes them.
    `detail` holds everything that the script computes.

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
    right = Counter(_keyword(row.image, row.video) or "" for row in rows if row.is_right)
    credited = Counter(_credited_keyword(item) for item in right_items)
    num_items = {}
    stats = {}
    for keyword in KEYWORDS:
        num_items[keyword] = sum(_mentions(item, keyword) for item in items)
        num_possible = num_items[keyword] if total[keyword] else 1
        stats[keyword] = {
            "accuracy": right[keyword] / (total[keyword] or 1),
            "acc_plus": credited[keyword] / num_possible,
            "total": total[keyword],
        }
    num_right = sum(row.is_right for row in rows)
    overall = {
        "accuracy": num_right / len(rows),
        "acc_plus": len(right_items) / len(items),
        "total": len(rows),
    }
    total_by_present = {keyword: total[keyword] for keyword in KEYWORDS if total[keyword]}
    groups = group_figures(right, total_by_present)
    for keyword, figures in groups.items():
        figures["acc_plus"] = stats[keyword]["acc_plus"]
        figures["items"] = num_items[keyword]
    return {
        "micro": overall["accuracy"],
        "macro": macro([stats[keyword]["accuracy"] for keyword in total_by_present]),
        "acc_plus": overall["acc_plus"],
        "groups": groups,
        "detail": {"category_stats": stats, "groups": len(items), "overall_stats": overall},
    }


def _scored_rows(records: PredictionRecords, ties_right: bool) -> list[ScoredRow]:
    """Return the lines of a predictions file."""
    columns = "image or video (a path; leave the other one out, null stops the official script)"
    rows = []
    for (identity, image, video), is_right in parse_rewards(records, _paths, columns, ties_right):
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
    """Return True if a row of the item contains the keyword in its two paths, written together."""
    return any(keyword in row.image + row.video for row in item)


def _paths(record: Record) -> tuple[Hashable, str, str]:
    """Return the id, the path of the image and the path of the video of a line.

    A path that is left out is an empty text.
    """
    image = text({"image": "", **record}, "image")
    video = text({"video": "", **record}, "video")
    identity = record.get("id", "")
    if isinstance(identity, list | dict):
        raise ValueError(f"id is {shown(identity)}; required is a text or a number")
    return identity, image, video


def _row_name(record: Record) -> RowName:
    """Return the name of the row that a line is about.

    A line without an id, or with one that is not a text, gets a name that no known row has.
    """
    identity = record.get("id", "")
    if not isinstance(identity, str):
        identity = json.dumps(identity)
    return row_name({**record, "id": identity})


def _path_group(record: Record) -> str:
    """Return the category under which the official script counts a line."""
    _, image, video = _paths(record)
    return _keyword(image or video) or "no category"


FILES_SCORED = {
    "predictions": own_format("official", "official"),
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
    look=lambda where: _published(where).look(where),
    read=lambda where: _published(where).read(where),
    files=FILES_SCORED,
    formats={"official": reward_records},
    rules=RULES,
    known=KNOWN,
    item=lambda example: str(example.row["id"]),
    official_note="The only released pairwise script for this benchmark shows the winner first: "
    "official order does too.",
)
